"""The file of tokens when the host has trouble of its own."""

import os
import resource
from pathlib import Path

import pytest

from advisor.clock import SystemClock
from advisor.service.errors import UnauthenticatedError
from advisor.service.tokens import Tokens, add


def test_a_file_that_could_not_be_opened_once_is_read_at_the_next_call(tmp_path: Path) -> None:
    """Without a file descriptor left nobody is let in; with one again everybody is, though the file is as it was."""
    path = tmp_path / "tokens"
    token = add(path, name="ada-laptop", role="viewer", user="ada", expires=None)
    tokens = Tokens(path, SystemClock())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(path, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        with pytest.raises(UnauthenticatedError):
            tokens.find(token, "")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert tokens.find(token, "").name == "ada"
