"""How much disk an install takes: `python -m tools.sizes` says it of each set of extras in docs/install.md.

Counted are the files of Chorale's requirements as they lie in this environment, without what Python compiles
of them. An install whose packages are not all here is unknown.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

INSTALLS = {
    "coordinator, authority, operator": (),
    "an operator of private jobs": ("privacy",),
    "`chorale demo`": ("demo",),
    "a silo, `chorale simulate`": ("silo",),
    "the tests": ("silo", "tables", "export", "examples", "ray", "otel", "dev", "docs"),
}
OWN, COMPILED = "chorale", ".pyc"
PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def requirements(distribution: str, extras: Sequence[str]) -> Iterator[Requirement]:
    """What it asks for on this machine. Raises PackageNotFoundError."""
    if distribution == OWN:  # of this clone, which may be newer than what was installed
        project = tomllib.loads(PROJECT.read_text())["project"]
        lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
        yield from (Requirement(line) for lines in lists for line in lines)
        return
    for line in metadata.distribution(distribution).requires or ():
        wanted = Requirement(line)
        marked = wanted.marker
        if marked is None or any(marked.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield wanted


def closure(extras: Sequence[str]) -> set[str]:
    """Names of all distributions that Chorale brings with these extras."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(OWN, tuple(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        waiting.extend(
            (_canonical(each.name), tuple(sorted(each.extras))) for each in requirements(name, wanted)
        )
    return {name for name, _ in found} - {OWN}


def installed_bytes(name: str) -> int:
    """Files of one distribution, as pip wrote them down. Raises PackageNotFoundError."""
    files = [Path(str(file.locate())) for file in metadata.distribution(name).files or ()]
    return sum(path.stat().st_size for path in files if path.suffix != COMPILED and path.is_file())


def install_bytes(extras: Sequence[str]) -> int:
    return sum(installed_bytes(name) for name in closure(extras))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    for what, extras in INSTALLS.items():
        try:
            megabytes = install_bytes(extras) / 1e6
        except metadata.PackageNotFoundError as missing:
            print(f"{what}: unknown, {missing.name} is not installed here")
            continue
        print(f"{what}: {megabytes:.0f} MB in {len(closure(extras))} packages")


if __name__ == "__main__":
    main()
