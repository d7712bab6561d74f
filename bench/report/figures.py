"""The committed figures: ratios of the last accepted measurement, and their place on the page.

Only ratios are compared between machines; next to them stand machine, versions, command and date. The page
leaves the versions to the file.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from cryptography.hazmat.backends.openssl import backend

from bench.report import side_by_side
from bench.report.results import Result, section

PACKAGES = ("numpy", "numba", "cryptography", "grpcio", "torch")


def read(path: Path) -> dict[str, Any]:
    """The committed figures by benchmark; none if there is no such file."""
    if not path.exists():
        return {}
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def write(path: Path, figures: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def ratios(figures: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Row names and ratios by benchmark."""
    return {name: dict(one["ratios"]) for name, one in figures.items()}


def of(results: Sequence[Result]) -> dict[str, Any]:
    """What to commit to: those that measured something."""
    return {
        result.benchmark.name: {
            "command": result.benchmark.command,
            "date": result.started.date().isoformat(),
            "machine": machine(),
            "versions": versions(),
            "ratios": result.ratios,
        }
        for result in results
        if result.is_measured
    }


def write_page(path: Path, results: Sequence[Result]) -> None:
    """Put each measured table between its two comments: `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`.

    Raises ValueError if a benchmark has no place on the page.
    """
    page = path.read_text()
    for result in results:
        if result.is_measured:
            stood = _stood(result.started, device=str(result.printed.get("device", "cpu")))
            page = replaced(page, result.benchmark.name, f"{section(result)}\n\n{stood}", path=path)
    if side_by_side.is_whole(results):  # the lines of one run stand together, or those of the run before
        text = f"{side_by_side.table(results)}\n\n{_stood(results[0].started)}"
        page = replaced(page, side_by_side.NAME, text, path=path)
    path.write_text(page)


def replaced(page: str, name: str, text: str, *, path: Path) -> str:
    """The page with this text between the two comments of that name.

    Raises ValueError if the page, which is that of `path`, has no such place.
    """
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path.parent.name}/{path.name}: there is no place {begin} ... {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def machine() -> str:
    """Processor and cores."""
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def versions() -> dict[str, str]:
    """What the figures depend on; a package that is not there is left out."""
    found = {
        "Python": platform.python_version(),
        "OpenSSL": backend.openssl_version_text().split()[1],
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _stood(moment: datetime, *, device: str = "cpu") -> str:
    gpu = "" if device == "cpu" else f"{device}; "
    return f"Measured on {moment.date().isoformat()}: {gpu}{machine()}."


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"
