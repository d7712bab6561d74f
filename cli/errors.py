"""What ended a command, as an exit code, one line and perhaps a hint. Source: docs/protocol.md 9.

A hint travels as a note on the exception (`error.add_note`), so code below cli/ can give one too.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import click

from client.errors import printable
from crypto.errors import (
    BudgetExhausted,
    ChoraleError,
    ConfigError,
    EvidenceMismatch,
    PolicyRefusal,
    RemoteProtocolError,
)


class ExitCode(IntEnum):
    """How a command ended; `meaning` is what docs/reference/cli.md says of it."""

    meaning: str

    DONE = 0, "done"
    FAILED = 1, "failed: a port in use, a peer that cannot be reached, a disk that is full"
    USAGE = 2, "wrong usage, an invalid file, or a certificate of one's own that is expired or foreign"
    REFUSED_HERE = 3, "refused by policy or privacy budget of silos (`demo`, `job submit`, `job watch`)"
    REFUSED_BY_PEER = 4, "refused by the peer that was called"
    MISMATCH = 5, "something in an archive of evidence does not fit (`evidence verify`, `job evidence`)"
    INCOMPLETE = 6, "silos of the job are missing from a roster in the evidence (`evidence verify`)"
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


class SilosMissing(ChoraleError):
    """An archive of evidence holds, and silos that its job names were not on all of its rosters."""


CODES: dict[type[ChoraleError], ExitCode] = {  # of every other one: FAILED
    ConfigError: ExitCode.USAGE,
    PolicyRefusal: ExitCode.REFUSED_HERE,
    BudgetExhausted: ExitCode.REFUSED_HERE,
    RemoteProtocolError: ExitCode.REFUSED_BY_PEER,
    EvidenceMismatch: ExitCode.MISMATCH,
    SilosMissing: ExitCode.INCOMPLETE,
}


class CommandFailed(ChoraleError):
    """A command could not do what was asked, though no input was wrong."""


def failure_of(error: BaseException) -> Failure:
    """Exit code and line for whatever ended a command."""
    hint = "; ".join(_one_line(note) for note in getattr(error, "__notes__", ()))
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Failure(code=ExitCode.INTERRUPTED)
    if isinstance(error, SystemExit):
        text = "" if error.code is None or isinstance(error.code, int) else str(error.code)
        return Failure(code=ExitCode.DONE if error.code in (None, 0) else ExitCode.FAILED, message=text)
    if isinstance(error, click.ClickException):
        message = _one_line(error.format_message()).rstrip(".")
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f"{error.ctx.command_path} --help"
        return Failure(code=ExitCode.USAGE, message=message[:1].lower() + message[1:], hint=hint)
    if isinstance(error, ChoraleError):
        code = next((code for kind, code in CODES.items() if isinstance(error, kind)), ExitCode.FAILED)
        return Failure(code=code, message=_one_line(str(error)), hint=hint)
    if isinstance(error, OSError):
        message = _one_line(str(error))
        if error.filename is not None and error.strerror:
            message = f"{error.filename}: {error.strerror.lower()}"
        return Failure(code=ExitCode.FAILED, message=message, hint=hint)
    return _of_bug(error)


def _of_bug(error: BaseException) -> Failure:
    """One line and where the traceback is; CHORALE_DEBUG=1 shows it at once."""
    text = "".join(traceback.format_exception(error))
    # the place too: nobody can read a file in a container that ends again and again
    places = [f" at {frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    message = f"internal error: {type(error).__name__}{''.join(places[-1:])}"
    if os.environ.get("CHORALE_DEBUG") == "1":
        click.echo(text, err=True)
        return Failure(code=ExitCode.FAILED, message=message)
    handle, path = tempfile.mkstemp(prefix="chorale-", suffix=".traceback")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    return Failure(
        code=ExitCode.FAILED,
        message=f"{message}: the traceback is in {path}",
        hint="this is a bug; please report it with that file",
    )


def _one_line(text: str) -> str:
    """Security: a peer's words stand in errors, and move no terminal's cursor."""
    return printable(" ".join(text.split()))
