"""Private keys on their way into memory: from a file of one user, into a process without core dumps.

Source: docs/protocol.md 10.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
from pathlib import Path

from chorale.runtime.files import read_limited
from crypto.errors import ConfigError

PR_SET_DUMPABLE = 4  # <linux/prctl.h>


def read_key(path: Path, max_bytes: int) -> bytes:
    """A private key. From now on this process writes no core dump.

    Others have no right to the file. Its group may read it if another user owns it: so Kubernetes mounts a
    Secret, owned by root, for a pod that is not root. Raises ConfigError, also as `read_limited`.
    """
    forbid_core_dumps()
    return read_limited(path, max_bytes, check=_check_private)


def forbid_core_dumps() -> None:
    """A dump would hold every key. The limit alone does not stop one that is piped to a program; on Linux the
    process is marked as well, which also keeps other processes of its user from attaching to it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _check_private(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    is_own = status.st_uid == os.geteuid()
    allowed = stat.S_IRWXU if is_own else stat.S_IRWXU | stat.S_IRGRP
    if mode & ~allowed & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path}: a key that other users can read or write (mode {mode:04o}): run chmod 600 {path}"
        )
