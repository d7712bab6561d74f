"""The group `chorale analysis`. Each command is a module, imported when it is called."""

from __future__ import annotations

import click

from cli.startup.lazy import LazyGroup

ENTRIES = {"results": "cli.analysis.results:results"}


@click.group(cls=LazyGroup, entries=ENTRIES)
def analysis() -> None:
    """Read what an analysis published."""
