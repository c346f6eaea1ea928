"""How commands speak: harmless text, one-line errors, and a verdict that can be acted on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.cli import COMMANDS, main
from advisor.commands.decisions import verdict
from advisor.commands.options import find_socket
from advisor.commands.output import CommandError, harmless, one_line
from advisor.v1 import audit_pb2, common_pb2

PROJECT = Path(__file__).resolve().parents[3]


def _advisor(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "advisor", *arguments],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "COLUMNS": "200", **(environment or {})},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – text", "plain – text"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\rb\tc", "a\\x0db\\x09c"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\udcff", "\\udcff"),
    ],
)
def test_text_of_others_cannot_drive_a_terminal(text: str, shown: str) -> None:
    """Control characters, direction overrides and broken bytes are shown, never obeyed."""
    assert harmless(text) == shown


def test_a_line_stays_one_line() -> None:
    """A line break inside a value cannot forge a second row."""
    assert one_line("a\nb") == "a\\nb"


def _decision() -> audit_pb2.Decision:
    advice = common_pb2.Advice(
        advice_id="id-1",
        attempt=common_pb2.AttemptRef(job_id="17", user="alice", cluster="c"),
        action=common_pb2.ACTION_RESTART,
        exclude_nodes=["node2"],
        reason="nodes_implicated",
        explanation="node2 lost a GPU",
        mode=common_pb2.MODE_MONITOR,
        generation=1,
        evidence=[
            common_pb2.Evidence(
                rule="kernel.xid",
                role="initiating",
                trust="kernel",
                node="node2",
                file="/k/node2.log",
                line=7,
                text="Xid 79\x1b[2J",
            )
        ],
    )
    advice.evidence[0].at.FromJsonString("2026-03-01T12:00:00Z")
    analysis = {
        "attribution": {
            "category": "gpu_hardware",
            "root_cause": "GPU fell off the bus",
            "confidence": 0.97,
            "implicated": {"nodes": ["node2"], "gpus": ["node2:3"], "ranks": []},
            "alternatives": [{"root_cause": "a collective time-out", "why_not": "seen by everyone"}],
        }
    }
    decision = audit_pb2.Decision(advice=advice, partition="train", analysis_json=json.dumps(analysis), build="b")
    for kind, seconds in ((1, 0), (2, 1), (3, 3)):
        milestone = decision.milestones.add(kind=kind)
        milestone.at.FromJsonString(f"2026-03-01T12:00:0{seconds}Z")
    return decision


def test_a_verdict_says_what_who_what_to_do_why_and_how_long_it_took() -> None:
    """The first line is the action; everything needed to act follows, with evidence by file and line."""
    lines = list(verdict(_decision()))
    text = "\n".join(lines)
    assert lines[0].startswith("RESTART  job 17, attempt 0, user alice, train  excluding node2")
    assert "what     GPU fell off the bus" in lines
    assert "node node2; GPU node2:3  (gpu_hardware, confidence 0.97)" in text
    assert "yours (monitor mode touches nothing): requeue job 17 with node2 added to its excluded nodes" in text
    assert "not      a collective time-out: seen by everyone" in lines
    assert "/k/node2.log:7" in text
    assert "Xid 79\\x1b[2J" in text
    assert "has not answered yet" in text
    assert "advised" in text
    assert "3.00 s in all" in text


def test_a_verdict_names_its_sources_and_what_to_do_about_those_it_lacked() -> None:
    """What was read and how much; what was not, why, and the command that helps."""
    decision = _decision()
    analysis = json.loads(decision.analysis_json)
    permission = "/home/alice/4711.out: permission denied; setfacl -m u:advisor:r /home/alice/4711.out"
    analysis["attribution"]["sources"] = {
        "kernel": {"available": True, "lines": 7, "foreign": 2, "capped": False},
        "job-output": {"available": False, "reason": "permission", "detail": permission},
        "other": {"available": False, "reason": "timeout", "detail": ""},
        "pushed": {"available": True, "lines": 1, "foreign": 1, "capped": False},
    }
    decision.analysis_json = json.dumps(analysis)
    lines = list(verdict(decision))
    at = lines.index("sources  kernel: 7 lines, 2 lines of other nodes not counted")
    assert lines[at + 1 : at + 6] == [
        "         job-output: not available (permission)",
        f"           {permission}",
        "         other: not available (timeout)",
        "           the file system does not answer: check its mount on this host",
        "         pushed: 1 line, 1 line of other nodes not counted",
    ]


def test_times_have_their_date_and_zone_once() -> None:
    """The decision's own date stands at the top; a time of another day has its date."""
    decision = _decision()
    decision.advice.created_at.FromJsonString("2026-03-01T12:00:03Z")
    decision.advice.evidence[0].at.FromJsonString("2026-02-28T23:59:59Z")
    decision.reconciliations.add(status=common_pb2.RECONCILIATION_STATUS_VERIFIED, reason=20)
    decision.reconciliations[0].at.FromJsonString("2026-03-01T12:00:09Z")
    text = "\n".join(verdict(decision))
    assert "decided  2026-03-01 12:00:03 UTC, as all times below" in text
    assert "  2026-02-28 23:59:59  initiating" in text
    assert text.count("2026-03-01") == 1
    assert "agent    12:00:09  applied; the scheduler shows it" in text
    assert "12:00:03.000  advised" in text


