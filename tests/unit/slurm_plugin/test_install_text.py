"""slurm.conf and job_submit.lua as text: changed where they must be, and given back byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.install import conf_text, lua_syntax, lua_text
from slurm_plugin.install.conf_text import TextError

HOOK = "/etc/slurm/recovery-advisor/epilog_slurmctld"


def with_hook(text: str) -> str:
    (setting,) = conf_text.settings(text, "EpilogSlurmctld") or (None,)
    return conf_text.replaced(text, setting, HOOK) if setting else conf_text.added(text, "EpilogSlurmctld", HOOK)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("EpilogSlurmctld=/site/epilog", "/site/epilog"),
        ("  epilogslurmctld = /site/epilog # ours", "/site/epilog"),
        ('EpilogSlurmctld="/site/my epilog"', "/site/my epilog"),
        ("KillWait=30 EpilogSlurmctld=/site/epilog MinJobAge=300", "/site/epilog"),
        ("EpilogSlurmctld=/site/epi\\#log", "/site/epi\\#log"),
    ],
)
def test_a_setting_is_found_as_slurm_reads_it(line: str, value: str) -> None:
    """In any case, quoted, among others on its line, before a comment."""
    (found,) = conf_text.settings(f"A=1\n{line}\nB=2\n", "EpilogSlurmctld")
    assert (found.value, found.line) == (value, 1)


@pytest.mark.parametrize("line", ["#EpilogSlurmctld=/x", "A=1 # EpilogSlurmctld=/x", "PrologSlurmctld=/x", "Epilog=/x"])
def test_what_is_no_setting_is_not_taken_for_one(line: str) -> None:
    """Comments, and settings with similar names."""
    assert conf_text.settings(line + "\n", "EpilogSlurmctld") == []


def test_only_the_value_changes_and_the_old_line_stays_readable() -> None:
    """What else stands on the line stays where it is."""
    text = "KillWait=30 EpilogSlurmctld=/site/epilog MinJobAge=300 # note\n"
    lines = with_hook(text).splitlines()
    assert lines[1:3] == ["#was: " + text.rstrip("\n"), f"KillWait=30 EpilogSlurmctld={HOOK} MinJobAge=300 # note"]


def test_a_line_that_goes_on_is_refused() -> None:
    """With its number; a person has to put the setting on a line of its own."""
    text = "A=1\nKillWait=30 \\\n  EpilogSlurmctld=/site/epilog\n"
    with pytest.raises(TextError, match=r"line 3: .*goes on with a backslash"):
        with_hook(text)


LINES = st.lists(
    st.sampled_from(
        ["", "A=1", "# comment", "KillWait=30\r", "Include other.conf", "NodeName=n[1-4] CPUs=2", '\tB = "x y"']
    ),
    max_size=6,
)


@given(
    before=LINES,
    after=LINES,
    site=st.sampled_from(["", "EpilogSlurmctld=/site/epilog", "C=1 epilogslurmctld=/e # x", 'JobSubmitPlugins="all"']),
    ended=st.booleans(),
    appended=LINES,
    order=st.permutations(["EpilogSlurmctld", "JobSubmitPlugins"]),
)
def test_taking_our_blocks_out_gives_the_text_back(
    before: list[str], after: list[str], site: str, ended: bool, appended: list[str], order: list[str]
) -> None:
    """Byte by byte, in either order, with or without a last newline, and with what was appended since."""
    text = "\n".join([*before, *([site] if site else []), *after]) + ("\n" if ended else "")
    changed = with_hook(text)
    (plugins,) = conf_text.settings(changed, "JobSubmitPlugins") or (None,)
    changed = (
        conf_text.replaced(changed, plugins, "all,lua")
        if plugins
        else conf_text.added(changed, "JobSubmitPlugins", "lua")
    )
    assert [item.value for item in conf_text.settings(changed, "EpilogSlurmctld")] == [HOOK]
    assert len(conf_text.blocks(changed)) == 2
    back = changed
    for key in order:
        back = conf_text.restored(back, key)
    assert back == text
    more = "".join(line + "\n" for line in appended)
    back = changed + more
    for key in order:
        back = conf_text.restored(back, key)
    last_newline = "" if text.endswith("\n") or not text or not more or not changed.endswith("\n") else "\n"
    assert back == text + last_newline + more


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace(HOOK, "/other", 1).replace("EpilogSlurmctld=/other", "A=1"),
        lambda text: text.replace(conf_text.END, ""),
        lambda text: text.replace(conf_text.END, "B=2\n" + conf_text.END),
        lambda text: text.replace(f"MinJobAge=3 EpilogSlurmctld={HOOK}", f"MinJobAge=4 EpilogSlurmctld={HOOK}"),
    ],
)
def test_a_block_that_was_changed_by_hand_is_refused(edit: object) -> None:
    """Whoever changed it means something; nothing is thrown away."""
    changed = with_hook("MinJobAge=3 EpilogSlurmctld=/site/epilog\n")
    assert callable(edit)
    with pytest.raises(TextError, match="by hand"):
        conf_text.restored(edit(changed), "EpilogSlurmctld")


SITE = "function slurm_job_submit(d, p, u)\n  return slurm.SUCCESS\nend\nfunction slurm_job_modify() return 0 end\n"


@pytest.mark.parametrize(
    "text",
    [
        SITE,
        SITE.removesuffix("\n"),
        SITE + "return slurm.SUCCESS\n",
        SITE + "slurm.log_info('initialized')\nreturn slurm.SUCCESS",
        SITE + "return slurm.SUCCESS\n\n-- the end\n\n",
        lua_text.SKELETON,
    ],
)
def test_our_block_compiles_in_any_usual_script_and_goes_without_a_trace(text: str) -> None:
    """At the end, or before the `return` that must be last."""
    assert lua_syntax.problem(text.encode(), "site") == ""
    changed = lua_text.added(text, "/x.lua", isolated_file="/y", tag=True, exclude_isolated="none")
    assert lua_syntax.problem(changed.encode(), "ours") == ""
    assert lua_text.removed(changed) == text
    assert lua_text.removed(text) == text


def test_what_does_not_compile_is_told_with_its_line() -> None:
    """By the library that Slurm itself uses."""
    assert lua_syntax.problem(b"return 1\nx = 2\n", "j.lua").startswith("j.lua:2:")


def test_a_block_without_an_end_is_refused() -> None:
    """Nothing of what follows is taken for ours."""
    changed = lua_text.added(SITE, "/x.lua", isolated_file="/y", tag=True, exclude_isolated="none")
    with pytest.raises(TextError, match="has no end"):
        lua_text.removed(changed.replace(lua_text.END, ""))
