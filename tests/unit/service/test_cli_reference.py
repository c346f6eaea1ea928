"""Every command says how it is used, and docs/cli.md says what they say."""

from pathlib import Path

import pytest

from advisor import cli_reference

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
HELPS = {path: cli_reference.help_of(path) for path in cli_reference.paths()}


def test_the_page_is_what_the_commands_say() -> None:
    """After a change: make cli-reference."""
    assert PAGE.read_text(encoding="utf-8") == cli_reference.reference(), (
        "run make cli-reference and commit docs/cli.md"
    )


@pytest.mark.parametrize("path", HELPS, ids=" ".join)
def test_every_command_has_examples_and_fits(path: tuple[str, ...]) -> None:
    """Its help names it, shows how it is called, and is no wider than asked for."""
    text = HELPS[path]
    if path[0] == "slurm":  # another program's own help
        return
    assert f"advisor {' '.join(path)}" in text.splitlines()[0]
    assert "Examples:" in text
    assert max(map(len, text.splitlines())) <= cli_reference.COLUMNS


@pytest.mark.parametrize("path", [(), ("store",)], ids=["advisor", "store"])
def test_what_has_commands_below_it_begins_with_examples(path: tuple[str, ...]) -> None:
    """Who only types its name sees how it is used; each example names a command that there is."""
    text = cli_reference.help_of(path)
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) > 2
    for line in examples:
        words = line.removeprefix("    ").removeprefix("sudo -u advisor ").split()
        assert words[0] == "advisor"
        assert any(tuple(words[1 : 1 + length]) in HELPS for length in (1, 2)) or words[2] == "--help"
    assert max(map(len, text.splitlines())) <= cli_reference.COLUMNS