@pytest.mark.parametrize(
    ("status", "mode", "words"),
    [
        (common_pb2.RECONCILIATION_STATUS_VERIFIED, common_pb2.MODE_AUTONOMOUS, "nothing: done"),
        (common_pb2.RECONCILIATION_STATUS_PENDING, common_pb2.MODE_AUTONOMOUS, "the agent is about to"),
        (common_pb2.RECONCILIATION_STATUS_WITHHELD, common_pb2.MODE_AUTONOMOUS, "the agent did not"),
    ],
)
def test_what_is_left_to_do_depends_on_what_the_agent_did(
    status: common_pb2.ReconciliationStatus, mode: common_pb2.Mode, words: str
) -> None:
    """Done, about to be done, and withheld each leave the operator something else."""
    decision = _decision()
    decision.status = status
    decision.advice.mode = mode
    assert any(line.startswith("to do") and words in line for line in verdict(decision))


def test_what_was_seen_twice_is_told_once() -> None:
    """Applied, then verified: in our words that is the same. What else was said in between is told."""
    decision = _decision()
    for status in (common_pb2.RECONCILIATION_STATUS_APPLIED, common_pb2.RECONCILIATION_STATUS_VERIFIED):
        decision.reconciliations.add(status=status, reason=common_pb2.RECONCILIATION_REASON_OBSERVED)
    assert "\n".join(verdict(decision)).count("applied; the scheduler shows it") == 1
    decision.reconciliations.add(status=decision.reconciliations[0].status, reason=20, dropped_nodes=["n1"])
    assert "\n".join(verdict(decision)).count("applied; the scheduler shows it") == 2


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (common_pb2.RECONCILIATION_REASON_PAUSED, "a pause holds it up"),
        (common_pb2.RECONCILIATION_REASON_MAINTENANCE, "maintenance holds it up"),
        (common_pb2.RECONCILIATION_REASON_STOP_FILE, "the stop file holds it up"),
    ],
)
def test_what_waits_says_what_it_waits_for(reason: common_pb2.ReconciliationReason, words: str) -> None:
    """During a pause nothing is about to happen."""
    decision = _decision()
    decision.status = common_pb2.RECONCILIATION_STATUS_PENDING
    decision.advice.mode = common_pb2.MODE_AUTONOMOUS
    decision.reconciliations.add(status=decision.status, reason=reason)
    text = "\n".join(verdict(decision))
    assert words in text
    assert "is about to" not in text


