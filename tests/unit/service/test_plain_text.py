"""What is shown to people of errors."""

from sqlalchemy.exc import OperationalError

from advisor.plain_text import ERROR_CHARS_MAX, error_text


def test_an_error_is_one_line_without_its_statement() -> None:
    """Of a database's error what it says is shown, not the statement, its parameters or a link in further lines."""
    error = OperationalError("SELECT secret FROM jobs", {"job": 7}, Exception("connection refused\nis it running?"))
    assert error_text(error) == "OperationalError: connection refused"


def test_an_error_is_short() -> None:
    """One that says a whole file, or nothing, is a line all the same."""
    assert len(error_text(ValueError("x" * 5000))) == ERROR_CHARS_MAX
    assert error_text(ValueError()) == "ValueError: "
