"""Cut one data set into silos, for runs on one machine: IID, shards, Dirichlet.

Train and test are cut alike, so that a silo is tested on the classes it trains on. Every cut is
disjoint and complete. All randomness comes from the generator that is passed in, so silos that
share a seed agree on the whole cut and each takes its own part.
Source: FedDr+ section 4 (arXiv 2406.02355): sharding(s) and LDA(alpha).

K = silos, C = classes. Index arrays are sorted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.training.data.base import Indices, Labels

MAX_DRAWS = 1000  # redraws of a Dirichlet cut before the settings are called impossible
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Indices into train and test, one array per silo."""

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]


def split_holdout(labels: Labels, *, fraction: float, rng: Generator) -> tuple[Indices, Indices]:
    """Indices kept for training and held out, class by class in the same proportion.

    The hold-out has floor(fraction * N) samples.
    """
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # every 1/fraction-th sample of the class-sorted order: exact in number, even over classes
    is_held = np.diff(np.floor(np.arange(len(labels) + 1) * fraction)) > 0
    return np.sort(by_class[~is_held]), np.sort(by_class[is_held])


def cut_iid(train: Labels, test: Labels, *, silos: int, rng: Generator) -> Partition:
    """Shuffle and deal: sizes differ by at most one."""
    dealt = [np.array_split(rng.permutation(len(labels)), silos) for labels in (train, test)]
    return Partition(
        train=tuple(np.sort(part) for part in dealt[0]), test=tuple(np.sort(part) for part in dealt[1])
    )


def cut_shards(
    train: Labels, test: Labels, *, classes: int, silos: int, shards_per_silo: int, rng: Generator
) -> Partition:
    """Equal single-class shards, `shards_per_silo` (s) to each silo: at most s classes a silo.

    The list of classes that a silo draws holds for train and test.
    Raises ConfigError if silos * s shards do not divide evenly among the classes, or are more than the
    training samples.
    """
    shards = silos * shards_per_silo
    if shards % classes:
        raise ConfigError(
            f"data.partition.shards_per_silo: {silos} silos x {shards_per_silo} shards cannot be shared "
            f"evenly by {classes} classes; silos x shards_per_silo must be a multiple of {classes}"
        )
    if shards > len(train):
        step = classes // math.gcd(silos, classes)
        most = len(train) // silos // step * step
        allowed = f"expected at most {most} for each silo" if most else "expected fewer silos"
        raise ConfigError(
            f"data.partition.shards_per_silo: {silos} silos x {shards_per_silo} are {shards:,} shards, more "
            f"than there are training samples; {allowed}"
        )
    class_of_shard = rng.permutation(np.repeat(np.arange(classes), shards // classes))
    lists_KS = class_of_shard.reshape(silos, shards_per_silo)
    return Partition(
        train=_deal_shards(train, lists_KS, classes=classes, rng=rng),
        test=_deal_shards(test, lists_KS, classes=classes, rng=rng),
    )


def cut_dirichlet(
    train: Labels,
    test: Labels,
    *,
    classes: int,
    silos: int,
    alpha: float,
    min_samples: int,
    rng: Generator,
    balance: bool = False,
) -> Partition:
    """For every class c draw p_c ~ Dir(alpha) over the silos and cut the class in these fractions.

    The same p_c cut the test samples. Drawn again until every silo has `min_samples` to train on.
    balance: a silo that already holds its even part of the data gets nothing of further classes.
    Raises ConfigError after 1,000 draws.
    """
    for _ in range(MAX_DRAWS):
        shares_CK = _draw_shares(train, classes=classes, silos=silos, alpha=alpha, balance=balance, rng=rng)
        if shares_CK is None:
            continue
        cut = _deal_fractions(train, shares_CK, rng)
        if min(len(part) for part in cut) >= min_samples:
            return Partition(train=cut, test=_deal_fractions(test, shares_CK, rng))
    raise ConfigError(
        f"data.partition: no cut in {MAX_DRAWS} draws gives each of {silos} silos {min_samples} samples; "
        f"raise alpha (now {alpha:g}) or lower min_samples or silos"
    )


def _deal_shards(
    labels: Labels, lists_KS: NDArray[np.int64], *, classes: int, rng: Generator
) -> tuple[Indices, ...]:
    shards_per_class = lists_KS.size // classes
    unused = [
        np.array_split(rng.permutation(np.flatnonzero(labels == label)), shards_per_class)
        for label in range(classes)
    ]
    return tuple(np.sort(np.concatenate([unused[label].pop() for label in wanted])) for wanted in lists_KS)


def _draw_shares(
    labels: Labels, *, classes: int, silos: int, alpha: float, balance: bool, rng: Generator
) -> FloatArray | None:
    """Fractions (C, K); None if the draw leaves a class to no silo (tiny alpha)."""
    counts_C = np.bincount(labels, minlength=classes)
    held_K = np.zeros(silos, dtype=np.int64)
    shares_CK = np.empty((classes, silos))
    for label, count in enumerate(counts_C):
        shares_K = rng.dirichlet(np.full(silos, alpha))
        if balance:
            has_room_K = held_K < len(labels) / silos
            shares_K = shares_K * has_room_K if has_room_K.any() else shares_K
        if not (np.isfinite(shares_K).all() and shares_K.sum() > 0):
            return None
        shares_CK[label] = shares_K / shares_K.sum()
        held_K += np.diff(_cuts(shares_CK[label], int(count)))
    return shares_CK


def _deal_fractions(labels: Labels, shares_CK: FloatArray, rng: Generator) -> tuple[Indices, ...]:
    parts: list[list[Indices]] = [[] for _ in range(shares_CK.shape[1])]
    for label, shares_K in enumerate(shares_CK):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        cuts = _cuts(shares_K, len(shuffled))
        for part, start, stop in zip(parts, cuts[:-1], cuts[1:], strict=True):
            part.append(shuffled[start:stop])
    return tuple(np.sort(np.concatenate(part)) for part in parts)


def _cuts(shares_K: FloatArray, count: int) -> NDArray[np.int64]:
    """Where to cut `count` samples: cumulative sums rounded down, first 0 and last `count`."""
    inner = np.floor(np.cumsum(shares_K)[:-1] * count).astype(np.int64)
    return np.concatenate(([0], np.minimum(inner, count), [count]))
