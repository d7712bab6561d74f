"""Personal models through masked sessions: what the coordinator learns, what each silo keeps, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest_asyncio
import safetensors.numpy

from chorale.transport import wire
from crypto.errors import Refusal
from silo_agent.local_storage.personal_models import KeptModel
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from strategies.base import Array, PhaseContext
from strategies.parts.closing.fine_tuning import FINE_TUNE_PHASE
from tests.support.agents import Hub
from tests.support.small_methods import clustered
from tests.support.trained import Trained

SILOS, CLASSES = 4, 3
JOB: dict[str, Any] = {
    "rounds": 1,
    "strategy": {"preset": "fedavg_ft", "options": {"fine_tune_learning_rate": 0.2}},
    "model": {"name": "mlp", "hidden": [8], "seed": 1},
    "classes": CLASSES,
    "input_shape": (4,),
    "training": {"learning_rate": 0.05, "batch_size": 20},
}


def data_of(place: int) -> SiloData:
    """Silo 3 has no hold-out."""
    labels = np.resize([place % 3, (place + 1) % 3], 100)
    return clustered(np.random.default_rng(place), labels, spread=0.4, tested=0 if place == 3 else 40)


@pytest_asyncio.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    hub = Hub(tmp_path, silos=SILOS)
    hub.state = initial_state(hub.sign(**JOB).spec)
    hub.job = hub.sign(**JOB)
    for place, name in enumerate(hub.names):
        hub.add(name, objective=Trained(data_of(place)))
    for round, phase in ((0, "enrollment.0"), (1, "train"), (1, "evaluate.0")):
        await hub.run(round, phase)
    yield hub
    await hub.close()


def kept(hub: Hub, name: str) -> KeptModel:
    return hub.agents[name].personal.find(hub.job.id)


def content(hub: Hub, name: str) -> tuple[dict[str, bytes], Mapping[str, str]]:
    """Arrays and facts; the order of facts in a file is its writer's."""
    file = kept(hub, name)
    arrays = safetensors.numpy.load_file(file.path)
    return {key: array.tobytes() for key, array in arrays.items()}, file.facts


def own_accuracies(hub: Hub) -> list[float]:
    """Of the silos that have a hold-out, from their own files."""
    facts = [kept(hub, name).facts for name in hub.names]
    return [float(each["accuracy"]) for each in facts if "accuracy" in each]


def reported(sums: Mapping[str, Array]) -> Mapping[str, float]:
    """What the coordinator reports; the phase asks nothing of its context."""
    context = PhaseContext(round=1, members=SILOS, classes=CLASSES, state={}, trained=())
    assert sorted(sums) == sorted(quantity.name for quantity in FINE_TUNE_PHASE.quantities(context))
    return FINE_TUNE_PHASE.figures(context, sums)


async def test_the_coordinator_learns_mean_and_deviation_and_each_silo_keeps_its_own(hub: Hub) -> None:
    before = hub.state
    figures = reported(await hub.run(1, "fine-tune.0"))
    accuracies = own_accuracies(hub)
    assert len(accuracies) == 3  # silo-3 has no hold-out, and a model none the less
    assert len(set(accuracies)) > 1
    assert figures["personal_silos"] == 3.0
    hundredths = [round(each, 2) for each in accuracies]
    assert abs(figures["personal_accuracy"] - np.mean(hundredths)) < 1e-3
    assert abs(figures["personal_accuracy_deviation"] - np.std(hundredths)) < 1e-2
    assert sorted(hub.state) == sorted(before)
    files = [kept(hub, name) for name in hub.names]
    assert len({file.path.read_bytes() for file in files}) == SILOS
    assert all(
        hub.agents[name].personal.is_confirmed(file) for name, file in zip(hub.names, files, strict=True)
    )
    assert {file.facts["global_model"] for file in files} == {hub.put(before).hex()}


async def test_a_silo_that_dies_after_fine_tuning_keeps_its_model_until_the_phase_comes_again(
    hub: Hub,
) -> None:
    """It is killed before its vector leaves; the next attempt trains another model, on other batches."""
    exchange = hub.begin(1, "fine-tune.0")
    await hub.advertise(exchange)
    first = content(hub, "silo-0")
    await hub.agents["silo-0"].restart()
    assert content(hub, "silo-0") == first
    assert not hub.agents["silo-0"].personal.is_confirmed(kept(hub, "silo-0"))
    figures = reported(await hub.run(1, "fine-tune.0", attempt=2))
    assert content(hub, "silo-0")[0] != first[0]
    assert hub.agents["silo-0"].personal.is_confirmed(kept(hub, "silo-0"))
    assert (
        abs(figures["personal_accuracy"] - np.mean([round(each, 2) for each in own_accuracies(hub)])) < 1e-3
    )


async def test_a_later_phase_exchanges_no_confirmed_model(hub: Hub) -> None:
    """Not one over the same state, and one over a state of the coordinator's own making is refused."""
    await hub.run(1, "fine-tune.0")
    first = kept(hub, "silo-1").path.read_bytes()
    works = hub.agents["silo-1"].objective.works
    computed = len(works)
    forged = {name: np.zeros_like(array) if "head" in name else array for name, array in hub.state.items()}
    exchange = hub.begin(1, "fine-tune.1", state=forged)
    assert await hub.agents["silo-1"].refusal(task=exchange.task) == Refusal.STATE.value
    assert len(works) == computed
    await hub.agents["silo-1"].answer("advert", task=hub.begin(1, "fine-tune.1").task)
    assert [work.phase_kind for work in works[computed:]] == ["fine-tune"]
    assert kept(hub, "silo-1").path.read_bytes() == first


async def test_personal_sums_of_nearly_the_same_silos_are_refused(hub: Hub) -> None:
    """Their difference would be one silo's accuracy."""
    await hub.run(1, "fine-tune.0")
    exchange = hub.begin(1, "fine-tune.1")
    await hub.advertise(exchange)
    await hub.share(exchange)
    await hub.mask(exchange, without=["silo-2"])
    survivors = wire.to_silo(exchange.session.close_masked(), exchange.key).survivors
    for name in ("silo-0", "silo-1", "silo-3"):
        assert await hub.agents[name].refusal(survivors=survivors) == Refusal.OVERLAPPING_COHORT.value
