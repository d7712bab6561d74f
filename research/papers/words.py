"""The catalog for people: docs/reference/papers.md, made with the site, and tables on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from research.accuracy.book import Book
from research.papers.catalog import TABLES, cells
from research.papers.cells import Cell, Table
from research.papers.coverage import STATUSES, things
from research.papers.suite import distinct, ours


def page_text() -> str:
    """What is expressible, what is not and why, and what the papers leave open."""
    return "\n\n".join(
        (
            counted(),
            "## Tables and figures",
            "\n\n".join(_of_paper(paper) for paper in dict.fromkeys(table.paper for table in TABLES)),
            "## What no job can say",
            _grid(("table or figure", "part", "why"), _missing()),
            "## What the papers leave open",
            "Where a paper says nothing, the jobs have to say something:",
            _grid(("reading", "of"), _readings()),
            "## Thing by thing",
            f"What readers of the papers look for: {covered()}.",
            "\n\n".join(_things_of(paper) for paper in dict.fromkeys(each.paper for each in things())),
        )
    )


def covered() -> str:
    """How many things hold, differ and are missing."""
    counts = Counter(each.status for each in things())
    return f"of {counts.total()}, " + ", ".join(f"{counts[status]} {status}" for status in STATUSES)


def _things_of(paper: str) -> str:
    rows = [
        (each.item, each.status, ", ".join(map(_code, each.places)) or "-", each.why or "-")
        for each in things()
        if each.paper == paper
    ]
    return f"### {paper}, thing by thing\n\n{_grid(('thing', 'status', 'where', 'why'), rows)}"


def _code(place: str) -> str:
    """A table's name as it is, all else as code."""
    return place if place.startswith(("Table", "Figure")) else f"`{place}`"


def counted() -> str:
    """How much of it there is."""
    results = [table for table in TABLES if table.has_results]
    whole = sum(table.is_expressible for table in results)
    partly = sum(bool(table.cells) and not table.is_expressible for table in results)
    jobs = len(distinct(cell.trial(0) for cell in cells()))
    return (
        f"{len(results)} tables and figures have results: {whole} can be expressed whole, {partly} in part, "
        f"{len(results) - whole - partly} not at all. {len(TABLES) - len(results)} more are notation, "
        f"settings or not described. {sum(1 for _ in cells())} numbers come of {jobs} different jobs."
    )


def _of_paper(paper: str) -> str:
    mine = [table for table in TABLES if table.paper == paper]
    rows = [
        (
            table.number,
            table.shows,
            "; ".join(table.data) or "-",
            ", ".join(table.networks) or "-",
            _listed(table.federations, most=4),
            _listed(table.methods, most=13),
            str(len(table.cells) or "-"),
            status(table),
        )
        for table in mine
    ]
    heading = ("number", "what it shows", "data", "networks", "silos", "rows", "jobs", "expressed")
    return f"### {paper}\n\n{_grid(heading, rows)}"


def status(table: Table) -> str:
    """Whole, in part, not at all, or that there is nothing to express."""
    if not table.has_results:
        return "no results"
    if table.is_expressible:
        return "whole"
    return "in part" if table.cells else "no"


def _missing() -> list[tuple[str, str, str]]:
    return [(table.name, part.name, part.reason) for table in TABLES for part in table.missing]


def _readings() -> list[tuple[str, str]]:
    """Each once, with the tables that it is of."""
    of: dict[str, list[str]] = {}
    papers = Counter(table.paper for table in TABLES if table.readings)
    for table in TABLES:
        for reading in table.readings:
            of.setdefault(reading, []).append(table.name)
    return [(reading, _summed_up(names, papers)) for reading, names in of.items()]


def _summed_up(names: list[str], papers: Counter[str]) -> str:
    """A paper's name alone where all its tables are meant."""
    by_paper: dict[str, list[str]] = {}
    for name in names:
        paper, _, number = name.rpartition(", ")
        by_paper.setdefault(paper, []).append(number)
    return "; ".join(
        paper if len(numbers) == papers[paper] else f"{paper}, {', '.join(numbers)}"
        for paper, numbers in by_paper.items()
    )


def _listed(words: Sequence[str], *, most: int) -> str:
    """The first ones, and how many more there are."""
    shown = "; ".join(words[:most]) or "-"
    return shown if len(words) <= most else f"{shown}; and {len(words) - most} more"


def _grid(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def terminal_text() -> str:
    """One line a table, then what is missing."""
    lines = [counted(), f"Thing by thing: {covered()}.", ""]
    width = max(len(table.name) for table in TABLES)
    lines += [
        f"{table.name:<{width}}  {status(table):<10} {len(table.cells):>4}  {table.shows}" for table in TABLES
    ]
    lines += ["", "What no job can say:"]
    lines += [f"- {name}: {part}: {why}" for name, part, why in _missing()]
    return "\n".join(lines)


def compared(table: Table, book: Book) -> str:
    """Every number of a table, the paper's beside ours."""
    width = max(len(cell.row) for cell in table.cells)
    across = max(len(cell.column) for cell in table.cells)
    return "\n".join(
        [
            f"{table.name}: {table.shows}",
            f"{'':<{width}}  {'':<{across}}  {'paper':>16}  {'here':>16}",
            *(_line(cell, book, width, across) for cell in table.cells),
        ]
    )


def _line(cell: Cell, book: Book, width: int, across: int) -> str:
    numbers = [str(each or "-") for each in (cell.printed, ours(cell, book))]
    return f"{cell.row:<{width}}  {cell.column:<{across}}  {numbers[0]:>16}  {numbers[1]:>16}"
