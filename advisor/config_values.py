"""Kinds of values that keys of the configuration have, and the strict section that holds them."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def absolute(value: object) -> object:
    if isinstance(value, str):
        if not value.startswith("/"):
            raise ValueError("give an absolute path")
        if "\0" in value or "\n" in value:
            raise ValueError("a path may not hold control characters")
        return Path(value)
    return value


def optional_path(value: object) -> object:
    return None if value == "" else absolute(value)


def as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


AbsolutePath = Annotated[Path, BeforeValidator(absolute)]
OptionalPath = Annotated[Path | None, BeforeValidator(optional_path)]
AccountName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}\$?$")]
AccountNames = Annotated[tuple[AccountName, ...], BeforeValidator(as_tuple)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=False)
