"""Chooses what of the found inputs is committed: `python -m tests.fuzz.keep [TARGET ...]`. Needs no atheris.

The smallest inputs first, each if it goes a way through our code that no smaller one goes; seeds and what is
committed already are among the candidates.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "fuzz"
MAX_KEPT, MAX_KEPT_BYTES = 40, 64_000  # of one target
OURS = tuple(str(ROOT / name) for name in ("crypto", "strategies", "chorale", "coordinator", "silo_agent"))


def input_name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def steps(target: Target, data: bytes) -> frozenset[tuple[str, int, int]]:
    """Pairs of lines of our code that follow one another as the target reads it, and whether it does."""
    seen: set[tuple[str, int, int]] = set()
    last: dict[int, int] = {}

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            key = id(frame)
            seen.add((frame.f_code.co_filename, last.get(key, 0), frame.f_lineno))
            last[key] = frame.f_lineno
        return on_line

    def on_call(frame: FrameType, _: str, __: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        last.pop(id(frame), None)
        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        is_read = target.try_on(data)
    finally:
        sys.settrace(before)
    return frozenset({*seen, ("read", is_read, 0)})


def chosen(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """The inputs that are worth keeping, the smallest first."""
    seen: set[tuple[str, int, int]] = set()
    kept = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        new = steps(target, data) - seen
        has_room = len(kept) < MAX_KEPT and sum(map(len, kept)) + len(data) <= MAX_KEPT_BYTES
        if new and (has_room or not any(step[:2] == ("read", True) for step in seen)):
            seen |= new
            kept.append(data)
    return kept


def main() -> None:
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or TARGETS:
        target, folder = TARGETS[name], CORPUS / name
        grown = [path.read_bytes() for path in (WORK / name / "corpus").glob("*")]
        for seed in target.seeds():  # what is remembered from one input to the next is not seen again
            target.try_on(seed)
        committed = [path.read_bytes() for path in target.corpus]
        kept = chosen(target, [*target.seeds(), *committed, *grown])
        folder.mkdir(parents=True, exist_ok=True)
        for path in target.corpus:
            path.unlink()
        for data in kept:
            (folder / input_name(data)).write_bytes(data)
        print(f"{name}: kept {len(kept)} of {len(grown) + len(committed)}, {sum(map(len, kept))} bytes")


if __name__ == "__main__":
    main()
