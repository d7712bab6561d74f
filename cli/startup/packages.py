"""Whose packages Python finds under our names. Imported before any other module of ours."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGES = (
    "crypto",
    "strategies",
    "chorale_models",
    "chorale",
    "coordinator",
    "silo_agent",
    "simulation",
    "client",
    "web",
    "cli",
)


def foreign_package() -> str:
    """Names the first of our packages that Python would take from elsewhere, and what to do; else empty.

    Security: the names are common words, and a folder of one of them in the working directory, or on
    PYTHONPATH, would run in place of ours. Nothing is imported to find out.
    """
    root = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        spec = find_spec(name)
        found = [] if spec is None else [*(spec.submodule_search_locations or [spec.origin or name])]
        if not found:
            return f"package {name}: expected {root / name}, found none; install chorale again"
        if Path(found[0]).resolve() != root / name:
            return f"package {name}: {found[0]} hides {root / name}; rename it, or start chorale elsewhere"
    return ""
