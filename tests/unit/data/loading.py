"""Jobs whose data a silo loads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from chorale.spec.job_spec import JobSpec, ModelSpec
from chorale.spec.strategy_spec import TrainingSpec
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings


def make_job(classes: int = 10, shape: tuple[int, ...] = (1, 8, 8), **fields: Any) -> JobSpec:
    return JobSpec(
        name="test",
        federation="test",
        not_after=datetime(2100, 1, 1, tzinfo=UTC),
        silos=("a", "b", "c"),
        rounds=1,
        model=ModelSpec(name="mlp"),
        training=TrainingSpec(learning_rate=0.1),
        classes=classes,
        input_shape=shape,
        **fields,
    )


def load(job: JobSpec, **fields: Any) -> SiloData:
    return load_data(DataSettings(**fields), job)
