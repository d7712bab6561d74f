"""Every task with sizes, options and metrics of its own, and random answers and targets for it.

N = samples.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chorale.spec.job_spec import JobSpec
from chorale_models.task import Task
from silo_agent.training.models.registry import build_task
from strategies.tasks.base import DeclaredTask
from tests.support.objectives import make_job

LENGTH = 6

# by name: the task of a job, and what else the job says
TASK_JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two-classes": (
        {"name": "classification", "metrics": ("confusion", "curves", "calibration", "temperature")},
        {"classes": 2},
    ),
    "classification": (
        {"name": "classification", "metrics": ("confusion", "curves", "calibration", "temperature")},
        {"classes": 5},
    ),
    "multi-label": (
        {"name": "multi-label", "metrics": ("confusion", "curves", "calibration")},
        {"classes": 4},
    ),
    "regression": (
        {"name": "regression", "metrics": ("r2",), "options": {"low": -20.0, "high": 60.0}},
        {"classes": 0},
    ),
    "numbers": (
        {
            "name": "regression",
            "metrics": ("r2",),
            "options": {"low": 0.0, "high": 3.0, "loss": "huber"},
        },
        {"classes": 3},
    ),
    "segmentation": (
        {"name": "segmentation", "metrics": ("overlap",), "options": {"loss": "both"}},
        {"classes": 3, "input_shape": (1, 4, 4)},
    ),
    "survival": ({"name": "survival", "metrics": ("concordance",)}, {"classes": 6}),
    "next-token": (
        {"name": "next-token"},
        {"classes": 7, "input_shape": (LENGTH,), "input_type": "int64"},
    ),
}


def job_of(name: str, **fields: Any) -> JobSpec:
    task, said = TASK_JOBS[name]
    return make_job(**({"task": task} | said | fields))


def both_of(job: JobSpec) -> tuple[DeclaredTask, Task]:
    """As both sides have it."""
    return job.method.task, build_task(job)


def answers(job: JobSpec, count: int, rng: np.random.Generator, *, spread: float = 2.0) -> Tensor:
    """What a model may say of so many samples. Shapes: -> (N, ...)."""
    task, classes = job.method.task, job.sizes.outputs
    shape: tuple[int, ...] = (classes,)
    if task.word == "segmentation":
        shape = (classes, *job.input_shape[1:])
    if task.word == "next-token":
        shape = (*job.input_shape, classes)
    return torch.from_numpy(spread * rng.normal(size=(count, *shape))).float()


def targets(job: JobSpec, count: int, rng: np.random.Generator) -> Tensor:
    """Shapes: -> (N, *target)."""
    target = job.method.task.target
    highs = np.asarray(target.highs) if target.highs else np.full(math.prod(target.shape), target.high)
    if target.is_whole:
        drawn = rng.integers(int(target.low), highs.astype(int) + 1, size=(count, len(highs)))
    else:
        drawn = rng.uniform(target.low, highs, size=(count, len(highs)))
    return torch.from_numpy(target.checked(drawn.reshape(count, *target.shape), source="drawn"))
