"""The filter that a log store is given never hides a line that matters: the same verdict with and without it."""

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from advisor.bundle import read_bundle
from advisor.core.decide import decide
from advisor.core.document import analysis_document
from advisor.core.line_filter import LineFilter, Passes, line_filter, relaxed
from advisor.core.policy import Policy
from advisor.core.progress import COMPILED, MARKS_COMPILED
from advisor.core.rules import Rule, RuleSet
from advisor.core.scan import FileContext, FileState, Scanner
from advisor.core.words import Category, Role, Trust
from advisor.core.wrapping import unwrap
from advisor.rules.loader import load_rules
from tests.corpus.healthy import STYLES

CASES = Path(__file__).resolve().parents[2] / "cases" / "attribution"
NOW = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return load_rules(())


@pytest.fixture(scope="module")
def passes(rules: RuleSet) -> Passes:
    return Passes(line_filter(rules.rules))


def test_an_example_of_every_rule_passes(rules: RuleSet, passes: Passes) -> None:
    """What a rule was written for is never left out, coloured or not."""
    for rule in rules.rules:
        if not rule.pattern or rule.role is Role.BENIGN:
            continue
        pattern = re2_of(rule.pattern)
        for example in rule.positive:
            told = [line for line in example.encode().split(b"\n") if pattern.search(line)]
            assert all(passes(line) for line in told), (rule.id, example)
            assert all(passes(b"\x1b[31m" + line[:3] + b"\x1b[0m" + line[3:]) for line in told)


def re2_of(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(pattern.encode(), options)


def test_progress_of_every_framework_passes(passes: Passes) -> None:
    """Steps, checkpoints, phases and the end, as each known framework prints them."""
    patterns = [*COMPILED.values(), *MARKS_COMPILED.values()]
    seen = 0
    for style in STYLES:
        for text in (*style.start, style.step, style.saving, style.saved, *style.evaluation, *style.end, style.skipped):
            for line in re.sub(r"\{[^{}]*\}", "7", text).encode().splitlines():
                if any(pattern.search(line) for pattern in patterns):
                    seen += 1
                    assert passes(line), line
    assert seen > 30


def test_what_healthy_training_prints_is_mostly_left_out(passes: Passes) -> None:
    """A filter that lets everything through saves nothing."""
    chatter = [
        b"INFO 2026-03-01 10:00:00 config: hidden_size=4096 num_layers=32 seq_length=8192",
        b"[rank12] building GPT model ...",
        b"node0042:4711:4732 [3] NCCL INFO Channel 07/0 : 3[3] -> 2[2] via P2P/CUMEM",
        b"> learning rate decay style: cosine",
        b"number of parameters on (tensor, pipeline) model parallel rank (0, 0): 7241732096",
        b"memory (MB) | allocated: 31220.1 | max allocated: 51811.2 | reserved: 60122.0",
        b"time (ms) | forward-backward: 2210.1 | optimizer: 110.4",
        b"Prefetching shard 000123 of dataset c4",
    ]
    assert sum(passes(line) for line in chatter) <= 1


def _documents(path: Path, rules: RuleSet, scanner: Scanner) -> dict[str, Any]:
    snapshot = read_bundle(path, scanner, NOW)
    decision = decide(snapshot, rules, Policy(), NOW)
    document = analysis_document(decision, snapshot)
    cause = document["attribution"]
    return {
        "kind": document["incident"]["kind"],
        "rules": sorted({signal["rule"] for signal in document["incident"]["signals"]}),
        "category": cause["category"],
        "root_cause": cause["root_cause"],
        "implicated": cause["implicated"],
        "isolation": document["isolation"],
        "action": document["advice"]["action"],
        "exclude": document["advice"]["exclude_nodes"],
        "reason": document["advice"]["reason"],
    }


def _filtered(folder: Path, into: Path, passes: Passes) -> tuple[int, int]:
    """A bundle as a store would have given it: lines of its logs that do not pass are gone."""
    shutil.copytree(folder, into)
    kept = there = 0
    for path in sorted((into / "logs").iterdir()):
        data = path.read_bytes()
        whole = unwrap(data.replace(b"\r\n", b"\n"))
        if whole is not None or path.suffix == ".json" or b"\r" in data.replace(b"\r\n", b"\n"):
            continue  # hard-wrapped text and error files are not what a collector ships
        lines = data.split(b"\n")
        chosen = [line for line in lines if passes(line)]
        kept, there = kept + len(chosen), there + len(lines)
        path.write_bytes(b"\n".join([*chosen, b""]))
    return kept, there


# How long lines that are no news went on is told by those lines alone. A live hang counts from the newest step.
_CHATTER = "hang-behind-"


def _cases() -> Iterator[Any]:
    known = (path for path in CASES.iterdir() if (path / "logs").is_dir() and _CHATTER not in path.name)
    for at, folder in enumerate(sorted(known)):
        yield pytest.param(folder, id=folder.name, marks=() if at % 8 == 0 else pytest.mark.long)


@pytest.mark.parametrize("folder", list(_cases()))
def test_the_verdict_is_the_same_with_and_without(
    folder: Path, rules: RuleSet, scanner: Scanner, passes: Passes, tmp_path: Path
) -> None:
    """Kind, category, cause, places, advice and the rules that spoke: nothing depends on lines that were left out."""
    _filtered(folder, tmp_path / "filtered", passes)
    assert _documents(tmp_path / "filtered", rules, scanner) == _documents(folder, rules, scanner)


@pytest.fixture(scope="module")
def scanner(rules: RuleSet) -> Scanner:
    return Scanner(rules)


def test_lines_left_out_still_show_that_something_is_printed(rules: RuleSet, scanner: Scanner) -> None:
    """A count alone moves the line number and the time of the newest output, and nothing else."""
    context = FileContext(source="s", trust=Trust.LOG, file="f", nodes=("node1",))
    state = scanner.scan(context, FileState(), b"step 1 loss 2.0\n", fresh=False, final=False, seen_at=NOW).state
    later = datetime(2026, 11, 29, 0, 5, tzinfo=UTC)
    after = scanner.scan(context, state, b"", fresh=False, final=False, seen_at=later, skipped=40)
    assert after.lines == 40
    assert after.state.line == state.line + 40
    assert after.state.progress.last_line_at == later
    assert after.state.progress.last_at == state.progress.last_at
    assert after.signals == ()


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"^MemoryError\b", b"12: MemoryError"),
        (r"(?i)\bEIO\b: ", b"prefix eio: x"),
        (r"a.{0,200}b$", b"a" + b"x" * 300 + b"b and more"),
        (r"[$^]+\$", b"cost $^$ x"),
        (r"x[^]a]{1,90}y", b"x" + b"-" * 40 + b"y"),
        (r"(?P<node>n\d+)[^\n]{0,80}?down", b"n12 went down"),
    ],
)
def test_a_relaxed_pattern_finds_at_least_as_much(pattern: str, line: bytes) -> None:
    """Anchors, names and counted gaps go; what was found is still found, inside any other line."""
    assert re2_of(relaxed(pattern)).search(line)


