"""A job for the person who approves it, whole: plain lines, and the same as JSON.

What the job reads of this silo's data stands first, then what it sums, then the rest. Nothing is cut.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import zip_longest
from typing import Any

from chorale.privacy.job_releases import rows_in_words
from chorale.privacy.promise import Promise, if_all_others_collude, units
from chorale.spec.samples.column_specs import names_of
from crypto.errors import printable
from silo_agent.approval.asked import AskedColumn
from silo_agent.approval.view import (
    OPTIONS,
    FieldChange,
    JobView,
    Origin,
    OwnCode,
    QuantityNoise,
    Reads,
    StartingWeights,
    SummedQuantity,
    in_order,
)
from silo_agent.disclosure.ledger.costs import BudgetBalance, PlannedCharge
from silo_agent.disclosure.ledger.reveals import Decision

MAX_COLUMNS = 100
LABEL_COLUMNS = 12
WIDEST = (20, 18, 11, 11, 11)  # columns of the table of sums; the last one takes the rest
PER_RECORD = "per record"
HEADINGS = ("sum", "when", "numbers", PER_RECORD, "noise", "what the sum tells")
PLAIN = re.compile(r"(?!(true|false|null)$)[A-Za-z_][A-Za-z0-9_.=-]*")  # no number, and nothing that ends it


def screen(view: JobView) -> list[str]:
    """Lines of at most MAX_COLUMNS columns."""
    offered, until = (f"{moment:%Y-%m-%d}" for moment in (view.offered, view.not_after))
    parameters = "" if view.parameters is None else f"; {view.parameters:,} parameters"
    return [
        *_wrapped(f"job {view.id}  {view.name}: {_decision_told(view)}", indent=4),
        *_labelled("asked by", [f"{view.operator}, offered {offered}, may run until {until}"]),
        *_labelled("purpose", [_said(view, "purpose")]),
        *_labelled("reference", [_said(view, "reference")]),
        *reads_lines(view.reads),
        *_labelled("asks", _asked_lines(view.asks)),
        "",
        *_table(view),
        *_labelled("noise", _noise_lines(view)),
        *_labelled("budget", _budget_lines(view)),
        "",
        *_labelled("method", [view.method]),
        *_labelled("unusual", [f"passes over a rule: {rule}" for rule in view.unusual]),
        *_labelled("class rows", [view.class_rows] if view.class_rows else []),
        *_labelled("code", _code_lines(view)),
        *_labelled("weights", [] if view.asks else [_weights_told(view.weights) + parameters]),
        *_labelled("policy", _policy_lines(view)),
        *_labelled("changed", _change_lines(view)),
        *_labelled("said", _said_lines(view)),
        "",
        *_job_lines(view),
    ]


def _said(view: JobView, field: str) -> str:
    return json.dumps(view.job[field], ensure_ascii=False) if view.job[field] else "the job says none"


def reads_lines(reads: Reads | None) -> list[str]:
    """What the job reads of this silo's data, by name."""
    if reads is None:
        return _labelled("reads", ["nothing: this silo has no such data set"])
    lines = [f"data set {reads.data_set}, format {reads.format}: {_contents_told(reads)}"]
    if reads.record:
        lines.append(reads.record)
    shown = _labelled("reads", lines)
    everything = f"everything in each record: format {reads.format} has no names for it"
    for label, names, unnamed in (
        ("inputs", reads.inputs, everything),
        ("label", reads.labels, "of each record, whatever it is"),
    ):
        if label == "label" and names == ():  # an analysis has none
            continue
        shown += _labelled(label, [unnamed if names is None else _listed(names)])
    own = [f"{_told(text)} is {_told(meant)}" for text, meant in reads.mapped.items()]
    own += [f"{_told(text)} is left out" for text in reads.dropped]
    if reads.classes:
        shown += _labelled("classes", [_numbered(reads.classes, len(reads.classes))])
    if own:
        shown += _labelled("here", [f"by this silo's settings {', '.join(own)}"])
    if reads.unit is not None:
        shown += _labelled("whose", [f"{_told(reads.unit)}, by this silo's settings, never as an input"])
    if reads.read_as:
        shown += _labelled("read as", reads.read_as)
    if reads.unread is not None:
        shown += _labelled("not read", [_numbered(reads.unread, len(reads.unread))])
    elif reads.inputs is not None:
        shown += _labelled("not read", ["all other columns, which the agent names once it has read the data"])
    return shown


