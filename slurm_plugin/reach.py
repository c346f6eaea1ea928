"""How the advisor is reached: its Unix socket on this host, or TLS and a token, or a certificate, from afar."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

Options = Sequence[tuple[str, int]]


class ReachError(Exception):
    """A file that is needed for it cannot be read; one sentence that says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """`target` as gRPC spells it. `secured`: over TLS; without `ca_file` the system's authorities are believed."""

    target: str
    secured: bool = False
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def channel(self, options: Options) -> grpc.aio.Channel:
        """A new connection, with the files as they are now. Raises `ReachError`."""
        if not self.secured:
            return grpc.aio.insecure_channel(self.target, options=options)
        return grpc.aio.secure_channel(self.target, self._credentials(), options=options)

    def blocking_channel(self) -> grpc.Channel:
        """For a check that asks once. Raises `ReachError`."""
        if not self.secured:
            return grpc.insecure_channel(self.target)
        return grpc.secure_channel(self.target, self._credentials())

    def _credentials(self) -> grpc.ChannelCredentials:
        own = [_read(path) if path else None for path in (self.ca_file, self.key_file, self.certificate_file)]
        credentials = grpc.ssl_channel_credentials(*own)
        if not self.token_file:
            return credentials
        _read(self.token_file)
        shown = grpc.metadata_call_credentials(_Token(self.token_file))
        return grpc.composite_channel_credentials(credentials, shown)


class _Token(grpc.AuthMetadataPlugin):
    """Read for each call: a token may be replaced while we run."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            token = _read(self._path).decode("ascii", "replace").strip()
        except ReachError as error:
            callback((), error)
            return
        callback((("authorization", f"Bearer {token}"),), None)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ReachError(f"{path} cannot be read: {error.strerror}") from None
