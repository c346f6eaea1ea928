"""Rule files are read strictly, and all their problems are reported together."""

from pathlib import Path

import pytest

from advisor.rules.loader import RulesError, load_rules, parse_rules

GOOD = """
[[rule]]
id = "site.raid"
title = "A RAID array is degraded"
pattern = '''md\\d+: Disk failure on'''
category = "node_hardware"
role = "initiating"
implicates = "node"
source = "https://docs.kernel.org/admin-guide/md.html"
positive = ["md0: Disk failure on sda1, disabling device."]
negative = ["md0: resync done."]
"""


def test_a_site_adds_its_own_rules(tmp_path: Path) -> None:
    """A file of rules comes on top of the shipped ones, and changes the digest of the set."""
    path = tmp_path / "site.toml"
    path.write_text(GOOD)
    rules = load_rules([path])
    assert "site.raid" in rules.by_id()
    assert rules.digest != load_rules().digest


def test_the_digest_names_the_content() -> None:
    """The same files give the same digest."""
    assert load_rules().digest == load_rules().digest


def test_a_site_may_replace_a_shipped_rule(tmp_path: Path) -> None:
    """The site's rule wins over the shipped one of the same id."""
    path = tmp_path / "site.toml"
    path.write_text(GOOD.replace("site.raid", "cuda.oom"))
    assert load_rules([path]).by_id()["cuda.oom"].title == "A RAID array is degraded"


def test_all_problems_are_located_and_reported_together() -> None:
    """File, rule and key of every problem, and the good rules of the file survive."""
    text = (
        GOOD
        + """
[[rule]]
id = "Bad Id"
title = "x"
pattern = "a(?<!b)"
category = "weather"
role = "initiating"
source = "s"
colour = "red"

[[rule]]
id = "site.lookbehind"
title = "x"
pattern = "a(?<!b)c"
category = "storage"
role = "initiating"
source = "a source"
"""
    )
    problems: list[str] = []
    rules = parse_rules("site.toml", text.encode(), problems)
    assert [rule.id for rule in rules] == ["site.raid"]
    assert any(problem.startswith("site.toml: Bad Id: category: 'weather' is not one of") for problem in problems)
    assert "site.toml: Bad Id: colour: unknown key" in problems
    assert any(problem.startswith("site.toml: site.lookbehind: pattern: RE2 refuses it") for problem in problems)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('title = "A RAID', "title: missing"),
        ("weight = 3", "weight: must be a number from 0 to 1"),
        ("certain = 1", "certain: must be true or false"),
        ("pattern = '''x*'''", "pattern: matches an empty line"),
        ("positive = 'x'", "positive: must be a list of strings"),
    ],
)
def test_each_key_is_checked(change: str, message: str) -> None:
    """A wrong value is reported by its key."""
    if change.startswith("title"):
        text = "\n".join(line for line in GOOD.splitlines() if not line.startswith("title"))
    else:
        key = change.split(" ")[0]
        text = "\n".join(line for line in GOOD.splitlines() if not line.startswith(key)) + "\n" + change
    problems: list[str] = []
    assert parse_rules("f.toml", text.encode(), problems) == []
    assert problems == [f"f.toml: site.raid: {message}"]


def test_broken_files_are_one_problem(tmp_path: Path) -> None:
    """What is no TOML, or cannot be read, is said in one line that names the file."""
    path = tmp_path / "broken.toml"
    path.write_bytes(b"\xff[[")
    with pytest.raises(RulesError) as caught:
        load_rules([path, tmp_path / "missing.toml"])
    assert len(caught.value.problems) == 2
    assert "broken.toml: not TOML" in caught.value.problems[0]
    assert "missing.toml: cannot be read" in caught.value.problems[1]
