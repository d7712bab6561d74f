"""No figure of a private job is shown or returned bare: each place is listed here, and each is searched."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from chorale.evidence import PhaseFacts
from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, PhaseRecord, Table
from cli.job.following import end_of
from cli.output import progress, report
from cli.simulate.lines import round_line
from client.evidence import pages
from client.history import JobHistory, phase_facts
from client.mlflow_export import _metrics
from client.results import results_of
from coordinator.metrics import CoordinatorMetrics
from strategies.figure import Figure, flat_figures, names_of_figures
from strategies.tasks.classification import CLASSIFICATION
from strategies.tasks.confusion import Confusion
from tests.support.task_samples import TASK_JOBS, job_of
from web.console import rounds
from web.report.page import page
from web.shared.charts import chart
from web.shared.phases import phase_rows, phases_csv
from web.shared.templating import environment

SUMS = {"correct": np.array(949.4), "tested": np.array(1298.4), "loss_sum": np.array(4904.0)}
FIGURES = flat_figures(CLASSIFICATION.figures(SUMS, {"correct": 40.0, "tested": 40.0, "loss_sum": 320.0}))
COUNTS = {"confusion": np.array([[510.0, 490.0], [410.0, 331.0]])}
SHOWN = re.compile(r"(?<![\d.])(?:0\.73|3\.7|3\.8|1298)\d*(?:\.\d+)?(?! with noise \()(?!\d)")
NAMES = ("accuracy", "loss", "tested", "figure")  # of the keys that hold a figure's number


def history() -> JobHistory:
    """A private job of one round, whose figures are 0.73, 3.8 and 1298, with noise."""
    found = JobHistory()
    summary = JobSummary(name="heart", status="done", rounds=1, rounds_completed=1, main_figure="accuracy")
    found.add(JobEvent(summary=summary))
    for number, phase in ((1, "train"), (1, "evaluate.0")):
        record = PhaseRecord(round=number, phase=phase, result="applied", cohort=list("abc"), figures=FIGURES)
        for name, table in Confusion(2).tables(COUNTS, {"confusion": 20.0}).items():
            record.tables[name].CopyFrom(Table(shape=table.shape, values=table.ravel()))
        found.add(JobEvent(record=record))
    return found


def the_table(found: JobHistory) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(progress.table(found))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def the_consoles_table(found: JobHistory) -> str:
    macros = environment().get_template("_macros.html").module
    rows = phase_rows(rounds.phases(found), main=found.main)
    return str(macros.phase_table(found.main, rows))  # type: ignore[attr-defined]


def the_model_card(found: JobHistory) -> str:
    last = found.records[-1]
    told = {name: None if np.isinf(value) else value for name, value in last.figures.items()}
    facts = PhaseFacts.model_construct(round=1, phase=last.phase, cohort=("a", "b"), figures=told)
    return "\n".join(pages._figures(facts))


TEXTS: dict[str, Callable[[JobHistory], str]] = {
    "job watch, lines": lambda found: "\n".join(
        progress.plain_line(each, title=found.title(each)) for each in found.records
    ),
    "job watch, table": the_table,
    "report.html": lambda found: page(report.document(found)),
    "console, phases": the_consoles_table,
    "console, facts": lambda found: str(rounds.facts(found)),
    "model card": the_model_card,
    "notebook, a round": lambda found: f"{results_of(found).rounds[0].accuracy}",
    "simulate, a round": lambda found: round_line(
        results_of(found).rounds[0], title="", spec=job_of("two-classes")
    ),
}


@pytest.mark.parametrize("place", TEXTS)
def test_texts_have_no_bare_figure(place: str) -> None:
    text = TEXTS[place](history())
    assert "0.73 with noise (" in text
    assert [text[max(each.start() - 40, 0) : each.end() + 20] for each in SHOWN.finditer(text)] == []


def test_the_last_line_of_a_job_has_no_bare_figure(capsys: pytest.CaptureFixture[str]) -> None:
    end_of(history())
    text = capsys.readouterr().out
    assert "final accuracy 0.73 with noise (95 %: " in text
    assert not SHOWN.search(text)


def bare(document: Any) -> Iterator[str]:
    """Keys whose figure stands there without its interval: neither beside it nor in `intervals`."""
    if isinstance(document, list):
        for each in document:
            yield from bare(each)
    if not isinstance(document, dict):
        return
    told = document.get("intervals", {})
    for key, value in document.items():
        is_figure = key in NAMES or key.startswith("final_") or key.endswith("_by_round")
        has_interval = {f"{key}_noise_low", f"{key}_noise_high"} <= document.keys() or told.get(key)
        holds = value is not None and not isinstance(value, dict) and value != []
        if is_figure and holds and not has_interval and key != "final_model_round":
            yield key
        if key != "intervals":
            yield from bare(value)


def flat_rows(text: str) -> list[dict[str, str]]:
    """Without empty cells."""
    return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(io.StringIO(text))]


def a_frame(found: JobHistory) -> Any:
    pytest.importorskip("pandas", reason="needs the extra notebook")
    return results_of(found).frame().to_dict("records")


def of_mlflow(found: JobHistory) -> dict[str, float]:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    return {each.key: each.value for each in _metrics(found, 0.0)}


DOCUMENTS: dict[str, Callable[[JobHistory], Any]] = {
    "report.json": lambda found: json.loads(json.dumps(report.document(found), allow_nan=False)),
    "rounds.csv": lambda found: flat_rows(phases_csv(rounds.phases(found))),
    "job watch --json": lambda found: [phase_facts(each, title="") for each in found.records],
    "console, rounds.json": lambda found: json.loads(rounds.as_json(found)),
    "rounds.jsonl": lambda found: results_of(found).rounds[0].to_json(),
    "notebook, frame": a_frame,
    "MLflow": of_mlflow,
}


@pytest.mark.parametrize("name", TASK_JOBS)
def test_tables_by_class_have_no_bare_figure(name: str) -> None:
    """The report printed areas by class as `0.62 (no interval)` in a private job."""
    for metric in job_of(name).method.task.asked.values():
        noise = {each.name: 5.0 for each in metric.sums}
        found = metric.tables({each.name: np.full(each.shape, 50.0) for each in metric.sums}, noise)
        flat = {name for name, table in found.items() if table.ndim == 1} - {"curve_thresholds"}
        bare = {
            name for name in names_of_figures(flat) if not {f"{name}_noise_low", f"{name}_noise_high"} <= flat
        }
        assert bare == set()


@pytest.mark.parametrize("place", DOCUMENTS)
def test_documents_have_no_bare_figure(place: str) -> None:
    document = DOCUMENTS[place](history())
    text = json.dumps(document)
    assert '_noise_low"' in text or '"noise": [' in text
    assert list(bare(document)) == []


def test_curves_are_drawn_in_the_band_of_their_interval() -> None:
    found = history()
    assert page(report.document(found)).count("<polygon") == 2  # accuracy and loss
    for _, (curve,) in rounds.figures(found):
        assert "<polygon" in curve["svg"]
    pytest.importorskip("matplotlib", reason="needs the extra notebook").use("agg")
    assert len(results_of(found).plot().collections) == 1


def test_the_band_of_a_lone_point_is_a_line() -> None:
    """A job of steps is tested once, and a band of one point has no width: it was drawn without one."""
    lone = Figure(value=0.5, noise=(0.3, 0.7))
    drawn = re.findall(
        r'<line class="interval" [^>]* y1="([0-9.]+)" y2="([0-9.]+)"/>', chart({3: lone}, "accuracy")
    )
    assert [float(low) - float(high) > 50 for low, high in drawn] == [True]
    pytest.importorskip("matplotlib", reason="needs the extra notebook").use("agg")
    (band,) = results_of(history()).plot().collections
    assert band.get_linewidth()[0] > 0


def test_metrics_have_the_ends_of_both_intervals() -> None:
    metrics = CoordinatorMetrics()
    metrics.know_job("heart")
    value = metrics.registry.get_sample_value
    for figures, is_known in (({}, False), (FIGURES, True), ({"accuracy": 0.5, "loss": 1.0}, False)):
        metrics.show_figures("heart", figures)
        for name, of, end in product(("accuracy", "loss"), ("noise", "sampling"), ("low", "high")):
            labels = {"federation_job": "heart", "of": of, "end": end}
            found = value(f"chorale_coordinator_{name}_interval", labels)
            assert found == FIGURES[f"{name}_{of}_{end}"] if is_known else np.isnan(found)