def test_a_rule_without_any_word_is_passed_on_as_it_is() -> None:
    """Where no word must be there the pattern itself decides; a usual word does where no telling one is there."""
    odd, usual = (
        Rule(id="r", title="t", pattern=pattern, category=Category.NUMERICS, role=Role.SYMPTOM)
        for pattern in (r"^E\d{3}-\d{2}$", r"(?:loss|step)=(?:nan|-?inf)\b")
    )
    chosen: LineFilter = line_filter([odd, usual])
    assert relaxed(odd.pattern) in chosen.patterns
    assert Passes(chosen)(b"12: E101-77")
    assert {"loss", "step"} <= set(chosen.texts)
    assert Passes(chosen)(b"x loss=nan y")
    assert not Passes(chosen)(b"INFO all is well")


LONG_LOG = b"""\
INFO config: hidden_size=4096
 [2026-03-01 12:00:01] iteration       10/  500000 | consumed samples: 10240 | elapsed time per iteration (ms): 900.1 |
[default0]:some shape (4096, 4096) of a layer
Traceback (most recent call last):
  File "/home/alice/train.py", line 812, in <module>
    main(args)
  File "/home/alice/model/loop.py", line 77, in run_epoch
    value = table[key]
            ~~~~~^^^^^
KeyError: 'tokens'
some chatter between
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-01_12:00:05
  host      : node2
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 4711)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def test_what_is_read_around_a_hit_passes_with_it(rules: RuleSet, scanner: Scanner, passes: Passes) -> None:
    """A traceback keeps its frames, and torchelastic's block its host, rank and exit code."""
    context = FileContext(source="s", trust=Trust.LOG, file="f", nodes=("node1", "node2"), world_size=16)
    sent = b"\n".join(line for line in LONG_LOG.split(b"\n") if passes(line)) + b"\n"
    assert len(sent) < len(LONG_LOG) - 150
    told = []
    for data in (LONG_LOG, sent):
        found = scanner.scan(context, FileState(), data, fresh=True, final=True, seen_at=NOW)
        told.append([(s.rule, s.rank, s.nodes, s.text, dict(s.fields)) for s in found.signals])
    assert told[0] == told[1]
    fields = [item[4] for item in told[0]]
    assert any("loop.py:run_epoch" in one.get("frames", "") for one in fields)
    assert any(one.get("exitcode") == "1" for one in fields)
