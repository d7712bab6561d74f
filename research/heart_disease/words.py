"""The tables of docs/heart-disease.md.

Splits of one file share records, so their differences vary less than those of new patients would. Errors
are therefore those of Nadeau and Bengio 2003 (Machine Learning 52, 239): of J splits the plain standard
error times sqrt(1 + J * tested / trained).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from research.accuracy.paired import ALPHA, Difference, Verdict, paired
from research.heart_disease.arms import ALONE, ARMS, POOLED
from research.heart_disease.runs import Outcome

Outcomes = Mapping[str, Sequence[Outcome]]  # by arm, in the order of the seeds
Figure = Callable[[Outcome], float]
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
USUAL = "most frequent"
TESTED, TRAINED = 0.3, 0.7  # shares of a hospital's records, as the example's files hold them out


def own_mean(outcome: Outcome) -> float:
    """Every hospital counts the same, whatever its size."""
    return statistics.mean(outcome.own.values())


def everyone(outcome: Outcome) -> float:
    return outcome.everyone


def balanced(outcome: Outcome) -> float:
    return outcome.balanced


COMPARED: Mapping[str, Figure] = {
    "own hold-out, mean of four": own_mean,
    "all hold-outs": everyone,
    "all hold-outs, balanced": balanced,
}


def accuracy_table(found: Outcomes) -> str:
    """Percent, mean over seeds +- standard deviation."""
    head = ["method", *HOSPITALS, "mean of four", "all", "all, balanced"]
    figures: list[Figure] = [*map(_at, HOSPITALS), own_mean, everyone, balanced]
    lines = [
        [title(name), *(_spread([figure(one) for one in outcomes]) for figure in figures)]
        for name, outcomes in found.items()
    ]
    return _table(head, lines)


def difference_table(found: Outcomes, reference: str) -> str:
    """Points against the reference on the same splits: mean +- error, splits won, verdict at 5 %."""
    head = [f"against {title(reference)}", *COMPARED]
    lines = [
        [title(name), *(_difference(one) for one in differences(outcomes, found[reference]))]
        for name, outcomes in found.items()
        if name not in (reference, USUAL)
    ]
    return _table(head, lines)


def differences(method: Sequence[Outcome], reference: Sequence[Outcome]) -> list[Difference]:
    """One for each figure of COMPARED, with the error that overlapping splits call for."""
    widened = math.sqrt(1.0 + len(method) * TESTED / TRAINED)
    plain = [
        paired([figure(one) for one in method], [figure(one) for one in reference])
        for figure in COMPARED.values()
    ]
    return [replace(one, error=one.error * widened) for one in plain]


def page(found: Outcomes) -> str:
    """Everything that the page shows, in its order."""
    return "\n\n".join([accuracy_table(found), *(difference_table(found, one) for one in (ALONE, POOLED))])


def title(name: str) -> str:
    return next((arm.title for arm in ARMS if arm.name == name), name)


def _at(hospital: str) -> Figure:
    return lambda outcome: outcome.own[hospital]


def _spread(values: Sequence[float]) -> str:
    return f"{100 * statistics.mean(values):.1f} +- {100 * statistics.stdev(values):.1f}"


def _difference(one: Difference) -> str:
    return f"{one.mean:+.1f} +- {one.error:.1f}, {one.won}/{one.seeds}, {_verdict(one)}"


def _verdict(one: Difference) -> Verdict:
    """Of each comparison by itself, at 5 %; that two methods are equal is shown nowhere."""
    interval = one.interval(ALPHA)
    if interval.low > 0.0:
        return Verdict.BETTER
    return Verdict.WORSE if interval.high < 0.0 else Verdict.UNDECIDED


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*rows, *("| " + " | ".join(line) + " |" for line in lines)])
