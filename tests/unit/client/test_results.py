"""Rounds as a table: which model a figure is of, and what a method's phases make of a round."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import client.history
from chorale.job import SignedJob
from chorale.results import JobResults, RoundResult
from chorale.spec.selection import MAX_ROUNDS
from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, LeftOut, PhaseRecord
from client.history import JobHistory, curves_facts, figure_by_round
from client.results import results_of, rounds_of
from crypto.errors import ConfigError, RemoteProtocolError
from strategies.figure import Figure

ROOT = Path(__file__).resolve().parents[3]
JOB = {
    "name": "digits",
    "federation": "test",
    "silos": ["a", "b", "c"],
    "rounds": 3,
    "model": {"name": "mlp"},
    "classes": 10,
    "input_shape": [1, 8, 8],
    "training": {"learning_rate": 0.1},
    "not_after": "2099-01-01T00:00:00Z",
}
SUMMARY = JobEvent(summary=JobSummary(name="digits", status="done", rounds=3, main_figure="accuracy"))


def _job(**fields: object) -> JobEvent:
    text = yaml.safe_dump({**JOB, **fields}).encode()
    return JobEvent(job=SignedJob(spec_bytes=text, signature=b"s", operator_certificate=b"c").to_wire())


def _record(round: int, phase: str, *, result: str = "applied", **figures: float) -> JobEvent:
    left = [LeftOut(silo="c", stage="masked", reason="disconnected")] if result != "applied" else []
    record = PhaseRecord(
        round=round,
        phase=phase,
        result=result,
        reason="too-few-silos" if left else "",
        cohort=["a", "b"],
        left_out=left,
        figures=figures,
        wall_seconds=2.0,
        upload_bytes=100,
    )
    return JobEvent(record=record)


def test_figures_stand_at_the_round_whose_model_they_are_of() -> None:
    """Round r tests the model after r - 1; how many values it clipped is of the round itself. A round that
    was used up left the model as it was, and the one after it measures that."""
    pytest.importorskip("pandas", reason="needs the extra notebook")
    events = [
        _job(),
        SUMMARY,
        _record(0, "enrollment"),
        _record(1, "train", accuracy=0.1, loss=2.3, clipped=7.0),
        _record(2, "train", result="used-up"),
        _record(3, "train", accuracy=0.5, loss=1.2, clipped=9.0),
        _record(3, "evaluate.0", accuracy=0.8, loss=0.4),
    ]
    history = JobHistory()
    rounds = list(rounds_of(events, history))
    assert [(each.round, each.result, each.accuracy) for each in rounds] == [
        (1, "applied", Figure(value=0.1)),
        (2, "used-up", None),
        (3, "applied", Figure(value=0.5)),
    ]
    table = results_of(history).frame()
    assert list(table.columns) == [
        *("result", "reason", "silos", "left_out", "data_share", "seconds", "upload_bytes"),
        *("accuracy", "loss", "clipped"),
    ]
    assert table["accuracy"].fillna(-1).to_dict() == {1: -1, 2: 0.5, 3: 0.8}
    assert table["clipped"].fillna(-1).to_dict() == {1: 7.0, 2: -1, 3: 9.0}
    assert table["left_out"].to_dict() == {1: "", 2: "c: disconnected", 3: ""}
    assert list(table["reason"]) == ["", "too-few-silos", ""]


def searched() -> JobHistory:
    """Three arms, of which arm 1 leads after round 2; round 3 was used up."""
    history = JobHistory()
    arms = [{f"accuracy@{arm}": 0.1 * (arm + 1), f"loss@{arm}": 2.0 - arm / 4} for arm in range(3)]
    search = {"values": {"training.learning_rate": [0.1, 0.3, 1.0]}, "rounds": 2}
    events = [
        _job(training={}, search=search, rounds=5),
        SUMMARY,
        _record(1, "train", accuracy=0.1, arm=0.0, **arms[0], **arms[1], **arms[2]),
        _record(2, "train", accuracy=0.4, arm=0.0, **arms[1], **{"accuracy@2": math.nan}),
        _record(3, "train", result="used-up", **arms[2]),
        _record(4, "train", accuracy=0.5, arm=1.0),
        _record(4, "evaluate.0", accuracy=0.8, **arms[0]),
    ]
    for event in events:
        history.add(event)
    return history


def test_curves_of_a_search_have_a_point_for_each_arm_at_the_round_that_trained_it() -> None:
    """A round tests the arms that it starts from, and what it tested counts where it was applied."""
    assert curves_facts(searched())["arms"] == [
        {"round": 0, "arm": 0, "accuracy": 0.1, "loss": 2.0},
        {"round": 0, "arm": 1, "accuracy": 0.2, "loss": 1.75},
        {"round": 0, "arm": 2, "accuracy": pytest.approx(0.3), "loss": 1.5},
        {"round": 1, "arm": 1, "accuracy": 0.2, "loss": 1.75},
        {"round": 1, "arm": 2, "accuracy": None, "loss": None},
    ]


def test_a_job_without_a_search_has_no_arms() -> None:
    """Nor has one whose coordinator makes up names."""
    history = JobHistory()
    made_up = {"loss@": 1.0, "loss@-1": 1.0, "loss@8": 1.0, "loss@1@2": 1.0, "loss@<b>": 1.0, "@1": 1.0}
    for event in (_job(), SUMMARY, _record(1, "train", accuracy=0.1, loss=2.0, **made_up)):
        history.add(event)
    assert curves_facts(history)["arms"] == []


@pytest.mark.parametrize("main", ["round", "arm", "silos", "data_share"])
def test_no_main_figure_takes_the_place_of_a_points_own_keys(main: str) -> None:
    """The coordinator names the main figure: a round of 1.5 ended the console's page of the job."""
    history = JobHistory()
    summary = JobEvent(summary=JobSummary(name="digits", rounds=3, main_figure=main))
    event = _record(1, "train")
    event.record.figures.update({main: 1.5, f"{main}@1": 1.5})
    for each in (_job(), summary, event):
        history.add(each)
    found = curves_facts(history)
    (point,), (arm,) = found["all_silos"], found["arms"]
    assert (point["round"], point["silos"], point["data_share"]) == (0, 2, 0.0)
    assert (arm["round"], arm["arm"]) == (0, 1)


