"""`advisor analyze`, from outside."""

import gzip
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from advisor.bundle import BundleError
from advisor.bundle_logs import Unpacking
from advisor.cli import main


def run(*arguments: object, code: int = 0) -> None:
    """The command line, which ends by `SystemExit`."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    assert caught.value.code == code


ECC = "[rank9]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "case"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "job.log").write_text(ECC)
    facts = {"job_id": "7", "user": "u", "exit_code": "1:0", "nodes": "node[1-4]", "world_size": 32}
    (folder / "job.json").write_text(json.dumps(facts))
    return folder


def test_the_json_document_has_the_published_shape(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Schema, incident, attribution, isolation and advice, with the evidence by file and line."""
    run("analyze", path, "--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "advisor.analysis/1"
    assert document["incident"]["kind"] == "crash"
    assert document["attribution"]["category"] == "gpu_hardware"
    assert document["attribution"]["implicated"] == {"nodes": ["node2"], "ranks": [9], "gpus": []}
    assert document["isolation"]["exclude_for_job"] == ["node2"]
    assert document["advice"]["action"] == "restart"
    assert document["advice"]["exclude_nodes"] == ["node2"]
    (evidence,) = document["attribution"]["evidence"]
    assert {"rule", "role", "trust", "at", "rank", "node", "file", "line", "text"} <= set(evidence)
    assert (evidence["file"], evidence["line"]) == ("logs/job.log", 1)


def test_jsonl_prints_one_verdict_per_path_in_order(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bundles and bare files may be mixed."""
    run("analyze", "--format", "jsonl", path, path / "logs" / "job.log")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["job"]["id"], second["job"]["id"]) == ("7", "")


def test_the_text_says_what_who_and_what_to_do(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three lines for a tired operator, then the reasons."""
    run("analyze", path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("what  crash: A GPU has uncorrectable memory errors (node2)")
    assert lines[1] == "who   node node2; rank 9"
    assert lines[2].startswith("do    restart without node2")
    assert any("logs/job.log:1" in line for line in lines)
    assert any(line.startswith("runner-up") for line in lines)


@pytest.mark.parametrize(
    ("count", "what", "who"),
    [
        (6, "(ranks 0, 1, 2, 3 and 2 more)", "ranks 0, 1, 2, 3, 4, 5"),
        (63, "(ranks 0, 1, 2, 3 and 59 more)", ", 15 and 47 more"),
        (128, "(ranks 0, 1, 2, 3 and 124 more)", ", 15 and at least 48 more"),
        (65_600, "(ranks 0, 1, 2, 3 and at least 65532 more)", ", 15 and at least 48 more"),
    ],
)
def test_how_many_ranks_it_were_is_counted_or_told_as_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, what: str, who: str
) -> None:
    """Some are kept of them: that is not their number."""
    log = tmp_path / "job.log"
    log.write_text("".join(ECC.replace("9", str(rank)) for rank in range(count)))
    run("analyze", log)
    lines = capsys.readouterr().out.splitlines()
    assert what in lines[0]
    assert lines[1].startswith("who   ranks 0, 1, 2, 3, ")
    assert lines[1].endswith(who)


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", True),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", False),
    ],
)
def test_that_a_machine_is_to_blame_is_told_as_the_jobs_own_word_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, alone: bool
) -> None:
    """Any program prints such a line. Against itself a job may be believed, and a kernel is."""
    log, kernel = tmp_path / "job.log", tmp_path / "dmesg.txt"
    log.write_text(f"2026-11-29 12:00:00 {line}")
    run("analyze", log)
    assert (" %, by its own output alone]" in capsys.readouterr().out) is alone
    kernel.write_text(DMESG.format("12:00"))
    run("analyze", log, "--kernel", f"node2={kernel}")
    assert "by its own output alone" not in capsys.readouterr().out


