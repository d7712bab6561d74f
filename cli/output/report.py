"""The report of a job: report.json's document and a page that needs nothing else. Pure: no I/O.

The document's keys are fixed by docs/protocol.md 10 and read by other programs.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chorale.privacy.plan import rows_told
from chorale.privacy.promise import if_all_others_collude, units
from chorale.v1.records_pb2 import PhaseRecord
from client.history import (
    ACCURACY,
    EVALUATE,
    TRAIN,
    JobHistory,
    figure_by_round,
    left_out_facts,
    personal_figures,
    phase_facts,
    score_word,
)

if TYPE_CHECKING:
    from chorale.privacy.promise import Promise, Spent

Document = dict[str, Any]
WIDTH, HEIGHT, MARGIN = 640, 240, 36
EXACT, NOISED = "exact in fixed point", "after noise on all that depends on data"

SEEN = (
    ("coordinator", "public keys, sealed envelopes and masked vectors it cannot read; one sum a phase"),
    ("each silo", "its own data, every round's model, who took part; no other silo's contribution"),
    ("authority", "names and certificates; it was offline during training"),
    ("operator", "what this report shows, and the model"),
)


def document(
    history: JobHistory,
    *,
    policy: Document | None = None,
    promise: Promise | None = None,
    spent: Mapping[str, Spent] | None = None,
) -> Document:
    """What report.json holds. policy: what the silos of a demo allowed beyond the defaults.

    promise: of a private job. spent: epsilon by silo, where the caller has the silos' own ledgers.
    """
    summary, personal = history.summary, personal_figures(history)
    dropped: list[Document] = []
    for record in history.records:
        dropped += [entry for entry in left_out_facts(record) if entry not in dropped]
    uploads = [record.upload_bytes for record in history.of_kind(TRAIN) if record.upload_bytes]
    return {
        "job": summary.job_digest.hex(),
        "name": summary.name,
        "status": summary.status,
        "strategy": summary.strategy,
        "silos": len(summary.silos),
        "silo_names": list(summary.silos),
        "rounds": summary.rounds,
        "steps": summary.steps or None,  # where the job says steps: rounds holds spare ones beside them
        "rounds_completed": summary.rounds_completed,
        "reason": summary.reason,  # why it has fewer rounds than it says, or no end
        # the model that the operator fetches; kept: its metric, where the job keeps the best
        "model_round": summary.model_round,
        "kept": summary.kept or None,
        "final_accuracy": history.closing(ACCURACY),
        "accuracy_by_round": figure_by_round(history, ACCURACY),
        # what the job's task tells first: accuracy, dice, mae ...
        "main_figure": history.main,
        "final_figure": history.closing(history.main),
        "figure_by_round": figure_by_round(history, history.main),
        "tables": _tables(history),
        # of the silos' own models, which stay with them; null in a job that makes none
        "personal_accuracy": personal and personal.accuracy,
        "personal_accuracy_deviation": personal and personal.deviation,
        "personal_silos": personal and personal.silos,
        "secure_aggregation": True,  # there is no other way a silo's numbers travel
        **_verified(history.records),
        "quantities": list(dict.fromkeys(name for record in history.records for name in record.quantities)),
        "dropped": dropped,
        "wall_seconds": round(sum(record.wall_seconds for record in history.records), 3),
        "upload_bytes_per_silo_round": round(sum(uploads) / len(uploads)) if uploads else 0,
        "float32_bytes": summary.float32_bytes,
        **_privacy(history, promise, spent or {}),
        "policy": policy or {},
        "phases": [phase_facts(record) for record in history.records],
    }


def page(report: Document) -> str:
    """One HTML file with no script and nothing fetched."""
    title = f"Chorale: {html.escape(report['name'])}"
    dropped = [tuple(entry.values()) for entry in report["dropped"]]
    exactness = EXACT if report["epsilon"] is None else NOISED
    personal, main = "", report["main_figure"]
    if report["personal_accuracy"] is not None:
        personal = (
            f"<p>Each silo's own model, on its own hold-out: {score_word(report['main_figure'])} "
            f"{report['personal_accuracy']:.4f}, standard deviation "
            f"{report['personal_accuracy_deviation']:.4f} over {report['personal_silos']} "
            f"silos. Only the silo has its model and its {score_word(report['main_figure'])}.</p>"
        )
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{STYLE}</style></head><body>",
            f"<h1>{title}</h1>",
            f"<p>{_headline(report)}</p>",
            f"<h2>{html.escape(main.capitalize())}</h2>",
            _curve(report["figure_by_round"], figure=main),
            personal,
            *_figures_section(report),
            "<h2>Rounds</h2>",
            _rounds_table(report["phases"], figure=main),
            "<h2>Who was left out</h2>",
            _table(("round", "silo", "stage", "reason"), dropped) if dropped else "<p>None.</p>",
            "<h2>What was summed</h2>",
            f"<p>{html.escape(', '.join(report['quantities'])) or 'nothing'}. Only sums over the "
            f"silos of a round were revealed, {exactness}.</p>",
            f"<p>{_verification(report)}</p>",
            *_privacy_section(report),
            _policy(report["policy"]),
            "<h2>What each party saw</h2>",
            _table(("party", "saw"), SEEN),
            "</body></html>",
        ]
    )


def units_told(report: Document) -> str:
    """Of a private job: what its epsilon protects."""
    return units(report["epsilon_updates_per_silo"], report["epsilon_statistics_per_record"])


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; color: #1b1f24 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid #d8dee4 }
svg { width: 100%; height: auto }
text { font-size: 12px; fill: #57606a }
"""


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


