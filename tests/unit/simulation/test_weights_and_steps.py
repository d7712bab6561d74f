"""How a silo's update weighs, and how many steps it is of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.loop.local_training import train_locally
from silo_agent.training.machine.seeding import shuffler
from silo_agent.training.models.registry import job_model
from simulation.engine import Simulation
from tests.support import one_hot
from tests.support.objectives import make_job, task_loss
from tests.unit.simulation.conftest import SILOS, spec_of, votes

SAMPLES = 10


def of_uneven_silos(spec: JobSpec) -> Simulation:
    """Silo i has 100 (i + 1) samples and moves the model by e_i."""

    def data(place: int) -> SiloData:
        samples = Samples(
            features=np.zeros((100 * (place + 1), 2), np.float32),
            labels=np.zeros(100 * (place + 1), np.int64),
        )
        return SiloData(train=samples, holdout=samples, name=spec.silos[place])

    silos = {name: data(place) for place, name in enumerate(spec.silos)}
    return Simulation(spec, silos, state=votes(), objective=one_hot.objective())


@pytest.mark.parametrize(
    ("aggregate", "shares_P"),
    [
        (None, np.arange(1, SILOS + 1) / 28),
        ("weighted", np.arange(1, SILOS + 1) / 28),
        ("uniform", np.full(SILOS, 1 / SILOS)),
    ],
)
def test_update_weighs_by_samples_or_the_same_at_every_silo(aggregate: str | None, shares_P: Any) -> None:
    simulation = of_uneven_silos(spec_of(rounds=1, strategy={"aggregate": aggregate}))
    (result,) = simulation.run()
    assert simulation.state["model/votes"] == pytest.approx(shares_P, abs=1e-7)
    assert result.data_share == pytest.approx(1.0, abs=1e-7)


def test_share_of_a_drawn_round_counts_silos_where_they_weigh_the_same() -> None:
    (result,) = of_uneven_silos(spec_of(rounds=1, fraction=0.7, strategy={"aggregate": "uniform"})).run()
    assert result.data_share == pytest.approx(len(result.silos) / SILOS, abs=1e-7)


def trained(training: dict[str, Any], **model: Any) -> tuple[int, dict[str, torch.Tensor], list[int]]:
    """Steps, weights after them, and how often each of ten samples was drawn."""
    job = make_job(training={"batch_size": 4, **training}, model={"name": "mlp", "hidden": (), **model})
    drawn = torch.zeros(SAMPLES, dtype=torch.int64)

    class Watched(Tensors):
        def at(self, places: Any) -> Any:
            for each in places:
                drawn[each] += 1
                yield from super().at([each])

    generator = np.random.default_rng(3)
    features = torch.tensor(generator.normal(size=(SAMPLES, 1, 8, 8)), dtype=torch.float32)
    network = job_model(job)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(0.01)
    steps = train_locally(
        network,
        Watched(features=features, labels=torch.arange(SAMPLES)),
        spec=job,
        round=1,
        loss=LocalLoss(loss=task_loss()),
        generator=shuffler(5),
        is_cancelled=lambda: False,
    )
    return steps, network.state_dict(), drawn.tolist()


def test_local_steps_of_whole_passes_are_the_epochs_bit_for_bit() -> None:
    by_epochs, by_steps = trained({"local_epochs": 2}), trained({"local_epochs": None, "local_steps": 6})
    assert by_epochs[0] == by_steps[0] == 6
    assert all(torch.equal(by_epochs[1][name], by_steps[1][name]) for name in by_epochs[1])


def test_local_steps_end_within_a_pass_and_every_pass_is_shuffled_again() -> None:
    steps, _, drawn = trained({"local_epochs": None, "local_steps": 4})
    assert steps == 4  # a pass of 3 batches, 4 + 4 + 2 samples, and 4 more
    assert sorted(set(drawn)) == [1, 2]
    assert sum(drawn) == SAMPLES + 4


def test_batches_of_one_are_refused_where_the_model_normalizes_by_the_batch() -> None:
    """They were left out one and all, so rounds were applied that trained nothing."""
    with pytest.raises(ConfigError, match="training.batch_size: batch normalization needs at least 2"):
        trained({"batch_size": 1}, hidden=(4,), norm="batch")
