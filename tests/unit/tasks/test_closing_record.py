"""Figures and tables of a closing evaluation: in a simulation, in the record, at the silos."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, PhaseRecord, Table
from cli.output.progress import plain_line
from cli.output.report import document
from client.history import JobHistory
from coordinator.jobs.phase_record import told_to_silos
from crypto.errors import ConfigError, PolicyRefusal
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import Samples, SiloData
from simulation.engine import Simulation
from strategies.presets import PRESETS
from tests.support.task_samples import job_of
from web.report.page import page

OPEN = {"class_statistics": "allow", "count_granularity": 1}


def data_of(seed: int) -> SiloData:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(40, 1, 8, 8)).astype(np.float32)
    samples = Samples(features=inputs, labels=inputs.reshape(40, -1)[:, :5].argmax(axis=1))
    return SiloData(train=samples, holdout=samples, name="own")


def run(**fields: Any) -> Simulation:
    job = job_of("classification", rounds=1, silos=("a", "b", "c"), **fields)
    policy = Policy.model_validate({"federation": job.federation, **OPEN})
    simulation = Simulation(
        job, {name: data_of(place) for place, name in enumerate(job.silos)}, policy=policy, is_secure=True
    )
    list(simulation.run())
    return simulation


def test_secure_sums_give_matrix_and_curves_once_at_the_end() -> None:
    simulation = run()
    tables = simulation.progress.tables
    assert np.sum(tables["confusion"]) == 120
    right = np.trace(tables["confusion"]) / 120
    assert simulation.closing["evaluate"]["accuracy"] == pytest.approx(right)
    assert simulation.final_figure == simulation.final_accuracy
    assert np.shape(tables["roc_curve"]) == (5, 201, 2)
    json.dumps(tables, allow_nan=False)


def test_a_private_job_noises_every_sum_of_the_metrics() -> None:
    noise = {"sums": {"clip_norm": 1.0, "noise_multiplier": 1.0}, "statistics_noise_multiplier": 1.0}
    simulation = run(privacy=noise)
    assert np.sum(simulation.progress.tables["confusion"]) != 120
    assert 0.0 <= simulation.closing["evaluate"]["roc_auc"] <= 1.0


def test_a_policy_refuses_metrics_by_class_without_noise() -> None:
    policy = Policy(federation="test")
    with pytest.raises(PolicyRefusal, match=r"no class statistics .*, got quantity confusion"):
        policy.check_job(job_of("classification", silos=("a", "b", "c")), operator="")
    metrics = {"name": "classification", "metrics": ("calibration",)}
    policy.check_job(job_of("classification", task=metrics), operator="")


def test_records_keep_tables_and_silos_are_not_told_them() -> None:
    table = Table(shape=[2, 2], values=[1.0, float("nan"), 3.0, 4.0])
    record = PhaseRecord(
        round=1,
        phase="evaluate.0",
        result="applied",
        figures={"dice": 0.5, "loss": 0.2},
        tables={"overlap": table},
        wall_seconds=1.0,
    )
    stored = json_format.Parse(json_format.MessageToJson(record), PhaseRecord())
    history = JobHistory()
    history.add(JobEvent(summary=JobSummary(name="lungs", main_figure="dice", rounds=1)))
    history.add(JobEvent(record=stored))
    report = document(history)
    assert report["tables"] == {"overlap": [[1.0, None], [3.0, 4.0]]}
    assert (report["main_figure"], report["final_figure"], report["final_accuracy"]) == ("dice", 0.5, None)
    assert "final dice 0.500 (no interval)" in page(report)
    assert plain_line(record, title="evaluate", main="dice").endswith(
        "final model: dice 0.500 (no interval), loss 0.200 (no interval)"
    )
    assert not told_to_silos(record).outcome.record.tables
    assert told_to_silos(record).outcome.record.figures == record.figures


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ({"name": "regression"}, {}, r"task\.options\.low: a value is required"),
        (
            {"name": "regression", "options": {"low": 2.0, "high": 1.0}},
            {},
            r"task\.options\.high: expected more than low, 2, got 1",
        ),
        (
            {"name": "regression", "options": {"low": 0, "high": 1, "loss": "cubic"}},
            {},
            r"task\.options\.loss: .*'squared', 'absolute' or 'huber', got 'cubic'",
        ),
        ({"name": "segmentation"}, {"input_shape": (9,)}, r"input_shape: segmentation expects"),
        ({"name": "next-token"}, {"input_shape": (9,)}, r"input_type: expected int64 for task next-token"),
        ({"name": "next-token"}, {}, r"input_shape: expected \(length,\) for task next-token"),
        ({"name": "survival"}, {"classes": 1}, r"classes: expected at least 2 for task survival"),
        (
            {"name": "survival", "metrics": ["curves"]},
            {},
            r"task\.metrics: survival has concordance, got curves",
        ),
        (
            {"name": "classification", "metrics": ["curves"]},
            {"classes": 101},
            r"task\.metrics: curves is for up to 100 classes, the job has 101",
        ),
    ],
)
def test_a_job_that_a_task_cannot_have_is_refused(
    task: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        job_of("classification", task=task, **fields)


def test_methods_by_class_refuse_tasks_that_have_none() -> None:
    refused = []
    for preset in PRESETS:
        try:
            job_of(
                "regression",
                task={"name": "regression", "options": {"low": -20.0, "high": 60.0}},
                strategy={"preset": preset},
            )
        except ValueError as error:
            refused.append((preset, "needs task classification" in str(error)))
    by_class = (
        "feddw",
        "feddistill_plus",
        "fedcsd",
        "fedgkd",
        "fedntd",
        "fedetf",
        "fedgela",
        "dot_regression",
        "feddr_plus",
    )
    baselines = ("fedsol", "ccvr", "fedproto")
    sphere = ("spherefed", "spherefed_ft", "spherefed_fedprox", "spherefed_fednova", "spherefed_fedopt")
    assert set(refused) == {(name, True) for name in (*by_class, "feddr_plus_ft", *sphere, *baselines)}