def test_log_text_cannot_control_the_terminal(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and reordering characters of a log are shown, not obeyed."""
    (path / "logs" / "job.log").write_bytes(b"[rank9]: KeyError: '\x1b]0;owned\x07\xe2\x80\xae\x9b31m'\n")
    run("analyze", path)
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(out)


def test_unusable_input_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the place."""
    with pytest.raises(SystemExit) as caught:
        main(["analyze", str(tmp_path / "gone")])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "gone: no such file or directory" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "job.log: is empty"),
        (b"\n \n", "job.log: is empty but for blanks and zero bytes"),
        (b"\0" * 4096, "job.log: is empty but for blanks and zero bytes"),
        (bytes(range(256)) * 64, "job.log: is not text: binary data"),
        (b"\x7fELF\x02\x01\x01" + bytes(64), "job.log: is not text: a program (ELF)"),
        (b"\x28\xb5\x2f\xfd0123456789", "job.log: is not text: compressed with zstd: unpack it first"),
        ("Fehler\n".encode("utf-16"), "job.log: is not text: UTF-16: convert it to UTF-8 first"),
        (gzip.compress(b"", mtime=0), "job.log: is empty"),
        (gzip.compress(b"hello\n", mtime=0)[:10] + b"\xff" * 40, "job.log: broken gzip"),
    ],
)
def test_a_file_that_holds_no_text_gets_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    """Nobody could have seen a failure in it: one line that says what it is, and exit 2."""
    log = tmp_path / "job.log"
    log.write_bytes(content)
    run("analyze", log, code=2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 70_000 + ECC.encode(),
        b"caf\xe9 " + ECC.encode(),
        b"\x1b[31m" + ECC.encode(),
        gzip.compress(ECC.encode(), mtime=0),
        gzip.compress(b"x\n" * 200_000 + ECC.encode(), mtime=0)[:-4],
    ],
    ids=["a hole from truncation", "Latin-1", "colours", "gzip", "gzip without its end"],
)
def test_unusual_text_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    """What real logs look like is read, packed or not, as far as it goes."""
    log = tmp_path / "job.log"
    log.write_bytes(content)
    run("analyze", log, "--format", "json")
    assert json.loads(capsys.readouterr().out)["attribution"]["category"] == "gpu_hardware"


def test_a_gzip_that_unpacks_without_end_is_refused() -> None:
    """A small file may unpack to anything: there is a bound, and it is told."""
    packed = io.BytesIO(gzip.compress(b"x\n" * (4 << 20)))
    text = Unpacking(packed, Path("bomb.gz"), most=2 << 20)
    with pytest.raises(BundleError, match=r"bomb\.gz: unpacks to more than 2 MiB"):
        list(iter(lambda: text.read(1 << 20), b""))


def test_one_line_is_not_told_as_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was read is counted as people count."""
    for lines, told in (("step 1\n", "logs (1 line)"), ("step 1\nstep 2\n", "logs (2 lines)")):
        (tmp_path / "job.log").write_text(lines)
        run("analyze", tmp_path / "job.log")
        assert told in capsys.readouterr().out


def test_no_failure_and_no_end_is_not_called_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that simply stops is no proof; a job that the scheduler calls completed is."""
    log = tmp_path / "job.log"
    log.write_text("step 1\nstep 2\n")
    run("analyze", log)
    out = capsys.readouterr().out
    assert "no failure visible; whether it ended is not known  [none, 40 %]" in out
    assert "healthy" not in out
    case = tmp_path / "case"
    (case / "logs").mkdir(parents=True)
    (case / "logs" / "job.log").write_text("step 1\nstep 2\n")
    (case / "job.json").write_text('{"job_id": "7", "state": "COMPLETED"}')
    run("analyze", case)
    assert "nothing failed  [none, 90 %]" in capsys.readouterr().out


