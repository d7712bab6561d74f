"""What the accountant computed before for a person who waits, in a file of that person's user.

dp-accounting takes seconds to load and to compose a plan, and a job is planned, submitted, shown, approved.
Each number is kept under the digest of all that it follows from: the releases, delta, the code of this
folder and the versions of what it computes with.

Security: a number of another user's would be that user's promise. The file and its folder are refused where
somebody else owns or may write them, a file that is not whole counts as none, and only commands that show
numbers read it (`remembering`): an agent, and a person who approves, decide by what is computed then.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final, TypeAlias

from chorale.runtime.files import write_atomic

Numbers: TypeAlias = list[float]

FILE: Final = "accounting.json"
COMPUTED_WITH: Final = ("chorale", "dp-accounting", "numpy", "scipy")
MOST_KEPT: Final = 1024  # a private plan has about thirty
MOST_BYTES: Final = 8 << 20
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_KEY: Final = re.compile(r"[0-9a-f]{64}")


class Memory:
    """Numbers by digest, as they were when it was made and with what was found out since."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = _read(folder)
        self._new: dict[str, Numbers] = {}

    def recall(self, key: str, compute: Callable[[], Numbers], *, count: int) -> Numbers:
        """What was computed under this key, here or before: so many numbers."""
        if len(self._kept.get(key, ())) != count:
            self._kept[key] = self._new[key] = compute()
        return self._kept[key]

    def save(self) -> None:
        """Add what is new to the file; nothing where that fails, for then it is computed again."""
        if not self._new:
            return
        kept = {**_read(self._folder), **self._new}  # another command may have written in between
        newest = dict(list(kept.items())[-MOST_KEPT:])
        text = json.dumps(newest).encode()
        with suppress(OSError):
            there = next(each for each in (self._folder, *self._folder.parents) if os.path.lexists(each))
            if not _is_own(there.lstat()):
                return  # of a user whose HOME another one has, as under sudo
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if _is_own(self._folder.lstat()):
                write_atomic(self._folder / FILE, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


_memory: ContextVar[Memory | None] = ContextVar("memory", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """While it lasts, `remembered` looks into the user's cache, where there is one; also as a decorator."""
    folder = cache_folder()
    if folder is None or not computed_by():
        yield
        return
    memory = Memory(folder)
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)
        memory.save()


def remembered(what: str, inputs: object, compute: Callable[[], Numbers], *, count: int) -> Numbers:
    """What `compute` gives, or gave before: so many numbers. what: the function. inputs: all that it depends
    on, whose repr tells one from another."""
    memory = _memory.get()
    if memory is None:
        return compute()
    key = hashlib.sha256(repr((what, computed_by(), inputs)).encode()).hexdigest()
    return memory.recall(key, compute, count=count)


def cache_folder() -> Path | None:
    """Of the user who runs this; None of one without a home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        found = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return found / "chorale" if found.is_absolute() and found != Path("/.cache") else None


@cache
def computed_by() -> tuple[str, ...]:
    """The code of this folder and the versions that decide a number: with others it is computed again.
    Empty where the code is not there to be read. Asked when a command begins, before anything computes."""
    code, sources = hashlib.sha256(), sorted(Path(__file__).parent.glob("*.py"))
    if not sources:
        return ()
    for source in sources:
        code.update(source.read_bytes())
    found = []
    for name in COMPUTED_WITH:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return code.hexdigest(), *found


def _read(folder: Path) -> dict[str, Numbers]:
    """Nothing of a file that is missing, damaged or not this user's own."""
    try:
        handle = os.open(folder / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not (_is_own(folder.lstat()) and _is_own(os.fstat(handle))):
                return {}
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return {}
    digest, _, text = data.partition(b"\n")
    if len(data) > MOST_BYTES or digest != hashlib.sha256(text).hexdigest().encode():
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and all(map(_is_sound, found.items())) else {}


def _is_own(found: os.stat_result) -> bool:
    """A folder or file of this user's that nobody else may write."""
    is_known = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_known and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_WRITE


def _is_sound(entry: tuple[object, object]) -> bool:
    key, numbers = entry
    return (
        isinstance(key, str)
        and _KEY.fullmatch(key) is not None
        and isinstance(numbers, list)
        and all(isinstance(each, float) and each >= 0 for each in numbers)  # false for NaN too
    )
