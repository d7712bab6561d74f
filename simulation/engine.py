"""A job from its first phase to its last, for any number of silos in one process.

    simulation = Simulation(spec, {"silo-1": data, ...})      # SiloData each, e.g. of load_partition
    for result in simulation.run():                           # one RoundResult a round
        print(result.round, result.accuracy, result.loss, result.wall_seconds)
    simulation.final_accuracy, simulation.final_loss          # the closing evaluation's
    simulation.closing                                        # figures of every closing phase
    simulation.state                                          # the global state: model/..., method/...
    simulation.results(), simulation.plot()                   # as a federation gives them: docs/python.md
    simulation.fetch()                                        # a state_dict, as a federation gives it

What a silo computes (silo_agent/training/phase_input.py, silo_agent/training/), which phase follows, whom a
round names, what is summed and what the sum does to the model are the functions that agents and coordinator
call; only the network, the ledger and the store are not there. The same job and data give the same bits every
time on a CPU, however many workers compute them. Source: docs/simulation.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chorale.job import Job
from chorale.results import JobResults, RoundResult
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.selection import Measurements
from chorale.spec.state import GlobalState, state_digest, state_to_bytes
from chorale.transport.wire import PhaseKey, phase_kind
from crypto import encoding
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SampleSet, SiloData
from silo_agent.training.objective import Objective
from silo_agent.training.phase_input import PhaseRequest
from simulation.on_ray import Ray, RayPool
from simulation.pool import Pool
from simulation.processes import ProcessPool
from simulation.results import PERSONAL, PhaseReport, listed, round_result
from simulation.silos import Answer, Answered, Compute, Locals, SilosHere, built_in, unwatched
from simulation.stored import KeptFile, Scratch
from simulation.sums import SecureSum, needs_words, phase_sums, result_of
from strategies.base import Array
from strategies.figure import Figure, figure_in
from strategies.phases.enrollment import draw_seed_in
from strategies.phases.evaluation import ACCURACY as PERSONAL_ACCURACY
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.server_optimizer import steps_taken

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from simulation.fixed_set import FixedTestSet

NO_NONCE = "0" * 32  # of a job that is not submitted
Step = tuple[int, str]  # round and phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a simulation has come, between two phases: all that it resumes from.

    following: None after the last phase. local: by silo, what it keeps between rounds, in a file.
    closing: figures of the closing phases so far. tables: their matrices and curves, as lists.
    measured: of the models of the rounds. best: the best of them and its round, where the job keeps
    it; best_figures: the figures of the test that made it the best. evaluations: in a job that says
    `evaluate_all_every`, by round, figures of the model after it over all silos' hold-outs.
    """

    following: Step | None
    state: GlobalState = field(repr=False)
    local: Locals = field(repr=False)
    closing: Mapping[str, Mapping[str, float]]
    measured: Measurements = field(default=Measurements())
    best: tuple[int, GlobalState] | None = field(default=None, repr=False)
    best_figures: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


