"""Descriptors of a long-lived process: a connection each, of peers without a certificate, too.

Many systems give a process 1,024 of them and allow it many more.
"""

from __future__ import annotations

import resource
from contextlib import suppress


def allow_descriptors() -> None:
    """As many as the system lets this process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # a system may allow no number as large as it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
