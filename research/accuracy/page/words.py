"""Tables of a report, and the line above each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from research.accuracy.arms import ARMS, Arm
from research.accuracy.page.families import Family, Row
from research.accuracy.paired import Verdict
from research.accuracy.report import Cell, Missing, Report
from research.accuracy.tuning import Choice

NOT_YET = "-"


def accuracy_table(report: Report) -> str:
    """Mean accuracy +- deviation over the seeds, at the tuned point; of how many, where some are missing, and
    on how many it learns, where it fails to on some."""
    lines = [
        [ARMS[name].title, *(_accuracy(report, report.tuned(setting, name)) for setting in report.settings)]
        for name in report.arms
    ]
    return _table(["method", *report.settings], lines)


def choice_table(report: Report) -> str:
    """Chosen rates and strengths; in brackets the mean validation accuracy, * at an end of its grid."""
    lines = [
        [ARMS[name].title, _points(report, name), *(_choice(report, one, name) for one in report.settings)]
        for name in report.arms
    ]
    return _table(["method", "points tried", *report.settings], lines)


def tuning_table(report: Report) -> str:
    """Mean validation accuracy at each rate that the tuning tried, with the published strength."""
    lines = [
        [ARMS[arm].title, *(_tried(report.choices.get((name, arm)), ARMS[arm]) for name in report.settings)]
        for arm in report.arms
    ]
    return _table(["method", *report.settings], lines)


def _tried(choice: Choice | None, arm: Arm) -> str:
    if choice is None:
        return NOT_YET
    found = {
        rate: value for (rate, strength), value in choice.validation.items() if strength == arm.published
    }
    return " / ".join(f"{100 * found[rate]:.1f}" for rate in sorted(found))


def rate_table(report: Report) -> str:
    """Mean accuracy at each common rate, with the published strength."""
    names = [name for name in report.common_arms if _has_common(report, name)]
    lines = [
        [ARMS[name].title, *(_at_rates(report, setting, name) for setting in report.settings)]
        for name in names
    ]
    return _table(["method", *report.settings], lines)


def difference_table(family: Family, report: Report) -> str:
    """A row for each comparison: mean difference, its interval, the verdict; at tuned rates + where a side
    does better at another point."""
    has_rates = any(row.rate is not None for row in family.rows)
    lines = [
        [
            _pair(row),
            *([f"{row.rate:g}"] if row.rate is not None else []),
            *(_result(family, row, name) + _mark(report, row, name) for name in report.settings),
        ]
        for row in family.rows
    ]
    return _table(["comparison", *["rate"] * has_rates, *report.settings], lines)


def verdict_counts(family: Family) -> str:
    """How many comparisons end in each verdict."""
    found = Counter(one.interval(family.level).verdict for one in family.differences)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in Verdict)


def family_note(family: Family, report: Report) -> str:
    """How many comparisons are decided together, at which level, and what they could have found."""
    count, share = len(family.differences), 100 * (1 - family.level)
    (fewest, most), (half, all_of_them) = family.seeds, family.detectable
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    note = f"{count} comparison{'s' * (count != 1)} of {seeds} seeds, intervals of {share:.2f} %."
    if not family.is_whole(len(report.seeds)):
        return (
            f"{note} Runs are missing, so verdicts are provisional: the level is of one look, at all of them."
        )
    largest = f"all one of {all_of_them:.1f}"
    if all_of_them >= 100:
        largest = "some none that two accuracies can have"
    return f"{note} Half would find a true difference of {half:.1f} points with 80 % power, {largest}."


def _mark(report: Report, row: Row, setting: str) -> str:
    if row.rate is not None or isinstance(row.found[setting], Missing):
        return ""
    return " +" if any(report.passed_over(setting, name) for name in (row.method, row.reference)) else ""


def _points(report: Report, name: str) -> str:
    found = [len(choice.validation) for (_, arm), choice in report.choices.items() if arm == name]
    return NOT_YET if not found else f"{max(found)}" if ARMS[name].is_trained else "1"


def _pair(row: Row) -> str:
    return f"{ARMS[row.method].title} against {ARMS[row.reference].title}"


def _result(family: Family, row: Row, setting: str) -> str:
    found, interval = row.found[setting], family.interval(row, setting)
    if isinstance(found, Missing) or isinstance(interval, Missing):
        return str(found)
    return f"{found.mean:+.1f} ({interval.low:+.1f} to {interval.high:+.1f}), {interval.verdict}"


def _accuracy(report: Report, cell: Cell | None) -> str:
    if cell is None:
        return NOT_YET
    count = len(cell.accuracy)
    said = f"{100 * cell.mean:.1f}"
    if count > 1:
        said += f" +- {100 * cell.deviation:.1f}"
    if (learned := report.learned(cell)) < count:
        said += f" (learns on {learned})"
    if count < len(report.seeds):
        said += f" ({count} seed{'s' * (count != 1)})"
    return f"{said} ({cell.failed} failed)" if cell.failed else said


def _at_rates(report: Report, setting: str, name: str) -> str:
    strength = ARMS[name].published
    cells = [report.cells.get((setting, name, rate, strength)) for rate in report.common]
    seeds = report.shared_seeds(setting)
    return " / ".join(
        NOT_YET if cell is None or not seeds else f"{100 * cell.mean_of(seeds):.1f}" for cell in cells
    )


def _has_common(report: Report, name: str) -> bool:
    return any(key[1] == name and key[2] in report.common for key in report.cells)


def _choice(report: Report, setting: str, name: str) -> str:
    choice = report.choices.get((setting, name))
    if choice is None:
        return NOT_YET
    (rate, strength), best = choice.point, choice.validation[choice.point]
    if not ARMS[name].is_trained:
        return f"none ({100 * best:.1f})"
    if not report.is_learned(setting, best):
        return f"none learns ({100 * best:.1f}), so {rate:g}"
    edge = "*" if choice.is_at_an_end else ""
    option = "" if strength is None else f", {ARMS[name].option} {strength:g}"
    return f"{rate:g}{edge}{option}{'*' * choice.has_strength_at_an_end} ({100 * best:.1f})"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*rows, *("| " + " | ".join(line) + " |" for line in lines)])
