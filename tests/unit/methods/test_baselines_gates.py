"""The baselines train on scikit-learn's digits, cut so that silos hold few classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from silo_agent.training.data.base import SiloData
from tests.support.objectives import make_data, make_job
from tests.support.simulation import simulate

SILOS, SHARDS, ROUNDS = 10, 2, 6


def shards() -> list[SiloData]:
    """Ten silos of two shards each: most hold two or three of the ten classes."""
    images, labels = load_digits(return_X_y=True)
    generator = np.random.default_rng(1)
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    parts = np.array_split(order, SILOS * SHARDS)
    places = generator.permutation(SILOS * SHARDS).reshape(SILOS, SHARDS)
    data = []
    for own in places:
        chosen = generator.permutation(np.concatenate([parts[place] for place in own]))
        features = (images[chosen] / 16.0).reshape(-1, 1, 8, 8)
        cut = len(chosen) * 4 // 5
        data.append(
            make_data(features[:cut], labels[chosen[:cut]], holdout=(features[cut:], labels[chosen[cut:]]))
        )
    return data


def figures(preset: str) -> dict[str, float]:
    spec = make_job(
        {"preset": preset},
        rounds=ROUNDS,
        silos=tuple(f"silo-{place}" for place in range(SILOS)),
        model={"name": "mlp", "hidden": (64,), "seed": 1},
        training={"learning_rate": 0.1, "local_epochs": 3, "batch_size": 16},
    )
    *_, last = simulate(spec, shards(), min_class_holders=2, in_ring=True)
    return dict(last.figures)


@pytest.mark.gate
def test_ccvr_and_fedsol_end_above_fedavg_where_silos_hold_few_classes() -> None:
    fedavg, ccvr, fedsol = (figures(preset)["accuracy"] for preset in ("fedavg", "ccvr", "fedsol"))
    assert ccvr > fedavg + 0.05
    assert fedsol > fedavg + 0.05


PERSONAL: dict[str, Any] = {"local_only": 0.95, "lg_fedavg": 0.95, "fedproto": 0.95, "fedala": 0.95}


@pytest.mark.soak
@pytest.mark.parametrize("preset", PERSONAL)
def test_own_models_are_right_about_the_few_classes_that_a_silo_holds(preset: str) -> None:
    assert figures(preset)["personal_accuracy"] > PERSONAL[preset]
