"""What of an address and of a coordinator's figures reaches an MLflow server, and a screen."""

from __future__ import annotations

import pytest

from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, PhaseRecord
from client.history import JobHistory
from client.mlflow_export import _metrics, export
from crypto.errors import ConfigError


@pytest.mark.parametrize("login", ["ann:secret", "ann:part@secret", "secret"])
def test_no_login_of_the_address_is_shown(login: str) -> None:
    with pytest.raises(ConfigError, match="got ftp://mlflow.example:5000$") as refused:
        export(JobHistory(), f"ftp://{login}@mlflow.example:5000", experiment="test")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e308, -1e308, 2.0])
def test_times_that_a_coordinator_makes_up_end_no_export(seconds: float) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    history = JobHistory()
    history.add(JobEvent(summary=JobSummary(name="digits", status="done", rounds=1)))
    record = PhaseRecord(round=1, phase="train", result="applied", wall_seconds=seconds, cohort=["a", "b"])
    history.add(JobEvent(record=record))
    (silos,) = [each for each in _metrics(history, seconds) if each.key == "silos"]
    assert silos.timestamp == (4000 if seconds == 2.0 else 0)
    assert (silos.value, silos.step) == (2.0, 1)


def test_figures_of_arms_have_names_that_a_server_takes() -> None:
    """MLflow refuses `@`, and `loss_2` could be the name of another figure."""
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    from mlflow.utils.validation import _validate_metric_name

    history = JobHistory()
    for number in (1, 2):
        figures = {"loss@0": 1.0, "loss@2": 2.0 / number, "arm": 0.0}
        history.add(
            JobEvent(record=PhaseRecord(round=number, phase="train", result="applied", figures=figures))
        )
    sent = {(each.key, each.step): each.value for each in _metrics(history, 0.0)}
    assert sent["loss.arm2", 1] == 1.0  # of the model after round 1, which round 2 tests
    for name, _ in sent:
        _validate_metric_name(name)