def test_a_bundle_without_logs_knows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts alone, and none that tells: hardly any confidence, and a line that says what is missing."""
    (tmp_path / "job.json").write_text('{"job_id": "7"}')
    run("analyze", tmp_path, "--format", "json")
    out, err = capsys.readouterr()
    assert json.loads(out)["attribution"]["confidence"] <= 0.1
    assert "holds no logs to judge by" in err


@pytest.mark.parametrize(
    ("text", "lines"),
    [(ECC.rstrip(), 1), (f"begin\n{ECC.rstrip()}", 2), ("x" * (3 << 20), 1), (f"begin\n{'x' * (3 << 20)}", 2)],
)
def test_a_last_line_without_a_line_end_is_a_line(
    text: str, lines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was read, also where it is longer than what is kept of a line: nobody says that there was nothing."""
    log = tmp_path / "job.log"
    log.write_text(text)
    run("analyze", log, "--format", "json")
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert document["attribution"]["sources"]["logs"]["lines"] == lines
    assert told.err == ""
    assert "nothing to read" not in told.out


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_one_bad_path_does_not_swallow_the_other_verdicts(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Good ones are printed with the path they are of, each bad one is told, and the exit code is 2."""
    (tmp_path / "empty.log").touch()
    run("analyze", "--format", form, tmp_path / "gone", path, tmp_path / "empty.log", path / "logs" / "job.log", code=2)
    out, err = capsys.readouterr()
    assert err.count("\n") == 2
    assert "gone: no such file" in err
    assert "empty.log: is empty" in err
    if form == "text":
        assert out.count("uncorrectable memory errors") >= 2
        return
    documents = json.loads(out) if form == "json" else [json.loads(line) for line in out.splitlines()]
    assert [item["input"] for item in documents] == [str(path), str(path / "logs" / "job.log")]


def test_standard_input_is_a_log(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-` reads it; its name in the document is what was asked for."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(ECC.encode()))))
    run("analyze", "-", "--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert (document["input"], document["attribution"]["category"]) == ("-", "gpu_hardware")


def test_site_rules_are_used_and_bad_ones_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--rules` adds a file; a broken one ends with its location."""
    log = tmp_path / "job.log"
    log.write_text("frobnicator melted\n")
    rules = tmp_path / "site.toml"
    text = (
        '[[rule]]\nid = "site.melt"\ntitle = "It melted"\npattern = "frobnicator melted"\n'
        'category = "node_hardware"\nrole = "initiating"\nsource = "a manual"\n'
    )
    rules.write_text(text)
    run("analyze", log, "--rules", rules, "--format", "json")
    assert json.loads(capsys.readouterr().out)["attribution"]["category"] == "node_hardware"
    rules.write_text(text.replace("node_hardware", "weather"))
    with pytest.raises(SystemExit) as caught:
        main(["analyze", str(log), "--rules", str(rules)])
    assert caught.value.code == 2
    assert "site.melt: category" in capsys.readouterr().err


def test_the_first_three_lines_say_what_who_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For somebody who has ten seconds; then the evidence with its place, the course of things, and the runner-up."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.log").write_text("step 1 loss 2.0\n[rank9]: RuntimeError: CUDA error: unknown error\n")
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "node2.log").write_text(
        "2026-11-29T11:59:00+00:00 node2 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    job = {"job_id": "7", "state": "FAILED", "exit_code": "1:0", "nodes": "node[1-2]", "world_size": 16}
    (tmp_path / "job.json").write_text(json.dumps(job))
    run("analyze", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("what  crash: Xid 79: the GPU has fallen off the bus (node2)  [gpu_hardware, 9")
    assert lines[1] == "who   node node2; rank 9; gpu node2:3b:00"
    assert lines[2] == "do    restart without node2: the evidence points at that node"
    assert lines[4:6] == ["evidence", next(line for line in lines if line.startswith("  kernel/node2.log:1  2026"))]
    timeline = lines[lines.index("timeline") + 1 :]
    course = " ".join(timeline[0].split())
    assert course == "2026-11-29 11:59:00 initiating node2 Xid 79: the GPU has fallen off the bus (kernel.xid)"
    assert any("exit code 1, signal 0" in line and line.lstrip().startswith("- ") for line in timeline)
    assert any(line.startswith("runner-up  unknown: ") for line in lines)


DMESG = "[Sun Nov 29 {}:00 2026] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
JOB_LOG = (
    "2026-11-29 11:59:50 iteration 100 | loss 2.1\n2026-11-29 11:59:55 iteration 101 | loss 2.1\n"
    "2026-11-29 12:00:05 [rank2]: RuntimeError: CUDA error: unspecified launch failure\n"
    "2026-11-29 12:00:06 srun: error: node2: task 2: Exited with exit code 1\n"
)


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Path]:
    """A job's log, and what `dmesg -T` printed on one of its nodes."""
    job, kernel = tmp_path / "job.out", tmp_path / "dmesg.txt"
    job.write_text(JOB_LOG)
    kernel.write_text(DMESG.format("12:00"))
    return job, kernel


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    run("analyze", *arguments, "--format", "json")
    return json.loads(capsys.readouterr().out)


def test_a_kernel_log_beside_a_jobs_log_is_evidence_of_one_incident(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose it is, is said by hand; its times are read; and it is believed as one in a bundle is."""
    job, kernel = logs
    document = told(capsys, job, "--kernel", f"node2.example.org={kernel}")
    assert document["advice"]["exclude_nodes"] == ["node2"]
    assert document["attribution"]["implicated"] == {"nodes": ["node2"], "ranks": [2], "gpus": ["node2:1b:00"]}
    assert document["attribution"]["trusted"]
    first = document["incident"]["signals"][0]
    assert (first["file"], first["line"], first["node"]) == ("dmesg.txt", 1, "node2")
    assert (first["trust"], first["at"]) == ("kernel", "2026-11-29T12:00:00+00:00")
    assert document["input"] == f"{job} {kernel}"
    why_not = document["attribution"]["alternatives"][0]["why_not"]
    assert why_not == "it came after Xid 79: the GPU has fallen off the bus"
    alone = told(capsys, "--kernel", f"node2={kernel}")
    assert alone["advice"]["exclude_nodes"] == ["node2"]


def test_files_are_of_one_job_where_that_is_said(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One verdict from all, also with a bundle among them; without it each is judged by itself, which is said."""
    first, second = path.parent / "a" / "job.log", path.parent / "b" / "job.log"
    for log, text in ((first, "step 1 loss 2.0\n"), (second, ECC)):
        log.parent.mkdir()
        log.write_text(text)
    document = told(capsys, first, second, "--one-job")
    assert document["attribution"]["category"] == "gpu_hardware"
    assert document["incident"]["signals"][0]["file"] == str(second)
    run("analyze", first, second)
    apart = capsys.readouterr().out
    assert apart.count("what  ") == 2
    assert "Each was judged by itself. One verdict from all: --one-job" in apart
    document = told(capsys, path, first, "--one-job")
    assert (document["job"]["id"], document["attribution"]["implicated"]["nodes"]) == ("7", ["node2"])
    run("analyze", first, path)
    assert "Each was judged" not in capsys.readouterr().out


TIMED_OUT = (
    "[rank{0}]:[E1129 12:00:00.000000001 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600032 "
    "milliseconds before timing out.\n"
)


def test_an_error_of_another_file_without_times_is_no_aftermath_of_a_time_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing tells that it came after: kind and cause are of one failure, whatever the files are called."""
    first, second = tmp_path / "rank0.log", tmp_path / "a.log"
    first.write_text(OUT_OF_MEMORY)
    for name in ("a.log", "z.log"):
        second = tmp_path / name
        second.write_text("".join(TIMED_OUT.format(rank) for rank in (1, 2, 3)))
        document = told(capsys, first, second, "--one-job")
        assert (document["incident"]["kind"], document["attribution"]["category"]) == ("crash", "gpu_out_of_memory")
    second.write_text(second.read_text() + OUT_OF_MEMORY.replace("rank0", "rank3"))
    assert told(capsys, second)["incident"]["kind"] == "hang"


def test_a_hang_that_is_over_is_told_as_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What timed out aborts: to say that it does nothing any more would have people look for it."""
    log = tmp_path / "job.log"
    log.write_text("".join(TIMED_OUT.format(rank) for rank in (1, 2, 3)))
    run("analyze", log)
    assert "do    restart: it hung until it was ended" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("told_size", "silent", "ranks"),
    [
        ("world_size=8", (3,), [3]),
        ("World size: 8", (3, 6), [3, 6]),
        ("WORLD_SIZE=8", (3,), [3]),
        ('{"world_size": 8}', (3,), [3]),
        ("no word of it", (3,), []),
        ("world_size=8 and world_size=4", (3,), []),
        ("world_size=8", (0, 1, 2, 3), []),
    ],
)
def test_a_rank_that_did_not_report_a_time_out_is_the_one_to_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told_size: str, silent: tuple[int, ...], ranks: list[int]
) -> None:
    """By how many there are, as the log tells, if it tells one number and holds the words of nearly all of them: a log
    of one of two nodes lacks the half.
    """
    log = tmp_path / "job.log"
    log.write_text(f"{told_size}\n" + "".join(TIMED_OUT.format(rank) for rank in range(8) if rank not in silent))
    attribution = told(capsys, log)["attribution"]
    assert attribution["implicated"]["ranks"] == ranks
    assert ("did not report the time-out" in attribution["root_cause"]) is bool(ranks)
    assert (attribution["category"], attribution["implicated"]["nodes"]) == ("unknown", [])


