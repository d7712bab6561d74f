"""Simulations of one-hot silos: a 2 in the sum is a replay, a 1 for a silo left out a phantom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

from chorale.spec.job_spec import JobSpec
from simulation.engine import Simulation
from tests.support import one_hot

SILOS = 7
Makes = Callable[..., Simulation]


def spec_of(silos: int = SILOS, **fields: Any) -> JobSpec:
    values = {
        "name": "one-hot",
        "federation": "test",
        "silos": [f"silo-{place}" for place in range(silos)],
        "rounds": 3,
        "model": {"name": "custom"},
        "classes": 2,
        "input_shape": [2],
        "training": {"learning_rate": 0.1},
        "not_after": "2099-01-01T00:00:00Z",
        **fields,
    }
    return JobSpec.from_yaml(yaml.safe_dump(values).encode(), source="job.yaml")


def votes(silos: int = SILOS) -> dict[str, Any]:
    return {"model/votes": np.zeros(silos, np.float32)}


@pytest.fixture
def make() -> Makes:
    """A simulation of one-hot silos; fields of the job, or `simulation` for arguments of its own."""

    def making(*, silos: int = SILOS, simulation: dict[str, Any] | None = None, **fields: Any) -> Simulation:
        spec = spec_of(silos, **fields)
        data = {name: one_hot.silo_data(name) for name in spec.silos}
        given = {"state": votes(silos), "objective": one_hot.objective(), **(simulation or {})}
        return Simulation(spec, data, **given)

    return making
