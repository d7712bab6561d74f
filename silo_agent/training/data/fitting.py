"""A job's form of samples: its types and shapes, and what becomes of those that do not fit.

N = samples.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data import private
from silo_agent.training.data.base import Features, Samples, whole_labels

BRIGHTEST = 255  # of 8-bit pixels


def prepared(samples: Samples, job: JobSpec, *, source: str) -> Samples:
    """The samples as the job declares them. Raises ConfigError for what training cannot use."""
    labels = job.method.task.target.checked(samples.labels, source=source)
    features = as_input(samples.features, job, source=source)
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        raise ConfigError(f"{source}: features hold NaN or infinity, expected finite numbers")
    if not known_inputs(features, job).all():
        raise ConfigError(f"{source}: {expected_inputs(job)}, got {features.min()} to {features.max()}")
    return replace(samples, features=features, labels=labels)


def put_right(samples: Samples, job: JobSpec, *, source: str) -> tuple[Samples, int]:
    """As `prepared` in a private job: those without a target of the job, or with an input that it does not
    have, are left out, values that are not finite or too far are moved, and how many were. Raises
    ConfigError for types and shapes."""
    target, labels = job.method.task.target, samples.labels
    if job.method.task.has_classes:
        labels = whole_labels(labels, source=source, is_private=True)
    fits = np.flatnonzero(target.fitting(labels) & known_inputs(samples.features, job))
    kept_labels = target.checked(labels[fits], source=source)
    _check_numbers(samples.features, source=source)
    features, outside = samples.features[fits], 0
    if job.input_type != "int64":
        features, outside = private.boxed(features)
    features = as_input(features, job, source=source)
    return replace(samples.take(fits), features=features, labels=kept_labels), outside


def known_inputs(features: Features, job: JobSpec) -> NDArray[np.bool_]:
    """Which samples have no value but those of the job's vocabulary, which a model has a row for; all, where
    it has none. Shapes: (N, ...) -> (N,)."""
    values = job.input_values if job.input_type == "int64" else None
    if values is None or features.dtype.kind not in "iu":
        return np.ones(len(features), np.bool_)
    flat = features.reshape(len(features), math.prod(features.shape[1:]))
    return np.asarray(((flat >= 0) & (flat < values)).all(axis=1))


def expected_inputs(job: JobSpec) -> str:
    """For a message."""
    return f"inputs must be 0 to {(job.input_values or 0) - 1} (by the job's vocabulary)"


def check_shape(found: tuple[int, ...], job: JobSpec, *, source: str) -> None:
    """Raises ConfigError for samples that cannot be inputs of the job: as they are, with a gray channel
    added, channels first, or flat where the job asks for that."""
    shape = job.input_shape
    if shape not in (found, (1, *found), _channels_first(found), (math.prod(found),)):
        raise ConfigError(f"{source}: a sample has shape {found}, the job's input_shape is {shape}")


def _channels_first(found: tuple[int, ...]) -> tuple[int, ...]:
    return (found[2], *found[:2]) if len(found) == 3 else found


def as_input(features: Features, job: JobSpec, *, source: str) -> Features:
    """In the job's type and shape. Raises ConfigError."""
    found, shape = features.shape[1:], job.input_shape
    check_shape(found, job, source=source)
    shaped = features
    if found != shape and _channels_first(found) == shape:
        shaped = np.ascontiguousarray(features.transpose(0, 3, 1, 2))
    shaped = shaped.reshape(len(features), *shape)
    if job.input_type == "int64":
        if shaped.dtype.kind not in "iu":
            raise ConfigError(f"{source}: the job's input_type is int64, got {shaped.dtype}")
        return np.ascontiguousarray(shaped, dtype=np.int64)
    if shaped.dtype == np.uint8:
        return shaped.astype(np.float32) / np.float32(BRIGHTEST)
    _check_numbers(shaped, source=source)
    with np.errstate(over="ignore"):  # becomes infinity, which the caller refuses
        return np.ascontiguousarray(shaped, dtype=np.float32)


def _check_numbers(features: Features, *, source: str) -> None:
    if features.dtype.kind not in "iufb":
        raise ConfigError(f"{source}: features are numbers, got {features.dtype}")


def input_type(job: JobSpec) -> DTypeLike:
    return np.int64 if job.input_type == "int64" else np.float32


def sample_bytes(job: JobSpec) -> int:
    """What one sample takes in memory in the job's form, input and target."""
    target = job.method.task.target
    target_bytes = math.prod(target.shape) * (8 if target.is_whole else 4)
    return math.prod(job.input_shape) * np.dtype(input_type(job)).itemsize + target_bytes
