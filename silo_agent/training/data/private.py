"""Data of a private job: what becomes of a record depends on that record alone.

A job chooses the columns' mean, scale and fill, the label column and the classes. If one record
could have the job refused, or move other records between training and hold-out, the refusal or the
sums would tell of it beyond what any noise covers. So nothing of one record is refused here: it is
corrected or left out by itself. Source: docs/privacy.md, "Which records are held out".

N = records.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chorale_models.data import Identities
from crypto import encoding
from silo_agent.training.data.base import MAX_LABEL, Features, Labels, Samples

FARTHEST = 1_000_000  # no feature of a private job is beyond it; standardized ones are about 1
Mask = NDArray[np.bool_]


def boxed(features: Features) -> tuple[Features, int]:
    """The features with every value finite and within +-FARTHEST, and how many were not.

    NaN and infinity become 0, which is where standardized columns have their mean. Whole numbers keep their
    type.
    """
    if features.dtype.kind != "f":
        lowest = 0 if features.dtype.kind == "u" else -FARTHEST
        clipped = np.clip(features, lowest, FARTHEST) if features.dtype.itemsize > 2 else features
        return clipped, int(np.count_nonzero(clipped != features))
    wide = features.astype(np.float32) if features.dtype.itemsize < 4 else features
    is_inside = np.abs(wide) <= FARTHEST  # False for NaN
    outside = int(wide.size - np.count_nonzero(is_inside))
    if not outside:
        return wide, 0
    return np.clip(np.where(np.isfinite(wide), wide, 0), -FARTHEST, FARTHEST), outside


def row_hash(record: bytes) -> bytes:
    """What orders the rows of a unit."""
    return encoding.digest("unit-row", record)


def record_bytes(features: Features, label: Labels) -> bytes:
    """In one number format, whatever other records made of the array's: an integer is the same as a float.
    A label that is one whole number is the 8 bytes of it, whatever the job's task is; any other one float64.
    """
    made = np.asarray(features, dtype="<f8").tobytes()
    label_f8 = np.asarray(label, dtype="<f8")
    if label_f8.size == 1 and abs(value := label_f8.item()) <= MAX_LABEL and value.is_integer():
        return made + int(label_f8.item()).to_bytes(8, "big", signed=True)
    return made + label_f8.tobytes()


def every(identities: Identities) -> Iterator[bytes | None]:
    """None: one that cannot be read."""
    for place in range(len(identities)):
        try:
            yield identities[place]
        except Exception:  # what files and an institution's own data sets raise is on no list
            yield None


def stored(samples: Samples, identities: Identities | None = None) -> Iterator[bytes]:
    """Each record as its file holds it. identities: where the features are already made for the job."""
    if identities is not None:
        return (identities[place] for place in range(len(identities)))
    return (record_bytes(*pair) for pair in zip(samples.features, samples.labels, strict=True))
