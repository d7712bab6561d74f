"""Children that do not outlive the command that started them, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "CHORALE_DIE_WITH"  # process id of the parent; set by cli/demo/processes.py alone
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends; elsewhere only a clean stop ends it."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the request was made
        os._exit(1)
