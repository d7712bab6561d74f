"""A job watched until its end, and the exit code that its end is worth."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from cli.output.progress import kept_line, show
from client.history import (
    JobHistory,
    check_done,
    counted,
    personal_figures,
    phase_facts,
    score_word,
    summary_facts,
)

if TYPE_CHECKING:
    from client.operations import Operations


def follow(operations: Operations, job_digest: bytes) -> JobHistory:
    """Show the job on stderr until it ends: a live table on a terminal, else a line per phase."""
    history = JobHistory()
    show(operations.watch(job_digest), history)
    return history


def follow_json(operations: Operations, job_digest: bytes) -> JobHistory:
    """One JSON object a line on stdout: each phase as it ends, each change of the job's state."""
    history = JobHistory()
    state = None
    for event in operations.watch(job_digest):
        record = history.add(event)
        if record is not None:
            click.echo(json.dumps({"phase": phase_facts(record, title=history.title(record))}))
        if (facts := summary_facts(history.summary)) != state and history.summary.job_digest:
            state = facts
            click.echo(json.dumps({"job": facts}))
    return history


def end_of(history: JobHistory) -> None:
    """Print how the job ended. Raises what the exit code is made of if it is not done."""
    summary = history.summary
    check_done(history)
    figure, personal = history.closing(history.main), personal_figures(history)
    measured = "" if figure is None else f"  final {history.main} {figure}"
    if measured and summary.kept and summary.model_round != history.last_model_round:
        measured += f" of the model after round {history.last_model_round}"
    measured += "" if personal is None else f"  personal {score_word(history.main)} {personal}"
    done = f"{summary.rounds_completed} rounds" if not summary.steps else counted(summary)
    click.echo(f"{summary.job_digest.hex()[:12]}  done  {done}{measured}")
    if summary.reason:
        click.echo(summary.reason)
    if history.searched:
        click.echo(history.searched)
    if summary.kept:
        click.echo(kept_line(summary))
