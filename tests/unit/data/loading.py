"""Jobs whose data a silo loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chorale.spec.job_spec import JobSpec
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings
from tests.support.settings import job_spec


def make_job(classes: int | Sequence[str] = 10, shape: tuple[int, ...] = (1, 8, 8), **fields: Any) -> JobSpec:
    """classes: how many, or their names."""
    values = {"silos": ("a", "b", "c"), "rounds": 1, "model": {"name": "mlp"}}
    return job_spec(classes=classes, input_shape=shape, **values | fields)


def load(job: JobSpec, **fields: Any) -> SiloData:
    return load_data(DataSettings(**fields), job)