def _verification(report: Document) -> str:
    if not report["sums_verified"]:
        return "Not every sum behind the model was checked by as many silos as the protocol asks for."
    return (
        f"Every sum behind the model was checked by {report['verified_by']} silos or more, each of which "
        "computed the next model from it and signed what it found."
    )


def _privacy(history: JobHistory, promise: Promise | None, spent: Mapping[str, Spent]) -> Document:
    """What was spent is the ledgers'; any other epsilon is the whole plan's, of a stopped job too."""
    accuracy, tested = history.closing("accuracy"), history.closing("tested")
    noise = None
    if promise is not None and accuracy is not None and tested is not None:
        noise = promise.accuracy_deviation(accuracy, tested)
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
        "accuracy_noise": noise,
    }


def _or_null(cost: float) -> float | None:
    """null: no bound, as JSON has no infinity."""
    return None if cost == math.inf else cost


def _privacy_section(report: Document) -> list[str]:
    if report["epsilon"] is None:
        return []
    told = (
        f"All that a silo lets out in this job as planned costs its data set at most epsilon "
        f"{report['epsilon']:.4g} at delta {report['delta']:g}, {units_told(report)}. "
    )
    if report["epsilon_updates_per_silo"] is not None:
        told += "No noise hides a whole silo in the statistics. "
    told += (
        "That holds against the coordinator and up to a third of the silos of a round; "
        f"{if_all_others_collude(report['epsilon_if_all_others_collude'])}. "
        f"{_rows_told(report)}. Accuracies carry noise too."
    )
    collude = report["epsilon_spent_by_silo_if_all_others_collude"]
    spent = [
        (silo, f"{epsilon:.4g}", "no bound" if collude[silo] is None else f"{collude[silo]:.4g}")
        for silo, epsilon in report["epsilon_spent_by_silo"].items()
    ]
    noise = [(name, f"{value:g}") for name, value in report["noise_multipliers"].items()]
    tables = [_table(("noise multiplier", "value"), noise)]
    if spent:
        head = ("silo", "epsilon spent for each record, by its own ledger", "if all other silos collude")
        tables.append(_table(head, spent))
    return ["<h2>Differential privacy</h2>", f"<p>{html.escape(told)}</p>", *tables]


def _rows_told(report: Document) -> str:
    costs = {int(rows): cost for rows, cost in report["epsilon_of_rows"].items()}
    told = rows_told({rows: math.inf if cost is None else cost for rows, cost in costs.items()})
    return f"{told[:1].upper()}{told[1:]}; at a silo whose data set has units, all rows of one are one record"


