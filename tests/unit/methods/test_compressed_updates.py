"""Every method with its update in 16 bits: in the ring and in sessions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from strategies.base import Array
from strategies.parts.personalization import ALONE, OWN_BODY
from strategies.presets import PRESETS
from strategies.update_scale import RMS
from tests.support.agents import Hub
from tests.support.objectives import make_job
from tests.support.simulation import Simulated, phases, simulate
from tests.support.small_methods import clustered
from tests.support.trained import Trained

SILOS, CLASSES = 4, 3
JOB: Mapping[str, Any] = {
    "rounds": 2,  # the first takes 32 bits, the second 16
    "model": {"name": "mlp", "hidden": [32], "norm": "batch", "seed": 1},
    "classes": CLASSES,
    "input_shape": (4,),
    "training": {"learning_rate": 0.1, "batch_size": 20},
}


def data_of(place: int) -> SiloData:
    return clustered(np.random.default_rng(place), np.resize([0, 1, 2], 60), tested=20)


def run(preset: str, **fields: Any) -> list[Simulated]:
    spec = make_job({"preset": preset}, **{**JOB, **fields})
    return list(simulate(spec, [data_of(place) for place in range(SILOS)], in_ring=True))


def model_of(state: Mapping[str, Array]) -> Array:
    floats = [np.ravel(state[name]) for name in sorted(state) if name.startswith("model/body")]
    return np.concatenate(floats).astype(np.float64)


BODY_STAYS = {OWN_BODY, ALONE}  # nothing of it is summed, in any number of bits


@pytest.mark.parametrize(
    "preset", [name for name, recipe in PRESETS.items() if recipe.personalization not in BODY_STAYS]
)
def test_sixteen_bits_lead_where_thirty_two_lead(preset: str) -> None:
    half, whole = run(preset, update_bits=16), run(preset)
    start_P, end_P = model_of(whole[0].state), model_of(whole[-1].state)
    apart = np.linalg.norm(model_of(half[-1].state) - end_P)
    assert apart < 0.05 * np.linalg.norm(end_P - start_P)
    rms = [float(step.state[RMS]) for step in half if step.phase == "train"]
    assert len(rms) == 2
    assert min(rms) > 0.0
    assert all(step.figures["clipped"] == 0 for step in half if step.phase == "train")


async def test_masked_sessions_agree_on_the_bound_and_the_projection(tmp_path: Path) -> None:
    """Coordinator and silos compute the layout apart; where one differed there would be no session."""
    fields = {**JOB, "strategy": {"preset": "fedavg"}, "update_bits": 16}
    hub = Hub(tmp_path, silos=SILOS)
    try:
        hub.state = initial_state(hub.sign(**fields).spec)
        hub.job = hub.sign(**fields)
        for place, name in enumerate(hub.names):
            hub.add(name, objective=Trained(data_of(place), is_seeded=True))
        start_P = model_of(hub.state)
        for round, kind in phases(hub.job.spec):
            await hub.run(round, kind if kind == "train" else f"{kind}.0")
        assert float(hub.state[RMS]) > 0.0
        *_, plain = simulate(hub.job.spec, [data_of(place) for place in range(SILOS)], in_ring=True)
        end_P = model_of(plain.state)
        apart = np.linalg.norm(model_of(hub.state) - end_P)
        assert apart < 0.02 * np.linalg.norm(end_P - start_P)
    finally:
        await hub.close()