def test_figures_of_arms_stand_in_the_table_at_the_round_that_trained_them() -> None:
    pytest.importorskip("pandas", reason="needs the extra notebook")
    table = results_of(searched()).frame()
    assert table["loss@1"].fillna(-1).to_dict() == {1: 1.75, 2: -1, 3: -1, 4: -1}
    assert table["arm"].fillna(-1).to_dict() == {1: 0.0, 2: -1, 3: 1.0, 4: -1}
    assert table["accuracy"].fillna(-1).to_dict() == {1: 0.4, 2: -1, 3: 0.5, 4: 0.8}


def test_a_round_of_several_phases_is_one_round() -> None:
    """FedCSD sums prototypes before it trains: its round ends with the training, or with what was lost."""
    events = [
        _job(strategy={"preset": "fedcsd"}),
        SUMMARY,
        _record(0, "enrollment"),
        _record(1, "prototypes"),
        _record(1, "train", accuracy=0.1),
        _record(2, "prototypes", result="used-up"),
        _record(3, "evaluate.0", accuracy=0.8),
    ]
    rounds = list(rounds_of(events, JobHistory()))
    assert [(each.round, each.result) for each in rounds] == [(1, "applied"), (2, "used-up")]
    assert (rounds[0].wall_seconds, rounds[0].upload_bytes) == (4.0, 200)


def test_nothing_that_a_coordinator_writes_moves_a_terminals_cursor() -> None:
    spoiled = JobEvent(record=PhaseRecord(round=1, phase="train", result="\x1b[2J", reason="\x1b]0;x\x07"))
    (only,) = rounds_of([_job(), SUMMARY, spoiled], JobHistory())
    assert (only.result, only.reason) == (r"\x1b[2J", r"\x1b]0;x\x07")


