"""What coordinator, silo and CLI share: jobs, privacy, the wire, files, audit, logs, probes, traces.

`from chorale import Federation` is what a program or a notebook begins with (docs/python.md).
"""

import importlib
from typing import Any

OF_THE_CLIENT = ("AsyncFederation", "Federation")


def __getattr__(name: str) -> Any:
    """Of client.federation, imported when somebody asks for it: this package imports nothing above it."""
    if name in OF_THE_CLIENT:
        return getattr(importlib.import_module("client.federation"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
