"""The objective of a real silo whose shuffles are those of a simulation: an agent draws its own."""

from __future__ import annotations

from collections.abc import Mapping

from silo_agent.training.objective import Objective, Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array
from tests.support.simulation import seeded_work


class Seeded:
    """The built-in training by the job's seed."""

    def __init__(self) -> None:
        self._trained = TorchObjective(device="cpu")

    def compute(self, work: Work) -> Mapping[str, Array]:
        return self._trained.compute(seeded_work(work))


def objective() -> Objective:
    return Seeded()
