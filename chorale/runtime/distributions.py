"""Code of installed distributions: which files it is, their digest, and modules made of those files alone.

A job pins a distribution by name, version and the digest of its files (docs/protocol.md 7.15). Nothing of it
runs before its files were read and digested, and its modules come from those very files: from no folder
before them on Python's path, from no compiled cache, and from no file that changed since.
What it depends on (torch, MONAI ...) is not in the digest.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import inspect
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from crypto import encoding
from crypto.errors import ConfigError

PURPOSE = "distribution"
MODELS, TASKS, DATA, PARTS = "chorale.models", "chorale.tasks", "chorale.data", "chorale.parts"
MAX_FILES = 10_000
MAX_BYTES = 1 << 28  # weights belong into a job's first state, not into code
CACHE = "__pycache__"
INIT = "__init__.py"


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A distribution as it is installed here. distribution: name==version, as a job names it.

    root: the folder that its packages lie in. digests: SHA-256 of its files, by path below the root.
    entry_points: what it offers, by group and name: module:attribute.
    """

    distribution: str
    root: Path
    digests: Mapping[str, bytes]
    entry_points: Mapping[tuple[str, str], str]

    @cached_property
    def sha256(self) -> str:
        """Of files and entry points, as a job holds it. Source: docs/protocol.md 7.15."""
        files: list[encoding.Field] = [[path, self.digests[path]] for path in sorted(self.digests)]
        offers: list[encoding.Field] = [[*key, self.entry_points[key]] for key in sorted(self.entry_points)]
        return encoding.digest(PURPOSE, files, offers).hex()

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """Files of Python modules, by dotted name."""
        return {name: path for path in self.digests for name in _module_names(path)}

    @cached_property
    def packages(self) -> frozenset[str]:
        """Names that its modules begin with."""
        return frozenset(name.partition(".")[0] for name in self.modules)

    def check_digest(self, sha256: str) -> None:
        """Raises ConfigError for other files than a job's."""
        if self.sha256 != sha256:
            raise ConfigError(
                f"{self.distribution}: expected files of SHA-256 {sha256}, as the job pins, got {self.sha256}"
            )


def installed(distribution: str) -> Installed:
    """Read and digest the files of a distribution. Nothing of it runs.

    Raises ConfigError, in one sentence, where it is not installed, in another version, editable, twice, or
    with files that it does not list.
    """
    name = distribution.partition("==")[0]
    # a folder may be on Python's path twice, and one folder may hold metadata of one name twice
    roots = sorted({_root_of(each) for each in metadata.distributions(name=name)})
    copies = [(root, each) for root in roots for each in metadata.distributions(name=name, path=[str(root)])]
    if not copies:
        raise ConfigError(f"{distribution}: no distribution {name} is installed here")
    if len(copies) > 1:
        places = " and ".join(str(root) for root, _ in copies)
        raise ConfigError(f"{distribution}: {name} is installed twice, in {places}")
    ((root, _),) = copies
    return installed_in(root, distribution)


def installed_in(root: Path, distribution: str) -> Installed:
    """The same of one folder, where an environment or an unpacked wheel lies. Nothing of it runs."""
    name, _, version = distribution.partition("==")
    found = next(iter(metadata.distributions(name=name, path=[str(root)])), None)
    if found is None:
        raise ConfigError(f"{distribution}: no distribution {name} is installed in {root}")
    if found.version != version:
        raise ConfigError(f"{distribution}: the version that is installed here is {found.version}")
    if found.read_text("RECORD") is None or _is_editable(found):
        raise ConfigError(
            f"{distribution}: an editable install has no files of its own to compare: build its wheel and "
            "install that"
        )
    listed = sorted(_listed(distribution, found))
    _check_folders(distribution, root, listed)
    return Installed(
        distribution=distribution,
        root=root,
        digests=dict(_digested(distribution, root, listed)),
        entry_points={
            (each.group, each.name): each.value
            for each in found.entry_points
            if each.group.startswith("chorale.")
        },
    )


