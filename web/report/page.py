"""A job's report as one HTML file: no script, nothing fetched, in light and dark, on a phone.

It has the style, the charts and the tables of the console's pages. Every word in it that came from a peer or
a job's file is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from chorale.privacy.job_releases import rows_in_words
from chorale.privacy.promise import if_all_others_collude, units
from chorale.results import APPLIED
from client.history import score_word
from strategies.analysis.subgroups import FINEST, FINEST_RECORDS, OF_SUBGROUP, PARTS, RECORDS
from strategies.figure import Figure, figure_in, in_words, names_of_figures, parts_of
from strategies.phases.evaluation import EVALUATE
from web.shared.charts import charts
from web.shared.phases import Document, phase_rows
from web.shared.templating import environment

Rows = Sequence[Sequence[object]]

EXACT, NOISED = "exact in fixed point", "after noise on all that depends on data"
MOST_CLASSES = 40  # that a page lists; report.json has all

SEEN = (
    ("coordinator", "public keys, sealed envelopes and masked vectors it cannot read; one sum a phase"),
    ("each silo", "its own data, every round's model, who took part; no other silo's contribution"),
    ("authority", "names and certificates; it was offline during training"),
    ("operator", "what this report shows, and the model"),
)
SITE = Path(__file__).parents[1] / "shared" / "static" / "site.css"


def page(report: Document) -> str:
    """report: of cli.output.report.document."""
    main = report["main_figure"]
    has_loss = main != "loss" and any(each is not None for each in report["loss_by_round"])
    shown = [main, "loss"] if has_loss else [main]
    template = environment(Path(__file__).parent / "templates").get_template("report.html")
    return template.render(
        report=report,
        style=Markup(SITE.read_text()),  # ours
        headline=_headline(report),
        figures=[(name, charts(report["curves"], name, silos=report["silos"])) for name in shown],
        personal=_personal(report),
        final=_final_figures(report),
        classes=_classes(report),
        subgroups=_subgroups(report),
        phases=phase_rows(report["phases"], main=main, has_names=True),
        took_part=_took_part(report),
        exactness=EXACT if report["epsilon"] is None else NOISED,
        verification=_verification(report),
        privacy=_privacy(report),
        noise=[(name, f"{value:g}") for name, value in report["noise_multipliers"].items()],
        spent=_spent(report),
        seen=SEEN,
        # as it was signed, to the last character
        job_file=escape(report["job_file"]) if report["job_file"] else None,
    )


def units_told(report: Document) -> str:
    """Of a private job: what its epsilon protects."""
    return units(report["epsilon_updates_per_silo"], report["epsilon_statistics_per_record"])


def _verification(report: Document) -> str:
    if not report["sums_verified"]:
        return "Not every sum behind the model was checked by as many silos as the protocol asks for."
    return (
        f"Every sum behind the model was checked by {report['verified_by']} silos or more, each of which "
        "computed the next model from it and signed what it found."
    )


def _privacy(report: Document) -> str:
    if report["epsilon"] is None:
        without = "What it promises follows from the model's sizes: its operator can fetch it."
        return f"The job is private. {without}" if report["is_private"] else ""
    text = (
        f"All that a silo lets out in this job as planned costs its data set at most epsilon "
        f"{report['epsilon']:.4g} at delta {report['delta']:g}, {units_told(report)}. "
    )
    if report["epsilon_updates_per_silo"] is not None:
        text += "No noise hides a whole silo in the statistics. "
    return text + (
        "That protects from the coordinator and up to a third of the silos of a round; "
        f"{if_all_others_collude(report['epsilon_if_all_others_collude'])}. "
        f"{_rows_told(report)}. Accuracies carry noise too."
    )


def _spent(report: Document) -> Rows:
    collude = report["epsilon_spent_by_silo_if_all_others_collude"]
    return [
        (silo, f"{epsilon:.4g}", "no bound" if collude[silo] is None else f"{collude[silo]:.4g}")
        for silo, epsilon in report["epsilon_spent_by_silo"].items()
    ]


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
    if report["search"]:
        kept += f" {report['search'].capitalize()}."
    total = f"{report['rounds']} rounds" if report["steps"] is None else f"{report['steps']} steps"
    approval_seconds = report["approval_seconds"]
    waited = f", after {approval_seconds:.0f} s of waiting for approval" if approval_seconds >= 1 else ""
    return (
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


def _final_figures(report: Document) -> Rows | None:
    """What else the closing evaluation measured; None without one."""
    closing = _closing(report)
    return (
        None if closing is None else [(name, in_words(closing, name)) for name in names_of_figures(closing)]
    )


def _personal(report: Document) -> str:
    if report["personal_accuracy"] is None:
        return ""
    score = score_word(report["main_figure"])
    return (
        f"Each silo's own model, on its own hold-out: {score} {report['personal_accuracy']:.4f}, standard "
        f"deviation {report['personal_accuracy_deviation']:.4f} over {report['personal_silos']} silos. Only "
        f"the silo has its model and its {score}."
    )


def _classes(report: Document) -> Document | None:
    """Figures by class, where the job's task.metrics ask for them."""
    confusion = report["tables"].get("confusion")
    if not isinstance(confusion, list):
        return None
    columns = {
        name: values
        for name, values in _columns(report, len(confusion)).items()
        if not name.startswith(OF_SUBGROUP)
    }
    return _by("class", report["class_names"] or range(len(confusion)), columns)


def _subgroups(report: Document) -> Document | None:
    """Figures by the parts of a column, where the job's `subgroups` ask for them."""
    parts, records = report["subgroups"], report["tables"].get(RECORDS)
    if not parts or not isinstance(records, list) or len(records) != len(parts):
        return None
    columns = {
        name.removeprefix(OF_SUBGROUP): values
        for name, values in _columns(report, len(parts)).items()
        if name.startswith(OF_SUBGROUP) and name not in (FINEST, FINEST_RECORDS, PARTS)
    }
    return _by(
        "subgroup",
        [f"{part} ({sum(row):.0f} tested)" for part, row in zip(parts, records, strict=True)],
        columns,
    )


def _columns(report: Document, rows: int) -> Document:
    """The tables of one number a row."""
    return {
        name: values
        for name, values in report["tables"].items()
        if isinstance(values, list) and len(values) == rows and not isinstance(values[0], list)
    }


def _by(word: str, rows: Sequence[object], columns: Document) -> Document | None:
    names = names_of_figures(columns)
    found = [
        (row, *(_of_class(columns, name, place) for name in names))
        for place, row in enumerate(rows[:MOST_CLASSES])
    ]
    head = (word, *(f"{name} (95 %)" for name in names))
    return {"head": head, "rows": found, "more": len(rows) - len(found)} if columns else None


def _of_class(columns: Document, name: str, place: int) -> str:
    numbers = {part: columns[part][place] for part in parts_of(name) if part in columns}
    figure = figure_in(numbers, name)
    return "" if figure is None or numbers[name] is None else figure.brief


def _took_part(report: Document) -> Rows:
    return [
        (
            silo,
            f"{part['rounds']} of {part['of']}",
            [f"{times} times {why}" for why, times in part["left_out"].items()],
        )
        for silo, part in report["took_part"].items()
    ]
