"""Which records do not fit the job: a target that the task does not have, a feature that is no number.

N = samples.
"""

from __future__ import annotations

import math

import numpy as np

from chorale.spec.job_spec import JobSpec
from silo_agent.training.data.base import NO_LABEL, Features, Labels, RawData, Samples
from silo_agent.training.data.fitting import expected_inputs, known_inputs
from silo_agent.training.data.private import FARTHEST
from silo_agent.training.data.workers import Unread, read_places
from strategies.tasks.base import Target

TWICE = 8  # samples that are read twice


def add_misfits(raw: RawData, job: JobSpec) -> None:
    """A problem for each record in memory that would be refused, or corrected in a private job.

    What is wrong with all of them, such as a type or a shape, is left to the checks of the whole.
    """
    splits = [("record", raw.place, raw.train)]
    if raw.holdout is not None:
        splits.append(("test record", None, raw.holdout))
    target = job.method.task.target
    for what, place, samples in splits:
        if not isinstance(samples, Samples):
            continue  # each is looked at when it is read (scan)
        found = [
            (index, message, f"{what}: {message}") for index, message in _targets(samples.labels, target)
        ]
        found += [(index, message, "") for index, message in _features(samples.features, job)]
        for index, message, alike in sorted(found):
            where = f"{what} {index}" if place is None else place(index)
            raw.problems.add(f"{where}: {message}", alike=alike)


def add_unsteady(raw: RawData) -> None:
    """A problem for the first of some samples that is another one when it is read again: each is read once,
    so what was drawn for it would stay."""
    for what, samples in (("record", raw.train), ("test record", raw.holdout)):
        if samples is None or isinstance(samples, Samples):
            continue
        places = range(min(len(samples), TWICE))
        first, again = read_places(samples, places), read_places(samples, places)
        for place, one, other in zip(places, first, again, strict=True):
            if not isinstance(one, Unread) and not isinstance(other, Unread) and _differ(one, other):
                raw.problems.add(
                    f"{what} {place}: it is another sample when it is read again: random transforms belong "
                    "in the job (augment) or in Data.train_transform"
                )
                break


def _differ(one: tuple[Features, Labels], other: tuple[Features, Labels]) -> bool:
    return any(each.tobytes() != its.tobytes() for each, its in zip(one, other, strict=True))


def _targets(labels: Labels, target: Target) -> list[tuple[int, str]]:
    is_one = labels.ndim == 1
    if labels.dtype.kind not in "iubf" or labels.shape[1:] != target.shape:
        return []
    is_told = (labels == NO_LABEL) if is_one else np.zeros(len(labels), np.bool_)  # by its loader
    expected = f"labels must be {target.range} (by the job's task and classes)"
    return [
        (int(index), f"{expected}, got {labels[index]:g}" if is_one else expected)
        for index in np.flatnonzero(~target.fitting(labels) & ~is_told)
    ]


def _features(features: Features, job: JobSpec) -> list[tuple[int, str]]:
    if features.dtype.kind != "f":
        message = expected_inputs(job)
        return [(int(index), message) for index in np.flatnonzero(~known_inputs(features, job))]
    flat = features.reshape(len(features), math.prod(features.shape[1:]))
    if job.privacy is None:
        message, is_fine_N = (
            "features hold NaN or infinity, expected finite numbers",
            np.isfinite(flat).all(1),
        )
    else:
        message, is_fine_N = (
            f"a feature is not within +-{FARTHEST:g}, where it is cut off",
            (abs(flat) <= FARTHEST).all(1),
        )
    return [(int(index), message) for index in np.flatnonzero(~is_fine_N)]