def test_a_record_of_a_round_that_no_job_has_is_refused() -> None:
    """Figures stand by round: one record of round 2^32 - 1 would take tens of gigabytes of every reader."""
    history = JobHistory()
    for event in (_job(), SUMMARY, _record(MAX_ROUNDS, "train", accuracy=0.5)):
        history.add(event)  # the control
    assert len(figure_by_round(history, "accuracy")) == MAX_ROUNDS
    with pytest.raises(RemoteProtocolError, match="coordinator: round 100001: a job has at most 100000"):
        history.add(_record(MAX_ROUNDS + 1, "train", accuracy=0.5))
    assert len(history.records) == 1


def test_more_phases_than_the_signed_job_can_have_are_refused() -> None:
    """Small records without end filled the memory of all who watch, the console included."""
    history = JobHistory()
    history.add(_job(max_attempts=2))
    most = 3 * 2 * (3 + 1)  # enrollment, training and evaluation, tried twice, in rounds 0 to 3
    for number in range(most):
        history.add(_record(number % 4, f"evaluate.{number // 4}"))  # the control
    history.add(_record(0, "evaluate.0"))  # what was told before counts once
    with pytest.raises(RemoteProtocolError, match="coordinator: it tells of more than the 24 phases"):
        history.add(_record(0, "evaluate.6"))
    assert len(history.records) == most


@pytest.mark.parametrize("job", [None, {"unknown_field": 1}])
def test_records_of_a_job_that_is_not_read_end_too(
    monkeypatch: pytest.MonkeyPatch, job: dict[str, object] | None
) -> None:
    """A coordinator that tells no job, or one of another release."""
    monkeypatch.setattr(client.history, "MAX_RECORDS_BYTES", 2 * _record(1, "train").record.ByteSize())
    history = JobHistory()
    if job is not None:
        history.add(_job(**job))
    for round in (1, 2):
        history.add(_record(round, "train"))  # the control
    with pytest.raises(RemoteProtocolError, match="or of more than [0-9]+ bytes"):
        history.add(_record(3, "train"))


def test_a_job_of_another_release_is_read_as_a_plain_one() -> None:
    history = JobHistory()
    events = [_job(unknown_field=1), SUMMARY, _record(1, "train", accuracy=0.1), _record(1, "evaluate")]
    assert [each.round for each in rounds_of(events, history)] == [1]
    assert results_of(history).figures_by_round() == {1: {}}


def test_a_figure_that_no_round_has_is_told_with_those_there_are() -> None:
    pytest.importorskip("pandas", reason="needs the extra notebook")
    rounds = [RoundResult(round=number, result="applied", figures={"loss": 1.0}) for number in (1, 2)]
    results = JobResults(main="accuracy", measured=("loss",), rounds=rounds)
    with pytest.raises(ConfigError, match="^figure accuracy: expected one of loss$"):
        results.plot()


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    message = r"^a table of results needs the extra 'notebook' \(no pandas here\): pip install '\.\[note"
    with pytest.raises(ConfigError, match=message):
        JobResults(main="accuracy", measured=(), rounds=()).frame()


def test_chorale_imports_nothing_above_it_until_somebody_asks() -> None:
    lines = (
        "import sys, chorale",
        "above = {'client', 'simulation', 'cli', 'silo_agent', 'coordinator', 'grpc'}",
        "print(sorted(above & set(sys.modules)))",
        "chorale.Federation",
        "heavy = {'simulation', 'cli', 'coordinator', 'torch', 'pandas', 'matplotlib'}",
        "print(sorted(heavy & set(sys.modules)))",
        "try: chorale.Federatoin",
        "except AttributeError as error: print(error)",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "[]", "module 'chorale' has no attribute 'Federatoin'"]
