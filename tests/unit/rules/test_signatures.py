"""Every shipped rule keeps what it promises: one test over all of them."""

import re
from datetime import UTC, datetime

import pytest
import re2

from advisor.core.detection import OUTPUT_NOT_OPENED
from advisor.core.rules import Rule, RuleSet, effective
from advisor.core.scan import FileContext, FileState, Scanner, set_pattern
from advisor.core.words import Category, Implicates, Role, Trust
from advisor.rules.loader import load_rules

RULES = load_rules()
SCANNER = Scanner(RULES)
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
PATTERNED = [rule for rule in RULES.rules if rule.pattern]
# Texts that stand in one job's logs only. A rule that needs them fits an incident, not a failure mode.
INCIDENTAL = (
    r"\b(?:gpu|node|dgx|worker|nid|gn|cn|host)-?\d{2,}\b",
    r"\b(?:llama|qwen|mistral|gpt-?[234]|bert|vit|resnet)\b",
    r"/(?:home|scratch|data|mnt|lustre|ckpt|srv|opt)/",
    r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b",
)


def hits(line: str, *, trust: Trust = Trust.LOG) -> list[str]:
    context = FileContext(source="test", trust=trust, file="job.log")
    scanned = SCANNER.scan(context, FileState(), line.encode() + b"\n", fresh=False, final=True, seen_at=NOON)
    return [signal.rule for signal in scanned.signals]


def test_there_are_rules_for_every_category() -> None:
    """Each category that evidence can have is reached by some rule, and each Xid of the table by its code."""
    covered = {rule.category for rule in RULES.rules}
    assert covered >= set(Category) - {Category.NONE} | {Category.NONE}
    assert len(PATTERNED) >= 150
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119} <= set(RULES.xids)


@pytest.mark.parametrize("rule", PATTERNED, ids=lambda rule: rule.id)
def test_a_rule_recognises_its_examples_and_only_those(rule: Rule) -> None:
    """Positive lines give the rule's signal (a benign rule silences the line), negative ones never do."""
    assert rule.positive, "a rule needs a positive example"
    assert rule.negative, "a rule needs a negative example"
    for line in rule.positive:
        found = hits(line)
        assert found == [] if rule.role is Role.BENIGN else rule.id in found, (line, found)
    for line in rule.negative:
        assert rule.id not in hits(line), line


@pytest.mark.parametrize("rule", RULES.rules, ids=lambda rule: rule.id)
def test_a_rule_is_well_formed(rule: Rule) -> None:
    """Id, title and source are there; the pattern holds no incidental text and cannot match across lines."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*\.[a-z0-9_]+", rule.id)
    assert rule.title[0].isupper()
    assert not rule.title.endswith(".")
    assert len(rule.source) > 8
    for incidental in INCIDENTAL:
        assert not re.search(incidental, rule.pattern, re.IGNORECASE), incidental
    assert r"\n" not in re.sub(r"\[\^[^\]]*\\n[^\]]*\]|\\\\n", "", rule.pattern)
    assert not rule.pattern.startswith("^") or "|" not in _outside_groups(rule.pattern)


def _outside_groups(pattern: str) -> str:
    """The top level of a pattern: a bar there would anchor only its first branch."""
    depth, kept, index = 0, [], 0
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            index += 2
            continue
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif depth == 0:
            kept.append(char)
        index += 1
    return "".join(kept)


@pytest.mark.parametrize("rule", RULES.rules, ids=lambda rule: rule.id)
def test_only_causes_that_are_about_a_machine_blame_it(rule: Rule) -> None:
    """A rule that blames nodes is initiating, and of a category that a node can be guilty of. Of a file that could not
    be opened on one node the next attempt tells whether it was the node's mount."""
    if rule.implicates is Implicates.NODE and rule.id != OUTPUT_NOT_OPENED:
        assert rule.role is Role.INITIATING
        assert rule.category in {
            Category.GPU_HARDWARE,
            Category.NODE_HARDWARE,
            Category.INTERCONNECT,
            Category.SYSTEM_SOFTWARE,
        }


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_application_and_clean_up_xids_blame_nobody(code: int) -> None:
    """The code decides, not the word: these four come with almost every crash."""
    assert RULES.xids[code].implicates is Implicates.NOBODY
    assert not RULES.xids[code].fatal


def test_what_the_driver_says_about_an_xid_decides_beside_its_code() -> None:
    """One that it calls not fatal is no cause; one that follows another counts as that one."""
    rule = RULES.by_id()["kernel.xid"]
    link = effective(rule, {"xid": "145", "severity": "Nonfatal"}, RULES.xids)
    assert link.role is Role.SYMPTOM
    assert effective(rule, {"xid": "145", "severity": "Fatal"}, RULES.xids).role is Role.INITIATING
    assert effective(rule, {"xid": "45"}, RULES.xids).role is Role.TEARDOWN
    assert effective(rule, {"xid": "45", "cause": "79"}, RULES.xids).implicates is Implicates.NODE


def test_channels_that_end_for_a_lost_link_say_that_it_was_fatal() -> None:
    """Of the GPU's own link; what the other end of a link makes a GPU report blames nobody yet."""
    rule = RULES.by_id()["kernel.xid"]
    assert effective(rule, {"xid": "149"}, RULES.xids).implicates is Implicates.CONDITIONAL
    assert effective(rule, {"xid": "45", "cause": "149"}, RULES.xids).implicates is Implicates.NODE
    assert effective(rule, {"xid": "45", "cause": "145"}, RULES.xids).implicates is Implicates.CONDITIONAL


def test_rule_sets_refuse_two_rules_of_one_id() -> None:
    """An id names one rule."""
    rule = PATTERNED[0]
    with pytest.raises(ValueError, match="two rules have the id"):
        RuleSet(rules=(rule, rule))


def test_no_two_rules_are_the_same_mode() -> None:
    """Rules differ in what they recognise: no pattern is there twice, and no two fit the same of all examples."""
    patterns = [rule.pattern for rule in PATTERNED]
    assert len(patterns) == len(set(patterns))
    recognised: dict[frozenset[str], str] = {}
    examples = [line for rule in PATTERNED for line in rule.positive]
    compiled = {rule.id: re2.compile(set_pattern(rule.pattern).encode()) for rule in PATTERNED}
    for rule in PATTERNED:
        hit = frozenset(line for line in examples if compiled[rule.id].search(line.encode()))
        assert recognised.setdefault(hit, rule.id) == rule.id, hit
