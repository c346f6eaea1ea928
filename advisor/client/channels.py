"""How the service is reached: its Unix socket on this host, or TLS and a token, or a certificate, from anywhere."""

import os
import stat
import threading
from pathlib import Path

import grpc

from advisor.client.errors import ClientError

MESSAGE_BYTES_MAX = 256 * 1024 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),  # what may be asked again is known here, and gRPC would ask again for minutes
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
)


def unix_channel(path: Path) -> grpc.Channel:
    """Raises `ClientError` when nobody can be there."""
    _check_socket(path)
    return grpc.insecure_channel(f"unix:{path}", options=_OPTIONS)


def remote_channel(
    address: str,
    *,
    token_file: Path | None = None,
    ca_file: Path | None = None,
    certificate: tuple[Path, Path] | None = None,
) -> grpc.Channel:
    """`host:port` over TLS. `certificate`: ours and its key. Without `ca_file` the system's authorities are trusted."""
    chain, key = (_read(certificate[0]), _read(certificate[1])) if certificate is not None else (None, None)
    trusted = _read(ca_file) if ca_file is not None else None
    credentials = grpc.ssl_channel_credentials(root_certificates=trusted, private_key=key, certificate_chain=chain)
    if token_file is not None:
        _read(token_file)
        shown = grpc.metadata_call_credentials(_TokenFile(token_file))
        credentials = grpc.composite_channel_credentials(credentials, shown)
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


def settled(channel: grpc.Channel, seconds: float) -> bool | None:
    """True: a connection came about. False: it was refused, and a call fails with the reason. None: neither, so far.

    That is so where a process is frozen: its host accepts the connection, and nobody ever says anything; or where a
    host swallows what is sent to it.
    """
    seen: list[bool] = []
    known = threading.Event()

    def look(state: grpc.ChannelConnectivity) -> None:
        if state not in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
            seen.append(state is grpc.ChannelConnectivity.READY)
            known.set()

    channel.subscribe(look, try_to_connect=True)
    try:
        return seen[0] if known.wait(seconds) else None
    finally:
        channel.unsubscribe(look)


class _TokenFile(grpc.AuthMetadataPlugin):
    """The token is read again for each call: it may be renewed while we run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except OSError as error:
            callback((), error)
            return
        callback((("authorization", f"Bearer {token}"),), None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ClientError(f"{path}: {error.strerror}") from None


def _check_socket(path: Path) -> None:
    """Say early and plainly what gRPC would wrap in its own words."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise ClientError(f"nothing listens on {path}: start `advisor serve`, or give --socket") from None
    except OSError as error:
        raise ClientError(f"{path} cannot be reached ({error.strerror}): run this as an operator") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise ClientError(f"{path} is not a socket: give --socket")
    if not os.access(path, os.W_OK):
        raise ClientError(f"{path} may not be opened by this user: run this as an operator")
