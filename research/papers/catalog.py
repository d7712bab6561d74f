"""Every table and figure of the five papers, one paper after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from research.papers import fedcsd, feddr_conference, feddr_journal, feddw, spherefed
from research.papers.cells import Cell, Table

TABLES: tuple[Table, ...] = (
    *spherefed.TABLES,
    *feddr_conference.TABLES,
    *feddr_journal.TABLES,
    *fedcsd.TABLES,
    *feddw.TABLES,
)


def cells(tables: Iterable[Table] = TABLES) -> Iterator[Cell]:
    """Of all tables, in their order; a job that two tables share comes twice."""
    for table in tables:
        yield from table.cells


def kinds(tables: Iterable[Table] = TABLES) -> list[Cell]:
    """One cell of each kind: those that differ in numbers and cuts alone run through the same code."""
    found: dict[str, Cell] = {}
    for cell in cells(tables):
        found.setdefault(kind_of(cell), cell)
    return list(found.values())


def kind_of(cell: Cell) -> str:
    """Network, parts, words and whole numbers among the options, optimizer, schedule, draw, own files."""
    job, strategy = cell.federation.job, cell.method.strategy
    options = {
        name: value for name, value in strategy.get("options", {}).items() if not isinstance(value, float)
    }
    made_of: list[Any] = [
        job["model"],
        bool(cell.federation.partition),
        cell.method.unusual,
        {**strategy, "options": options},
        job["training"]["optimizer"],
        job["training"].get("schedule", {}).get("kind"),
        job.get("fraction", 1.0) < 1,
    ]
    return repr(made_of)


def summary() -> dict[str, Any]:
    """What `--json` prints. expressible: tables and figures every number of which has a job."""
    return {
        "tables": [_facts(table) for table in TABLES],
        "expressible": sum(table.is_expressible for table in TABLES),
        "missing": [
            {"name": f"{table.name}: {part.name}", "reason": part.reason}
            for table in TABLES
            for part in table.missing
        ],
    }


def _facts(table: Table) -> dict[str, Any]:
    return {
        "paper": table.paper,
        "number": table.number,
        "shows": table.shows,
        "has_results": table.has_results,
        "is_expressible": table.is_expressible,
        "data": table.data,
        "networks": table.networks,
        "federations": table.federations,
        "methods": table.methods,
        "jobs": [_job(cell) for cell in table.cells],
        "missing": [part.name for part in table.missing],
        "readings": list(table.readings),
    }


def _job(cell: Cell) -> dict[str, Any]:
    """The cell with its job file's fields, and what the paper prints in percent."""
    spec = cell.spec()
    said = spec.model_dump(mode="json", exclude_defaults=True, exclude={"not_after", "federation"})
    printed = cell.printed
    return {
        "row": cell.row,
        "column": cell.column,
        "job": said | {"silos": len(spec.silos)},
        "data": cell.federation.data.place,
        "partition": dict(cell.federation.partition),
        "printed": None if printed is None else printed.mean,
        "deviation": None if printed is None else printed.deviation,
        "simulation_alone": cell.is_simulated_alone,
    }
