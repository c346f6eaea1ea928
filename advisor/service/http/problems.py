"""Errors of the API as problem details (RFC 9457), with the parameter or field that is the cause where it is known."""

import re
from typing import Any

from starlette.responses import JSONResponse, Response

MEDIA_TYPE = "application/problem+json"
_TITLES = {
    400: "The request cannot be used",
    401: "Nobody is known by this request",
    403: "Not allowed",
    404: "There is no such thing",
    405: "The method is not served here",
    408: "The body did not come in time",
    409: "It is too late for that",
    413: "The body is too large",
    429: "Too many requests",
    500: "The advisor failed on this request",
    501: "Not served here",
    503: "The store does not answer",
}
# Errors of the service begin with the field they are about.
_LOCATED = re.compile(r"(?P<at>[A-Za-z][A-Za-z0-9_.\[\]-]{0,63}): ")
_PREFIXES = ("filter.", "page.", "request.")


def problem(status: int, code: str, text: str, headers: dict[str, str] | None = None) -> Response:
    document: dict[str, Any] = {
        "type": f"urn:recovery-advisor:{code}",
        "title": _TITLES.get(status, "Refused"),
        "status": status,
        "detail": text,
        "code": code,
    }
    located = _LOCATED.match(text) if status == 400 else None
    if located is not None:
        at = located["at"]
        for prefix in _PREFIXES:
            at = at.removeprefix(prefix)
        document["errors"] = [{"location": at, "message": text[located.end() :]}]
    return JSONResponse(document, status_code=status, headers=headers, media_type=MEDIA_TYPE)