def test_a_kernels_lines_without_a_node_say_how_to_name_it(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file is a log like any other until somebody says that it is a kernel's."""
    run("analyze", logs[1])
    out = capsys.readouterr().out
    assert "who   nobody in particular" in out
    assert f"of which node is not said: --kernel NODE={logs[1]} says it." in out
    run("analyze", logs[0], logs[1], "--one-job")
    assert f"--kernel NODE={logs[1]} says it." in capsys.readouterr().out
    run("analyze", logs[0], "--kernel", f"node2={logs[1]}")
    assert "is not said" not in capsys.readouterr().out


def test_a_bundles_own_log_is_not_to_be_named_as_a_kernels(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a job's log holds of a kernel stays the job's word; and a bundle is no file."""
    (path / "logs" / "job.log").write_text(DMESG.format("12:00"))
    run("analyze", path)
    out = capsys.readouterr().out
    assert "Xid 79" in out
    assert "--kernel" not in out


def test_a_kernel_log_by_hand_is_checked(
    logs: tuple[Path, Path], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mistake is one line: no node, a node that the job did not have, a file twice or not there, two bundles."""
    job, kernel = logs
    for arguments, problem in (
        ((job, "--kernel", kernel), "say whose log it is, as NODE=FILE"),
        ((path, "--kernel", f"node9={kernel}"), "node9 is no node of this job, which ran on node[1-4]"),
        ((job, job, "--one-job"), "job.out: named twice"),
        ((job, "--kernel", "node2=gone"), "gone: no such file"),
        ((path, path.parent, "--one-job"), "a second bundle"),
        (("-", "--kernel", "node2=-"), "standard input is read once"),
    ):
        run("analyze", *arguments, code=2)
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), problem in err) == ("", 1, True), err


