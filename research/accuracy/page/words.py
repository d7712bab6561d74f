"""Tables and sentences of a report. Nothing is said of a method that does not follow from its intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from research.accuracy.arms import ARMS, BASELINE, Contrast
from research.accuracy.page import families
from research.accuracy.page.families import Family, Row
from research.accuracy.paired import ALPHA, MARGIN, Difference, Interval, Verdict
from research.accuracy.report import Cell, Missing, Report

NOT_YET = "-"


def accuracy_table(report: Report) -> str:
    """Mean accuracy +- deviation over the seeds, at the tuned point; of how many, where some are missing."""
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


def has_marks(family: Family, report: Report) -> bool:
    """Whether `difference_table` marks a comparison."""
    return any(_mark(report, row, name) for row in family.rows for name in report.settings)


def strength_table(family: Family, settings: Sequence[str]) -> str:
    """A row for each comparison and strength: mean differences by rate, each with its verdict's letter."""
    rows: dict[str, list[Row]] = {}
    for row in family.rows:
        rows.setdefault(f"{_pair(row)}, {ARMS[row.method].option} {row.strength:g}", []).append(row)
    lines = [
        [name, *(" / ".join(_short(family, row, setting) for row in at_rates) for setting in settings)]
        for name, at_rates in rows.items()
    ]
    return _table(["comparison", *settings], lines)


def family_note(family: Family, report: Report) -> str:
    """How many comparisons are decided together, at which level, and what they could have found."""
    count, share = len(family.differences), 100 * (1 - family.level)
    (fewest, most), (half, all_of_them) = family.seeds, family.detectable
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    note = (
        f"{count} comparison{'s' * (count != 1)} of {seeds} seeds, {2 * count} tests (is it zero, is it "
        f"within {MARGIN:g} points), decided together by Holm's procedure at {100 * ALPHA:g} %: intervals "
        f"are of {share:.2f} %."
    )
    if not family.is_whole(len(report.seeds)):
        return (
            f"{note} Runs are missing, so verdicts are provisional: the level is of one look, at all of them."
        )
    largest = f"all of them one of {all_of_them:.1f}"
    if all_of_them >= 100:
        largest = "some of them none that two accuracies can have"
    return (
        f"{note} Half of the comparisons would find a true difference of {half:.1f} points with 80 % power, "
        f"{largest}."
    )


def contrast_sentences(report: Report) -> list[str]:
    """A sentence for every control: what its method's part brings, at tuned and at common rates."""
    tuned, common = families.controls_tuned(report), families.controls_at_common_rates(report)
    return [
        _contrast(report, one, tuned, common)
        for one in families.contrasts_in(report)
        if _is_measured(tuned, common, one.method, one.control)
    ]


def baseline_sentences(report: Report) -> list[str]:
    """A sentence for every method that is no control, against FedAvg."""
    tuned, common = families.baseline_tuned(report), families.baseline_at_common_rates(report)
    return [
        f"**{ARMS[name].title} against FedAvg**: {_sides(report, name, BASELINE, tuned, common)}"
        for name in families.methods_in(report)
        if _is_measured(tuned, common, name, BASELINE)
    ]


def _contrast(report: Report, contrast: Contrast, tuned: Family, common: Family) -> str:
    pair = f"**{ARMS[contrast.method].title} against {ARMS[contrast.control].title}**"
    sums = f" For that part alone silos sum {contrast.sums}." if contrast.sums else ""
    sides = _sides(report, contrast.method, contrast.control, tuned, common)
    return f"{pair}, which leaves out {contrast.without}: {sides}{sums}"


def _sides(report: Report, method: str, reference: str, tuned: Family, common: Family) -> str:
    said = [_on_cut(report, name, method, reference, tuned, common) for name in report.settings]
    return "; ".join(one for one in said if one) + "."


def _on_cut(report: Report, setting: str, method: str, reference: str, tuned: Family, common: Family) -> str:
    """What one cut shows: in one phrase where tuned and common rates agree, else each by itself."""
    at_tuned = tuned.interval(_rows(tuned, method, reference)[0], setting)
    by_word: dict[str, list[str]] = {}
    for row in _rows(common, method, reference):
        by_word.setdefault(_word(common.interval(row, setting)), []).append(f"{row.rate:g}")
    others = [f"{word} at {_listed(rates)}" for word, rates in by_word.items()]
    if at_tuned is Missing.NOT_RUN:
        return f"on {setting} {', '.join(others)} (tuned rates have not run)" if others else ""
    first = f"{_word(at_tuned)} at tuned rates{_shown(at_tuned)}"
    ends = [ARMS[name].title for name in (method, reference) if _is_at_an_end(report, setting, name)]
    if ends:
        first += f" with {' and '.join(ends)} at an end of what was tried"
    first += _learned(report, setting, (method, reference))
    if isinstance(at_tuned, Interval):
        first += _passed_over(report, setting, method, reference)
    if set(by_word) == {_word(at_tuned)}:
        return f"on {setting} {first} and at every common rate"
    return f"on {setting} {', '.join([first, *others])}"


