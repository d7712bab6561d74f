"""What comes before any other module of ours: whose packages Python finds, and which parent this has."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

PARENT = "CHORALE_DIE_WITH"  # process id of the parent; set by cli/demo/processes.py alone
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PACKAGES = ("crypto", "strategies", "chorale", "coordinator", "silo_agent", "simulation", "cli")


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends; elsewhere only a clean stop ends it."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the request was made
        os._exit(1)


def foreign_package() -> str:
    """Names the first of our packages that Python would take from elsewhere, and what to do; else empty.

    Security: the names are common words, and a folder of one of them in the working directory, or on
    PYTHONPATH, would run in place of ours. Nothing is imported to find out.
    """
    root = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        spec = find_spec(name)
        found = [] if spec is None else [*(spec.submodule_search_locations or [spec.origin or name])]
        if not found:
            return f"package {name}: expected {root / name}, found none; install chorale again"
        if Path(found[0]).resolve() != root / name:
            return f"package {name}: {found[0]} hides {root / name}; rename it, or start chorale elsewhere"
    return ""
