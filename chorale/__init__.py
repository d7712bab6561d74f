"""What coordinator, silo and CLI share: jobs, privacy, the wire, files, audit, logs, probes, traces.

`from chorale import Federation` is what a program or a notebook begins with (docs/python.md).
"""

import importlib
from typing import Any

OFFERED = {  # imported when somebody asks for it: this package imports nothing above it
    "AsyncFederation": "client.federation",
    "ChoraleError": "crypto.errors",
    "Federation": "client.federation",
    "simulate": "client.notebook",
}


def __getattr__(name: str) -> Any:
    if name in OFFERED:
        return getattr(importlib.import_module(OFFERED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