def load(distribution: str, *, group: str, name: str, sha256: str | None = None) -> object:
    """What an entry point of a distribution names. sha256: of the job; None: whatever is installed.

    Raises ConfigError where the files are others, or were others when this process loaded them.
    """
    with _lock:
        code = _running.get(distribution)
        if code is None or sha256 not in (None, code.sha256):
            code = installed(distribution)
            if sha256 is not None:
                code.check_digest(sha256)
            _check_names(code)
            _run(code)
    module_name, _, attributes = code.entry_points.get((group, name), "").partition(":")
    if not module_name:
        offered = sorted(offer for offers, offer in code.entry_points if offers == group)
        raise ConfigError(
            f"{distribution}: group {group} has no entry point {name}, it has {', '.join(offered) or 'none'}"
        )
    if module_name not in code.modules:
        raise ConfigError(
            f"{distribution}: entry point {name} names {module_name}, which is not its own module"
        )
    try:
        found: object = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except Exception as error:  # whatever an author's module raises
        raise ConfigError(
            f"{distribution}: {module_name}:{attributes} cannot be loaded: {error_line(error)}"
        ) from error
    return found


class Running:
    """What this process may import of distributions, to be pickled before anything that is of them.

    A process that unpickles it imports their modules of the same files from then on, or raises ConfigError.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        with _lock:
            return _resume, (tuple(_running.values()),)


def error_line(error: BaseException) -> str:
    """An author's error in one line."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def check_options(where: str, make: Callable[..., object], options: Iterable[str]) -> None:
    """Raises ConfigError for an option that an author's function or class has no keyword of."""
    taken = inspect.signature(make).parameters.values()
    # the first is the job's sizes
    known = [
        each.name for each in list(taken)[1:] if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    odd = next((name for name in options if name not in known), None)
    if odd is not None and not any(each.kind is each.VAR_KEYWORD for each in taken):
        raise ConfigError(f"{where}: options: expected one of {', '.join(known) or 'none'}, got {odd}")


_lock = threading.Lock()
_running: dict[str, Installed] = {}  # what this process may import, by distribution
_owners: dict[str, Installed] = {}  # the same, by the names that its modules begin with


def _check_names(code: Installed) -> None:
    """Raises ConfigError where another distribution has a module of such a name: code that imports that one
    later, such as Chorale a dependency at its first use, would get this one's."""
    own = _normalized(code.distribution.partition("==")[0])
    providers = metadata.packages_distributions()
    for package in sorted(code.packages):
        others = sorted({each for each in providers.get(package, ()) if _normalized(each) != own})
        if others:
            raise ConfigError(
                f"{code.distribution}: its module {package} has the name of one of {', '.join(others)}, "
                "which is installed here too"
            )


def _normalized(name: str) -> str:
    """As packaging compares names: A-b, a_b and a.b are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(code: Installed) -> None:
    """From now on its modules are importable. Raises ConfigError where one was imported before."""
    for package in code.packages:
        owner = _owners.get(package)
        if owner is not None and owner.sha256 != code.sha256:
            raise ConfigError(
                f"{code.distribution}: this process runs {owner.distribution} with other files: restart it"
            )
        if owner is None and (package in sys.modules or package in sys.stdlib_module_names):
            raise ConfigError(
                f"{code.distribution}: its module {package} was imported before its files were compared, or "
                "has the name of another one"
            )
    for package in code.packages:
        _owners[package] = code
    _running[code.distribution] = code
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _resume(codes: Iterable[Installed]) -> Running:
    with _lock:
        for code in codes:
            _run(code)
    return Running()


class _Finder(MetaPathFinder):
    """Finds modules of distributions that run here, and among their digested files alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        code = _owners.get(fullname.partition(".")[0])
        if code is None:
            return None
        file = code.modules.get(fullname)
        if file is None:
            raise ModuleNotFoundError(f"{code.distribution} has no module {fullname}", name=fullname)
        where = code.root / file
        is_source = file.endswith(".py")
        if not is_source and hashlib.sha256(where.read_bytes()).digest() != code.digests[file]:
            raise ImportError(f"{where} changed since it was compared")
        loader = (
            _Source(fullname, str(where), code.digests[file])
            if is_source
            else ExtensionFileLoader(fullname, str(where))
        )
        folder = [str(where.parent)] if where.name == INIT else None
        return spec_from_file_location(fullname, where, loader=loader, submodule_search_locations=folder)


_finder = _Finder()


class _Source(SourceFileLoader):
    """Compiles the file whose digest is known; a compiled cache may be of another one."""

    def __init__(self, fullname: str, path: str, sha256: bytes) -> None:
        super().__init__(fullname, path)
        self._sha256 = sha256

    def get_code(self, fullname: str) -> CodeType:
        data = self.get_data(self.path)
        if hashlib.sha256(data).digest() != self._sha256:
            raise ImportError(f"{self.path} changed since it was compared")
        return self.source_to_code(data, self.path)


def _root_of(found: metadata.Distribution) -> Path:
    return Path(str(found.locate_file(""))).resolve()


def _is_editable(found: metadata.Distribution) -> bool:
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable")) or any(
        each.name.startswith("__editable__") for each in _recorded(found)
    )


