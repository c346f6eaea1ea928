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


# What a text is to look like → in words. A test asks for each pattern of the configuration.
SHAPES = {
    r"^(https?://[^\s?#]+)?$": "an address that begins with http:// or https://, without ? and #",
    r"^(https?://[^\s?#]+( https?://[^\s?#]+)*)?$": (
        "addresses that begin with http:// or https://, without ? and #, with one blank between them"
    ),
    r"^(https?://[^\s]+)?$": "an address that begins with http:// or https://, without blanks",
    r"^(https://[^\s?#]+)?$": "an address that begins with https://, without ? and #",
    r"^[^:\x00-\x1f]{0,200}$": "a name of at most 200 characters without a colon",
    r"^[^\x00-\x1f]{0,200}$": "a name of at most 200 characters on one line",
    r"^[a-z0-9][a-z0-9-]{0,39}$": "a name of at most 40 small letters, digits and hyphens",
    r"^(CN=|DNS:|URI:|EMAIL:|SUBJECT:)[^\x00-\x1f]{1,500}$": (
        "CN=, DNS:, URI:, EMAIL: or SUBJECT:, then what the certificate has there"
    ),
    r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}\$?$": "the name of an account: letters, digits, and _ . @ - behind the first",
    r"^[A-Za-z0-9!._*'():-]{0,150}$": "a tenant's name: at most 150 letters, digits, and ! . _ * ' ( ) : -",
    r"^([A-Za-z_][A-Za-z0-9_.-]{0,99}=[^\x00-\x1f]{1,200})?$": "a field and its value: FIELD=VALUE",
    r"^([A-Za-z_][A-Za-z0-9_.-]{0,99})?$": "a label: letters, digits, and _ . -, with a letter or _ first",
    r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$": "a label: letters, digits, and _ . -, with a letter or _ first",
    r"^(([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5})?$": "HOST:PORT, an IPv6 address in [ ]",
    r"^([A-Za-z0-9_.\[\]:-]{1,255}:[0-9]{1,5})?$": "HOST:PORT",
    r"^[A-Za-z0-9._:-]{0,253}$": "the name or address of a host",
    r"^([^\s<>,;@\x00-\x1f]{1,64}@[A-Za-z0-9.-]{1,253})?$": "one mail address: NAME@HOST",
    r"^[A-Za-z0-9_:/.-]{1,200}$": "the name of a claim: letters, digits, and _ : / . -",
}
