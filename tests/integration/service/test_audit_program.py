"""`advisor audit` against a running service: what an operator or auditor types."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from advisor.commands.database import NOT_YOURS
from tests.integration.service.programs import PROJECT, advisor, serving
from tests.integration.service.world import configuration

pytestmark = pytest.mark.postgres

# Imports first: a checkout under a private home could not be imported by him.
# Once as who may, so that everything is loaded: a checkout in root's home can be read by nobody else.
_AS_NOBODY = """
import contextlib, os, sys
from advisor import cli
with contextlib.redirect_stdout(open(os.devnull, "w")), contextlib.suppress(SystemExit):
    cli.main(["audit", "verify", "--config", sys.argv[1]])
os.setresuid(65534, 65534, 65534)
cli.main(["audit", "verify", "--config", sys.argv[1]])
"""


def _database(folder: Path) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(host=str(folder / "data/postgres/sockets"), user="advisor", dbname="advisor")


def _heads(folder: Path) -> tuple[object, object]:
    """The last row of the audit, and the last one that is sealed."""
    with _database(folder) as database:
        last = database.execute("SELECT max(seq) FROM audit").fetchone()
        seal = database.execute(
            "SELECT convert_from(document, 'UTF8') FROM seals ORDER BY number DESC LIMIT 1"
        ).fetchone()
    return (last or (0,))[0], json.loads(str(seal[0]))["heads"].get("audit") if seal is not None else None


def _until_sealed(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while (heads := _heads(folder))[0] != heads[1]:
        assert time.monotonic() < deadline, heads
        time.sleep(0.05)


def test_who_set_a_mode_is_sealed_and_a_later_change_is_found(folder: Path) -> None:
    """An operator's action is kept with who and from where; verified; tampered with; found, by row and by the copy."""
    key = folder / "seal.key"
    configuration(folder, f'[seal]\nkey_file = "{key}"\ninterval_seconds = 0.2\n[retention]\nmonths = 12')
    new = [sys.executable, "-m", "advisor", "audit", "key", "new", str(key)]
    subprocess.run(new, check=True, capture_output=True, cwd=PROJECT, timeout=30)
    trusted = ("--public-key", f"{key}.pub")
    copy = folder / "seals.jsonl"
    with serving(folder):
        done = advisor(folder, "mode", "set", "monitor", "--why", "night shift")
        assert done.returncode == 0, done.stderr
        _until_sealed(folder)
        with _database(folder) as database:
            found = database.execute("SELECT who, origin FROM audit WHERE what = 'mode_set'").fetchall()
        assert found
        assert all(who and origin for who, origin in found)
        assert advisor(folder, "audit", "seals", "--export", str(copy)).returncode == 0
        good = advisor(folder, "audit", "verify", *trusted, "--against", str(copy))
        assert (good.returncode, good.stdout[:9]) == (0, "as it was"), good.stdout + good.stderr
        folder.chmod(0o755)
        plain = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, str(folder / "advisor.toml")],
            capture_output=True,
            text=True,
            cwd=PROJECT,
            timeout=60,
            check=False,
        )
        assert (plain.returncode, plain.stderr) == (2, f"advisor: {NOT_YOURS}\n")
        kept = advisor(folder, "audit", "retention", "--dry-run", "--months", "1")
        assert (kept.returncode, "0 parts would go" in kept.stdout) == (0, True), kept.stderr
        with _database(folder) as database:
            database.execute("SET LOCAL session_replication_role = replica")
            database.execute("UPDATE audit SET why = 'x' WHERE what = 'mode_set'")
        bad = advisor(folder, "audit", "verify", *trusted, "--format", "json")
        assert bad.returncode == 1
        assert {(item["wrong"], item["table"]) for item in json.loads(bad.stdout)["findings"]} == {
            ("row_changed", "audit")
        }
    alone = advisor(folder, "audit", "seals", "--check", str(copy), *trusted)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    copy.write_text(copy.read_text().replace("mode", "MODE", 1) + "{}\n")
    broken = advisor(folder, "audit", "seals", "--check", str(copy))
    assert (broken.returncode, "not a seal" in broken.stderr) == (2, True)


def test_a_key_that_others_can_read_is_refused_at_start(folder: Path) -> None:
    """The service does not start with a seal key that is open to others, and says what to do."""
    key = folder / "seal.key"
    configuration(folder, f'[seal]\nkey_file = "{key}"')
    key.write_text("x")
    key.chmod(0o644)
    refused = advisor(folder, "serve")
    assert refused.returncode != 0
    assert "chmod 600" in refused.stderr
