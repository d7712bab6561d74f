"""The images of a folder by their whole relative path, which is what each is called.

A shorter name (without the ending, or without the sub-folders) means an image where it fits one alone. What
lies in the folder and is no image is counted with its reason: nothing is left out in silence.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from crypto.errors import ConfigError

SHOWN = 3  # names of a reason
HIDDEN, EMPTY, OTHER = "hidden", "of empty folders", "of other endings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """Which files are images: those of these endings, in small letters. has_series: so are files of any name,
    and a folder of files is one image."""

    known: tuple[str, ...]
    has_series: bool = False

    def fits(self, name: str) -> bool:
        return self.has_series or name.lower().endswith(self.known)

    def without(self, name: str) -> str:
        """The name without a known ending; dots of a UID are none."""
        ending = max((each for each in self.known if name.lower().endswith(each)), key=len, default="")
        return (name[: -len(ending)] if ending else name) or name


@dataclass(frozen=True, slots=True)
class Listed:
    """images: by relative path, in the order of paths. left_out: names by reason."""

    folder: Path
    endings: Endings
    images: dict[str, Path]
    left_out: dict[str, list[str]]
    # from a name to what it may mean: the path; the path without ending; the file's name, with and without
    _names: tuple[dict[str, list[str]], ...] = field(default_factory=lambda: ({}, {}, {}))

    def __post_init__(self) -> None:
        for key in self.images:
            name = PurePosixPath(key).name
            plain = [{key}, {self.endings.without(key)}, {name, self.endings.without(name)}]
            for index, names in zip(self._names, plain, strict=True):
                for each in names:
                    index.setdefault(_plain(each), []).append(key)

    def named(self, name: str) -> Sequence[str]:
        """The image of that whole name."""
        return (name,) if name in self.images else ()

    def meant(self, name: str) -> Sequence[str]:
        """The images that it may mean: none, one, or several of which none is meant more than another."""
        wanted = _plain(str(PurePosixPath(name.replace("\\", "/")))) if name else ""
        return next((index[wanted] for index in self._names if wanted in index), ())

    def stem(self, key: str) -> str:
        return self.endings.without(key)

    def of_stem(self, stem: str) -> Sequence[str]:
        """The images of that path without an ending."""
        return self._names[1].get(_plain(stem), ())

    def flow(self, labeled: int, without: Sequence[str], *, of: str) -> str:
        """How many were found, and how many of them have a label or mask; `of` says where those lie."""
        reasons = {**self.left_out, f"without {of}": without}
        lost = ", ".join(f"{len(names)} {why} ({some(names)})" for why, names in reasons.items() if names)
        found = len(self.images) + sum(map(len, self.left_out.values()))
        counts = f"{self.folder}: {found} found, {len(self.images)} images, {labeled} with {of}"
        return f"{counts}; left out: {lost}" if lost else counts


def some(names: Sequence[str]) -> str:
    """The first ones, for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def listed(folder: Path, endings: Endings) -> Listed:
    """Every image in the folder and its sub-folders. Raises ConfigError where there is no folder."""
    if not folder.is_dir():
        raise ConfigError(f"data.path: {folder} is not a folder")
    images, left_out = dict[str, Path](), dict[str, list[str]]()
    for path, reason in sorted(_walked(folder, endings, is_root=True, above=())):
        key = path.relative_to(folder).as_posix()
        if reason:
            left_out.setdefault(reason, []).append(key)
        else:
            images[key] = path
    return Listed(folder, endings, images, left_out)


def files_of(path: Path) -> list[Path]:
    """The files of an image: of a folder all that are not hidden."""
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if not each.name.startswith(".") and not each.is_dir())


def _walked(
    folder: Path, endings: Endings, *, is_root: bool, above: tuple[Path, ...]
) -> Iterator[tuple[Path, str]]:
    """Every image with no reason, and all else with the reason why it is none."""
    real = folder.resolve()
    if real in above:  # a link to a folder that it lies in
        return
    inside = sorted(folder.iterdir())
    yield from ((path, HIDDEN) for path in inside if path.name.startswith("."))
    seen = [path for path in inside if not path.name.startswith(".")]
    files = [path for path in seen if not path.is_dir()]
    if endings.has_series and not is_root:
        if files:
            yield folder, ""
    else:
        yield from ((path, "" if endings.fits(path.name) else OTHER) for path in files)
    if not seen and not is_root:
        yield folder, EMPTY
    for path in seen:
        if path.is_dir():
            yield from _walked(path, endings, is_root=False, above=(*above, real))


def _plain(name: str) -> str:
    # one machine stores an accent as a letter of its own, and the table's has it composed
    return unicodedata.normalize("NFC", name)
