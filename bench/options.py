"""Command lines of benchmarks: a wrong one ends with one sentence and exit code 2."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Named like its module: `python -m bench.secagg` says `secagg: error: ...`. package: of that module."""

    def __init__(self, name: str, description: str | None, *, package: str = "bench") -> None:
        super().__init__(prog=f"python -m {package}.{name}", description=(description or "").splitlines()[0])
        self._name = name

    def error(self, message: str) -> NoReturn:
        print(f"{self._name}: error: {message}", file=sys.stderr)
        sys.exit(2)


def end_with_sigterm() -> None:
    """A benchmark that is told to end takes its processes with it, as at Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def ended(main: Callable[[], int]) -> int:
    """The exit code of a program: 130 at Ctrl-C and 141 where the reader of its output is gone, as a shell
    counts both, and no traceback."""
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return 128 + signal.SIGPIPE
    return code


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that is a whole number in that range."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {text}")
        return int(text)

    return parse
