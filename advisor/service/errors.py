"""Errors of the service.

ServiceError
├── SocketTakenError    another service holds the socket, or something else lies there (start-up)
├── BadRequestError     a message cannot be used: INVALID_ARGUMENT, the text says which field and why
└── NotFoundError       there is no such thing: NOT_FOUND
"""


class ServiceError(Exception):
    pass


class SocketTakenError(ServiceError):
    pass


class BadRequestError(ServiceError):
    pass


class NotFoundError(ServiceError):
    pass
