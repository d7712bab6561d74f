"""A table 1 as plain text, and records as CSV. Names in it may be anybody's."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence

from chorale.results import spreadsheet_cell
from client.analysis.tables import Line, Table
from crypto.errors import printable

INDENT = 2
LINE_WIDTH = 100  # of notes


def plain_text(table: Table) -> str:
    """In columns of equal width, for a terminal."""
    rows = [["", *table.heads]]
    rows += [[" " * INDENT * line.level + _label(line), *line.cells] for line in table.lines]
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    rule = "-" * max(map(len, lines))
    notes = [
        textwrap.fill(printable(f"[{number}] {note}"), LINE_WIDTH, subsequent_indent="    ")
        for number, note in enumerate(table.notes, start=1)
    ]
    title = printable(table.title)
    return "\n".join([title, rule, lines[0], rule, *lines[1:], rule, *notes]) + "\n"


def comma_separated(rows: Sequence[Mapping[str, object]], fields: Sequence[str]) -> str:
    """With a line of titles."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([_cell(row[field]) for field in fields] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return spreadsheet_cell(printable(value) if isinstance(value, str) else value)


def _label(line: Line) -> str:
    return line.label + "".join(f" [{number}]" for number in line.notes)
