"""Settings that a test reads for one or two of their fields."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chorale.spec.job_spec import JobSpec
from silo_agent.settings import SiloSettings


def silo_settings(folder: Path, **fields: Any) -> SiloSettings:
    """Of a silo whose files lie in the folder, those that no test reads nowhere; no coordinator runs."""
    nowhere = folder / "nowhere"
    values = {
        "name": "clinic",
        "federation": "test",
        "coordinator": "127.0.0.1:9",
        "identity": {"certificate": nowhere, "key": nowhere},
        "authority": nowhere,
        "directory": folder / "state",
        "policy": nowhere,
        "data": {"format": "digits"},
    }
    return SiloSettings.model_validate(values | fields)


def job_spec(*, training: dict[str, Any] | None = None, **fields: Any) -> JobSpec:
    """Of four silos that train an mlp on ten classes of 8 x 8 images; `training` takes over single fields."""
    values = {
        "name": "test",
        "federation": "test",
        "not_after": datetime(2100, 1, 1, tzinfo=UTC),
        "silos": ("a", "b", "c", "d"),
        **({} if "steps" in fields else {"rounds": 10}),
        "model": {"name": "mlp", "hidden": (32,), "seed": 1},
        "training": {"learning_rate": 0.1, **(training or {})},
        "classes": 10,
        "input_shape": (1, 8, 8),
    }
    return JobSpec.model_validate(values | fields)
