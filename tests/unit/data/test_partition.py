"""Partitions are disjoint and complete, and have the sizes that the papers state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.errors import ConfigError
from silo_agent.training.data.base import Labels
from silo_agent.training.data.partition import (
    Partition,
    cut_dirichlet,
    cut_iid,
    cut_shards,
    split_holdout,
)


def balanced_labels(classes: int, each: int) -> Labels:
    return np.random.default_rng(5).permutation(np.repeat(np.arange(classes), each))


def assert_disjoint_and_complete(cut: Partition, *, train: Labels, test: Labels) -> None:
    for parts, labels in ((cut.train, train), (cut.test, test)):
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@given(
    samples=st.integers(1, 300),
    silos=st.integers(1, 12),
    kind=st.sampled_from(["iid", "dirichlet", "balanced"]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_every_cut_is_disjoint_and_complete(samples: int, silos: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    train, test = rng.integers(0, 4, samples), rng.integers(0, 4, samples // 3)
    if kind == "iid":
        cut = cut_iid(train, test, silos=silos, rng=rng)
    else:
        cut = cut_dirichlet(
            train, test, classes=4, silos=silos, alpha=0.5, min_samples=0, balance=kind == "balanced", rng=rng
        )
    assert len(cut.train) == len(cut.test) == silos
    assert_disjoint_and_complete(cut, train=train, test=test)


# the table of FedDr+, section 7.2 of its card: 100 clients, CIFAR's 50,000 and 10,000 samples
@pytest.mark.parametrize(
    "classes, per_silo, shard_train, shard_test, distinct",
    [
        (10, 2, 250, 50, 1.90),
        (10, 5, 100, 20, 4.10),
        (10, 10, 50, 10, 6.47),
        (100, 10, 50, 10, 9.58),
        (100, 20, 25, 5, 18.3),
        (100, 50, 10, 2, 39.6),
        (100, 100, 5, 1, 63.5),
    ],
)
def test_shards_have_the_sizes_of_the_paper(
    classes: int, per_silo: int, shard_train: int, shard_test: int, distinct: float
) -> None:
    train, test = balanced_labels(classes, 50_000 // classes), balanced_labels(classes, 10_000 // classes)
    rng = np.random.default_rng(0)
    cut = cut_shards(train, test, classes=classes, silos=100, shards_per_silo=per_silo, rng=rng)
    assert_disjoint_and_complete(cut, train=train, test=test)
    counts = np.stack([np.bincount(train[part], minlength=classes) for part in cut.train])
    tested = np.stack([np.bincount(test[part], minlength=classes) for part in cut.test])
    assert set(counts.sum(axis=1)) == {500}
    assert set(tested.sum(axis=1)) == {100}
    assert (counts % shard_train == 0).all()
    assert np.array_equal(counts // shard_train, tested // shard_test)  # one class list for both
    held = (counts > 0).sum(axis=1)
    assert held.max() <= per_silo
    # 10 standard errors of a mean over 100 silos at the widest: no false alarm at this fixed seed
    assert held.mean() == pytest.approx(distinct, rel=0.06)


def test_shards_that_do_not_divide_are_refused_with_what_is_allowed() -> None:
    labels = balanced_labels(10, 20)
    with pytest.raises(ConfigError, match=r"4 silos x 2 shards .* must be a multiple of 10"):
        cut_shards(labels, labels, classes=10, silos=4, shards_per_silo=2, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("silos", "shards", "said"),
    [
        (10, 500, "10 silos x 500 are 5,000 shards, more .*; expected at most 20 for each silo"),
        (4, 60, "4 silos x 60 are 240 shards, more .*; expected at most 50 for each silo"),
        (4, 50, ""),
        (210, 1, "210 silos x 1 are 210 shards, more .*; expected fewer silos"),
    ],
)
def test_more_shards_than_samples_are_refused_with_what_is_allowed(
    silos: int, shards: int, said: str
) -> None:
    """A silo without a sample was told, which named neither the shards nor a way out."""
    labels, rng = balanced_labels(10, 20), np.random.default_rng(0)
    if said:
        with pytest.raises(ConfigError, match=said):
            cut_shards(labels, labels, classes=10, silos=silos, shards_per_silo=shards, rng=rng)
    else:
        cut = cut_shards(labels, labels, classes=10, silos=silos, shards_per_silo=shards, rng=rng)
        assert {len(part) for part in cut.train} == {shards}


def test_dirichlet_cuts_train_and_test_in_the_same_fractions() -> None:
    train, test = balanced_labels(10, 1000), balanced_labels(10, 1000)
    rng = np.random.default_rng(3)
    cut = cut_dirichlet(train, test, classes=10, silos=8, alpha=0.3, min_samples=10, rng=rng)
    for mine, tested in zip(cut.train, cut.test, strict=True):
        assert np.array_equal(np.bincount(train[mine], minlength=10), np.bincount(test[tested], minlength=10))


def test_smaller_alpha_is_less_even() -> None:
    labels = balanced_labels(10, 500)

    def spread(alpha: float) -> float:
        rng = np.random.default_rng(1)
        cut = cut_dirichlet(labels, labels, classes=10, silos=10, alpha=alpha, min_samples=1, rng=rng)
        counts = np.stack([np.bincount(labels[part], minlength=10) for part in cut.train])
        return float(counts.std(axis=0).mean())

    assert spread(0.1) > spread(1.0) > spread(100.0)


def test_dirichlet_redraws_until_every_silo_has_its_samples() -> None:
    labels = balanced_labels(10, 50)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cut = cut_dirichlet(labels, labels, classes=10, silos=10, alpha=0.3, min_samples=10, rng=rng)
        assert min(len(part) for part in cut.train) >= 10


def test_dirichlet_without_minimum_leaves_silos_with_less() -> None:
    labels = balanced_labels(10, 50)
    sizes = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cut = cut_dirichlet(labels, labels, classes=10, silos=10, alpha=0.1, min_samples=0, rng=rng)
        sizes.append(min(len(part) for part in cut.train))
    assert min(sizes) < 10


@pytest.mark.parametrize("alpha", [0.5, 1e-4])
def test_dirichlet_ends_after_a_thousand_draws(alpha: float) -> None:
    labels = balanced_labels(2, 10)
    with pytest.raises(ConfigError, match="no cut in 1000 draws gives each of 5 silos 5 samples"):
        cut_dirichlet(
            labels, labels, classes=2, silos=5, alpha=alpha, min_samples=5, rng=np.random.default_rng(0)
        )


def test_balance_keeps_the_largest_silo_smaller() -> None:
    labels = balanced_labels(10, 200)

    def largest(balance: bool) -> float:
        sizes = []
        for seed in range(10):
            rng = np.random.default_rng(seed)
            cut = cut_dirichlet(
                labels, labels, classes=10, silos=8, alpha=0.3, min_samples=10, balance=balance, rng=rng
            )
            sizes.append(max(len(part) for part in cut.train))
        return float(np.mean(sizes))

    assert largest(balance=True) < largest(balance=False)


def test_balance_draws_again_where_all_of_a_class_falls_to_a_full_silo() -> None:
    labels = balanced_labels(2, 20)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        cut = cut_dirichlet(
            labels, labels, classes=2, silos=2, alpha=1e-6, min_samples=10, balance=True, rng=rng
        )
        assert [len(part) for part in cut.train] == [20, 20]


def test_same_seed_cuts_alike_and_another_does_not() -> None:
    labels = balanced_labels(10, 40)

    def cut(seed: int) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        found = cut_dirichlet(labels, labels, classes=10, silos=4, alpha=0.5, min_samples=10, rng=rng)
        return [part.tolist() for part in found.train]

    assert cut(1) == cut(1)
    assert cut(1) != cut(2)


def test_holdout_is_exact_in_number_and_even_over_classes() -> None:
    labels = balanced_labels(10, 37)
    kept, held = split_holdout(labels, fraction=0.2, rng=np.random.default_rng(0))
    assert len(held) == 74
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(370))
    assert set(np.bincount(labels[held], minlength=10)) <= {7, 8}


def test_holdout_of_nothing_keeps_everything() -> None:
    kept, held = split_holdout(balanced_labels(3, 5), fraction=0.0, rng=np.random.default_rng(0))
    assert len(kept) == 15
    assert len(held) == 0


def test_every_silos_part_is_the_one_that_it_would_load_by_itself() -> None:
    pytest.importorskip("sklearn", reason="digits need the extra silo")
    from silo_agent.training.data.loading import load_data, load_partition
    from silo_agent.training.data.settings import DataSettings
    from tests.unit.simulation.conftest import spec_of

    spec = spec_of(4, classes=10, input_shape=[64])
    cut = {"kind": "dirichlet", "silos": 4, "index": 0, "seed": 5}
    settings = DataSettings.model_validate({"format": "digits", "partition": cut})
    for index, part in enumerate(load_partition(settings, spec)):
        alone = DataSettings.model_validate({"format": "digits", "partition": {**cut, "index": index}})
        own = load_data(alone, spec)
        for mine, its in ((part.train, own.train), (part.holdout, own.holdout)):
            assert np.array_equal(mine.features, its.features)
            assert np.array_equal(mine.labels, its.labels)
