"""The report of a job: report.json's document, and its file beside rounds.csv and a page. Other programs
read the document's keys: none is renamed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chorale.runtime.files import write_atomic
from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import parse_mapping
from chorale.v1.records_pb2 import PhaseRecord
from client.analysis.parts import published_parts
from client.history import (
    ACCURACY,
    JobHistory,
    curves_facts,
    figure_by_round,
    left_out_facts,
    personal_figures,
    phase_facts,
    reason_in_words,
)
from client.row_figures import class_rows
from strategies.analysis.subgroups import PARTS, SUBGROUPS
from strategies.figure import Figure
from strategies.phases.evaluation import EVALUATE
from strategies.phases.training import TRAIN
from web.report.page import page
from web.shared.phases import Document, phases_csv

UNUSUAL = "allow_unusual"
MAX_AXES = 4  # of a table; a task's own have three at most

if TYPE_CHECKING:
    from chorale.privacy.promise import Promise, Spent


def document(
    history: JobHistory,
    *,
    policy: Document | None = None,
    promise: Promise | None = None,
    spent: Mapping[str, Spent] | None = None,
) -> Document:
    """What report.json holds. policy: what the silos of a demo allowed beyond the defaults.

    promise: of a private job; None where the model that its sizes follow from cannot be had. spent: epsilon
    by silo, where the caller has the silos' own ledgers.
    """
    summary, personal = history.summary, personal_figures(history)
    rows = class_rows(history.records)
    intervals = _intervals(history)
    dropped: list[Document] = []
    for record in history.records:
        dropped += [entry for entry in left_out_facts(record) if entry not in dropped]
    uploads = [record.upload_bytes for record in history.of_kind(TRAIN) if record.upload_bytes]
    return {
        "job": summary.job_digest.hex(),
        "name": summary.name,
        "operator": summary.operator,
        "status": summary.status,
        "strategy": summary.strategy,
        "unusual": _unusual(history),  # rules that its parts break, where the job says `allow_unusual`
        "silos": len(summary.silos),
        "silo_names": list(summary.silos),
        "rounds": summary.rounds,
        "steps": summary.steps or None,  # where the job says steps: rounds holds spare ones beside them
        "rounds_completed": summary.rounds_completed,
        "reason": summary.reason,  # why it has fewer rounds than it says, or no end
        # the model that the operator fetches; kept: its metric, where the job keeps the best
        "model_round": summary.model_round,
        "kept": summary.kept or None,
        "search": history.searched or None,  # which arm is left, in words
        # final_...: of the last model, after this round, also where the job keeps an earlier one
        "final_model_round": history.last_model_round,
        # each with its intervals below; those of the phases and of the curves stand beside their numbers
        **{name: _numbers(each) for name, each in intervals.items()},
        "intervals": intervals,
        # what the job's task tells first: accuracy, dice, mae ...
        "main_figure": history.main,
        "tables": _tables(history),
        "subgroups": _subgroups(history),  # the job's, merged, in the order of the tables that are of them
        "class_names": _class_names(history),  # of the job, by number; none where it names no classes
        # the same figures apart by whose hold-outs they are over, with what stands behind each point;
        # arms: of a search, each one's figures while several are left
        "curves": curves_facts(history),
        "draws_rounds": history.draws_rounds,
        # of methods with class statistics: of how many classes rows were in the sums; null for others
        "class_rows": rows
        and {
            "classes": rows.classes,
            "by_default": rows.by_default,
            "by_round": {str(round): count for round, count in rows.by_round.items()},
            "share": rows.share,
        },
        # of the silos' own models, which stay with them; null in a job that makes none
        "personal_accuracy": personal and personal.accuracy,
        "personal_accuracy_deviation": personal and personal.deviation,
        "personal_silos": personal and personal.silos,
        "secure_aggregation": True,  # there is no other way a silo's numbers travel
        **_verified(history.records),
        "quantities": list(dict.fromkeys(name for record in history.records for name in record.quantities)),
        "dropped": dropped,
        "took_part": _took_part(history),
        "wall_seconds": round(sum(record.wall_seconds for record in history.records), 3),
        "approval_seconds": round(sum(record.approval_seconds for record in history.records), 3),
        "upload_bytes_per_silo_round": round(sum(uploads) / len(uploads)) if uploads else 0,
        "upload_bytes_per_silo": sum(record.upload_bytes for record in history.records),
        "float32_bytes": summary.float32_bytes,
        "is_private": _is_private(history, promise),
        **_privacy(promise, spent or {}),
        "policy": policy or {},
        "phases": [phase_facts(record, title=history.title(record)) for record in history.records],
        # as it was signed: its SHA-256 is `job`
        "job_file": history.signed and history.signed.spec_bytes.decode(errors="replace"),
    }


def write_report(report: Document, folder: Path) -> None:
    """report.json, report.html and rounds.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "report.json", json.dumps(report, indent=2).encode() + b"\n", mode=0o644)
    # the figures first, whatever becomes of their page
    write_atomic(folder / "rounds.csv", phases_csv(report["phases"]).encode(), mode=0o644)
    write_atomic(folder / "report.html", page(report).encode(), mode=0o644)


