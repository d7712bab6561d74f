"""The page of evidence: what is committed of a report, and the text that follows from it alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.report import figures
from bench.rows import Row
from research.accuracy import words
from research.accuracy.catalog import SUITES
from research.accuracy.plots import DIFFERENCES, ROUNDS, draw
from research.accuracy.report import Report

FIGURES = Path("research") / "evidence.json"
PAGE = Path("docs") / "evidence.md"
MAX_MINUTES = 30.0  # of the small suite over two processes


def printed(report: Report) -> dict[str, Any]:
    """What `--json` prints: the report, its sentences, its target."""
    return {
        **report.to_json(),
        "verdicts": words.verdicts(report),
        "against_fedavg": words.against_baseline(report),
        "rows": [row.to_json() for row in rows(report)],
    }


def rows(report: Report) -> list[Row]:
    """The small suite alone has a time to keep."""
    if report.suite != "small":
        return []
    name = f"minutes of CPU for each of {report.workers} processes, {report.runs} runs"
    return [Row(name=name, target=MAX_MINUTES, value=report.minutes, unit="minutes")]


def committed(report: Report, *, moment: datetime) -> dict[str, Any]:
    """The report with command, date, machine and versions."""
    data = " --data FOLDER" if SUITES[report.suite].needs_data else ""
    return {
        "command": f"python -m research.accuracy --suite {report.suite}{data} --update",
        "date": moment.date().isoformat(),
        "machine": figures.machine(),
        "versions": figures.versions(),
        "report": report.to_json(),
    }


def read(root: Path) -> dict[str, Any]:
    """The committed figures by suite; none if there are none yet."""
    return figures.read(root / FIGURES)


def update(report: Report, *, root: Path, moment: datetime | None = None) -> None:
    """Commit to it: figures, plots and the suite's place on the page."""
    entry = committed(report, moment=moment or datetime.now(UTC))
    figures.write(root / FIGURES, {**read(root), report.suite: entry})
    draw(report, folder=root / PAGE.parent, prefix=_prefix(report.suite))
    text, page = page_text(read(root)[report.suite]), (root / PAGE).read_text()
    (root / PAGE).write_text(figures.replaced(page, place(report.suite), text, path=PAGE))


def place(suite: str) -> str:
    """The name between the page's comments."""
    return f"accuracy-{suite}"


def page_text(entry: Mapping[str, Any]) -> str:
    """A suite's part of the page, from what is committed."""
    report = Report.from_json(entry["report"])
    packages = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    stood = f"Measured on {entry['date']}: {entry['machine']}; {packages}. Command: `{entry['command']}`."
    prefix = _prefix(report.suite)
    pictures = (
        f"![Accuracy by round, a panel for each cut]({prefix}-{ROUNDS}.svg)",
        f"![Paired differences to FedAvg, standard errors, a dot for each seed]({prefix}-{DIFFERENCES}.svg)",
    )
    return "\n\n".join((section(report), *pictures, stood))


def section(report: Report) -> str:
    """Tables and sentences."""
    parts = (
        _setting(report),
        "Accuracy on the hold-out in percent, mean +- standard deviation over the seeds; then the paired "
        "difference to FedAvg in points +- its standard error, and the seeds won.",
        words.accuracy_table(report),
        "Each method against its controls: paired difference in points +- standard error, seeds won.",
        words.control_table(report),
        _list(words.verdicts(report)),
        "Against FedAvg:",
        _list(words.against_baseline(report)),
        f"Learning rates, chosen by the final accuracy on validation samples (tuning seeds "
        f"{_seeds(report.tuning_seeds)}); in brackets that accuracy, * marks an end of the grid.",
        words.rate_table(report),
    )
    return "\n\n".join(parts)


def _setting(report: Report) -> str:
    processes = "one process" if report.workers == 1 else f"each of {report.workers} processes"
    sent = "; ".join(f"{name} {number:g} of {classes}" for name, number, classes in report.rows_by_default)
    return (
        f"{report.about[0].upper()}{report.about[1:]}. Seeds {_seeds(report.seeds)}; {report.runs} runs, "
        f"{report.minutes:.0f} minutes of CPU in {processes}. Learning rates are out of "
        f"{_grids(report)}. Classes whose rows a silo's default policy would send to FedDW and FedCSD, mean "
        f"of the seeds: {sent}. Here all rows were sent."
    )


def _grids(report: Report) -> str:
    grids = dict.fromkeys(tuple(rate for rate, _ in cell.tuned) for cell in report.cells)
    return " or ".join(", ".join(f"{rate:g}" for rate in grid) for grid in grids)


def _prefix(suite: str) -> str:
    return "evidence" if suite == "small" else f"evidence-{suite}"


def _seeds(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))


def _list(sentences: list[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
