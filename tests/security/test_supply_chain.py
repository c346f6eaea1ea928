"""What we ship is made of what the locks name, no licence in it is a surprise, and the image holds what it needs."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-server.lock", "requirements-tools.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CONTAINER = (ROOT / "deploy" / "container" / "Containerfile").read_text("utf-8")

# Whoever adds a dependency looks at its licence once. Permissive: any use.
PERMISSIVE = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0"),
        *("Zlib", "3-Clause BSD License", "BSD License", "MIT License", "ISC License", "ISC License (ISCL)"),
        *("Apache Software License",),
    }
)
# Weak copyleft binds changes to their own files, or to the library itself: we change none and link to none statically.
WEAK = {
    "asyncinotify": "MPL-2.0",
    "certifi": "MPL-2.0",
    "orjson": "MPL-2.0 AND (Apache-2.0 OR MIT)",
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
}


def locked(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Package → its version and the hashes that its files may have."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", (ROOT / name).read_text("utf-8")):
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\\n]+)", entry):
            found[canonicalize_name(match[1])] = match[2], frozenset(re.findall(r"--hash=(sha256:[0-9a-f]{64})", entry))
    return found


SERVER = locked("requirements-server.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_one_version_and_hashes(name: str) -> None:
    """pip takes nothing else from it, whoever answers in the name of the index; and no index is named."""
    found = locked(name)
    assert len(found) > 40
    assert [package for package, (_, hashes) in found.items() if not hashes] == []
    text = (ROOT / name).read_text("utf-8")
    names = re.findall(r"^([A-Za-z0-9._-]+)(?:==| @|>=|$)", text, flags=re.MULTILINE)
    assert len(names) == len(found)
    assert not re.search(r"https?://|^-|\bfile:/", text, flags=re.MULTILINE)


def test_the_services_lock_is_a_part_of_the_one_that_the_tests_run_with() -> None:
    """What was tested is what is shipped, to the byte."""
    everything = locked("requirements.lock")
    assert {package: everything.get(package) for package in SERVER} == SERVER


def closure(requirements: list[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """All packages that these need on this host, by the metadata of what is installed."""
    found: set[str] = set()
    wanted = [Requirement(text) for text in requirements]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras, *requirement.extras}
        ):
            continue
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key in found:
            continue
        found |= {key, name}
        for text in metadata.requires(name) or ():
            inner = Requirement(text)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in {"", *requirement.extras}
            ):
                inner.marker = None
                wanted.append(inner)
    return {name for name in found if "[" not in name}


def test_the_services_lock_is_what_the_service_needs() -> None:
    """Nothing is missing from it, and nothing of the tests' is in it. Markers of other platforms may add some."""
    needed = closure([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["server"]])
    assert needed - set(SERVER) == set()
    assert set(SERVER) - needed <= {"cffi", "pycparser", "colorama", "tzdata"}


def licence(package: str) -> str:
    """What the package says of itself; as it says it."""
    told = metadata.metadata(package)
    words = next((told[key].strip() for key in ("License-Expression", "License") if key in told), "")
    if words and "\n" not in words:
        return words
    names = [each.rpartition(" :: ")[2] for each in told.get_all("Classifier", ()) if each.startswith("License")]
    return " AND ".join(names)


def test_no_licence_of_what_we_run_is_a_surprise() -> None:
    """Permissive, or one of the few that docs/dependencies.md names; none that reaches beyond its own files."""
    strange = {}
    for package in SERVER:
        words = licence(package)
        if WEAK.get(package) == words:
            continue
        parts = [part.strip(" ()") for part in re.split(r"\bAND\b|\bOR\b", words)]
        if not words or not set(parts) <= PERMISSIVE:
            strange[package] = words
    assert strange == {}
    text = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    assert [package for package in WEAK if f"{package} " not in text and f"{package}," not in text] == []


def test_every_direct_dependency_has_its_sentence() -> None:
    """Why it, and why not another: who adds one without saying so is told here."""
    text = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    named = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["server"]]
    assert [name for name in (Requirement(each).name for each in named) if name not in text] == []


# The container


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", CONTAINER, flags=re.MULTILINE))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    return found[max(place for place, (word, _) in enumerate(found) if word == "FROM") :]


def test_the_image_installs_from_locks_only() -> None:
    """Each `pip install` demands hashes, or takes the one wheel that was built here, without an index."""
    found = [
        part
        for word, rest in instructions()
        if word == "RUN"
        for part in rest.split("&&")
        if re.search(r"\bpip\b.* (install|wheel) ", part)
    ]
    assert len(found) == 4
    for part in found:
        locked_to = "--require-hashes" in part and re.search(r"-r /locks/requirements-[a-z]+\.lock", part)
        own = "--no-deps" in part and ("--no-index" in part or "--no-build-isolation" in part)
        assert locked_to or own, part
    assert not re.search(r"curl|wget|\| *(ba)?sh\b|^ADD|--trusted-host|--index-url", CONTAINER, flags=re.MULTILINE)


def test_the_image_runs_as_nobody_in_particular_and_needs_no_shell() -> None:
    """A user by number, commands in exec form, no compiler, no pip, no set-uid program; a base that can be pinned."""
    stage = last_stage()
    words = dict(stage)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", words["USER"])
    after = [word for word, _ in stage[[word for word, _ in stage].index("USER") :]]
    assert "RUN" not in after
    assert words["ENTRYPOINT"].startswith("[")
    assert words["CMD"].startswith("[")
    assert " CMD [" in words["HEALTHCHECK"]
    ran = " ".join(rest for word, rest in stage if word == "RUN")
    packages = re.search(r"apt-get install -y --no-install-recommends ([^&]*)&&", ran)
    assert packages is not None
    assert packages[1].split() == ["python3"]
    assert "rm -rf /var/lib/apt/lists/*" in ran
    assert "-perm /6000 -exec chmod a-s {} +" in ran
    assert "python3 -m venv --without-pip /opt/recovery-advisor" in CONTAINER
    assert [rest for word, rest in instructions() if word == "FROM"] == ["${BASE} AS build", "${BASE}"]
    assert "sudo" not in CONTAINER


def test_the_image_is_run_without_rights() -> None:
    """The command that the file shows, for people copy it."""
    for flag in ("--read-only", "--cap-drop all", "--security-opt no-new-privileges", "--network none", "--user "):
        assert flag in CONTAINER


def test_nothing_of_the_checkout_gets_into_the_image_unnamed() -> None:
    """Everything is left out but what is listed: no key, no test, no history."""
    ignored = (ROOT / "deploy" / "container" / "Containerfile.containerignore").read_text("utf-8").splitlines()
    assert ignored[0] == "*"
    listed = {line[1:] for line in ignored if line.startswith("!")}
    assert {"requirements-server.lock", "requirements-tools.lock", "pyproject.toml", "migrations"} <= listed
    assert listed.isdisjoint({"tests", ".git", ".venv", "benchmarks", "*"})


def test_make_lists_and_audits_by_locked_tools() -> None:
    """`make sbom` and `make audit` use tools with hashes; the list is reproducible and of the service's lock."""
    text = (ROOT / "Makefile").read_text("utf-8")
    sbom = text[text.index("\nsbom:") : text.index("\n.PHONY: audit")]
    assert "--output-reproducible" in sbom
    assert "-r requirements-server.lock" in sbom
    assert "--require-hashes -r requirements-tools.lock" in text
    for lock in LOCKS:
        assert f"--output-file {lock}" in text
