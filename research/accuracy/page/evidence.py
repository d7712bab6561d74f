"""The page of evidence: what is committed of a report, and the text that follows from it alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.report import figures
from crypto.errors import ConfigError
from research.accuracy.catalog import SUITES
from research.accuracy.page import families, words
from research.accuracy.page.families import Family
from research.accuracy.report import Report

FIGURES = Path("research") / "evidence"
PAGE = Path("docs") / "evidence.md"
LISTS = ("cells", "choices")


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


def read(root: Path, suite: str) -> dict[str, Any] | None:
    """The committed figures of a suite; None if there are none yet."""
    path = root / FIGURES / f"{suite}.jsonl"
    if not path.exists():
        return None
    entry, *others = (json.loads(line) for line in path.read_text().splitlines())
    lists = {name: [line[name] for line in others if name in line] for name in LISTS}
    return {**entry, "report": {**entry["report"], **lists}}


def runs_of(suite: str) -> Path:
    """Where the lines of its runs are committed, compressed."""
    return FIGURES / f"{suite}.runs.jsonl.xz"


def update(report: Report, *, root: Path, moment: datetime | None = None) -> None:
    """Commit to it: figures, plots and the suite's place on the page. Raises ConfigError."""
    try:
        from research.accuracy.page.plots import draw  # of the development's packages: training needs none
    except ModuleNotFoundError as error:
        raise ConfigError(f"pictures of the page need {error.name}: `make setup` installs it") from None
    entry = committed(report, moment=moment or datetime.now(UTC))
    path = root / FIGURES / f"{report.suite}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(_lines(entry))
    draw(report, folder=root / PAGE.parent)
    before = (root / PAGE).read_text()
    text = figures.replaced(before, place(report.suite), page_text(entry), path=PAGE)
    (root / PAGE).write_text(text)


def place(suite: str) -> str:
    """The name between the page's comments."""
    return f"accuracy-{suite}"


def page_text(entry: Mapping[str, Any]) -> str:
    """A suite's part of the page, from what is committed."""
    report = Report.from_json(entry["report"])
    stood = (
        f"Written on {entry['date']}: {entry['machine']}. Commit and arithmetic of the runs: "
        f"{', '.join(report.sources)}. Command: `{entry['command']}`."
    )
    return "\n\n".join((*_sections(report), stood))


def _accuracies(report: Report) -> list[str]:
    """Tables of what has run."""
    found = []
    if report.common:
        rates = " / ".join(f"{rate:g}" for rate in report.common)
        found += [
            f"Mean accuracy in percent, the presets' strengths, learning rates {rates}:",
            words.rate_table(report),
        ]
    if any(report.tuned(*point) for point in report.choices):
        found += [
            f"Accuracy in percent at {_tuned(report)}, mean +- standard deviation over the seeds:",
            words.accuracy_table(report),
        ]
    return found


def _sections(report: Report) -> list[str]:
    """Tables of what has run."""
    found = [
        _setting(report),
        *_accuracies(report),
        *_family(
            report,
            families.controls_at_common_rates(report),
            "Methods against their controls, both at the same learning rate, the presets' strengths",
        ),
        *_other_strengths(report),
        *_family(report, families.controls_tuned(report), "Methods against their controls, each side tuned"),
        *_family(report, families.baseline_tuned(report), "Methods against FedAvg, each side tuned"),
    ]
    if report.choices and not report.seeds:
        rates = sorted({rate for one in report.choices.values() for rate, _ in one.validation})
        found += [
            f"Accuracy in percent on validation samples, the presets' strengths, learning rates "
            f"{' / '.join(f'{rate:g}' for rate in rates)}:",
            words.tuning_table(report),
        ]
    elif report.choices:
        seeds = ", ".join(map(str, report.tuning_seeds))
        samples = f"validation samples of the seed{'s' * (len(report.tuning_seeds) > 1)} {seeds}"
        found += [
            f"What tuning chose ({_tuned(report)}), on {samples}; in brackets the accuracy on them, * marks "
            "an end of what was tried.",
            words.choice_table(report),
        ]
    if report.common:
        found.append(f"![Accuracy by learning rate, a panel for each cut](evidence-{report.suite}.svg)")
    return found


def _setting(report: Report) -> str:
    seeds = "One seed for each rate"
    if report.seeds:
        seeds = f"{len(report.seeds)} seeds ({report.seeds[0]} to {report.seeds[-1]})"
    left = report.planned - report.runs
    ended = "All have ended" if left <= 0 else f"{left} of them have not run yet, and are left out"
    rows = "; ".join(
        f"{name}: {held:g} of {report.classes[name]}" for name, held in report.rows_by_default.items()
    )
    said = (
        f"{report.about[0].upper()}{report.about[1:]}. {seeds}, {report.planned} runs in all. {ended}; "
        f"{report.seconds / 3600:.1f} hours of CPU."
    )
    if not rows:
        return said
    return f"{said} Classes whose rows are sent by default: {rows}."


def _other_strengths(report: Report) -> list[str]:
    """One line: no reader decides by so many comparisons, but whether any of them decides is news."""
    family = families.controls_at_other_strengths(report)
    if not family.differences:
        return []
    return [
        "Methods against their controls at the same rate and strength, the other strengths: "
        f"{words.verdict_counts(family)}. {words.family_note(family, report)}"
    ]


def _family(report: Report, family: Family, title: str) -> list[str]:
    """Its table with a line above; nothing of a family that has not run."""
    if not family.differences:
        return []
    note = words.family_note(family, report)
    return [f"{title}. {note}", words.difference_table(family, report)]


def _tuned(report: Report) -> str:
    """What the tuning of a suite chooses."""
    strengths = (len({strength for _, strength in one.validation}) for one in report.choices.values())
    return "tuned rates and strengths" if max(strengths) > 1 else "tuned rates and the presets' strengths"


def _lines(entry: Mapping[str, Any]) -> str:
    """A line of JSON for the rest, then one for each cell and choice: a change shows where it is."""
    report = {name: value for name, value in entry["report"].items() if name not in LISTS}
    lines = [{**entry, "report": report}]
    lines += [{name: one} for name in LISTS for one in entry["report"][name]]
    return "".join(f"{json.dumps(line)}\n" for line in lines)
