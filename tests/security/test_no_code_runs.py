"""Nothing that users write is run: no shell anywhere, no reader that runs what it reads, no page that trusts a text."""

import ast
import os
import pickle
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from advisor.bundle import read_bundle
from advisor.core.flight_recorder import DumpError, read_dump
from tests.unit.core_detect.logs import NOON, SCANNER

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("advisor", "connectors", "slurm_plugin", "watchdog", "migrations")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# A call that hands text to a shell, or runs what it reads.
FORBIDDEN = frozenset(
    {
        *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
        *("asyncio.create_subprocess_shell", "pty.spawn", "eval", "exec", "compile", "__import__"),
        *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open"),
        *("yaml.load", "torch.load", "numpy.load", "runpy.run_path", "code.interact"),
    }
)
SHELLS = re.compile(r"(^|/)(ba|da|z|k|c)?sh$")


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.Module) -> dict[str, str]:
    """What a name of this module stands for elsewhere: `from os import system as run` is no way around."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return names


def findings(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    names = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        head, _, rest = dotted(node.func).partition(".")
        called = ".".join(part for part in (names.get(head, head), rest) if part)
        if called in FORBIDDEN:
            yield f"{node.lineno}: {called}"
        for word in node.keywords:
            off = isinstance(word.value, ast.Constant) and word.value.value is False
            if word.arg in {"shell", "executable"} and called.startswith(("subprocess.", "asyncio.")) and not off:
                yield f"{node.lineno}: {called}({word.arg}=...)"
            if word.arg == "allow_pickle" and not off:
                yield f"{node.lineno}: {called}(allow_pickle=...)"
        for argument in node.args:
            first = argument.elts[0] if isinstance(argument, ast.List | ast.Tuple) and argument.elts else argument
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and SHELLS.search(first.value):
                # The demo opens an interactive shell for who typed `advisor demo --keep`; nothing is handed to it.
                yield f"{node.lineno}: the shell {first.value}"


def test_no_code_of_ours_uses_a_shell_or_runs_what_it_reads() -> None:
    """Every program is started by a list of words, every value is read by a reader that only makes values."""
    assert len(SOURCES) > 200
    found = [f"{path.relative_to(ROOT)}:{what}" for path in SOURCES for what in findings(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.system('x')",
        "from os import popen as p\np('x')",
        "import subprocess as s\ns.run('x', shell=True)",
        "import subprocess\nsubprocess.run(['/bin/sh', '-c', x])",
        "import asyncio\nasyncio.create_subprocess_shell('x')",
        "import pickle\npickle.loads(x)",
        "import numpy as np\nnp.load(x, allow_pickle=True)",
        "eval(x)",
    ],
)
def test_the_search_finds_each_kind(text: str) -> None:
    """The check above can fail."""
    assert list(findings(text))


def test_templates_escape_and_trust_nothing() -> None:
    """No template switches escaping off, and none holds a script of its own that text could get into."""
    templates = sorted((ROOT / "advisor" / "service" / "dashboard").rglob("*.html"))
    assert templates
    for path in templates:
        text = path.read_text("utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape\s+false|<script(?![^>]*\bsrc=)|\son[a-z]+=|javascript:", text), (
            path
        )


class Canary:
    """Writes a file as soon as a careless reader makes it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (self.path,)


def bombs(canary: Path) -> list[bytes]:
    whole = pickle.dumps(Canary(canary))
    inside = {"version": "2.5", "entries": [{"record_id": Canary(canary), "state": "started"}], "pg_config": {}}
    written = f"cos\nmkdir\n(V{canary}\ntR.".encode()
    instance = f"(ios\nmkdir\nV{canary}\n.".encode()
    return [
        whole,
        written,
        instance,
        *(pickle.dumps(inside, protocol) for protocol in range(6)),
        pickle.dumps({"entries": []}) + whole,
    ]


def test_pickle_bombs_in_place_of_flight_recorder_dumps_run_nothing(tmp_path: Path) -> None:
    """By every opcode that calls, at any place of a dump: refused, and the canary stays unborn."""
    canary = tmp_path / "canary"
    for bomb in bombs(canary):
        with suppress(DumpError):
            read_dump(bomb, 0)
        assert not canary.exists()
    pickle.loads(bombs(canary)[0])
    assert canary.is_dir()  # the standard reader would have run it


def test_a_bundle_full_of_pickle_bombs_is_analysed(tmp_path: Path) -> None:
    """The failure is read from the log, the dumps are reported as unusable, and nothing has run."""
    canary, folder = tmp_path / "canary", tmp_path / "bundle"
    (folder / "flight_recorder").mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / "logs" / "a.log").write_bytes(b"Traceback (most recent call last):\nKeyError: 'x'\n")
    for rank, bomb in enumerate(bombs(canary)):
        (folder / "flight_recorder" / f"dump_{rank}").write_bytes(bomb)
        (folder / "logs" / f"rank{rank}.log").write_bytes(bomb)
    world = read_bundle(folder, SCANNER, NOON)
    assert not canary.exists()
    assert any(signal.rule.startswith("python.") for signal in world.signals)
    (source,) = [source for source in world.sources if source.source == "flight_recorder"]
    assert source.capped or source.unavailable is not None
