"""A job's report as one HTML file: no script, nothing fetched, in light and dark, on a phone.

Every word in it that came from a peer or a job's file is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from chorale.privacy.job_releases import rows_in_words
from chorale.privacy.promise import if_all_others_collude, units
from chorale.results import APPLIED
from client.history import score_word
from strategies.figure import TESTED, Figure, figure_in, in_words, names_of_figures, parts_of
from strategies.phases.evaluation import EVALUATE
from strategies.phases.training import TRAIN

Document = dict[str, Any]

EXACT, NOISED = "exact in fixed point", "after noise on all that depends on data"
MOST_CLASSES = 40  # that a page lists; report.json has all
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 400, 200, 34, 10, 24  # of a curve, in its own units
MOST_DOTS = 60  # of a curve; closer ones would be a thick line

SEEN = (
    ("coordinator", "public keys, sealed envelopes and masked vectors it cannot read; one sum a phase"),
    ("each silo", "its own data, every round's model, who took part; no other silo's contribution"),
    ("authority", "names and certificates; it was offline during training"),
    ("operator", "what this report shows, and the model"),
)

# contrast of text on ground is 6 to 1 at least in both; on a narrow screen each row of a table is a block
STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1b1f24; --soft: #57606a; --line: #d8dee4;
  --accent: #0969da }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --text: #e6edf3; --soft: #9aa4ae;
  --line: #30363d; --accent: #58a6ff } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--ground); color: var(--text); overflow-wrap: break-word }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid var(--line) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .75rem }
summary { cursor: pointer }
svg { display: block; width: 100%; max-width: 40rem; height: auto }
svg text { font-size: 8px; fill: var(--soft) }
svg line { stroke: var(--line) }
svg polygon { fill: var(--accent); fill-opacity: .15; stroke: var(--accent); stroke-opacity: .5 }
svg polyline { fill: none; stroke: var(--accent); stroke-width: 1.5 }
svg circle { fill: var(--accent) }
@media (max-width: 40rem) {
  svg text { font-size: 12px }
  thead { position: absolute; left: -999rem }
  tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line) }
  td { display: flex; gap: 1rem; justify-content: space-between; border: 0; padding: .1rem 0;
    text-align: right }
  td:empty { display: none }
  td::before { content: attr(data-label); color: var(--soft); text-align: left }
}
"""


def page(report: Document) -> str:
    """report: of cli.output.report.document."""
    title, main = f"Chorale: {html.escape(report['name'])}", report["main_figure"]
    exactness = EXACT if report["epsilon"] is None else NOISED
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{title}</h1>",
            f"<p>{_headline(report)}</p>",
            *(f"<p>Unusual: passes over a rule: {html.escape(rule)}.</p>" for rule in report["unusual"]),
            f"<h2>{html.escape(main.capitalize())}</h2>",
            *_curves(report, main),
            *_loss_section(report),
            *_personal_section(report),
            *_figures_section(report),
            *_classes_section(report),
            "<h2>Rounds</h2>",
            _rounds_table(report["phases"], figure=main),
            "<h2>Who took part</h2>",
            _took_part_table(report),
            *_left_out_section(report),
            "<h2>What was summed</h2>",
            f"<p>{html.escape(', '.join(report['quantities'])) or 'nothing'}. Only sums over the "
            f"silos of a round were revealed, {exactness}.</p>",
            f"<p>{_verification(report)}</p>",
            *_class_rows_section(report),
            "<h2>What was sent</h2>",
            f"<p>{_sent(report)}</p>",
            *_privacy_section(report),
            _policy(report["policy"]),
            "<h2>What each party saw</h2>",
            _table(("party", "saw"), SEEN),
            *_job_section(report),
            "</main></body></html>",
        ]
    )


def units_told(report: Document) -> str:
    """Of a private job: what its epsilon protects."""
    return units(report["epsilon_updates_per_silo"], report["epsilon_statistics_per_record"])


