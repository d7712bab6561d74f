"""Every preset through whole masked sessions: the sums that travel are those that its parts compute."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from chorale.spec.state import buffer_names, trained_names
from crypto import encoding
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from strategies.presets import PRESETS
from strategies.published import PUBLISHED
from tests.support.agents import Hub
from tests.support.simulation import phases, simulate
from tests.support.small_methods import clustered
from tests.support.soak import cases, one_for_each_sum
from tests.support.trained import Trained

SILOS, CLASSES = 4, 3
# four silos of 100 samples; each lacks one class or another, and no silo is alone with one
HELD = ([0, 1], [1, 2], [0, 2], [0, 1, 2])
JOB: dict[str, Any] = {
    "rounds": 2,
    "model": {"name": "mlp", "hidden": [8], "norm": "batch", "seed": 1},
    "classes": CLASSES,
    "input_shape": (4,),
    "training": {"learning_rate": 0.1, "batch_size": 20},
}

STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: {"preset": name} for name in PRESETS},
    **{
        f"{name}-code": {"preset": name, "as_published": "code"}
        for name, both in PUBLISHED.items()
        if both.code
    },
}
TWO_TERMS = {"head": "trained-unbiased", "regularizer": "moon", "second_regularizer": "soft-labels"}
STRATEGIES["moon-dw"] = {
    "parts": {**TWO_TERMS, "statistic": "soft-labels"},
    "options": {"mu": 5.0, "second_mu": 10.0},
}
OPEN: dict[str, Any] = {"class_statistics": "allow", "local_state": "allow", "min_class_holders": 2}


def data_of(place: int) -> SiloData:
    return clustered(np.random.default_rng(place), np.resize(HELD[place], 100), tested=20)


@pytest_asyncio.fixture
async def hub(tmp_path: Path, strategy: dict[str, Any]) -> AsyncIterator[Hub]:
    hub = Hub(tmp_path, silos=SILOS)
    fields = {**JOB, "strategy": strategy}
    hub.state = initial_state(hub.sign(**fields).spec)
    hub.job = hub.sign(**fields)
    for place, name in enumerate(hub.names):
        hub.add(name, objective=Trained(data_of(place), is_seeded=True), **OPEN)
    yield hub
    await hub.close()


@pytest.mark.parametrize("strategy", cases(STRATEGIES, always=[*one_for_each_sum(), "feddw-code", "moon-dw"]))
async def test_masked_sums_lead_where_plain_sums_lead(hub: Hub, strategy: dict[str, Any]) -> None:
    spec, start = hub.job.spec, hub.state

    def phase_of(kind: str) -> str:
        return kind if kind in spec.method.round_phases else f"{kind}.0"

    steps = simulate(
        spec,
        [data_of(place) for place in range(SILOS)],
        min_class_holders=2,
        state=start,
        public_seed=lambda round, kind: encoding.digest("projection", hub.job.digest, round, phase_of(kind)),
    )
    for (round, kind), plain in zip(phases(spec), steps, strict=True):
        await hub.run(round, phase_of(kind))
        assert sorted(hub.state) == sorted(plain.state)
        for name, array in plain.state.items():
            np.testing.assert_allclose(hub.state[name], array, rtol=0, atol=1e-4, err_msg=f"{kind}: {name}")
    assert spec.method.recipe.keeps_local_state == any(plain.local)  # what a policy is asked about
    moved = [name for name, array in start.items() if not np.array_equal(array, hub.state[name])]
    own = spec.method.own(trained_names(start), buffer_names(start))
    assert not {f"model/{name}" for name in own} & set(moved)
    assert moved or spec.method.recipe.personalization.shares_nothing
