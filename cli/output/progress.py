"""A job as its events tell it, in plain lines or as a table for a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import click

from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, PhaseRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

ENDED = frozenset({"done", "cancelled", "stopped", "failed"})
SILENT_SECONDS = 2.0  # without news, before a plain line says what is waited for
AROUND_TABLE = 3  # lines of the terminal: heading, status, one free
ENROLLMENT, TRAIN, EVALUATE, FINE_TUNE = "enrollment", "train", "evaluate", "fine-tune"


@dataclass(slots=True)
class JobHistory:
    """What the coordinator told of one job so far."""

    summary: JobSummary = field(default_factory=JobSummary)
    records: list[PhaseRecord] = field(default_factory=list)

    def add(self, event: JobEvent) -> PhaseRecord | None:
        """Take in one event; the record, if it was one that is not known yet."""
        if event.WhichOneof("kind") == "summary":
            self.summary = event.summary
            return None
        if any(_key(record) == _key(event.record) for record in self.records):
            return None
        self.records.append(event.record)
        return event.record

    @property
    def has_ended(self) -> bool:
        return self.summary.status in ENDED

    def of_kind(self, kind: str) -> list[PhaseRecord]:
        return [record for record in self.records if kind_of(record) == kind]


def kind_of(record: PhaseRecord) -> str:
    return record.phase.partition(".")[0]


def accuracy_by_round(history: JobHistory) -> list[float | None]:
    """Entry i is the accuracy of the model after round i + 1; None where no sum measured it.

    A round's sum tests the model it started from, so round r measures the model after r - 1.
    """
    trained = history.of_kind(TRAIN)
    measured = {record.round - 1: _figure(record, "accuracy") for record in trained}
    for record in history.of_kind(EVALUATE):
        measured[record.round] = _figure(record, "accuracy")
    last = max((record.round for record in trained), default=0)
    return [measured.get(round) for round in range(1, last + 1)]


def final_accuracy(history: JobHistory) -> float | None:
    """Accuracy of the last model, from the closing evaluation; None if there was none."""
    closing = [record for record in history.of_kind(EVALUATE) if record.result == "applied"]
    return _figure(closing[-1], "accuracy") if closing else None


def final_tested(history: JobHistory) -> float | None:
    """How many samples the closing evaluation tested, noise included."""
    closing = [record for record in history.of_kind(EVALUATE) if record.result == "applied"]
    return _figure(closing[-1], "tested") if closing else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalFigures:
    """Of the silos' own models on their own hold-outs: mean and standard deviation over those silos that have
    one, and how many these are. Every silo weighs the same."""

    accuracy: float
    deviation: float
    silos: int

    def __str__(self) -> str:
        return f"{self.accuracy:.4f} +- {self.deviation:.4f} over {self.silos} silos"


def personal_figures(history: JobHistory) -> PersonalFigures | None:
    """None where the method has no personal models, or no silo a hold-out to test its own on."""
    closing = [record for record in history.records if kind_of(record) in (EVALUATE, FINE_TUNE)]
    found = [_personal(record) for record in closing if record.result == "applied"]
    return next((figures for figures in reversed(found) if figures is not None), None)


def plain_line(record: PhaseRecord, *, rounds: int) -> str:
    """One line for one phase, for logs and pipes."""
    parts = [_title(record, rounds), _outcome(record), _measured(record), _missing(record)]
    return "  ".join(part for part in parts if part)


def table(history: JobHistory, *, notes: Iterable[str] = (), newest: int | None = None) -> RenderableType:
    """The job so far, for rich's Live. newest: how many of its phases; default all."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("round", "accuracy before", "silos", "share of data", "seconds", "left out"):
        rows.add_column(title, justify="left" if title == "left out" else "right")
    for record in history.records[-(newest or len(history.records)) :]:
        rows.add_row(*_cells(record, history.summary.rounds))
    status = history.summary.progress or history.summary.status or "waiting for the coordinator"
    return Group(rows, Text(status, style="dim"), *(Text(note, style="yellow") for note in notes))


def _cells(record: PhaseRecord, rounds: int) -> tuple[str, ...]:
    accuracy = _figure(record, "accuracy")
    return (
        _title(record, rounds),
        "" if accuracy is None else f"{accuracy:.3f}",
        str(len(record.cohort)) if record.result == "applied" else record.result,
        f"{record.data_share:.0%}" if kind_of(record) == TRAIN and record.cohort else "",
        f"{record.wall_seconds:.1f}",
        ", ".join(left.silo for left in record.left_out),
    )


def _title(record: PhaseRecord, rounds: int) -> str:
    return f"round {record.round}/{rounds}" if kind_of(record) == TRAIN else kind_of(record)


def _outcome(record: PhaseRecord) -> str:
    if record.result != "applied":
        return f"used up ({record.reason})"
    share = f", {record.data_share:.0%} of the data" if kind_of(record) == TRAIN else ""
    attempts = f", attempt {record.attempts}" if record.attempts > 1 else ""
    return f"{len(record.cohort)} silos{share}, {record.wall_seconds:.1f} s{attempts}"


def _measured(record: PhaseRecord) -> str:
    accuracy, loss = _figure(record, "accuracy"), _figure(record, "loss")
    personal = _personal(record)
    of_own = "" if personal is None else f"personal models: accuracy {personal}"
    if accuracy is None:
        return of_own
    of_model = "final model" if kind_of(record) == EVALUATE else f"model after round {record.round - 1}"
    told = f"{of_model}: accuracy {accuracy:.3f}" + ("" if loss is None else f", loss {loss:.3f}")
    return ", ".join(filter(None, [told, of_own]))


def _missing(record: PhaseRecord) -> str:
    return "; ".join(f"without {left.silo} ({left.stage}: {left.reason})" for left in record.left_out)


def _personal(record: PhaseRecord) -> PersonalFigures | None:
    accuracy, deviation = _figure(record, "personal_accuracy"), _figure(record, "personal_accuracy_deviation")
    silos = _figure(record, "personal_silos")
    if accuracy is None or deviation is None or silos is None:
        return None
    return PersonalFigures(accuracy=accuracy, deviation=deviation, silos=round(silos))


def _figure(record: PhaseRecord, name: str) -> float | None:
    return dict(record.figures).get(name)


def _key(record: PhaseRecord) -> tuple[int, str]:
    return record.round, record.phase


def show(events: Iterable[JobEvent], history: JobHistory, *, notes: Sequence[str] = ()) -> None:
    """Show events on stderr as they come: a live table on a terminal, else a line per phase.

    notes: lines below the table, read anew with each event.
    """
    if sys.stderr.isatty():
        _show_table(events, history, notes)
        return
    with closing(Patience(say=lambda text: click.echo(text, err=True))) as patience:
        for event in events:
            record = history.add(event)
            if record is not None:
                click.echo(plain_line(record, rounds=history.summary.rounds), err=True)
            patience.on_news(history.summary.progress)


class Timer(Protocol):
    """What Patience needs of threading.Timer."""

    daemon: bool

    def start(self) -> None: ...

    def cancel(self) -> None: ...


class Patience:
    """Says, where there is no table, what a job waits for once nothing was heard for a while."""

    def __init__(
        self, *, say: Callable[[str], None], new_timer: Callable[..., Timer] = threading.Timer
    ) -> None:
        self._say = say
        self._new_timer = new_timer
        self._timer: Timer | None = None
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
