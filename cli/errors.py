"""What ended a command, as an exit code, one line and perhaps a hint. Source: docs/protocol.md 9.

A hint travels as a note on the exception (`error.add_note`), so code below cli/ can give one too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import click

from crypto.errors import BudgetExhausted, ChoraleError, ConfigError, PolicyRefusal, RemoteProtocolError

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

UNTRUSTED_HINT = (
    "check authority, and set coordinator_name where the dialed host is not the one in the certificate"
)


class ExitCode(IntEnum):
    """How a command ended; `meaning` is what docs/reference/cli.md says of it."""

    meaning: str

    DONE = 0, "done"
    FAILED = 1, "failed: a port in use, a peer that cannot be reached, a disk that is full"
    USAGE = 2, "wrong usage, an invalid file, or a certificate of one's own that is expired or foreign"
    REFUSED_HERE = 3, "refused by policy or privacy budget of silos (`demo`, `job submit`, `job watch`)"
    REFUSED_BY_PEER = 4, "refused by the peer that was called"
    INTERRUPTED = 130, "interrupted by Ctrl-C"

    def __new__(cls, number: int, meaning: str) -> Self:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a command ended. An empty message prints nothing."""

    code: ExitCode
    message: str = ""
    hint: str = ""


class CommandFailed(ChoraleError):
    """A command could not do what was asked, through nobody's wrong input."""


def with_hint(error: ChoraleError, hint: str) -> ChoraleError:
    """The error, carrying one action that may help."""
    error.add_note(hint)
    return error


def failure_of(error: BaseException) -> Failure:
    """Exit code and line for whatever ended a command."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Failure(code=ExitCode.INTERRUPTED)
    if isinstance(error, SystemExit):
        return _of_system_exit(error)
    if isinstance(error, click.ClickException):
        return Failure(code=ExitCode.USAGE, message=_usage_message(error), hint=_usage_hint(error))
    if isinstance(error, ChoraleError):
        return Failure(code=_code_of(error), message=_one_line(str(error)), hint=_hint(error))
    if _is_rpc_error(error):
        return _of_rpc_error(error)
    if isinstance(error, OSError):
        return Failure(code=ExitCode.FAILED, message=_os_message(error), hint=_hint(error))
    return _of_bug(error)


def _code_of(error: ChoraleError) -> ExitCode:
    if isinstance(error, ConfigError):
        return ExitCode.USAGE
    if isinstance(error, PolicyRefusal | BudgetExhausted):
        return ExitCode.REFUSED_HERE
    if isinstance(error, RemoteProtocolError):
        return ExitCode.REFUSED_BY_PEER
    return ExitCode.FAILED


def _of_system_exit(error: SystemExit) -> Failure:
    if error.code is None or error.code == 0:
        return Failure(code=ExitCode.DONE)
    return Failure(code=ExitCode.FAILED, message="" if isinstance(error.code, int) else str(error.code))


def _usage_message(error: click.ClickException) -> str:
    message = _one_line(error.format_message()).rstrip(".")
    return message[:1].lower() + message[1:]


def _usage_hint(error: click.ClickException) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.ctx.command_path} --help"
    return ""


def _is_rpc_error(error: BaseException) -> bool:
    grpc = sys.modules.get("grpc")  # never imported for the sake of an error message
    return grpc is not None and isinstance(error, grpc.RpcError)


def _of_rpc_error(error: Any) -> Failure:
    status, details = error.code().name, _one_line(error.details() or "")
    if status in REFUSED_BY_PEER:
        return Failure(
            code=ExitCode.REFUSED_BY_PEER, message=f"coordinator refused: {details or status.lower()}"
        )
    if status == "UNAVAILABLE":
        return _of_unavailable(error, details)
    return Failure(
        code=ExitCode.FAILED, message=f"coordinator: {status.lower()}: {details}", hint=_hint(error)
    )


def _of_unavailable(error: BaseException, details: str) -> Failure:
    from chorale.transport.tls import explain_handshake

    told = explain_handshake(details, target="the dialed host")
    hint = UNTRUSTED_HINT if told.startswith("the certificate") else UNREACHABLE_HINT
    message = told or f"coordinator is unreachable ({details})"
    return Failure(code=ExitCode.FAILED, message=message, hint=_hint(error) or hint)


def _of_bug(error: BaseException) -> Failure:
    """One line and where the traceback is; CHORALE_DEBUG=1 shows it at once."""
    text = "".join(traceback.format_exception(error))
    if os.environ.get("CHORALE_DEBUG") == "1":
        click.echo(text, err=True)
        return Failure(code=ExitCode.FAILED, message=f"internal error: {type(error).__name__}")
    handle, path = tempfile.mkstemp(prefix="chorale-", suffix=".traceback")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    return Failure(
        code=ExitCode.FAILED,
        message=f"internal error: {type(error).__name__}: the traceback is in {path}",
        hint="this is a bug; please report it with that file",
    )


def _hint(error: BaseException) -> str:
    return "; ".join(_one_line(note) for note in getattr(error, "__notes__", ()))


def _os_message(error: OSError) -> str:
    if error.filename is None or not error.strerror:
        return _one_line(str(error))
    return f"{error.filename}: {error.strerror.lower()}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