def test_a_kernel_log_may_come_through_a_pipe(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ssh node2 dmesg -T | advisor analyze job.out --kernel node2=-`."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(logs[1].read_bytes())))
    assert told(capsys, logs[0], "--kernel", "node2=-")["advice"]["exclude_nodes"] == ["node2"]


def test_a_kernel_log_that_names_another_host_is_doubted(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever mixes two files up would have a good node excluded. Slurm may call a node otherwise, and then the job's
    log does, too: it counts, and is not certain. Where the log does not know the name either, it blames nobody.
    """
    line = "2026-11-29T12:00:00+00:00 {} kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off.\n"
    for host, problems in (("node3", ["the lines of dmesg.txt name node3, not node2"]), ("node2.example.org", [])):
        logs[1].write_text("-- Boot 1 --\n" + line.format(host))
        document = told(capsys, logs[0], "--kernel", f"node2={logs[1]}")
        assert document["attribution"]["sources"]["kernel"]["problems"] == problems
        assert document["advice"]["exclude_nodes"] == ["node2"]
        assert (document["attribution"]["confidence"] <= 0.8) is bool(problems)
        assert all(problem in document["attribution"]["root_cause"] for problem in problems)
    logs[1].write_text(line.format("node3"))
    alone = told(capsys, "--kernel", f"node2={logs[1]}")  # no log that could know either name
    assert (alone["advice"]["exclude_nodes"], alone["attribution"]["confidence"]) == (["node2"], 0.8)
    for job in (JOB_LOG + "node3: bye\n", JOB_LOG.replace("node2", "node5")):
        logs[0].write_text(job)
        document = told(capsys, logs[0], "--kernel", f"node2={logs[1]}")
        assert (document["advice"]["exclude_nodes"], document["attribution"]["category"]) == ([], "unknown")
        (other,) = document["attribution"]["alternatives"][:1]
        assert (other["category"], other["why_not"]) == (
            "gpu_hardware",
            "the lines of dmesg.txt name node3, not node2",
        )


def test_a_kernel_log_of_a_node_that_the_jobs_log_never_names_is_not_certain(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A job's log need not name all of its nodes: it is told, and the verdict is less sure."""
    document = told(capsys, logs[0], "--kernel", f"node7={logs[1]}")
    said = "the job's log names node2, and never node7"
    assert document["attribution"]["sources"]["kernel"]["problems"] == [said]
    assert said in document["attribution"]["root_cause"]
    assert document["attribution"]["confidence"] <= 0.8
    logs[0].write_text(JOB_LOG.replace("node2", "node7"))
    document = told(capsys, logs[0], "--kernel", f"node7={logs[1]}")
    assert document["attribution"]["sources"]["kernel"]["problems"] == []
    assert document["attribution"]["confidence"] > 0.95


OUT_OF_MEMORY = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("stamp", "began", "doubt"),
    [
        ("[Fri Nov 27 12:00:00 2026] ", "", "the job's log has no times"),
        ("[12345.678901] ", "", "the job's log has no times"),
        ("[12345.678901] ", "2026-11-29 11:59:50 ", "its lines do not tell when"),
        ("[Sun Nov 29 03:00:00 2026] ", "2026-11-29 11:59:50 ", "unless their clocks are of different zones"),
    ],
)
def test_a_kernels_line_of_another_time_overrules_no_failure_that_the_log_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stamp: str, began: str, doubt: str
) -> None:
    """Where nothing tells that it was in the job's time it blames nobody, and why is said. A log without a failure
    has none for it; an attempt that failed without a word may have it for a cause, which is no certainty.
    """
    job, kernel = tmp_path / "job.out", tmp_path / "dmesg.txt"
    kernel.write_text(stamp + XID)
    job.write_text(f"{began}step 1 loss 2.0\n{OUT_OF_MEMORY}")
    document = told(capsys, job, "--kernel", f"gpu02={kernel}")
    attribution = document["attribution"]
    assert (attribution["category"], document["advice"]["exclude_nodes"]) == ("gpu_out_of_memory", [])
    assert attribution["alternatives"][0]["category"] == "gpu_hardware"
    assert doubt in attribution["alternatives"][0]["why_not"]
    (problem,) = attribution["sources"]["kernel"]["problems"]
    assert problem.startswith("dmesg.txt: ")
    assert doubt in problem
    job.write_text(f"{began}loading\n")
    document = told(capsys, job, "--kernel", f"gpu02={kernel}")
    assert (document["incident"]["kind"], document["advice"]["action"]) == ("none", "none")
    assert document["attribution"]["confidence"] <= 0.5
    assert "Xid 79" in document["attribution"]["root_cause"]
    assert doubt in document["attribution"]["root_cause"]
    job.write_text(f"{began}loading\nsrun: error: gpu02: task 0: Exited with exit code 1\n")
    document = told(capsys, job, "--kernel", f"gpu02={kernel}")
    attribution = document["attribution"]
    assert (document["incident"]["kind"], attribution["category"]) == ("crash", "gpu_hardware")
    assert (document["advice"]["exclude_nodes"], attribution["trusted"]) == ([], False)
    assert attribution["confidence"] <= 0.5
    assert "gpu02" in attribution["root_cause"]


def test_an_older_line_does_not_hide_the_one_of_the_jobs_time(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same Xid some hours before and as the job failed: only the second counts, and that wholly."""
    logs[1].write_text(DMESG.format("03:00") + DMESG.format("12:00"))
    document = told(capsys, logs[0], "--kernel", f"node2={logs[1]}")
    assert document["advice"]["exclude_nodes"] == ["node2"]
    assert document["attribution"]["sources"]["kernel"]["problems"] == []
    assert document["attribution"]["confidence"] > 0.95


def test_a_zone_that_only_one_of_two_logs_tells_is_this_machines(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container writes UTC, and `dmesg -T` the node's own time: at once, or nine hours apart."""
    logs[0].write_text(JOB_LOG.replace("2026-11-29 11:59:50", "2026-11-29T20:59:50Z").replace("2026-11-29 ", "at "))
    for zone, excluded in (("XXX9", ["node2"]), ("UTC", [])):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        document = told(capsys, logs[0], "--kernel", f"node2={logs[1]}")
        assert document["advice"]["exclude_nodes"] == excluded, zone
    monkeypatch.undo()
    time.tzset()


def test_what_a_kernel_said_long_before_a_job_is_not_its_business(
    logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """`dmesg` goes back to the boot. Clocks without zones may be apart: what is surely older is left out, and what
    may be is doubted.
    """
    job, kernel = logs
    old = "[Fri Nov 27 12:00:00 2026] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
    kernel.write_text(old)
    document = told(capsys, job, "--kernel", f"node2={kernel}")
    assert (document["advice"]["exclude_nodes"], document["attribution"]["category"]) == ([], "unknown")
    left_out = "of dmesg.txt nothing from before 2026-11-28 21:29:50 UTC counts"
    assert document["attribution"]["sources"]["kernel"]["problems"] == [left_out]
    kernel.write_text(old + DMESG.format("12:00"))
    assert told(capsys, job, "--kernel", f"node2={kernel}")["advice"]["exclude_nodes"] == ["node2"]
    for zone, others in (("", ["gpu_hardware"]), ("+00:00", [])):
        kernel.write_text(DMESG.format("10:00").replace("[Sun Nov 29 10:00:00 2026]", f"2026-11-29T10:00:00{zone}"))
        job.write_text(JOB_LOG.replace("2026-11-29 11:", "2026-11-29T11:").replace(" iteration", f"{zone} iteration"))
        document = told(capsys, job, "--kernel", f"node2={kernel}")
        assert document["advice"]["exclude_nodes"] == [], zone
        found = [item["category"] for item in document["attribution"]["alternatives"]]
        assert [category for category in found if category != "unknown"] == others, zone


def test_beside_what_the_scheduler_says_dmesg_is_in_this_machines_zone(
    logs: tuple[Path, Path], path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where start and end are known, a time without a zone has to be compared with times that have one."""
    facts = {
        "job_id": "7",
        "nodes": "node[1-4]",
        "start": "2026-11-29T19:00:00+00:00",
        "end": "2026-11-29T20:01:00+00:00",
    }
    (path / "job.json").write_text(json.dumps(facts))
    (path / "logs" / "job.log").write_text("RuntimeError: CUDA error: unspecified launch failure\n")
    for zone, excluded in (("PST8", ["node2"]), ("UTC", [])):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        document = told(capsys, path, "--kernel", f"node2={logs[1]}")
        assert document["advice"]["exclude_nodes"] == excluded, zone
    monkeypatch.undo()
    time.tzset()


STEPS, MORE = (
    "".join(f" iteration {step}/ 900 | elapsed time per iteration (ms): 9.1 | lm loss: 2.0 |\n" for step in range(*of))
    for of in ((1, 4), (4, 9))
)
CANCELLED = "slurmstepd: error: *** {} ON node1 CANCELLED AT 2026-11-30T10:00:00{} ***\n"
AT_ONCE = "srun: error: node2: task 1: Exited with exit code 1\n"


@pytest.mark.parametrize(
    "end",
    [
        CANCELLED.format("JOB 4711", ""),
        CANCELLED.format("STEP 4711.0", "") + CANCELLED.format("JOB 4711", ""),
        CANCELLED.format("JOB 4711", "") + "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "srun: error: node1: task 0: Terminated\n",
        CANCELLED.format("JOB 4711", " DUE to SIGNAL Terminated"),
    ],
)
def test_a_cancelled_job_is_told_as_cancelled(tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str) -> None:
    """By whom its log does not say: its user, or somebody who may. What tasks say after it is what it led to."""
    log = tmp_path / "job.log"
    log.write_text(STEPS + end)
    run("analyze", log)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("what  cancel: The job was cancelled; its log does not say by whom  [user_cancel, ")
    assert lines[2] == "do    none: somebody cancelled it, and that stays so"
    assert "  scheduler  " not in out
    run("analyze", log, "--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert (document["job"]["state"], document["advice"]["reason"]) == ("cancelled", "user_cancelled")


@pytest.mark.parametrize(
    "text",
    [
        AT_ONCE + CANCELLED.format("JOB 4711", ""),
        ECC + CANCELLED.format("JOB 4711", ""),
        CANCELLED.format("STEP 4711.0", ""),
        CANCELLED.format("JOB 4711", " DUE TO TIME LIMIT"),
        CANCELLED.format("JOB 4711", " DUE TO PREEMPTION"),
        CANCELLED.format("JOB 4711", " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"),
        CANCELLED.format("JOB 4711", " DUE TO JOB REQUEUE"),
        CANCELLED.format("JOB 4711", "") + MORE + AT_ONCE,
    ],
)
def test_what_was_cancelled_after_it_failed_or_by_slurm_is_not_told_as_a_cancel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Somebody cleaned up, or the banner says why; or it went on."""
    log = tmp_path / "job.log"
    log.write_text(STEPS + text)
    run("analyze", log, "--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["attribution"]["category"] != "user_cancel"
    assert (document["job"]["state"], document["advice"]["action"]) == ("failed", "restart")


def test_what_somebody_can_cure_is_not_called_certain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full quota stops the job until there is room: that is no mistake in how it was started."""
    log = tmp_path / "job.log"
    log.write_text("OSError: [Errno 122] Disk quota exceeded: '/home/u/step_500'\n")
    run("analyze", log)
    assert "do    stop: it fails the same way again until somebody makes room\n" in capsys.readouterr().out
    run("analyze", log, "--format", "json")
    said = json.loads(capsys.readouterr().out)["advice"]["explanation"]
    assert said.startswith("Stop: it fails the same way again until somebody makes room, which no retry does; cause:")


def test_log_rules_of_the_job_are_given_as_json(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside signatures as TOML; two such files are one too many."""
    rules = tmp_path / "rules.json"
    rules.write_text('[{"name": "any", "logPattern": ".*", "faultOnMatch": true}]')
    run("analyze", path, "--rules", rules, "--format", "json")
    found = json.loads(capsys.readouterr().out)
    assert "job-rules" in found["attribution"]["sources"]
    run("analyze", path, "--rules", rules, "--rules", rules, code=2)
    run("analyze", path, "--rules", tmp_path / "gone.json", code=2)
    assert "gone.json: no such file" in capsys.readouterr().err
