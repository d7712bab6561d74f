"""`python -m tests.support.halting <chorale arguments>`: the product, brought to a halt at one point.

The process stops itself (SIGSTOP) right after a log line or around a call, so that a test can look
at what is stored and kill it in that very state. It can also write down what a silo sends.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from chorale.observability import logs
from chorale.transport import tls
from cli.main import main

HALT = "CHORALE_TEST_HALT"
SENT = "CHORALE_TEST_SENT"  # file for one JSON line per session message that left
SESSION_KINDS = ("advert", "shares", "consistency", "unmask_shares", "recovered_seeds", "next_state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """at: fields of the log line from which on the halt is meant.

    Alone, the process halts at that line. call: `module:Class.method`, where it halts `before` or
    `after` it was run. sent: kind of a session message, after it was handed to the line.
    """

    at: dict[str, Any]
    call: str = ""
    when: Literal["before", "after"] = "after"
    sent: str = ""

    def environment(self) -> dict[str, str]:
        return {HALT: json.dumps(asdict(self))}


class _Watch(logging.Handler):
    """Sees every log line after it was written."""

    def __init__(self, halt: Halt) -> None:
        super().__init__()
        self.halt = halt
        self.is_armed = False

    def emit(self, record: logging.LogRecord) -> None:
        line = {"event": record.getMessage(), **getattr(record, "fields", {})}
        if all(line.get(name) == value for name, value in self.halt.at.items()):
            self.is_armed = True
            if not self.halt.call and not self.halt.sent:
                self.stop()

    def stop(self) -> None:
        if self.is_armed:
            self.is_armed = False
            signal.raise_signal(signal.SIGSTOP)


def install() -> None:
    """Put halt and record in place, as the environment says."""
    tls.restrict_to_tls13()  # what follows may import grpc
    watch = _Watch(Halt(**json.loads(os.environ[HALT]))) if HALT in os.environ else None
    if watch is not None:
        _watch_logs(watch)
        if watch.halt.call:
            _watch_call(watch)
    sent = os.environ.get(SENT)
    if sent or (watch is not None and watch.halt.sent):
        _watch_line(watch, None if sent is None else Path(sent))


def _watch_logs(watch: _Watch) -> None:
    configure = logs.configure

    def configure_and_watch(**settings: Any) -> None:
        configure(**settings)
        logging.getLogger(logs.ROOT).addHandler(watch)

    logs.configure = configure_and_watch


def _watch_call(watch: _Watch) -> None:
    module, _, path = watch.halt.call.partition(":")
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    inner: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(inner)
    def halting(*arguments: Any, **named: Any) -> Any:
        if watch.halt.when == "before":
            watch.stop()
        result = inner(*arguments, **named)
        if watch.halt.when == "after":
            watch.stop()
        return result

    setattr(owner, name, halting)


def _watch_line(watch: _Watch | None, record: Path | None) -> None:
    """The stream asks for the next message when it has written the last one."""
    from silo_agent.connection.control_stream import Outbox

    inner: Callable[[Outbox], Awaitable[Any]] = Outbox.next
    last = ""

    async def following(self: Outbox) -> Any:
        nonlocal last
        if watch is not None and last and watch.halt.sent == last:
            watch.stop()
        message = await inner(self)
        last = message.WhichOneof("kind")
        if record is not None and last in SESSION_KINDS:
            write_down(record, message, last)
        return message

    line: Any = Outbox
    line.next = following


def write_down(path: Path, message: Any, kind: str) -> None:
    """A session message that left, by its key and its digest."""
    body = getattr(message, kind)
    line = {
        "kind": kind,
        "round": body.key.round,
        "phase": body.key.phase,
        "attempt": body.key.attempt,
        "sha256": hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest(),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    install()
    main()