def _headline(report: Document) -> str:
    final, main = report["final_figure"], report["main_figure"]
    figure = f"no final {main}" if final is None else f"final {main} {final:.4f}"
    sizes = (
        f"{report['upload_bytes_per_silo_round']:,} bytes; the model has {report['float32_bytes']:,} bytes."
    )
    why = f" ({report['reason']})" if report["reason"] else ""
    kept = (
        f" The model is that after round {report['model_round']}: {report['kept']}." if report["kept"] else ""
    )
    return html.escape(
        f"{report['strategy']} over {report['silos']} silos: {report['status']}{why}, "
        f"{report['rounds_completed']} of {report['rounds']} rounds, {figure}, "
        f"{report['wall_seconds']:.1f} s. In a round a silo sent {sizes}{kept}"
    )


def _policy(policy: Document) -> str:
    if not policy:
        return ""
    fields = ", ".join(f"{name}: {value}" for name, value in policy.items())
    return (
        f"<p>The demo's silos allow more than a silo does by default ({html.escape(fields)}), so that "
        "four of them can show every method. A real policy decides this for itself.</p>"
    )


def _tables(history: JobHistory) -> Document:
    """Matrices and curves of the closing evaluation as lists, null for NaN."""
    closing = history.of_kind(EVALUATE)[-1:]
    found = {name: table for record in closing for name, table in sorted(record.tables.items())}
    return {name: _nested(list(table.shape), iter(table.values)) for name, table in found.items()}


def _nested(shape: Sequence[int], values: Iterator[float]) -> Any:
    if not shape:
        value = next(values)
        return value if math.isfinite(value) else None
    return [_nested(shape[1:], values) for _ in range(shape[0])]


def _figures_section(report: Document) -> list[str]:
    """What else the closing evaluation measured."""
    closing = [phase["figures"] for phase in report["phases"] if phase["phase"].startswith(EVALUATE)]
    if not closing:
        return []
    rows = [(name, f"{value:.4f}") for name, value in closing[-1].items()]
    told = ", ".join(report["tables"])
    kept = f"<p>report.json has in its tables: {html.escape(told)}.</p>" if told else ""
    return ["<h2>Final figures</h2>", _table(("figure", "value"), rows), kept]


def _curve(found: Sequence[float | None], *, figure: str) -> str:
    """A figure over rounds as inline SVG; rounds that measured nothing leave no point."""
    step = (WIDTH - MARGIN - 12) / max(len(found) - 1, 1)
    highest = max((value for value in found if value is not None and math.isfinite(value)), default=1.0)
    top = 1.0 if highest <= 1.0 else highest
    points = [
        (MARGIN + step * index, _y(value / top))
        for index, value in enumerate(found)
        if value is not None and math.isfinite(value)
    ]
    if not points:
        return f"<p>No round measured {html.escape(figure)}.</p>"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    grid = "".join(
        f'<line x1="{MARGIN}" x2="{WIDTH - 8}" y1="{_y(level):.1f}" y2="{_y(level):.1f}" stroke="#d8dee4"/>'
        f'<text x="4" y="{_y(level) + 4:.1f}">{level * top:.3g}</text>'
        for level in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#0969da"/>' for x, y in points)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(figure)} of the model after each round">'
        f'{grid}<polyline points="{path}" fill="none" stroke="#0969da" stroke-width="2"/>{dots}'
        f'<text x="{MARGIN}" y="{HEIGHT - 6}">round 1</text>'
        f'<text x="{WIDTH - 64}" y="{HEIGHT - 6}">round {len(found)}</text></svg>'
    )


def _y(share: float) -> float:
    return 12 + (HEIGHT - 12 - 28) * (1 - share)


def _rounds_table(phases: Iterable[Document], *, figure: str) -> str:
    rows = [
        (
            phase["round"],
            phase["phase"],
            phase["result"] if not phase["reason"] else f"{phase['result']}: {phase['reason']}",
            ", ".join(phase["cohort"]),
            f"{phase['data_share']:.0%}" if phase["phase"].startswith(TRAIN) else "",
            f"{phase['figures'][figure]:.4f}" if figure in phase["figures"] else "",
            f"{phase['wall_seconds']:.1f}",
        )
        for phase in phases
    ]
    received = f"{figure} of the model received"
    return _table(("round", "phase", "result", "silos in the sum", "data", received, "seconds"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
