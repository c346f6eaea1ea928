"""Patterns of jobs, rewritten for RE2: each construct beside what `re.match` makes of it, and each refusal."""

import re
import warnings

import pytest

from advisor.core.job_rules import compile_pattern
from advisor.rules.python_patterns import PROGRAM_SIZE_MAX, PatternError, compilable, to_re2

LINES = [
    "",
    "\n",
    "done\n",
    "done",
    "all done\n",
    "loss: 12.5 \n",
    "loss: ٣٫٥ ٧\n",
    "aab_b1-]x\n",
    "Éa é σΣς ſ K\n",
    "損失: 9\n",
    "a\tb\x0bc\u00a0d\x1fe\x85f\u2028g\n",
    "{a}{,2}aaa\n",
    "[:alpha:]\n",
    "\x00\x7f😀\n",
]
PATTERNS = [
    "",
    "done",
    "done$",
    r"done\Z",
    r"done\n\Z",
    r"done\s",
    "done\n$",
    "^done",
    r"\Adone",
    "(?m)^done|^$",
    r"(?m)(?:.*\n)*^$",
    ".*done",
    r"(?s).*\Z",
    r".*\n",
    "(?i)DONE|é",
    "(?i)ΣΣΣ|É.*Σ",
    "(?i:é)a",
    "(?i:é)A",
    "(?i)A(?-i:A)",
    "(?i)A(?-i:a)",
    r"(?a).*?(?u:(\w+))$",
    "(?i).*[k]$",
    "a(?-i:A)",
    r".*?(\d+)",
    r".*?(\w+):",
    r".*?(\W+)",
    r".*?(\s+)",
    r"(\S+)\s",
    r"\D*(\d)",
    r"(?a).*?(\d+)",
    r"(?a)(\w+)",
    r"(?a:\W*)(\w+)",
    r"(?a)(\S+\s\S)",
    r"(?a).*?([\W\d]+)",
    r"(?a)[^\D]*(.)",
    r"[^\W\d]+(.)",
    r"[\W]*(.)",
    r"[\s\S]*(.)",
    r"[^\S]*(.)",
    r"[^\s]+(.)",
    r"[\D]+(.)",
    r"[\w.]+(.)",
    r"[\d_]*(.)",
    "a{,2}(.)",
    "{a}(.)",
    "{a}{,2}(.)",
    "a{2}(b)",
    "a{1,}?(.)",
    "a*?(b)",
    "(?P<value>a+)(b)?",
    "(a)|(d)",
    "(?:x|(l))oss",
    "(x)?loss",
    "a(?#comment)a",
    "(?x) a a  # two of them",
    "[[:alpha:]]",
    "[]a]+",
    "[^]]+",
    r"[\]\-a]+",
    "[a-c٠-٩]+",
    r"\x61\141\u0061\N{LATIN SMALL LETTER B}",
    "損失",
    r"[\x00-\x1f]",
    r"\0\x7f\U0001F600",
    "a|",
    "(?:)*a",
    "(?:(?:a)*)*b",
    r"\{a\}",
    r"a\tb\vc",
    "[a-z]+ [a-z]+$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_construct_means_what_it_means_to_python(pattern: str) -> None:
    """On each line: the same answer, as far, with the same first group."""
    compiled = compile_pattern(compilable(pattern).text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = re.compile(pattern)
    assert compiled.groups == min(oracle.groups, 1)
    for line in LINES:
        ours, theirs = compiled.match(line.encode()), oracle.match(line)
        assert (ours is None) == (theirs is None), line
        if theirs is not None:
            assert ours.group(0).decode() == theirs.group(0), line
            if oracle.groups:
                assert (None if ours.group(1) is None else ours.group(1).decode()) == theirs.group(1), line


@pytest.mark.parametrize("name", ["d", "D", "s", "S", "w", "W"])
def test_classes_hold_the_same_characters(name: str) -> None:
    """Every character of the alphabets, whichever way the class is written."""
    characters = [chr(code) for code in range(0x3100) if not 0xD800 <= code < 0xE000]
    for pattern in (rf"\{name}", rf"[\{name}]", rf"[^\{name}]", rf"(?a)[\{name}]", rf"(?a)[^\{name}]"):
        compiled, oracle = compile_pattern(to_re2(pattern).text), re.compile(pattern)
        # Not yet assigned in Python's Unicode and assigned in RE2's, or the other way round.
        differ = [
            c for c in characters if (compiled.match(c.encode()) is None) is not (oracle.match(c) is None)
        ]  # fmt: skip
        assert len(differ) <= (0 if "a" in pattern or name in "sS" else 20), [hex(ord(c)) for c in differ]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "missing ), unterminated subpattern at character 1"),
        ("a**", "multiple repeat at character 3"),
        (r"a\p{L}", r"bad escape \p at character 2"),
        ("(?!x)a", "negative look-ahead"),
        ("(?=x)a", "look-ahead"),
        ("(?<=x)a", "look-behind"),
        (r"(a)\1", "back-references"),
        ("(a)?(?(1)b|c)", "conditional groups"),
        ("(?>a)b", "atomic groups"),
        ("a++b", "possessive repeats"),
        ("a{1001}", "more than 1000 repeats"),
        ("a{1001,}", "more than 1000 repeats"),
        ("a{99999999999999}", "too large"),
        ("(?:a{500}){3}", "RE2 refuses it: invalid repetition size"),
        ("(?:" * 60 + "a" + ")*" * 60, "inside each other"),
        ("(" * 1500 + ")" * 1500, "inside each other"),
        ("(?L)a", "bad inline flags"),
        ("[ab]{900}" * 12, "too large"),
        ("a" * 4001, "longer than 4000"),
    ],
)
def test_what_cannot_run_is_refused(pattern: str, said: str) -> None:
    """With what it is and, where Python's parser knows it, at which character."""
    with pytest.raises(PatternError) as caught:
        compilable(pattern)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_large_classes_are_narrowed_before_they_are_refused() -> None:
    r"""A UUID by `\w` would be 43,000 instructions with all letters; with ASCII it is a hundred."""
    made = compilable(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}")
    assert made.narrowed
    assert made.size < 200
    assert compile_pattern(made.text).match(b"0a1b2c3d-0000-1111-2222-333344445555")
    assert not compilable(r"(\w+) (\w+)").narrowed
    assert compilable(r"(\w+) (\w+)").size <= PROGRAM_SIZE_MAX


def test_only_the_first_group_is_captured() -> None:
    """The others would cost on every match and are never read."""
    assert compile_pattern(to_re2("(a)(b)(?P<c>c)").text).groups == 1


def test_word_borders_are_ascii() -> None:
    r"""The one difference that stays: RE2 has no Unicode `\b`, so a border follows a letter that is not ASCII."""
    assert compile_pattern(to_re2(r".*\bloss").text).match("損loss".encode())
    assert re.match(r".*\bloss", "損loss") is None
