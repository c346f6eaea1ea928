"""Errors of the client.

ClientError        the service could not be asked, or refused; the text says what to do
├── NotFound       there is no such thing, or none that this caller may know of
├── Refused        this caller may not do it, or shows nothing that tells who he is
├── BadRequest     what was asked for cannot be: which field and why
└── Unreachable    nobody answers, or the service's database does not
    └── NoReplica  none of several does: each was tried, and what became of it is said
"""
# ruff: noqa: N818 - named after what happened, as they are read in `except NotFound`.


class ClientError(Exception):
    """The service could not be asked, or refused; the text says what to do."""


class NotFound(ClientError):
    pass


class Refused(ClientError):
    pass


class BadRequest(ClientError):
    pass


class Unreachable(ClientError):
    pass


class NoReplica(Unreachable):
    pass
