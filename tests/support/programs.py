"""Programs that are no Python package: a test skips without them, and fails where they are required.

`.ci/run` installs them and sets TEST_PROGRAMS=required, so that nothing there is skipped in silence.
"""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

VARIABLE = "TEST_PROGRAMS"
REQUIRED = "required"
# by the name of the program: the Debian package that has it
PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "squid": "squid",
    "kubectl": "kubernetes-client",
    "npm": "npm",
    "strace": "strace",
    "cc": "gcc",
    "minisign": "minisign",
    "chromium": "chromium",
    "node": "nodejs",
    "systemd-analyze": "systemd",
}
# where Debian puts daemons; a user's own PATH may lack it
SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"


def needed(name: str) -> str:
    """The path of a program. Skips the test that asks for one that is not there, or fails it."""
    found = shutil.which(name) or shutil.which(name, path=SYSTEM)
    if found is None:
        package = PACKAGES.get(name)
        missing(f"{name} is not there" + (f"; Debian's package {package} has it" if package else ""))
    return found


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where every program is required."""
    if os.environ.get(VARIABLE) == REQUIRED:
        pytest.fail(f"{reason}, and {VARIABLE}={REQUIRED}", pytrace=False)
    pytest.skip(reason)