def test_help_names_every_command_and_imports_none_of_them() -> None:
    """`advisor --help` is the table of commands; gRPC, SQLAlchemy and RE2 are not loaded for it."""
    probe = (
        "import sys\nfrom advisor.cli import main\ntry:\n main(['--help'])\nexcept SystemExit: pass\n"
        "print('LOADED', sorted({'grpc', 'sqlalchemy', 're2', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert all(name in done.stdout for name in COMMANDS)
    assert "LOADED []" in done.stdout


def test_the_version_is_told_by_the_word_too() -> None:
    """`advisor version`, as other programs have it; --help shows the option only."""
    assert (said := _advisor("version").stdout).startswith("advisor ")
    assert said == _advisor("--version").stdout
    assert "version" not in [line.split()[0] for line in _advisor("--help").stdout.splitlines() if line.strip()]


def test_a_service_that_is_not_there_is_one_line_and_exit_1() -> None:
    """A client command without a service says what to do."""
    done = _advisor("decisions", "list", "--socket", "/nonexistent/advisor.sock")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip() == (
        "advisor: nothing listens on /nonexistent/advisor.sock: start `advisor serve`, or give --socket"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mode", "set", "autonomous"), "say why"),
        (("mode", "set", "autonomous", "--why", "x", "--category", "nonsense"), "choose one of"),
        (("mode", "set", "autonomous", "--why", "x", "--partition", ""), "--partition is empty"),
        (("mode", "set", "autonomous", "--why", "x", "--cluster", " "), "--cluster is empty"),
        (("mode", "set", "monitor", "--why", "x", "--job", ""), "--job is empty"),
        (("mode", "unset", "--why", "x", "--category", ""), "--category is empty"),
        (("decisions", "list", "--job", ""), "--job is empty"),
        (("decisions", "list", "--since", "yesterday"), "30m, 6h or 2d"),
        (("decisions", "list", "--action", "dance"), "choose one of"),
        (("decisions", "list", "--category", "foo"), "--category foo: choose one of"),
        (("incidents", "list", "--category", "foo"), "--category foo: choose one of"),
        (("report", "shadow", "--category", "foo"), "--category foo: choose one of"),
        (("rules", "list", "--category", "foo"), "--category foo: choose one of"),
        (("serve", "--config", "/nonexistent.toml"), "cannot be read"),
        (("nonsense",), "No such command"),
    ],
)
def test_wrong_usage_is_exit_2_with_a_reason(arguments: tuple[str, ...], words: str) -> None:
    """What was asked wrongly is said, and nothing is done."""
    done = _advisor(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_the_base_install_says_what_is_missing_in_one_line() -> None:
    """Without the server's packages the command is one sentence and exit 2, never a traceback."""
    probe = "import sys\nsys.modules['typer'] = None\nfrom advisor.cli import main\nmain(['--help'])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 2
    assert done.stderr == ("advisor: the service and its command line need: pip install 'recovery-advisor[server]'\n")


def test_slurms_hooks_are_put_in_place_with_and_without_the_servers_packages(tmp_path: Path) -> None:
    """The same command on a host that only has the agent: what it says comes from one place."""
    conf = tmp_path / "slurm.conf"
    arguments = ["slurm", "install-hooks", "--dry-run", "--offline", "--slurm-conf", str(conf)]
    probe = f"import sys\nsys.argv = ['advisor', *{arguments!r}]\nsys.modules['typer'] = None\nimport advisor.cli"
    base = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=PROJECT, check=False)
    full = _advisor(*arguments)
    assert (full.returncode, base.returncode) == (1, 1)
    assert full.stderr == base.stderr == f"advisor-agent: install-hooks: slurm.conf: there is no {conf}\n"
    assert "--dry-run" in _advisor("slurm", "install-hooks", "--help").stdout


def test_serve_with_files_that_cannot_be_used_is_exit_2(tmp_path: Path) -> None:
    """As `config check`: what the configuration names is part of it."""
    path = tmp_path / "advisor.toml"
    path.write_text(f'rules_files = ["/nonexistent/rules.toml"]\n[service]\ndata_dir = "{tmp_path}/data"\n')
    done = _advisor("serve", "--config", str(path))
    assert done.returncode == 2
    assert "rules_files: /nonexistent/rules.toml: cannot be read" in done.stderr


def test_config_problems_are_told_in_plain_words(tmp_path: Path) -> None:
    """What to write instead, by key, without the words of the library that checks it."""
    path = tmp_path / "bad.toml"
    path.write_text(
        'rules_files = "x"\n[tick]\ninterval_seconds = "fast"\nattempts_max = 0\n[service]\nsocket = 7\n'
        '[[logs]]\nextra_files = "x"\n'
    )
    done = _advisor("config", "check", "--config", str(path), "--format", "json")
    found = {problem["key"]: problem["message"] for problem in json.loads(done.stdout)["problems"]}
    assert found == {
        "rules_files": 'write a list: ["…"]',
        "tick.interval_seconds": "write a number",
        "tick.attempts_max": "must be at least 1",
        "service.socket": 'write text in quotes: "…"',
        "logs[0].extra_files": 'write a list: ["…"]',
    }


