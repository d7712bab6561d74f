"""The group `chorale job`. Each command is a module, imported when it is called."""

from __future__ import annotations

import click

from cli.startup.lazy import LazyGroup

STEERING = ("pause", "resume", "skip-round", "cancel")  # cli.job.steering

ENTRIES = {
    **{name: f"cli.job.{name}:{name}" for name in ("plan", "submit")},
    "list": "cli.job.listing:list_jobs",
    "silos": "cli.job.listing:list_silos",
    **{name: f"cli.job.{name}:{name}" for name in ("report", "evidence", "export")},
    "watch": "cli.job.steering:watch",
    **{name: f"cli.job.steering:{name.replace('-', '_')}" for name in STEERING},
    "fetch": "cli.job.steering:fetch",
}


@click.group(cls=LazyGroup, entries=ENTRIES)
def job() -> None:
    """Plan, submit, watch, steer, report and fetch jobs."""