def _intervals(history: JobHistory) -> Document:
    """Figures of the last model, and of the model after each round; null where no sum measured it."""
    closing = {"final_accuracy": ACCURACY, "final_figure": history.main}
    rounds = {"accuracy_by_round": ACCURACY, "figure_by_round": history.main, "loss_by_round": "loss"}

    def document(figure: Figure | None) -> Document | None:
        return None if figure is None else figure.to_json()

    return {name: document(history.closing(figure)) for name, figure in closing.items()} | {
        name: [document(each) for each in figure_by_round(history, figure)] for name, figure in rounds.items()
    }


def _numbers(found: Any) -> Any:
    """The same without intervals."""
    return [_numbers(each) for each in found] if isinstance(found, list) else found and found["value"]


def _took_part(history: JobHistory) -> Document:
    """By silo: in how many sums of rounds it was, of how many, and why it was left out of others."""
    rounds = history.of_kind(TRAIN)
    sums = [record for record in rounds if record.cohort]
    return {
        silo: {
            "rounds": sum(silo in record.cohort for record in sums),
            "of": len(sums),
            "left_out": dict(
                Counter(
                    reason_in_words(left)
                    for record in rounds
                    for left in record.left_out
                    if left.silo == silo
                )
            ),
        }
        for silo in history.summary.silos
    }


def _is_private(history: JobHistory, promise: Promise | None) -> bool:
    if promise is not None or history.signed is None:
        return promise is not None
    return parse_mapping(history.signed.spec_bytes, source="job").get("privacy") is not None


def _unusual(history: JobHistory) -> list[str]:
    if history.signed is None or not parse_mapping(history.signed.spec_bytes, source="job").get(UNUSUAL):
        return []
    return list(JobSpec.from_yaml(history.signed.spec_bytes, source="job").method.passed_over)


def _class_names(history: JobHistory) -> list[str]:
    if history.signed is None:
        return []
    said = parse_mapping(history.signed.spec_bytes, source="job").get("classes")
    return said if isinstance(said, list) else []


def _subgroups(history: JobHistory) -> list[str]:
    """None where they are withheld; a coordinator may send any table."""
    found = [table for each in history.of_kind(SUBGROUPS) if (table := each.tables.get(PARTS)) is not None]
    if history.signed is None or not found or not all(map(float.is_integer, found[-1].values)):
        return []
    spec = JobSpec.from_yaml(history.signed.spec_bytes, source="job")
    if spec.subgroups is None or len(found[-1].values) != spec.subgroups.partition.size:
        return []
    return [each.label for each in published_parts(spec.subgroups, [*map(int, found[-1].values)])]


def _verified(records: Iterable[PhaseRecord]) -> Document:
    """Over the phases whose sum moved the state, or may have: whether enough silos of each checked the sum,
    computed the next state and signed it, and how many did in the phase with the fewest."""
    moving: list[PhaseRecord] = []
    state_digest = b""
    for record in records:
        if record.result == "applied" and (record.verified_by or record.state_digest != state_digest):
            moving.append(record)
        state_digest = record.state_digest
    return {
        "sums_verified": bool(moving) and all(0 < each.threshold <= each.verified_by for each in moving),
        "verified_by": min((each.verified_by for each in moving), default=0),
    }


def _privacy(promise: Promise | None, spent: Mapping[str, Spent]) -> Document:
    """What was spent is the ledgers'; any other epsilon is the whole plan's, of a stopped job too."""
    return {
        "epsilon": promise and promise.epsilon,
        "epsilon_if_all_others_collude": promise and _or_null(promise.epsilon_if_all_others_collude),
        "epsilon_unit": promise and promise.unit,
        "epsilon_of_rows": {str(rows): _or_null(cost) for rows, cost in promise.epsilon_of_rows.items()}
        if promise
        else {},
        "noise": promise and promise.noise,
        "epsilon_updates_per_silo": promise and promise.epsilon_updates_per_silo,
        "epsilon_statistics_per_record": promise and promise.epsilon_statistics_per_record,
        "delta": promise and promise.delta,
        "noise_multipliers": dict(promise.multipliers) if promise else {},
        "epsilon_spent_by_silo": {silo: each.epsilon for silo, each in spent.items()},
        "epsilon_spent_by_silo_if_all_others_collude": {
            silo: _or_null(each.if_all_others_collude) for silo, each in spent.items()
        },
    }


def _or_null(cost: float) -> float | None:
    """null: no bound, as JSON has no infinity."""
    return None if cost == math.inf else cost


def _tables(history: JobHistory) -> Document:
    """Matrices and curves of the closing evaluation as lists, null for NaN."""
    closing = [*history.of_kind(EVALUATE)[-1:], *history.of_kind(SUBGROUPS)[-1:]]
    found = {name: table for record in closing for name, table in sorted(record.tables.items())}
    return {
        name: _nested(list(table.shape), iter(table.values))
        for name, table in found.items()
        if len(table.shape) <= MAX_AXES and math.prod(table.shape) == len(table.values) > 0
    }


def _nested(shape: Sequence[int], values: Iterator[float]) -> float | list[object] | None:
    if not shape:
        value = next(values)
        return value if math.isfinite(value) else None
    return [_nested(shape[1:], values) for _ in range(shape[0])]
