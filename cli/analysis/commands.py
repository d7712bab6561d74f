"""The group `chorale analysis`. Each command is a module, imported when it is called."""

from __future__ import annotations

import click

from cli.startup.lazy import LazyGroup

ENTRIES = {name: f"cli.analysis.{name}:{name}" for name in ("plan", "submit", "results")}


@click.group(cls=LazyGroup, entries=ENTRIES)
def analysis() -> None:
    """Plan and submit analyses, and read what they published."""
