"""One batch of every phase of a job, at one silo: whether its model, task, data and method work together.

All silos are taken to give what this one gives, so that each phase starts from a state such as a federation
would have. Nothing is sent, spent or kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chorale.spec.job_spec import JobSpec
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey
from crypto.errors import ChoraleError
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.machine.seeding import training_seed
from silo_agent.training.objective import LocalState, Objective
from silo_agent.training.phase_input import PhaseRequest, cut_holdout, encoded, phase_values
from simulation.engine import Step, unsigned_job
from simulation.results import SimulationFailed
from simulation.silos import Answer
from simulation.sums import phase_sums, result_of
from strategies.base import Array
from strategies.phases.trees import at_widest

SELF_MASK_SEED = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTrial:
    """A phase that went well. seconds: for the samples of `batch`; upload_bytes: what its input takes.

    is_round: whether every round has it.
    """

    phase: str
    is_round: bool
    seconds: float
    upload_bytes: int
    figures: Mapping[str, float]


class Trial:
    """A job's phases on one batch of a silo's data, each in the order of the job. spec: with all its noise.

    state: the job's first.
    """

    def __init__(
        self,
        spec: JobSpec,
        silo: str,
        data: SiloData,
        *,
        state: GlobalState,
        policy: Policy,
        objective: Objective,
    ) -> None:
        shorter = {
            "rounds": min(spec.rounds, 1),
            "steps": None if spec.steps is None else 1,
            "spare_steps": None if spec.steps is None else 0,
            "keep": None,
            "search": None,  # its first arm stands for all
            "stop": None,
            "allow_silent_statistics": True,  # of one silo's batch nobody knows how many hold a class
            "training": spec.training.with_epochs(1),
        }
        self._job = unsigned_job(spec.model_copy(update=shorter), state)
        self._silo = silo
        self._policy = policy
        self._objective = objective
        self._state = state
        # of fewer than count_granularity samples no input is made
        most = max(spec.training.batch_size, policy.count_granularity)
        few = data.mapped(lambda samples: samples.first(most))
        self._data = cut_holdout(few, job=self._job, rules=policy)
        self.batch = len(few.train)
        self._kept = LocalState()

    def run(self) -> Iterator[PhaseTrial]:
        """Raises SimulationFailed that names the phase, also for what the code of others raises in it."""
        step: Step | None = (0, self._job.opening)
        while step is not None:
            try:
                tried = self._phase(*step)
            except ChoraleError as error:
                raise SimulationFailed(f"phase {step[1]}: {error}") from error
            except Exception as error:  # of a model, a task, data or an objective that is not ours
                message = f"{type(error).__name__}: {error}"
                raise SimulationFailed(f"phase {step[1]}: {message}") from error
            yield tried
            step = self._job.next_after(*step)

    def _phase(self, round: int, phase: str) -> PhaseTrial:
        job, spec = self._job, self._job.training
        members = len(spec.silos) if job.names_everyone(phase) else spec.named_per_round
        key = PhaseKey(job_digest=job.digest, round=round, phase=phase, attempt=1)
        request = PhaseRequest.of(job, key, at_widest(self._state), members=members)
        is_round = not job.names_everyone(phase)
        if is_round:  # what is loaded and made ready at the first time is not part of a round
            encoded(request, self._values(request, LocalState(self._kept.arrays)))
        started, local = time.monotonic(), LocalState(self._kept.arrays)
        values = self._values(request, local)
        encoder = encoded(request, values)
        encoder.encode()
        seconds = time.monotonic() - started
        names = [f"{place}" for place in range(request.rule.min_survivors)]
        answers = [Answer(silo=name, values=values, clipped=encoder.clipped_total) for name in names]
        seeds = dict.fromkeys(names, SELF_MASK_SEED)
        result = result_of(request, answers, phase_sums, self_mask_seeds=seeds)
        if result.state is not None:
            self._state = dict(result.state)
            self._kept = self._kept if local.proposed is None else LocalState(local.proposed)
        return PhaseTrial(
            phase=request.key.kind,
            is_round=is_round,
            seconds=seconds,
            upload_bytes=request.layout.total_bytes,
            figures={name: float(value) for name, value in result.figures.items()},
        )

    def _values(self, request: PhaseRequest, local: LocalState) -> Mapping[str, Array]:
        return phase_values(
            request,
            silo=self._silo,
            rules=self._policy,
            load_data=lambda: self._data,
            objective=self._objective,
            is_cancelled=lambda: False,
            seed=training_seed(job_seed=self._job.training.seed, silo=self._silo, round=request.key.round),
            local=local,
        )
