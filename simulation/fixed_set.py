"""A fixed test set: one split of the data on which every round's model is tested, whichever silos
were drawn.

Only a simulation has one. A federation's coordinator has no data, and the silos' hold-outs leave them as sums
alone (docs/simulation.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from chorale.job import Job
from chorale.spec.job_spec import phase_context
from chorale.spec.state import GlobalState
from silo_agent.training.computed_columns import standardized
from silo_agent.training.data.base import SampleSet, SiloData
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from simulation.results import PREFIX
from strategies.figure import flat_figures
from strategies.phases.evaluation import EVALUATE_ALL


class FixedTestSet:
    """samples: those that no silo trains on. device: auto, cpu or cuda."""

    def __init__(self, job: Job, samples: SampleSet, *, device: str) -> None:
        self._job = job
        self._data = SiloData(train=samples.first(0), holdout=samples, name="test")
        self._objective = TorchObjective(device=device)

    def figures(self, state: GlobalState) -> Mapping[str, float]:
        """Of the model as it is in this state: test_accuracy, test_loss, test_tested ..., without noise."""
        spec, silos = self._job.training, len(self._job.training.silos)
        work = Work(
            spec=spec,
            phase_kind=EVALUATE_ALL,
            round=spec.rounds,
            silo=self._data.name,
            state=state,
            context=phase_context(spec, spec.rounds, state, silos, public_seed=bytes(32)),
            data=standardized(self._data, spec, state),
            weight=0.0,
            seed=spec.seed,
            is_cancelled=lambda: False,
        )
        found = self._job.method.task.figures(self._objective.test(work))
        return flat_figures({f"{PREFIX}{name}": each for name, each in found.items()})