def _passed_over(report: Report, setting: str, method: str, reference: str) -> str:
    """Where another point did better on these seeds, a reader would else take the tuned one for its best; and
    what is left of the difference at the best ones."""
    cells = [(report.tuned(setting, name), report.passed_over(setting, name)) for name in (method, reference)]
    phrases = [_better(tuned, best) for tuned, best in cells if tuned is not None and best is not None]
    if not phrases:
        return ""
    mine, theirs = (best or tuned for tuned, best in cells)
    found = report.difference(mine, theirs)
    left = "" if isinstance(found, Missing) else f"; the difference is then {found.mean:+.1f}"
    return f" ({', '.join(phrases)}{left})"


def _better(tuned: Cell, best: Cell) -> str:
    has_other = best.strength != tuned.strength
    at = f"{best.rate:g}" + (f", {ARMS[best.arm].option} {best.strength:g}," if has_other else "")
    figures = f"{100 * best.mean_of(tuned.accuracy):.1f} and not {100 * tuned.mean:.1f}"
    return f"at {at} {ARMS[best.arm].title} has {figures}"


def _learned(report: Report, setting: str, names: Sequence[str]) -> str:
    """On how many seeds each side learns, where one of them does not on all."""
    cells = [report.tuned(setting, name) for name in names]
    found = [(cell, report.learned(cell)) for cell in cells if cell is not None]
    seeds = max((len(cell.accuracy) for cell, _ in found), default=0)
    if all(learned == seeds for _, learned in found):
        return ""
    return f" ({' and '.join(f'{ARMS[cell.arm].title} learns on {n}' for cell, n in found)} of {seeds} seeds)"


def _mark(report: Report, row: Row, setting: str) -> str:
    if row.rate is not None or isinstance(row.found[setting], Missing):
        return ""
    return " +" if any(report.passed_over(setting, name) for name in (row.method, row.reference)) else ""


def _is_at_an_end(report: Report, setting: str, name: str) -> bool:
    choice = report.choices.get((setting, name))
    if choice is None or not ARMS[name].is_trained:
        return False
    return choice.is_at_an_end or choice.has_strength_at_an_end


def _points(report: Report, name: str) -> str:
    found = [len(choice.validation) for (_, arm), choice in report.choices.items() if arm == name]
    return NOT_YET if not found else f"{max(found)}" if ARMS[name].is_trained else "1"


def _rows(family: Family, method: str, reference: str) -> list[Row]:
    return [row for row in family.rows if (row.method, row.reference) == (method, reference)]


def _is_measured(tuned: Family, common: Family, method: str, reference: str) -> bool:
    rows = [*_rows(tuned, method, reference), *_rows(common, method, reference)]
    return any(isinstance(one, Difference) for row in rows for one in row.found.values())


def _pair(row: Row) -> str:
    return f"{ARMS[row.method].title} against {ARMS[row.reference].title}"


def _word(interval: Interval | Missing) -> str:
    """As sentences say it."""
    if isinstance(interval, Missing):
        return str(interval)
    if interval.verdict is Verdict.EQUIVALENT:
        return f"equivalent within {MARGIN:g} points"
    return str(interval.verdict)


def _shown(interval: Interval | Missing) -> str:
    return "" if isinstance(interval, Missing) else f" ({interval.low:+.1f} to {interval.high:+.1f})"


def _result(family: Family, row: Row, setting: str) -> str:
    found, interval = row.found[setting], family.interval(row, setting)
    if isinstance(found, Missing) or isinstance(interval, Missing):
        return str(found)
    return f"{found.mean:+.1f} ({interval.low:+.1f} to {interval.high:+.1f}), {interval.verdict}"


def _short(family: Family, row: Row, setting: str) -> str:
    found, interval = row.found[setting], family.interval(row, setting)
    if isinstance(found, Missing) or isinstance(interval, Missing):
        return NOT_YET
    return f"{found.mean:+.1f} {interval.verdict[0]}"


def _accuracy(report: Report, cell: Cell | None) -> str:
    if cell is None:
        return NOT_YET
    count = len(cell.accuracy)
    said = f"{100 * cell.mean:.1f}"
    if count > 1:
        said += f" +- {100 * cell.deviation:.1f}"
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


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*rows, *("| " + " | ".join(line) + " |" for line in lines)])
