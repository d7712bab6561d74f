"""The phases of a job as rows: of the table on every page, and of rounds.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from chorale.results import APPLIED, spreadsheet_cell
from strategies.figure import figure_in
from strategies.phases.training import TRAIN
from web.shared.templating import plain

Document = dict[str, Any]  # of client.history.phase_facts


def phase_rows(phases: Sequence[Document], *, main: str, has_names: bool = False) -> list[list[object]]:
    """The cells of `phase_table` of _macros.html, the newest first. has_names: of the silos in a sum,
    else how many they are."""
    return [_row(each, main=main, has_names=has_names) for each in reversed(phases)]


def _row(phase: Document, *, main: str, has_names: bool) -> list[object]:
    figures = [figure_in(phase["figures"], name) for name in (main, "loss")]
    seconds, share, cohort = phase["wall_seconds"], phase["data_share"], phase["cohort"]
    attempts = f"attempt {phase['attempts']}" if phase["attempts"] > 1 else ""
    return [
        phase["title"],
        phase["round"],
        _result(phase["result"], phase["reason"]),
        cohort if has_names else len(cohort),
        f"{share:.0%}" if phase["phase"].partition(".")[0] == TRAIN and cohort and share is not None else "",
        *("" if each is None else each.brief for each in figures),
        with_note("" if seconds is None else f"{seconds:.1f}", attempts),
        f"{phase['upload_bytes']:,}" if phase["upload_bytes"] else "",
        f"{phase['verified_by']}, {phase['threshold']} needed" if phase["threshold"] else "",
        [with_note(left["silo"], left["words"]) for left in phase["left_out"]],
    ]


def _result(result: str, reason: str) -> object:
    if result == APPLIED:
        return f"{result}: {reason}" if reason else result
    return Markup('<span class="state failed">{}</span> {}').format(plain(result), plain(reason))


def with_note(text: str, note: str) -> object:
    return Markup('{} <span class="note">{}</span>').format(plain(text), plain(note)) if note else text


def phases_csv(phases: Sequence[Document]) -> str:
    """rounds.csv, oldest first; each number that some phase has is a column."""
    figures = sorted({name for phase in phases for name in phase["figures"]})
    fixed = ("title", "round", "phase", "result", "reason", "attempts", "data_share", "upload_bytes")
    more = ("wall_seconds", "verified_by", "threshold")
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow([*fixed, *more, "silos", "cohort", "left_out", *map(spreadsheet_cell, figures)])
    for phase in phases:
        left_out = "; ".join(
            f"{left['silo']} ({left['stage']}: {left['reason']})" for left in phase["left_out"]
        )
        cells = [*(phase[name] for name in (*fixed, *more)), len(phase["cohort"]), " ".join(phase["cohort"])]
        writer.writerow(map(spreadsheet_cell, [*cells, left_out, *map(phase["figures"].get, figures)]))
    return rows.getvalue()
