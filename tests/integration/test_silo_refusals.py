"""What a silo cannot sum: spoiled data, a diverged update, a job that its policy refuses.

The coordinator and the operator learn one code; why, the silo says in its own log, and keeps running.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.jobs.attempt_runner import SHARES_RECEIVED
from tests.support.federation import LocalFederation
from tests.support.processes import wait_until

Settings = dict[str, Any]


def _npz(folder: Path, features: Any, labels: Any) -> Settings:
    path = folder / "data.npz"
    np.savez(path, x=np.asarray(features, np.float32), y=np.asarray(labels, np.int64))
    return {"data": {"format": "npz", "path": str(path)}, "objective": None}


def _missing_number(folder: Path) -> Settings:
    features = np.zeros((40, 2))
    features[7, 1] = np.nan
    return _npz(folder, features, np.arange(40) % 2)


def _label_out_of_range(folder: Path) -> Settings:
    return _npz(folder, np.zeros((40, 2)), 1 + np.arange(40) % 2)


def _other_classes(_folder: Path) -> Settings:
    return {"data": {"format": "digits"}, "objective": None}


def _no_samples(folder: Path) -> Settings:
    return _npz(folder, np.zeros((0, 2)), [])


def _other_shape(folder: Path) -> Settings:
    return _npz(folder, np.zeros((40, 3)), np.arange(40) % 2)


def _diverged_update(_folder: Path) -> Settings:
    return {"objective": "tests.integration.test_silo_refusals:diverged_objective"}


SPOILED = [
    (_missing_number, "features hold NaN or infinity, expected finite numbers"),
    (_label_out_of_range, r"record 1: labels must be 0 to 1 .*, got 2"),
    (_other_classes, "classes: expected 10 for the digits data, got 2"),
    (_no_samples, "no training samples in this silo, expected at least 1"),
    (_other_shape, r"a sample has shape \(3,\), the job's input_shape is \(2,\)"),
    (_diverged_update, r"quantity delta: a value is not finite"),
]


@pytest.mark.parametrize(("spoil", "expected"), SPOILED, ids=[row[0].__name__.strip("_") for row in SPOILED])
def test_silo_that_cannot_contribute_says_why_and_the_job_ends(
    spoil: Any, expected: str, tmp_path: Path
) -> None:
    with LocalFederation(folder=tmp_path / "federation", silos=3) as federation:
        federation.start_coordinator()
        for name in federation.names:
            federation.silo = spoil(tmp_path) if name == "silo-0" else {}
            federation.start_silo(name)
        _check_refused(federation, code=1, said="data", expected=expected)


def test_refusal_by_policy_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3, policy={"max_rounds": 1}) as federation:
        federation.start()
        _check_refused(
            federation, code=3, said="policy: max_rounds", expected="expected at most 1, got 2 rounds"
        )


def test_class_statistic_of_the_last_phase_is_refused_before_the_first(tmp_path: Path) -> None:
    """SphereFed sums by class only after its last round."""
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        federation.start()
        expected = r"expected no class statistics \(class_statistics: refuse\), got quantity moment"
        said = "policy: class_statistics"
        _check_refused(federation, code=3, said=said, expected=expected, strategy={"preset": "spherefed"})
        assert all(record["event"] != SHARES_RECEIVED for record in federation.hub.records())


def _check_refused(federation: LocalFederation, *, code: int, said: str, expected: str, **job: Any) -> None:
    """said: the code, and the policy field, that left the silo. expected: what its own log says."""
    wait_until(lambda: _connected(federation) == set(federation.names), "all silos")
    job_id = federation.submit(rounds=2, **job)
    watched = federation.cli("job", "watch", job_id)
    last = watched.stderr.splitlines()[-1]
    assert last.startswith(f"chorale: error: job {job_id}: failed: refused by silos: "), watched.stderr
    assert (watched.returncode, f"({said})" in last) == (code, True)
    silo = federation.services["silo-0"]
    silo.wait_for(
        lambda record: record["level"] != "info" and re.search(expected, str(record)) is not None, seconds=30
    )
    assert silo.is_running


def _connected(federation: LocalFederation) -> set[str]:
    records = federation.hub.records()
    return {record["silo"] for record in records if record["event"] == "silo connected"}


class _Diverged:
    """Training that ended in NaN."""

    def compute(self, work: Any) -> dict[str, Any]:
        phase = work.spec.method.phase(work.phase_kind)
        quantities = [each for each in phase.quantities(work.context) if each.name != "clipped"]
        values = {each.name: np.zeros(each.shape) for each in quantities}
        return values | {"delta": np.full_like(values["delta"], np.nan)}


def diverged_objective() -> _Diverged:
    return _Diverged()
