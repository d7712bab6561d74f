"""Tables and sentences of a report. Nothing is said of a method that does not follow from its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from research.accuracy.arms import BASELINE, CONTROLS, Control, arm
from research.accuracy.paired import Paired, Verdict
from research.accuracy.report import Cell, Report


def accuracy_table(report: Report) -> str:
    """Methods by settings: mean accuracy +- deviation, paired difference +- standard error, seeds won."""
    head = ["method", *report.settings]
    lines = [
        [one.title, *(_result(report, name, one.name) for name in report.settings)] for one in report.arms
    ]
    return _table(head, lines)


def control_table(report: Report) -> str:
    """Every method against its controls."""
    head = ["method", "control", *report.settings]
    lines = [
        [
            arm(one.method).title,
            arm(one.control).title,
            *(_difference(report.difference(name, one.method, one.control)) for name in report.settings),
        ]
        for one in controls_in(report)
    ]
    return _table(head, lines)


def rate_table(report: Report) -> str:
    """Chosen learning rates; in brackets the mean validation accuracy, * at the grid's edge."""
    lines = [
        [one.title, *(_rate(report.cell(name, one.name)) for name in report.settings)] for one in report.arms
    ]
    return _table(["method", *report.settings], lines)


def verdicts(report: Report) -> list[str]:
    """A sentence for every control."""
    return [verdict(report, one) for one in controls_in(report)]


def verdict(report: Report, control: Control) -> str:
    """Whether the part that the control leaves out shows in the accuracy, and what is summed for it alone.

    No test here shows that two methods are equal: a difference that is not significant is undecided.
    """
    found = {name: report.difference(name, control.method, control.control) for name in report.settings}
    pair = f"**{arm(control.method).title} against {arm(control.control).title}**"
    sums = f" For that part alone silos sum {control.sums}." if control.sums else ""
    return f"{pair}, which leaves out {control.without}: {_sides(found)}.{sums}"


def against_baseline(report: Report) -> list[str]:
    """A sentence for every method that is no control."""
    held = {one.control for one in CONTROLS}
    return [
        _against(report, one.name) for one in report.arms if one.name != BASELINE and one.name not in held
    ]


def controls_in(report: Report) -> list[Control]:
    """Those of which the report has both sides."""
    names = {one.name for one in report.arms}
    return [one for one in CONTROLS if {one.method, one.control} <= names]


def _against(report: Report, name: str) -> str:
    found = {setting: report.difference(setting, name) for setting in report.settings}
    return f"{arm(name).title} against FedAvg: {_sides(found)}."


def _sides(found: Mapping[str, Paired]) -> str:
    """On which cuts a method is ahead, on which behind, and which these seeds leave undecided."""
    words = {Verdict.BETTER: "better", Verdict.WORSE: "worse", Verdict.UNDECIDED: "undecided"}
    sides = {
        word: [name for name, one in found.items() if one.verdict is verdict]
        for verdict, word in words.items()
    }
    if len(sides["undecided"]) == len(found):
        return f"undecided on every cut ({_all(found)})"
    said = ", ".join(f"{word} on {_listed(names)}" for word, names in sides.items() if names)
    return f"{said} ({_all(found)})"


def _all(found: Mapping[str, Paired]) -> str:
    return "; ".join(f"{name}: {_difference(one)}" for name, one in found.items())


def _result(report: Report, setting: str, name: str) -> str:
    cell = report.cell(setting, name)
    said = f"{100 * cell.mean:.1f} +- {100 * cell.deviation:.1f}"
    if cell.failed:
        said += f" ({cell.failed} failed)"
    return said if name == BASELINE else f"{said}; {_difference(report.difference(setting, name))}"


def _difference(one: Paired) -> str:
    return f"{one.mean:+.1f} +- {one.error:.1f}, {one.won}/{one.seeds}"


def _rate(cell: Cell) -> str:
    best = dict(cell.tuned)[cell.rate]
    return f"{cell.rate:g}{'*' if cell.is_at_the_edge else ''} ({100 * best:.1f})"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*rows, *("| " + " | ".join(line) + " |" for line in lines)])