def _recorded(found: metadata.Distribution) -> list[PurePosixPath]:
    """What was installed, by its RECORD: `files` leaves out what is missing, once some package has imported
    importlib_metadata."""
    return [
        PurePosixPath(row[0]) for row in csv.reader((found.read_text("RECORD") or "").splitlines()) if row
    ]


def _listed(distribution: str, found: metadata.Distribution) -> Iterator[str]:
    """Paths below the root: without metadata and caches, and without scripts, which lie elsewhere."""
    for path in _recorded(found):
        if path.is_absolute() or ".." in path.parts or CACHE in path.parts:
            continue
        if path.parts[0].endswith(".dist-info"):
            continue
        if path.suffix == ".pyc":
            raise ConfigError(f"{distribution}: {path} is a compiled module without its source")
        if path.suffix == ".pth" and len(path.parts) == 1:
            raise ConfigError(f"{distribution}: {path} runs at every start of Python, before it is compared")
        yield str(path)


def _check_folders(distribution: str, root: Path, listed: Sequence[str]) -> None:
    """Raises ConfigError for a file in one of its packages that it does not list, and for a package that
    others may share."""
    known, folded = set(listed), {path.casefold() for path in listed}
    if len(folded) != len(known):
        raise ConfigError(f"{distribution}: two of its files differ in upper and lower case alone")
    if not 0 < len(known) <= MAX_FILES:
        raise ConfigError(f"{distribution}: expected 1 to {MAX_FILES} files, it lists {len(known)}")
    for path in map(PurePosixPath, listed):
        for folder in path.parents[:-1] if path.suffix == ".py" else ():
            if str(folder / INIT) not in known:
                raise ConfigError(f"{distribution}: {folder} has no {INIT}: others could add modules to it")
    for top in sorted({PurePosixPath(path).parts[0] for path in listed}):
        for place, folders, files in os.walk(root / top):
            folders[:] = [name for name in folders if name != CACHE]
            links = [name for name in folders if (Path(place) / name).is_symlink()]
            for name in (*files, *links):
                found = (Path(place) / name).relative_to(root).as_posix()
                if found not in known:
                    raise ConfigError(
                        f"{distribution}: {root / found} lies in its package and is none of its files"
                    )


def _digested(distribution: str, root: Path, listed: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    room = MAX_BYTES
    for path in listed:
        file = root / path
        if file.resolve() != file or not file.is_file():
            raise ConfigError(f"{distribution}: {file} is missing or a link, expected a file")
        room -= file.stat().st_size
        if room < 0:
            raise ConfigError(f"{distribution}: expected at most {MAX_BYTES >> 20} MiB of files")
        yield path, hashlib.sha256(file.read_bytes()).digest()


def _module_names(path: str) -> Iterator[str]:
    """The dotted name of a file that is a module."""
    file = PurePosixPath(path)
    suffix = next((each for each in (".py", *EXTENSION_SUFFIXES) if file.name.endswith(each)), None)
    if suffix is not None:
        stem = file.name.removesuffix(suffix)
        yield ".".join(file.parent.parts if file.name == INIT else (*file.parent.parts, stem))
