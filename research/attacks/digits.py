"""scikit-learn's handwritten digits as silos hold them, cut again for every seed."""

# N = samples

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.data.formats.digits import CLASSES, read_all

SHAPE = (1, 8, 8)
NAMES = tuple(f"silo-{place:03}" for place in range(100))  # as bench.federation names them
SMALL_HOLDOUT = 5

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """All samples. Shapes: features (N, 1, 8, 8) float32 in 0..1."""

    samples: Samples

    def take(self, places_N: Places) -> Samples:
        return self.samples.take(places_N)

    def silo(self, places_N: Places) -> SiloData:
        """A silo that tests the model on few of its own samples: no attack looks at its figures."""
        samples = self.take(places_N)
        return SiloData(train=samples, holdout=samples.first(SMALL_HOLDOUT), name="digits")

    def shuffled(self, seed: int) -> Places:
        """The place of every sample, in random order."""
        return np.random.default_rng(seed).permutation(len(self.samples))

    def images(self, places_N: Places) -> NDArray[np.float64]:
        """Shapes: -> (N, 64)."""
        return self.samples.features[places_N].reshape(len(places_N), -1).astype(np.float64)

    def labels(self, places_N: Places) -> Places:
        return self.samples.labels[places_N]


@cache
def digits() -> Digits:
    """Loaded once."""
    return Digits(samples=read_all())


def job(
    preset: str,
    *,
    silos: int,
    hidden: Sequence[int] = (64,),
    training: dict[str, Any] | None = None,
    **fields: Any,
) -> JobSpec:
    """A job on the digits; `fields` are further fields of the job file."""
    values = {
        "name": "attacked",
        "federation": "bench",
        "not_after": datetime(2100, 1, 1, tzinfo=UTC),
        "silos": NAMES[:silos],
        "rounds": 1,
        "strategy": {"preset": preset},
        "model": {"name": "mlp", "hidden": tuple(hidden), "seed": fields.pop("model_seed", 0)},
        "training": {"learning_rate": 0.1, "momentum": 0.0, **(training or {})},
        "classes": CLASSES,
        "input_shape": SHAPE,
    }
    return JobSpec.model_validate(values | fields)
