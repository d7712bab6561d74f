"""A job as its events report it, in plain lines or as a table for a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, PhaseRecord
from client.errors import printable
from client.history import (
    ACCURACY,
    JobHistory,
    kind_of,
    left_out_in_words,
    personal_of,
    score_word,
    state_in_words,
)
from client.row_figures import CALIBRATED, ROW_FIGURES, class_rows
from strategies.figure import figure_in
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.phases.training import TRAIN

if TYPE_CHECKING:
    from rich.console import RenderableType

PREPARING = "preparing the job: its starting weights, and its noise where it is private"
SILENT_SECONDS = 2.0  # without news, before a plain line says what is waited for
AROUND_TABLE = 3  # lines of the terminal: heading, status, one free


def plain_line(record: PhaseRecord, *, title: str, main: str = ACCURACY, draws_rounds: bool = False) -> str:
    """One line for one phase, for logs and pipes. title: JobHistory.title. main: the figure that the job's
    task tells first. draws_rounds: then the line says whose hold-outs a figure is over."""
    outcome = f"used up ({record.reason})"
    if record.result == "applied":
        share = f", {record.data_share:.0%} of the data" if kind_of(record) == TRAIN else ""
        attempts = f", attempt {record.attempts}" if record.attempts > 1 else ""
        outcome = f"{len(record.cohort)} silos{share}, {record.wall_seconds:.1f} s{attempts}"
    missing = "; ".join(
        f"without {printable(left.silo)} ({left_out_in_words(left, record)})" for left in record.left_out
    )
    measured = _measured(record, main, draws_rounds=draws_rounds)
    return "  ".join(filter(None, [title, outcome, _approved(record), measured, _rows(record), missing]))


def _rows(record: PhaseRecord) -> str:
    """Of how many classes rows are sent, and are in this sum."""
    found = class_rows([record])
    if found is not None:
        return f"by the default policy silos send rows of {found.by_default} of {found.classes} classes"
    counts = [record.figures[name] for name in (*ROW_FIGURES, CALIBRATED) if name in record.figures]
    return f"rows of {counts[0]:.0f} classes" if counts else ""


def table(history: JobHistory, *, notes: Iterable[str] = (), newest: int | None = None) -> RenderableType:
    """The job so far, for rich's Live. newest: how many of its phases; default all."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=None, pad_edge=False, header_style="bold")
    before = f"{history.main} before (95 %)"
    figures = (
        (f"{before}, drawn silos", f"{history.main}, all silos (95 %)") if history.draws_rounds else (before,)
    )
    for title in ("round", *figures, "silos", "share of data", "seconds", "left out"):
        # Text: rich reads marks in anything else, and words of the coordinator are in it
        rows.add_column(Text(title), justify="left" if title == "left out" else "right")
    for record in history.records[-(newest or len(history.records)) :]:
        figure, is_train = figure_in(record.figures, history.main), kind_of(record) == TRAIN
        shown = "" if figure is None else figure.brief
        drawn_and_all = (shown, "") if is_train else ("", shown)
        cells = (
            history.title(record),
            *(drawn_and_all if history.draws_rounds else (shown,)),
            str(len(record.cohort)) if record.result == "applied" else record.result,
            f"{record.data_share:.0%}" if is_train and record.cohort else "",
            f"{record.wall_seconds:.1f}",
            ", ".join(left.silo for left in record.left_out),
        )
        rows.add_row(*map(Text, cells))
    summary = history.summary
    status = doing(summary) or printable(summary.reason or summary.status) or "waiting for the coordinator"
    kept = [Text(kept_line(summary), style="dim")] if summary.kept else []
    return Group(rows, *kept, Text(status, style="dim"), *(Text(note, style="yellow") for note in notes))


def doing(summary: JobSummary) -> str:
    """What a job that has not ended waits for, or what the coordinator is at now."""
    if not summary.progress:
        return ""
    return state_in_words(summary) if summary.state.startswith("waiting") else printable(summary.progress)


def kept_line(summary: JobSummary) -> str:
    return f"kept: the model after round {summary.model_round}, {summary.kept}"


def _approved(record: PhaseRecord) -> str:
    """How long people took to approve the job, which is no time of the phase."""
    seconds = record.approval_seconds
    return f"after {seconds:.0f} s of waiting for approval" if seconds >= 1 else ""


def _measured(record: PhaseRecord, main: str, *, draws_rounds: bool) -> str:
    figure, loss = figure_in(record.figures, main), figure_in(record.figures, "loss")
    personal = personal_of(record.figures)
    of_own = "" if personal is None else f"personal models: {score_word(main)} {personal}"
    if figure is None:
        return of_own
    kind = kind_of(record)
    of_model = f"model after round {record.round if kind == EVALUATE_ALL else record.round - 1}"
    of_model = "final model" if kind == EVALUATE else of_model
    over = f", {'drawn' if kind == TRAIN else 'all'} silos' hold-outs" if draws_rounds else ""
    with_loss = "" if loss is None or main == "loss" else f", loss {loss.brief}"
    measured = f"{of_model}{over}: {main} {figure}{with_loss}"
    return ", ".join(filter(None, [measured, of_own]))


def show(events: Iterable[JobEvent], history: JobHistory, *, notes: Sequence[str] = ()) -> None:
    """Show events on stderr as they come: a live table on a terminal, else a line per phase.

    notes: lines below the table, read again with each event.
    """
    if sys.stderr.isatty():
        _show_table(events, history, notes)
        return
    with closing(Patience(say=partial(click.echo, err=True))) as patience:
        for event in events:
            record = history.add(event)
            if record is not None:
                labels = {"title": history.title(record), "main": history.main}
                click.echo(plain_line(record, **labels, draws_rounds=history.draws_rounds), err=True)
            patience.on_news(doing(history.summary))


class Patience:
    """Says, where there is no table, what a job waits for once nothing was heard for a while."""

    def __init__(
        self, *, say: Callable[[str], None], new_timer: Callable[..., threading.Timer] = threading.Timer
    ) -> None:
        self._say = say
        self._new_timer = new_timer
        self._timer: threading.Timer | None = None
        self._said = ""

    def on_news(self, doing: str) -> None:
        """doing: what the coordinator is at now."""
        self.close()
        if doing and doing != self._said:
            self._timer = self._new_timer(SILENT_SECONDS, self._tell, [doing])
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, doing: str) -> None:
        self._said = doing
        self._say(f"now: {doing}")


@contextmanager
def said_if_slow(doing: str) -> Iterator[None]:
    """Says what a command is at, on stderr, where that takes long."""
    with closing(Patience(say=partial(click.echo, err=True))) as patience:
        patience.on_news(doing)
        yield


def _show_table(events: Iterable[JobEvent], history: JobHistory, notes: Sequence[str]) -> None:
    """The newest rounds that fit the terminal while it runs, all of them at the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(table(history), console=console, refresh_per_second=8) as live:
        for event in events:
            history.add(event)
            fitting = max(1, console.height - AROUND_TABLE - len(notes))
            live.update(table(history, notes=notes, newest=fitting))
        live.update(table(history, notes=notes))
