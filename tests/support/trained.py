"""An objective of agents in sessions that trains for real."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from silo_agent.training.data.base import SiloData
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array
from tests.support.agents import OneHot
from tests.support.simulation import seeded_work


class Trained(OneHot):
    """The built-in training on data of the test's own, seeded as a simulation is where asked."""

    def __init__(self, data: SiloData, *, is_seeded: bool = False) -> None:
        super().__init__()
        self._objective = TorchObjective(device="cpu")
        self._own, self._is_seeded = data, is_seeded

    def compute(self, work: Work) -> Mapping[str, Array]:
        self.works.append(work)
        work = seeded_work(work) if self._is_seeded else work
        return self._objective.compute(dataclasses.replace(work, data=self._own))