def test_config_check_lists_all_problems(tmp_path: Path) -> None:
    """Every problem on its own line, exit 2; a good file says so with exit 0."""
    bad = tmp_path / "bad.toml"
    bad.write_text("bogus = 1\n[tick]\ninterval_seconds = -1\n")
    done = _advisor("config", "check", "--config", str(bad))
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 2
    bad.write_text("")
    done = _advisor("config", "check", "--config", str(bad), "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)


def test_config_check_looks_into_the_files_that_are_named(tmp_path: Path) -> None:
    """A policy with an unknown key and a missing rules file are problems of the configuration too."""
    policy = tmp_path / "policy.toml"
    policy.write_text("no_such_number = 1\n")
    path = tmp_path / "advisor.toml"
    path.write_text(f'policy_file = "{policy}"\nrules_files = ["/nonexistent/rules.toml"]\n')
    done = _advisor("config", "check", "--config", str(path), "--format", "json")
    keys = [problem["key"] for problem in json.loads(done.stdout)["problems"]]
    assert (done.returncode, sorted(keys)) == (2, ["policy_file", "rules_files"])


@pytest.mark.parametrize(
    ("folder", "said"),
    [("/proc/foo", "/proc is the kernel's"), ("/etc/passwd", "/etc/passwd is not a folder")],
)
def test_config_check_tells_of_a_data_folder_that_cannot_be(tmp_path: Path, folder: str, said: str) -> None:
    """Which `serve` would refuse, whoever runs it."""
    path = tmp_path / "advisor.toml"
    path.write_text(f'[service]\ndata_dir = "{folder}"\n')
    done = _advisor("config", "check", "--config", str(path), "--format", "json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert (done.returncode, problem["key"]) == (2, "service.data_dir")
    assert said in problem["message"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('socket = "/proc/foo/s"', "/proc/foo cannot be made in /proc (of 'root'): "),
        ('socket = "/etc/passwd/s"', "/etc/passwd is not a folder: name another (service.socket)"),
        ('data_dir = "/proc/foo"', "/proc/foo cannot be made in /proc (of 'root'): "),
    ],
)
def test_serve_tells_of_a_folder_that_cannot_be_made_in_one_line(tmp_path: Path, keys: str, said: str) -> None:
    """Exit 1, and no trace of the program."""
    path = tmp_path / "advisor.toml"
    socket = "" if keys.startswith("socket") else f'\nsocket = "{tmp_path}/s"'
    path.write_text(f"[service]\n{keys}{socket}\n")
    done = _advisor("serve", "--config", str(path))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="what root is told")
def test_root_is_told_whose_the_files_will_be(tmp_path: Path) -> None:
    """Before they are made: a service of another user could not use them."""
    path = tmp_path / "advisor.toml"
    path.write_text('[service]\nsocket = "/proc/foo/s"\n')
    assert "serving_as_root" in _advisor("serve", "--config", str(path)).stderr


@pytest.mark.parametrize("module", ["typer", "grpc"])
def test_an_interrupt_while_modules_are_read_is_no_traceback(tmp_path: Path, module: str) -> None:
    """Ctrl-C in the first moments: 130, and not a word."""
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "status"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("words", [("pause", "--until", "2h"), ("resume",)])
def test_pause_asks_why_as_every_other_command_does(words: tuple[str, ...]) -> None:
    """`--reason` is taken as well."""
    done = _advisor(*words)
    assert (done.returncode, done.stderr) == (2, "advisor: say why: --why TEXT is kept\n")


def test_one_socket_is_asked(tmp_path: Path) -> None:
    """Of several nothing is known, and a path with a comma in it is a path."""
    with pytest.raises(CommandError, match=r"one socket is asked, of one replica; several .* --server host:port"):
        find_socket(tmp_path / "a.sock,b.sock", None)
    (tmp_path / "a,b.sock").touch()
    assert find_socket(tmp_path / "a,b.sock", None) == tmp_path / "a,b.sock"


def test_what_is_no_dump_is_not_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything of the database is touched, and in one sentence."""
    file = tmp_path / "README.md"
    file.write_text("# Recovery Advisor\n")
    with pytest.raises(SystemExit) as ended:
        main(["store", "restore", str(file), "--yes"])
    assert ended.value.code == 2
    assert f"{file} is not a dump of `advisor store dump`" in capsys.readouterr().err
