"""Masks without a session: a vector, its masks and what removes them, under made-up seeds."""

# L = words of one vector

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from bench.session import BOUND
from crypto.fixed_point.layout import Layout, Quantity
from crypto.masking.masks import Masker, SignedSeed, Source, UnmaskPlan

QUANTITY = "delta"
DEVIATION = BOUND / 16  # of a value: few of them are near the bound, as in training
_COHORT_DIGEST = bytes(32)


def layout(length: int, *, word: int, silos: int) -> Layout:
    """One quantity of that many values."""
    quantity = Quantity(name=QUANTITY, shape=(length,), bound=BOUND, ring_bits=word)
    return Layout(quantities=(quantity,), members=silos)


def values(length: int, *, seed: int) -> NDArray[np.float32]:
    """Updates of one silo."""
    return np.random.default_rng(seed).normal(0.0, DEVIATION, length).astype(np.float32)


def masker(vector: Layout, *, silos: int) -> Masker:
    """Of a silo among so many, itself included."""
    return Masker(layout=vector, cohort_digest=_COHORT_DIGEST, seeds=_seeds(silos))


def unmask_plan(vector: Layout, *, survivors: int, lost: int) -> UnmaskPlan:
    """One stream per survivor and one per pair of survivor and lost silo."""
    seeds = _seeds(survivors * (1 + lost))
    return UnmaskPlan(layout=vector, cohort_digest=_COHORT_DIGEST, seeds=seeds, survivors=())


def exhaust(sender: Masker, source: Source, *, workers: int | None = None) -> None:
    """Every chunk is released when the next one is asked for, as on its way to the wire."""
    deque(sender.stream(source, workers=workers), maxlen=0)


def _seeds(number: int) -> tuple[SignedSeed, ...]:
    return tuple(
        SignedSeed(seed=index.to_bytes(32, "big"), sign=1 if index % 2 else -1) for index in range(number)
    )
