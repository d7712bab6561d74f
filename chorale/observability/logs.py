"""Structured logs: one line, one event, its fields as key=value or JSON; never payloads.

Long bytes and arrays are written by their size alone, so that no key, share or vector can slip in.
"""

from __future__ import annotations

import json
import logging
import sys
from asyncio import get_running_loop
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partialmethod
from pathlib import Path
from signal import SIGUSR1
from typing import IO, Annotated, Literal

from pydantic import Field

ROOT = "chorale"
MAX_HASH_BYTES = 32  # digests are shown, longer bytes are payload

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    Field(
        description="the least that is logged; debug adds every message, transfer and refused call, without "
        "what they hold; SIGUSR1 turns debug on, and off again"
    ),
]


class Logger:
    """A named logger whose lines have fields: `log.info("round applied", job=job.id, round=3)`."""

    def __init__(self, inner: logging.Logger) -> None:
        self._inner = inner

    def _log(self, level: int, message: str, /, *, has_traceback: bool = False, **fields: object) -> None:
        if self._inner.isEnabledFor(level):
            self._inner.log(level, message, extra={"fields": fields}, exc_info=has_traceback)

    debug = partialmethod(_log, logging.DEBUG)
    info = partialmethod(_log, logging.INFO)
    warning = partialmethod(_log, logging.WARNING)
    error = partialmethod(_log, logging.ERROR)
    # an error with the traceback of the exception being handled: a bug of ours
    exception = partialmethod(_log, logging.ERROR, has_traceback=True)


def get_logger(name: str) -> Logger:
    """The logger of a module. Nothing is written before `configure`, except warnings to stderr."""
    return Logger(logging.getLogger(f"{ROOT}.{name}"))


def configure(
    *,
    stream: IO[str] | None = None,
    path: Path | None = None,
    level: LogLevel = "info",
    json: bool = True,
    **static: object,
) -> None:
    """Send the logs of this process to a stream (stderr by default) or a file.

    static: fields of every line, such as the silo's name.
    """
    handler = logging.StreamHandler(stream or sys.stderr) if path is None else logging.FileHandler(path)
    handler.setFormatter(_Formatter(static, is_json=json))
    root = logging.getLogger(ROOT)
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
    # it writes a traceback for bytes of a peer that do not parse; their reader logs one line instead
    logging.getLogger("grpc._common").setLevel(logging.CRITICAL)


def toggle_debug_on_signal(level: LogLevel) -> None:
    """SIGUSR1 sets this process's level to debug, the next one back to `level`. Within a running loop."""
    root = logging.getLogger(ROOT)

    def toggle() -> None:
        chosen = level.upper() if root.level == logging.DEBUG else "DEBUG"
        root.setLevel(logging.INFO)
        get_logger("log").info("log level", chosen=chosen.lower())
        root.setLevel(chosen)

    get_running_loop().add_signal_handler(SIGUSR1, toggle)


class _Formatter(logging.Formatter):
    def __init__(self, static: Mapping[str, object], *, is_json: bool) -> None:
        super().__init__()
        self._static = dict(static)
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        own = getattr(record, "fields", {})
        fields = {name: _shown(value) for name, value in (self._static | own).items()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, event = record.levelname.lower(), record.getMessage()
        if self._is_json:
            line: dict[str, object] = {"time": time, "level": level, "logger": record.name, "event": event}
            return json.dumps(line | {k: v for k, v in fields.items() if k not in line})
        words = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
        return f"{time} {level} {event} {words}".rstrip()


def _shown(value: object) -> object:
    """What a line may hold of a value: numbers, text, short hashes; sizes of everything else."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex() if len(value) <= MAX_HASH_BYTES else f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {str(name): _shown(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [
            _shown(inner)
            for inner in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)
        ]
    if hasattr(value, "shape"):
        return f"<array of shape {tuple(value.shape)}>"
    return str(value)


def _word(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if any(letter in text for letter in ' "\n=') else text
