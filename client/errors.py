"""What commands and Python say alike where something fails: the errors themselves, hints, missing extras.

A hint travels as a note on the exception (`error.add_note`), so code below client/ can give one too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from crypto.errors import ChoraleError, ConfigError, RemoteProtocolError
from crypto.errors import printable as printable

if TYPE_CHECKING:
    import grpc

REFUSED_BY_PEER = {  # gRPC status names; every other one means that the peer failed or is not there
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "ALREADY_EXISTS",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "RESOURCE_EXHAUSTED",
}
UNREACHABLE_HINT = "check that the coordinator runs, its address, and that this certificate is on its roster"

UNKNOWN_HOST_HINT = (
    "check how coordinator is spelled, and that this machine can look it up: getent hosts NAME"
)

UNTRUSTED_HINT = (
    "check authority, and set coordinator_name where the dialed host is not the one in the certificate"
)


class PeerFailed(ChoraleError):
    """The coordinator could not do what was asked, though it did not refuse it."""


class JobNotDone(ChoraleError):
    """A job ended before its last round, and no silo's policy or budget is why."""


def peer_error(error: grpc.RpcError) -> ChoraleError:
    """A failed call in one sentence: RemoteProtocolError where the coordinator refused, else PeerFailed."""
    status, details = error.code().name, printable(" ".join((error.details() or "").split()))
    if status in REFUSED_BY_PEER:
        return RemoteProtocolError(f"coordinator refused: {details or status.lower()}")
    return PeerFailed(f"coordinator: {status.lower()}: {details}")


def with_hint(error: ChoraleError, hint: str) -> ChoraleError:
    """The error, carrying one action that may help."""
    error.add_note(hint)
    return error


@contextmanager
def about(source: str) -> Iterator[None]:
    """Errors of a job that was read from a file begin with the file's name."""
    try:
        yield
    except ConfigError as error:
        named = ConfigError(f"{source}: {error}")
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        raise named from error


def require_extra(extra: str, *modules: str, what: str) -> None:
    """Raises ConfigError that names the extra where one of its modules is not installed; imports none."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs the extra '{extra}' (no {', '.join(missing)} here): pip install '.[{extra}]'"
        )
