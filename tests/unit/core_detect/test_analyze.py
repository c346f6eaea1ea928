"""`advisor analyze`, from outside."""

import json
from pathlib import Path

import pytest

from advisor.cli import main


def run(*arguments: object) -> None:
    """The command line, which ends by `SystemExit`."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    assert caught.value.code == 0


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