class Simulation:
    """One job over these silos; `run` takes it to its end.

    silos: data by name, one for each silo of the job. state: the initial one; None: by model and seed.
    policy: of every silo; None: the defaults, which hold back class rows of few silos and round counts.
    objective: None: the built-in training on `device` (auto, cpu or cuda); compute: says more of it.
    is_secure: sums go through the real sessions and masks. workers: processes that compute, each one thread;
    0: this one. ray: workers are actors of Ray instead. scratch: folder for files of its own, which go when
    it ends; None: the system's. answered: called after each silo with how many of a phase's have answered.
    self_mask_seeds: b of every silo, which rounds are drawn by; None: by the job's seed.
    test_set: samples on which every round's new model is tested besides, as test_accuracy, test_loss ...; no
    federation has such.
    Raises ConfigError where job, data and state do not go together.
    """

    def __init__(
        self,
        spec: JobSpec,
        silos: Mapping[str, SiloData],
        *,
        state: GlobalState | None = None,
        policy: Policy | None = None,
        objective: Objective | None = None,
        device: str = "auto",
        compute: Compute | None = None,
        is_secure: bool = False,
        workers: int = 0,
        ray: Ray | None = None,
        scratch: Path | None = None,
        answered: Callable[[Step, int, int], None] | None = None,
        self_mask_seeds: Mapping[str, bytes] | None = None,
        test_set: SampleSet | None = None,
    ) -> None:
        odd = sorted(set(spec.silos) ^ set(silos))
        if odd:
            where = "no data" if odd[0] in spec.silos else "data, and is no silo of the job"
            raise ConfigError(f"silos: {odd[0]} has {where}")
        if state is None:
            from silo_agent.training.models.starting import initial_state  # torch

            state = initial_state(spec)
        self.job = unsigned_job(spec, state)
        self._self_mask_seeds = self_mask_seeds or {
            name: encoding.digest("simulated-self-mask", spec.seed, name) for name in spec.silos
        }
        policy = policy or Policy(federation=spec.federation)
        compute = compute or Compute(device=device)
        self._answered = answered
        self._scratch = Scratch(scratch)
        self._silos = self._made(silos, policy, objective, compute, workers=workers, ray=ray)
        self._secure = SecureSum.of(spec) if is_secure else None
        self._test_set: FixedTestSet | None = None
        if test_set is not None:
            from simulation.fixed_set import FixedTestSet  # torch

            self._test_set = FixedTestSet(self.job, test_set, device=device)
        self.progress = Progress(following=(0, self.job.opening), state=dict(state), local={}, closing={})
        self.ended: list[RoundResult] = []

    @property
    def state(self) -> GlobalState:
        """The present global state."""
        return self.progress.state

    @property
    def model(self) -> tuple[int, GlobalState]:
        """The model that the job hands out, and the round after which it was the present one."""
        return self.progress.best or (self.progress.measured.trained, self.progress.state)

    @property
    def stopped(self) -> str:
        """Why there are fewer rounds than the job says; empty where there are not."""
        return self.progress.measured.stalled(self.job.training)

    @property
    def computed_by(self) -> str:
        """In words: how many workers, and where."""
        return self._silos.description

    @property
    def state_digest(self) -> str:
        """SHA-256 of the present global state, in hex: the same for any engine and number of workers."""
        return state_digest(state_to_bytes(self.state)).hex()

    @property
    def closing(self) -> Mapping[str, Mapping[str, float]]:
        """Figures by closing phase: evaluate, calibrate, ... All are of the last model, also where the job
        hands out another."""
        return self.progress.closing

    @property
    def shares_model(self) -> bool:
        """Whether silos train a common model, or a part of one."""
        return not self.job.method.recipe.personalization.shares_nothing

    @property
    def main_figure(self) -> str:
        """What the job's task tells first, such as accuracy or dice; of the silos' own models where they
        share none."""
        return self.job.method.task.main if self.shares_model else PERSONAL_ACCURACY

    @property
    def final_figure(self) -> Figure | None:
        """The main figure of the last model."""
        return figure_in(self.closing.get(EVALUATE, {}), self.main_figure)

    @property
    def final_accuracy(self) -> Figure | None:
        return figure_in(self.closing.get(EVALUATE, {}), "accuracy")

    @property
    def final_loss(self) -> Figure | None:
        return figure_in(self.closing.get(EVALUATE, {}), "loss")

    def run(self) -> Iterator[RoundResult]:
        """Every round that is left, as it ends, then the closing phases.

        `progress` says how far the simulation is; set to an earlier one's, it resumes from there.
        Raises SimulationFailed where too few silos give an input outside a round, ConfigError.
        """
        try:
            while self.progress.following is not None:
                round, phase = self.progress.following
                if self.job.names_everyone(phase):
                    self._run_outside(round, phase)
                else:
                    self.ended.append(self._run_round(round))
                    yield self.ended[-1]
        finally:
            self.close()

    def results(self) -> DataFrame:
        """The rounds that this object ran, a row each: JobResults.frame."""
        return self._results().frame()

    def plot(self, figure: str | None = None, *, ax: Axes | None = None) -> Axes:
        """A figure's curve over those rounds: JobResults.plot."""
        return self._results().plot(figure, ax=ax)

    def fetch(self) -> dict[str, Any]:
        """The model that the job hands out, as a state_dict of tensors: model_state_dict."""
        from silo_agent.training.models.plain import model_state_dict

        return model_state_dict(self.job.training, self.model[1])

    def _results(self) -> JobResults:
        task = self.job.method.task
        return JobResults(
            main=self.main_figure,
            measured=task.round_figures,
            draws_rounds=self.job.training.draws_rounds,
            evaluations=self.progress.evaluations,
            rounds=tuple(self.ended),
            closing={name: value for figures in self.closing.values() for name, value in figures.items()},
        )

    def close(self) -> None:
        """End the workers. `run` does so at its end."""
        self._silos.close()

    def _made(
        self,
        data: Mapping[str, SiloData],
        policy: Policy,
        objective: Objective | None,
        compute: Compute,
        *,
        workers: int,
        ray: Ray | None,
    ) -> SilosHere | Pool[Any]:
        """What answers for the silos: this process, processes of its own, or actors of Ray."""
        if ray is not None:
            return RayPool(self.job, data, policy=policy, objective=objective, compute=compute, on=ray)
        if workers:
            return ProcessPool(
                self.job,
                data,
                policy=policy,
                objective=objective,
                compute=compute,
                workers=workers,
                scratch=self._scratch,
            )
        return SilosHere(self.job, data, policy=policy, objective=objective or built_in(compute))

    def _run_outside(self, round: int, phase: str) -> None:
        report, kind = self._run_phase(round, phase), phase_kind(phase)
        if kind == EVALUATE_ALL:
            if not report.reason:  # one without a sum leaves the curve without a point
                measured = self.progress.measured.after_evaluation(self._watched(report.figures))
                self._keep(measured, self.state, report.figures)
                self._add_to_curve(report)
            steps = steps_taken(self.state)
            following = self.job.closing if self.stopped else self.job.next_after(round, phase, steps=steps)
            self.progress = replace(self.progress, following=following)
            return
        report.check_applied()
        closing, figures, tables = self.progress.closing, report.figures, report.tables
        if kind in self.job.method.closing:
            closing = {**closing, kind: figures}
        if kind == EVALUATE:
            measured = self.progress.measured.after_closing(self._watched(report.figures))
            self._keep(measured, self.state, report.figures)
            is_calibrated = self.job.method.recipe.closing.before_evaluation is not None
            if self.job.training.evaluate_all_every is not None and not is_calibrated:
                self._add_to_curve(report)
        following = self.job.next_after(round, phase)
        listed_tables = {name: listed(table) for name, table in tables.items()}
        self.progress = replace(
            self.progress,
            following=following,
            closing=closing,
            tables={**self.progress.tables, **listed_tables},
        )

    def _add_to_curve(self, report: PhaseReport) -> None:
        """Without the metrics that the closing evaluation alone has."""
        names = {*self.job.method.task.round_figures, *PERSONAL}
        figures = {name: value for name, value in report.figures.items() if name in names}
        point = {self.progress.measured.trained: {"silos": len(report.silos), **figures}}
        self.progress = replace(self.progress, evaluations={**self.progress.evaluations, **point})

    def _run_round(self, round: int) -> RoundResult:
        """All phases of the round; one that is used up uses up the round."""
        started = time.monotonic()
        reports: list[PhaseReport] = []
        kinds = self.job.method.round_phases
        for phase in kinds:
            before = self.state
            reports.append(self._run_phase(round, phase))
            if reports[-1].reason:
                break
        else:
            by_all = self.job.training.evaluate_all_every is not None
            figures = None if by_all else reports[-1].figures
            watched = None if figures is None else self._watched(figures)
            self._keep(self.progress.measured.after_round(round, watched), before, figures)
        applied = steps_taken(self.state)
        following = self.job.closing if self.stopped else self.job.next_after(round, kinds[-1], steps=applied)
        if reports[-1].reason and following is not None and phase_kind(following[1]) == EVALUATE_ALL:
            following = self.job.next_after(*following, steps=applied)  # the model stayed as it was
        self.progress = replace(self.progress, following=following)
        result = round_result(round, reports, wall_seconds=time.monotonic() - started)
        if self._test_set is None:
            return result
        return replace(result, figures={**result.figures, **self._test_set.figures(self.state)})

    def _watched(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Those that decide which model is handed out, or when rounds end."""
        rules = (self.job.training.keep, self.job.training.stop)
        wanted = {rule.metric for rule in rules if rule is not None}
        return {name: value for name, value in figures.items() if name in wanted}

    def _keep(self, measured: Measurements, tested: GlobalState, figures: Mapping[str, float] | None) -> None:
        """tested: the state whose model was measured last, the one after the last round that was applied.
        figures: what was measured of it; None where nothing was."""
        rule, trained = self.job.training.keep, self.progress.measured.trained
        found = None if rule is None else measured.best(rule)
        self.progress = replace(self.progress, measured=measured)
        if figures is not None and found is not None and found[0] == trained:
            names = self.job.method.task.round_figures
            of_model = {name: value for name, value in figures.items() if name in names}
            self.progress = replace(self.progress, best=(trained, tested), best_figures=of_model)

    def _run_phase(self, round: int, phase: str) -> PhaseReport:
        state = self.progress.state
        names = self.job.named(self.job.training.silos, round, phase, draw_seed_in(state))
        key = PhaseKey(job_digest=self.job.digest, round=round, phase=phase, attempt=1)
        request = PhaseRequest.of(self.job, key, state, members=len(names))
        as_words = self._secure is not None or needs_words(request.layout)
        answers = self._silos.answers(
            key, state, names, self.progress.local, as_words=as_words, answered=self._watch((round, phase))
        )
        if all(answer.refused == Refusal.POLICY for answer in answers):
            raise PolicyRefusal(answers[0].message)  # of the job: no later round would have a sum
        result = result_of(request, answers, self._sums, self_mask_seeds=self._self_mask_seeds)
        if result.state is not None:
            kept = self._kept([answer for answer in answers if not answer.refused])
            local = {**self.progress.local, **kept}
            self.progress = replace(self.progress, state=dict(result.state), local=local)
        return PhaseReport.of(phase, answers, result)

    def _sums(self, request: PhaseRequest, answers: Sequence[Answer]) -> Mapping[str, Array]:
        return phase_sums(request, answers, secure=self._secure)

    def _watch(self, step: Step) -> Answered:
        return unwatched if self._answered is None else partial(self._answered, step)

    def _kept(self, answers: Sequence[Answer]) -> dict[str, KeptFile]:
        """What silos keep from now on, of those that proposed something."""
        return {
            each.silo: KeptFile.write(each.proposed, self._scratch)
            for each in answers
            if each.proposed is not None
        }


def unsigned_job(spec: AnySpec, state: GlobalState) -> Job:
    """The job as it would be signed, with no operator behind it. Raises ConfigError."""
    digest = state_digest(state_to_bytes(state))
    return Job.unsigned(spec.filled(nonce=spec.nonce or NO_NONCE, initial_state=digest))