def _class_rows_section(report: Document) -> list[str]:
    found = report["class_rows"]
    if found is None or found["share"] is None:
        return []
    return [
        f"<p>Of the {found['classes']} classes, rows of {found['share']:.0%} were in a round's sum of class "
        "statistics, in the mean of the rounds. Silos hold back the rows of classes that few of them hold: "
        f"by the default policy they send {found['by_default']} here.</p>"
    ]


def _verification(report: Document) -> str:
    if not report["sums_verified"]:
        return "Not every sum behind the model was checked by as many silos as the protocol asks for."
    return (
        f"Every sum behind the model was checked by {report['verified_by']} silos or more, each of which "
        "computed the next model from it and signed what it found."
    )


def _privacy_section(report: Document) -> list[str]:
    if report["is_private"] and report["epsilon"] is None:
        text = (
            "The job is private. What it promises follows from the model's sizes: its operator can fetch it."
        )
        return ["<h2>Differential privacy</h2>", f"<p>{text}</p>"]
    if report["epsilon"] is None:
        return []
    text = (
        f"All that a silo lets out in this job as planned costs its data set at most epsilon "
        f"{report['epsilon']:.4g} at delta {report['delta']:g}, {units_told(report)}. "
    )
    if report["epsilon_updates_per_silo"] is not None:
        text += "No noise hides a whole silo in the statistics. "
    text += (
        "That protects from the coordinator and up to a third of the silos of a round; "
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
    return ["<h2>Differential privacy</h2>", f"<p>{html.escape(text)}</p>", *tables]


def _rows_told(report: Document) -> str:
    costs = {int(rows): cost for rows, cost in report["epsilon_of_rows"].items()}
    text = rows_in_words({rows: math.inf if cost is None else cost for rows, cost in costs.items()})
    return f"{text[:1].upper()}{text[1:]}; at a silo whose data set has units, all rows of one are one record"


def _headline(report: Document) -> str:
    final, main = _final(report), report["main_figure"]
    own = report["personal_accuracy"]
    if final is not None:
        figure = f"final {main} {final}"
    else:
        figure = f"no final {main}" if own is None else f"personal {score_word(main)} {own:.4f}"
    if report["kept"] and final is not None and report["model_round"] != report["final_model_round"]:
        figure += f" of the model after round {report['final_model_round']}"
    why = f" ({report['reason']})" if report["reason"] else ""
    kept = (
        f" The model is that after round {report['model_round']}: {report['kept']}." if report["kept"] else ""
    )
    total = f"{report['rounds']} rounds" if report["steps"] is None else f"{report['steps']} steps"
    approval_seconds = report["approval_seconds"]
    waited = f", after {approval_seconds:.0f} s of waiting for approval" if approval_seconds >= 1 else ""
    return html.escape(
        f"{report['strategy']} over {report['silos']} silos: {report['status']}{why}, "
        f"{report['rounds_completed']} of {total}, {figure}, "
        f"{report['wall_seconds']:.1f} s{waited}.{kept}"
    )


def _final(report: Document) -> Figure | None:
    closing = _closing(report)
    return None if closing is None else figure_in(closing, report["main_figure"])


def _closing(report: Document) -> Document | None:
    """Figures of the last closing evaluation."""
    found = [
        phase["figures"]
        for phase in report["phases"]
        if phase["phase"].startswith(f"{EVALUATE}.") and phase["result"] == APPLIED
    ]
    return found[-1] if found else None


def _policy(policy: Document) -> str:
    if not policy:
        return ""
    fields = ", ".join(f"{name}: {value}" for name, value in policy.items())
    return (
        f"<p>The demo's silos allow more than a silo does by default ({html.escape(fields)}), so that "
        "four of them can show every method. A real policy decides this for itself.</p>"
    )


def _figures_section(report: Document) -> list[str]:
    """What else the closing evaluation measured."""
    closing = _closing(report)
    if closing is None:
        return []
    rows = [(name, in_words(closing, name)) for name in names_of_figures(closing)]
    names = ", ".join(report["tables"])
    kept = f"<p>report.json has in its tables: {html.escape(names)}.</p>" if names else ""
    return ["<h2>Final figures</h2>", _table(("figure", "value"), rows), kept]


def _loss_section(report: Document) -> list[str]:
    if report["main_figure"] == "loss" or all(value is None for value in report["loss_by_round"]):
        return []
    return ["<h2>Loss</h2>", *_curves(report, "loss")]


def _personal_section(report: Document) -> list[str]:
    if report["personal_accuracy"] is None:
        return []
    score = score_word(report["main_figure"])
    return [
        f"<p>Each silo's own model, on its own hold-out: {score} {report['personal_accuracy']:.4f}, standard "
        f"deviation {report['personal_accuracy_deviation']:.4f} over {report['personal_silos']} silos. Only "
        f"the silo has its model and its {score}.</p>"
    ]


def _classes_section(report: Document) -> list[str]:
    """Figures by class, where the job's task.metrics ask for them."""
    confusion = report["tables"].get("confusion")
    if not isinstance(confusion, list):
        return []
    columns = {
        name: values
        for name, values in report["tables"].items()
        if len(values) == len(confusion) and not isinstance(values[0], list)
    }
    names = names_of_figures(columns)
    head = ("class", *(f"{name} (95 %)" for name in names))
    rows = [
        (place, *(_of_class(columns, name, place) for name in names))
        for place in range(min(len(confusion), MOST_CLASSES))
    ]
    more = len(confusion) - len(rows)
    rest = f"<p>And {more} classes more, in report.json.</p>" if more else ""
    return ["<h2>By class</h2>", _table(head, rows), rest] if columns else []


def _of_class(columns: Document, name: str, place: int) -> str:
    numbers = {part: columns[part][place] for part in parts_of(name) if part in columns}
    figure = figure_in(numbers, name)
    return "" if figure is None or numbers[name] is None else figure.brief


def _took_part_table(report: Document) -> str:
    rows = [
        (
            silo,
            f"{part['rounds']} of {part['of']}",
            "; ".join(f"{why}, {times} times" for why, times in part["left_out"].items()),
        )
        for silo, part in report["took_part"].items()
    ]
    return _table(("silo", "rounds in the sum", "left out of others"), rows)


def _left_out_section(report: Document) -> list[str]:
    rows = [
        (
            left["round"],
            left["silo"],
            left["stage"],
            ": ".join(filter(None, [left["reason"], left.get("rule"), left.get("text")])),
        )
        for left in report["dropped"]
    ]
    return [
        "<h3>Who was left out</h3>",
        _table(("round", "silo", "stage", "reason"), rows) if rows else "<p>None.</p>",
    ]


def _sent(report: Document) -> str:
    return (
        f"In a round a silo sent {report['upload_bytes_per_silo_round']:,} bytes, in the whole job "
        f"{report['upload_bytes_per_silo']:,}; the model has {report['float32_bytes']:,} bytes. Each silo "
        "received the model of each round, or computed it from the sum."
    )


def _job_section(report: Document) -> list[str]:
    if not report["job_file"]:
        return []
    by = f" by operator {html.escape(report['operator'])}" if report["operator"] else ""
    return [
        "<h2>The job</h2>",
        f"<details><summary>The job's file as it was signed{by}; its SHA-256 is {report['job']}</summary>"
        f"<pre>{html.escape(report['job_file'])}</pre></details>",
    ]


def _curves(report: Document, figure: str) -> list[str]:
    """One curve; where rounds draw their silos two, which are of different hold-outs."""
    if not report["draws_rounds"]:
        main = report["main_figure"]
        by_round = report["intervals"]["figure_by_round" if figure == main else "loss_by_round"]
        return [_curve([each and Figure.from_json(each) for each in by_round], figure=figure)]
    parts, rounds = list[str](), range(1, len(report["figure_by_round"]) + 1)
    for name, title in (
        ("all_silos", "Over the hold-outs of all silos"),
        ("drawn_silos", "Over the hold-outs of the silos that each round drew"),
    ):
        points = report["curves"][name]
        by_round = {each["round"]: figure_in(each, figure) for each in points}
        curve = _curve([by_round.get(round) for round in rounds], figure=figure)
        parts += [f"<h3>{title}</h3>", curve, f"<p>{_behind(points, silos=report['silos'])}</p>"]
    return parts


def _behind(points: Sequence[Document], *, silos: int) -> str:
    """How much stands behind the points of a curve."""
    if not points:
        return "No sum measured it."
    shares = [each["data_share"] for each in points if each["data_share"] is not None]
    facts = [(f"of {silos} silos", [each["silos"] for each in points])]
    tested = [figure for each in points if (figure := figure_in(each, TESTED)) is not None]
    ends = [end for each in tested for end in each.noise or (each.value,)]
    facts += [("samples with noise (95 %)" if any(each.noise for each in tested) else "samples", ends)]
    parts = [f"{_span(values)} {what}" for what, values in facts if values]
    parts += [f"{_span([round(100 * each) for each in shares])} % of the training data"] if shares else []
    return html.escape(f"Behind a point: {', '.join(parts)}.")


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


def _curve(found: Sequence[Figure | None], *, figure: str) -> str:
    """A figure over rounds as inline SVG, in the band of its interval; rounds that measured nothing leave no
    point."""
    measured = [
        (place, each) for place, each in enumerate(found) if each is not None and math.isfinite(each.value)
    ]
    known = [(place, each.value) for place, each in measured]
    if not known:
        return f"<p>No round measured {html.escape(figure)}.</p>"
    step = (WIDTH - LEFT - 8) / max(len(found) - 1, 1)
    bands = [(place, each.band) for place, each in measured if each.band is not None]
    levels = [0.0, *(value for _, value in known), *(end for _, band in bands for end in band)]
    low, high = min(levels), max(levels)
    top = 1.0 if low == 0.0 and high <= 1.0 else high
    span = (top - low) or 1.0

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / span)

    points = [(LEFT + step * place, y(value)) for place, value in known]
    grid = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - 4}" y1="{y(level):.1f}" y2="{y(level):.1f}"/>'
        f'<text x="2" y="{y(level) + 3:.1f}">{level:.3g}</text>'
        for level in (low + span * share for share in (0.0, 0.25, 0.5, 0.75, 1.0))
    )
    path = " ".join(f"{x:.1f},{height:.1f}" for x, height in points)
    seen_apart = points if len(points) <= MOST_DOTS else []
    dots = "".join(f'<circle cx="{x:.1f}" cy="{height:.1f}" r="2"/>' for x, height in seen_apart)
    edge = [(place, band[1]) for place, band in bands] + [(place, band[0]) for place, band in reversed(bands)]
    area = " ".join(f"{LEFT + step * place:.1f},{y(value):.1f}" for place, value in edge)
    shade = f'<polygon points="{area}"/>' if bands else ""
    place, last = measured[-1]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(figure)} of the model '
        f'after each round; {html.escape(str(last))} after round {place + 1}">'
        f'{grid}{shade}<polyline points="{path}"/>{dots}'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">round 1</text>'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 6}" text-anchor="end">round {len(found)}</text></svg>'
    )


def _rounds_table(phases: Iterable[Document], *, figure: str) -> str:
    rows = [
        (
            phase["round"],
            phase["phase"],
            phase["result"] if not phase["reason"] else f"{phase['result']}: {phase['reason']}",
            ", ".join(phase["cohort"]),
            f"{phase['data_share']:.0%}" if phase["phase"].startswith(TRAIN) else "",
            in_words(phase["figures"], figure),
            f"{phase['upload_bytes']:,}",
            f"{phase['wall_seconds']:.1f}",
        )
        for phase in phases
    ]
    received = f"{figure} of the model received (95 %)"
    head = ("round", "phase", "result", "silos in the sum", "data", received, "bytes a silo sent", "seconds")
    return _table(head, rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    labels = [html.escape(title) for title in header]
    head = "".join(f"<th>{label}</th>" for label in labels)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{label}">{html.escape(str(cell))}</td>'
            for label, cell in zip(labels, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
