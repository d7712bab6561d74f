"""A job on one screen, for the person who approves it: plain lines, and the same as JSON."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from chorale.privacy.plan import rows_told
from chorale.privacy.promise import Promise, if_all_others_collude, units
from silo_agent.approval.view import (
    FieldChange,
    JobView,
    Origin,
    OwnCode,
    QuantityNoise,
    StartingWeights,
    SummedQuantity,
)
from silo_agent.ledger.budget import BudgetBalance
from silo_agent.ledger.costs import PlannedCharge
from silo_agent.ledger.reveals import Decision

MAX_LINES, MAX_COLUMNS = 40, 100
LABEL_COLUMNS = 12
MOST_REFUSALS, MOST_CHANGES, MOST_SAID, MOST_UNUSUAL = 5, 5, 2, 3
MOST_CODE = 4  # a job names no more distributions
WIDEST = (22, 24, 13, 12, 11, 40)  # columns of the table of sums
HEADINGS = ("sum", "when", "numbers", "per record", "noise", "what the sum tells")


def screen(view: JobView) -> list[str]:
    """At most MAX_LINES lines of MAX_COLUMNS columns; what does not fit is counted."""
    offered, until = (f"{moment:%Y-%m-%d}" for moment in (view.offered, view.not_after))
    parameters = "" if view.parameters is None else f"; {view.parameters:,} parameters"
    above = [
        _clipped(f"job {view.id}  {view.name}: {_decision_told(view)}"),
        *_labelled("asked by", [f"{view.operator}, offered {offered}, may run until {until}"]),
        *_labelled(
            "method",
            [f"{view.count}, {view.named}, task {view.task}: {view.method}"],
            most=2,
        ),
        *_labelled("unusual", [f"passes over a rule: {rule}" for rule in view.unusual], most=MOST_UNUSUAL),
        *_labelled("silos", [f"{len(view.silos)}: {', '.join(view.silos)}"]),
        *_labelled("model", [f"{view.model}{parameters}; {view.training}"], most=2),
        *_labelled("code", _code_lines(view), most=MOST_CODE),
        *_labelled("weights", [_weights_told(view.weights)], most=2),
        *_labelled("data", [view.record or f"data set {view.data_set}"], most=2),
    ]
    below = [
        *_labelled("noise", _noise_lines(view), most=4),
        *_labelled("budget", _budget_lines(view), most=4),
        *_labelled("policy", _policy_lines(view), most=MOST_REFUSALS),
        *_labelled("changed", _change_lines(view), most=MOST_CHANGES),
        *_labelled("said", _said_lines(view), most=MOST_SAID),
    ]
    lines = [*above, *_table(view, most=MAX_LINES - len(above) - len(below)), *below]
    return ["".join(letter if letter.isprintable() else "?" for letter in line) for line in lines]


def as_json(view: JobView) -> dict[str, Any]:
    """Every field of the view; no bound and no number are null, times are ISO 8601, digests hexadecimal."""
    plain = _plain(asdict(view) | {"noise_told": view.noise_told})
    assert isinstance(plain, dict)
    return plain


def _plain(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case datetime():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value


def taken_back_told(names: Sequence[str]) -> str:
    """Of approvals that were given under another policy."""
    return f"the approval of {', '.join(names)} is taken back: the policy file has changed since"


def _decision_told(view: JobView) -> str:
    stop = "; a data set takes no input until it is approved again" if view.stops_data else ""
    if view.is_over:
        here = (
            f"{view.decision.value} here" if view.decision is not Decision.OFFERED else "nobody decided here"
        )
        return f"over (says the coordinator), {here}{stop}"
    if view.decision is Decision.APPROVED:
        return f"approved here{stop}"
    if view.decision is Decision.REJECTED:
        return "rejected here"
    what = (
        "suspended here, waits for approval" if view.decision is Decision.SUSPENDED else "waits for approval"
    )
    if view.required_approvals > 1:
        what += f" by {view.required_approvals} people, {len(view.approved_by)} approved"
    return what


def _code_lines(view: JobView) -> list[str]:
    if not view.code:
        return ["Chorale's own alone"]
    used: dict[str, list[OwnCode]] = {}
    for each in view.code:
        used.setdefault(each.distribution, []).append(each)
    lines = []
    for distribution, parts in used.items():
        first = parts[0]
        same = "this silo has the same" if not first.difference else f"not as here: {first.difference}"
        what = ", ".join(f"{each.field} {each.name}" for each in parts)
        options = "".join(f"; {each.field} is given {each.options}" for each in parts if each.options)
        lines.append(
            f"{distribution}, not Chorale's, sha256:{first.sha256[:12]}, makes {what}; {same}{options}"
        )
    return _cut(lines, MOST_CODE)


def _weights_told(weights: StartingWeights) -> str:
    if weights.origin is Origin.COMPUTED:
        return "computed from the job, the same as this silo draws"
    if weights.origin is Origin.UNKNOWN:
        return f"not known yet: {weights.description}"
    return (
        f"given, sha256:{weights.sha256[:12]} ({weights.description}): an operator's own can be built to "
        "read single records out of sums"
    )


def _table(view: JobView, *, most: int) -> list[str]:
    """What is summed, in so many lines at most: one a quantity, in all phases that sum it alike."""
    times: dict[SummedQuantity, list[str]] = {}
    for phase in view.phases:
        for quantity in phase.quantities:
            times.setdefault(quantity, []).append(f"{phase.kind} x{phase.times}")
    rows = [_row(quantity, when) for quantity, when in times.items()]
    shown = [HEADINGS, *(rows if len(rows) < most else rows[: most - 2])]
    widths = [min(widest, max(len(row[place]) for row in shown)) for place, widest in enumerate(WIDEST)]
    lines = []
    for row in shown:
        cells = [f"{_clipped(cell, width):<{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append(_clipped("  " + "  ".join(cells).rstrip()))
    if len(rows) >= len(shown):
        lines.append(f"  and {len(rows) - len(shown) + 1} more sums: --json shows all")
    return lines


def _row(quantity: SummedQuantity, when: Sequence[str]) -> tuple[str, ...]:
    """As of HEADINGS."""
    moved = "no bound"
    if quantity.sensitivity_l2 is not None:
        moved = f"{quantity.sensitivity_l2:.4g}{' a silo' if quantity.is_by_silo else ''}"
    noise = {
        QuantityNoise.NONE: "none",
        QuantityNoise.NOT_NEEDED: "-",
        QuantityNoise.IN_TRAINING: "in training",
        QuantityNoise.IN_SUM: f"{quantity.noise_deviation:.3g}",
    }
    return (
        quantity.name,
        ", ".join(when),
        "not known" if quantity.values is None else f"{quantity.values:,}",
        "-" if quantity.noise is QuantityNoise.NOT_NEEDED else moved,
        noise[quantity.noise],
        quantity.tells,
    )


def _noise_lines(view: JobView) -> list[str]:
    if view.promise is None:
        return [view.noise_told, *([view.no_promise] if view.no_promise else [])]
    return _promise_lines(view.promise, has_unit=view.has_unit)


def _promise_lines(promise: Promise, *, has_unit: bool) -> list[str]:
    rows = [] if has_unit else [rows_told(promise.epsilon_of_rows)]  # all rows of one unit are one record
    return [
        f"epsilon {promise.epsilon:.4g} at delta {promise.delta:g} for the whole job, "
        f"{units(promise.epsilon_updates_per_silo, promise.epsilon_statistics_per_record)}",
        f"against the coordinator and {promise.colluders} of {promise.members} silos, by the noise of "
        f"{promise.honest} honest ones; "
        f"{if_all_others_collude(promise.epsilon_if_all_others_collude)}",
        *rows,
    ]


def _budget_lines(view: JobView) -> list[str]:
    balance = view.balance
    if balance is None:
        return ["none: this silo has no such data set"]
    left = f"epsilon {balance.left:.4g} of {balance.budget:g} left at delta {balance.delta:g}"
    if view.promise is not None and view.charge is not None:
        return [left, _charge_told(view.promise, view.charge, balance), *_unnoised(balance)]
    if view.is_private:
        return [left, *_unnoised(balance)]
    return [
        f"{left}; this job uses none of it: nothing bounds what its sums tell",
        *_unnoised(balance),
    ]


def _charge_told(promise: Promise, charge: PlannedCharge, balance: BudgetBalance) -> str:
    """What the ledger will say beside what the job promises: of another delta it is another number."""
    costs = f"this job costs {charge.epsilon:.4g} at this delta"
    if (promised := f"{promise.epsilon:.4g}") != f"{charge.epsilon:.4g}":
        costs += f" (it promises {promised} at its own delta {promise.delta:g})"
    if charge.epsilon_after is None:
        return f"{costs}; part of it is spent or reserved already"
    return f"{costs}; with what was spent or reserved: {charge.epsilon_after:.4g} of {balance.budget:g}"


def _unnoised(balance: BudgetBalance) -> list[str]:
    return [f"{balance.unnoised} inputs of it left without noise before"] if balance.unnoised else []


def _policy_lines(view: JobView) -> list[str]:
    if not view.refusals:
        return ["nothing in it refuses this job"]
    by_field: dict[str, str] = {}
    for each in view.refusals:
        by_field.setdefault(each.field, each.message)
    return _cut([f"refuses it by {field}: {message}" for field, message in by_field.items()], MOST_REFUSALS)


def _change_lines(view: JobView) -> list[str]:
    if view.previous is None:
        return [f"no other job of {view.operator} was approved here: there is nothing to compare with"]
    since = f"since {view.previous}, the last of {view.operator} that was approved here"
    if not view.changes:
        return [f"nothing {since}"]
    lines = [_change_told(each) for each in view.changes]
    return [f"{len(lines)} fields {since}:", *_cut(lines, MOST_CHANGES - 1)]


def _change_told(change: FieldChange) -> str:
    before, now = (_clipped(value or "not set", 32) for value in (change.before, change.now))
    return f"{_clipped(change.field, 36)}: {before} -> {now}"


def _said_lines(view: JobView) -> list[str]:
    lines = [taken_back_told(view.taken_back)] if view.taken_back else []
    for each in reversed(view.decisions):
        why = f": {json.dumps(each.reason, ensure_ascii=False)}" if each.reason else ""
        lines.append(f"{each.by} {each.decision.value} it {each.when:%Y-%m-%d %H:%M} UTC{why}")
    return _cut(lines, MOST_SAID)


def _cut(lines: Sequence[str], most: int) -> list[str]:
    """The first of them, each on one line; the last line counts those that are left out."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"and {len(lines) - most + 1} more: --json shows all"]


def _labelled(label: str, lines: Iterable[str], *, most: int = 1) -> list[str]:
    """Lines behind their label, wrapped as long as there is room for it."""
    texts = list(lines)
    room, width = most, MAX_COLUMNS - LABEL_COLUMNS
    result: list[str] = []
    for place, text in enumerate(texts):
        still = len(texts) - place - 1
        wrapped = textwrap.wrap(text, width) or [""]
        allowed = max(1, room - len(result) - still)
        if len(wrapped) > allowed:
            wrapped = [*wrapped[: allowed - 1], _clipped(" ".join(wrapped[allowed - 1 :]), width)]
        result += wrapped
    return [
        f"{label if place == 0 else '':<{LABEL_COLUMNS}}{text}" for place, text in enumerate(result[:most])
    ]


def _clipped(text: str, width: int = MAX_COLUMNS) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