def _asked_lines(asks: Sequence[AskedColumn]) -> Iterator[str]:
    """In which parts an analysis counts the records, a column a line."""
    if not asks:
        return
    if asks[0].of_curves:
        yield "for survival curves, how many records are in each cell of all these columns, crossed"
    else:
        by = f", by the parts of {_told(asks[0].name)}" if asks[0].is_group else ""
        missing = "" if asks[0].is_complete else "; what is in no part counts as missing"
        yield f"how many records are in each part of these columns{by}{missing}"
    if asks[0].is_complete:
        yield "records that are in no part of one of them are left out"
    for each in asks:
        parts = f"{len(each.categories)} parts, {', '.join(map(_told, each.categories))}"
        if each.edges:
            unit = "" if each.unit is None else f" {_told(each.unit)}"
            edges = ", ".join(f"{edge:.15g}" for edge in each.edges)
            parts = f"{len(each.edges) - 1} parts between the edges {edges}{unit}"
        role = "group" if each.is_group else each.of_curves
        named = f"{_told(each.name)}, the {role}" if role else _told(each.name)
        yield f"{named}: {parts}{'; values are summed' if each.has_mean else ''}"


def read_told(reads: Reads | None) -> str:
    """In a question that stands far below the lines of `reads_lines`."""
    if reads is None:
        return "nothing"
    inputs = "all inputs" if reads.inputs is None else f"{_count(reads.inputs)} inputs"
    labels = " and the labels" if reads.labels is None else f" and label {_listed(reads.labels)}"
    return f"{inputs}{'' if reads.labels == () else labels} of data set {reads.data_set}"


def _count(names: Sequence[str]) -> int:
    """How many columns a job's names are: a range is many."""
    return sum(len(names_of(name)) for name in names)


def _listed(names: Sequence[str]) -> str:
    return _numbered(names, _count(names))


def _numbered(names: Sequence[str], count: int) -> str:
    return (f"{count}: " if count > 1 else "") + (", ".join(map(_told, names)) or "none")


def _contents_told(reads: Reads) -> str:
    held = reads.contents
    if held is None:
        return "no agent has read it yet, so how many records it has is not known"
    held_told = f"{held.records:,} records"
    if held.units is not None:  # each of them is a record
        held_told = f"{held.records:,} rows of {held.units:,} units"
    return f"{held_told} when the agent last read it, {held.read:%Y-%m-%d %H:%M} UTC"


def _job_lines(view: JobView) -> list[str]:
    """Every field of the job that is set, by name."""
    lines = _wrapped(f"the job as it was signed, SHA-256 {view.job_digest.hex()}:", indent=4)
    for field in in_order(view.job):
        value = view.job[field]
        if isinstance(value, list) and any(isinstance(each, dict) for each in value):
            lines += _wrapped(f"  {field}:", indent=6)
            lines += [line for each in value for line in _wrapped(f"    {_told(each)}", indent=8)]
        elif value is not None:
            lines += _wrapped(f"  {field}: {_told(value)}", indent=6)
    return lines


def _told(value: object, *, of_options: bool = False) -> str:
    """A value so that no other one reads the same: texts in quotes where they are not plain words. Of
    declared fields null is none; of options it is a value."""
    match value:
        case dict():
            inner = (
                f"{_told(name)}: {_told(each, of_options=name == OPTIONS)}"
                for name, each in value.items()
                if each is not None or of_options
            )
            return f"{{{', '.join(inner)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_told, value))}]"
        case str() if PLAIN.fullmatch(value):
            return value
    return printable(json.dumps(value, ensure_ascii=False))


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
    if view.objective is not None:
        own = f"this silo's own {view.objective}, by its settings, which reads and sends what it was made to"
        return [own, *_distribution_lines(view.code)]
    return _distribution_lines(view.code) or ["Chorale's own alone"]


