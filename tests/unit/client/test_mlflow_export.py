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
