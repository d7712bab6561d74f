"""What a job is known to sum before anybody has its model: a silo's policy judges that at the offer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chorale.job import Job, SignedJob
from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from silo_agent.training.initial_state import initial_state
from strategies.base import TOTAL, Array
from strategies.presets import PRESETS
from tests.support.objectives import make_job
from tests.support.simulation import phases


def in_real_layouts(spec: JobSpec) -> set[str]:
    """Of every phase, from the job's own model."""
    job = Job(
        spec=spec, signed=SignedJob(spec_bytes=b"", signature=b"", operator_certificate=b""), operator="ops"
    )
    state: dict[str, Array] = {**initial_state(spec), TOTAL: np.array(400)}
    keys = [
        PhaseKey(job_digest=bytes(32), round=round, phase=kind, attempt=1) for round, kind in phases(spec)
    ]
    return {quantity.name for key in keys for quantity in job.layout(key, state, members=4).quantities}


@pytest.mark.parametrize(
    "fields",
    [{}, {"model": {"name": "cnn", "norm": "batch"}}, {"model": {"name": "cnn", "norm": "group"}}],
    ids=["mlp", "batch", "group"],
)
@pytest.mark.parametrize("preset", PRESETS)
def test_names_known_from_the_job_are_those_of_its_layouts(preset: str, fields: dict[str, Any]) -> None:
    spec = make_job({"preset": preset}, rounds=1, **fields)
    assert set(spec.quantity_names) == in_real_layouts(spec)


def test_options_change_what_is_known_to_be_summed() -> None:
    spec = make_job({"preset": "fedcsd", "options": {"count_weighted": True}}, rounds=1)
    assert set(spec.quantity_names) == in_real_layouts(spec)
    assert "class_counts" in spec.quantity_names