def _distribution_lines(code: Sequence[OwnCode]) -> list[str]:
    used: dict[str, list[OwnCode]] = {}
    for each in code:
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
    return lines


def _weights_told(weights: StartingWeights) -> str:
    if weights.origin is Origin.COMPUTED:
        return "computed from the job, the same as this silo draws"
    if weights.origin is Origin.UNKNOWN:
        return f"not known yet: {weights.description}"
    return (
        f"given, sha256:{weights.sha256[:12]} ({weights.description}): an operator's own can be built to "
        "read single records out of sums"
    )


def _table(view: JobView) -> list[str]:
    """What is summed: one row a quantity, in all phases that sum it alike."""
    times: dict[SummedQuantity, list[str]] = {}
    for phase in view.phases:
        for quantity in phase.quantities:
            times.setdefault(quantity, []).append(f"{phase.kind} x{phase.times}")
    by_rows = view.has_unit and not view.is_private  # without noise each row of a unit counts
    headings = tuple("per row" if each == PER_RECORD and by_rows else each for each in HEADINGS)
    rows = [headings, *(_row(quantity, when) for quantity, when in times.items())]
    widths = [min(widest, max(len(row[place]) for row in rows)) for place, widest in enumerate(WIDEST)]
    widths.append(MAX_COLUMNS - 2 - sum(width + 2 for width in widths))
    lines = []
    for row in rows:
        cells = [_wrapped(cell, width=width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (f"{part:<{width}}" for part, width in zip(parts, widths, strict=True))
            lines.append("  " + "  ".join(padded).rstrip())
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
    rows = [] if has_unit else [rows_in_words(promise.epsilon_of_rows)]  # all rows of one unit are one record
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
    return [f"refuses it by {field}: {message}" for field, message in by_field.items()]


def _change_lines(view: JobView) -> list[str]:
    if view.previous is None:
        return [f"no other job of {view.operator} was approved here: there is nothing to compare with"]
    since = f"since {view.previous}, the last of {view.operator} that was approved here"
    if not view.changes:
        return [f"nothing {since}"]
    lines = [_change_told(each) for each in view.changes]
    return [f"{len(lines)} fields {since}:", *lines]


def _change_told(change: FieldChange) -> str:
    return f"{change.field}: {change.before or 'not set'} -> {change.now or 'not set'}"


def _said_lines(view: JobView) -> list[str]:
    lines = [taken_back_told(view.taken_back)] if view.taken_back else []
    for each in reversed(view.decisions):
        why = f": {json.dumps(each.reason, ensure_ascii=False)}" if each.reason else ""
        lines.append(f"{each.by} {each.decision.value} it {each.when:%Y-%m-%d %H:%M} UTC{why}")
    return lines


def _labelled(label: str, lines: Iterable[str]) -> list[str]:
    """Lines behind their label, wrapped."""
    wrapped = [part for line in lines for part in _wrapped(line, width=MAX_COLUMNS - LABEL_COLUMNS)]
    return [f"{label if place == 0 else '':<{LABEL_COLUMNS}}{text}" for place, text in enumerate(wrapped)]


def _wrapped(text: str, *, width: int = MAX_COLUMNS, indent: int = 0) -> list[str]:
    """Security: text of an operator is escaped before it is cut into lines, and begins none of its own."""
    return _cut(printable(text), width, indent=indent)


def _cut(text: str, width: int, *, indent: int) -> list[str]:
    if any(unicodedata.east_asian_width(each) in "FW" for each in text):
        width //= 2  # each of these takes two columns, and a terminal breaks what is longer
    # by indents alone: a word that just does not fit beside blanks would begin its line without them
    words, lead = text.lstrip(" "), len(text) - len(text.lstrip(" "))
    before, after = " " * lead, " " * max(lead, indent)
    return textwrap.wrap(words, width, initial_indent=before, subsequent_indent=after, break_on_hyphens=False)


def fitted(lines: Iterable[str]) -> list[str]:
    """For this terminal. Security: one that is narrower would begin lines with text of an operator."""
    columns = max(3 * LABEL_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns)
    return [part for line in lines for part in _cut(line, columns, indent=LABEL_COLUMNS) or [""]]
