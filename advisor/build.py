"""Which build this is: the version, and a hash of the code that decides. Stored with every decision."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.resources import files

DISTRIBUTION = "recovery-advisor"


@cache
def version() -> str:
    try:
        return version_of(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+source"


@cache
def build_id() -> str:
    """`version+core.hash`. Two builds with the same id decide alike: the core has no other input than its arguments."""
    digest = hashlib.sha256()
    for source in sorted(files("advisor.core").iterdir(), key=lambda item: item.name):
        if source.name.endswith(".py"):
            digest.update(source.name.encode())
            digest.update(hashlib.sha256(source.read_bytes()).digest())
    return f"{version()}+core.{digest.hexdigest()[:12]}"
