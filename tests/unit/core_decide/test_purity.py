"""The core reads no clock, does no I/O and uses no randomness, as its source shows."""

import ast
from pathlib import Path

import pytest

import advisor.core

CORE = Path(advisor.core.__file__).parent
SOURCES = sorted(CORE.glob("*.py"))

# What the core may import besides itself. Anything else needs a reason in a review, and a line here.
ALLOWED = frozenset(
    {
        "base64",
        "binascii",
        "bisect",
        "collections",
        "collections.abc",
        "contextlib",
        "dataclasses",
        "datetime",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "numpy",  # arithmetic over the samples of thousands of GPUs, and nothing else of it
        "numpy.typing",
        "operator",
        "re",
        "re2",
        "slurm_plugin.hostlist",  # pure, standard library only, and held to that by its own tests
        "statistics",
        "string",
        "struct",
        "types",
        "typing",
        "unicodedata",
        "zoneinfo",
    }
)
CLOCKS = frozenset({"now", "utcnow", "today", "time", "monotonic", "perf_counter", "time_ns", "localtime", "gmtime"})
WORLD = frozenset({"open", "input", "print", "exec", "eval", "__import__", "compile", "breakpoint", "id", "hash"})


def _imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=module, level=level):
                found.add(module or "" if level == 0 else "advisor.core")
    return found


def _impure(tree: ast.AST) -> list[str]:
    """Calls of clocks, builtins that reach outside, and iteration that depends on the hash seed."""
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in WORLD:
                found.append(f"line {node.lineno}: {name}()")
            case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCKS and not (node.args or node.keywords):
                found.append(f"line {node.lineno}: .{name}()")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime"), attr=name)) if name in CLOCKS:
                found.append(f"line {node.lineno}: datetime.{name}()")
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "enumerate" as name), args=[ast.Set() | ast.SetComp(), *_]
            ):
                found.append(f"line {node.lineno}: {name} of a set, in no order")
            case ast.For(iter=ast.Set() | ast.SetComp()):
                found.append(f"line {node.lineno}: for over a set, in no order")
            case ast.Global() | ast.Nonlocal():
                found.append(f"line {node.lineno}: state outside a function")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_core_module_touches_nothing_outside(path: Path) -> None:
    """Only the core itself and harmless parts of the standard library are imported, and nothing impure is called."""
    tree = ast.parse(path.read_text())
    foreign = {name for name in _imports(tree) if name not in ALLOWED and not name.startswith("advisor.core")}
    assert not foreign
    assert not _impure(tree)


def test_there_is_a_core_to_check() -> None:
    """The check above would pass on an empty folder."""
    assert {"decide.py", "remediation.py", "detection.py", "codec.py"} <= {path.name for path in SOURCES}


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime\nx = datetime.now()",
        "x = datetime.now(UTC)",
        "x = clock.monotonic()",
        "open('x')",
        "for a in {1, 2}: pass",
        "x = list({a for a in b})",
        "def f():\n    global x",
    ],
)
def test_the_check_finds_what_it_looks_for(source: str) -> None:
    """Each kind of impurity is found in a line that has it."""
    assert _impure(ast.parse(source))


@pytest.mark.parametrize("source", ["import os", "import time", "from random import choice", "import uuid, socket"])
def test_imports_of_the_world_are_found(source: str) -> None:
    """Modules that reach outside are not on the list."""
    assert not _imports(ast.parse(source)) <= ALLOWED
