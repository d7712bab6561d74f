"""Whom rounds name, which round's model is handed out, when rounds end early, and when all silos test it.

Round r + 1 tests the model after round r, so a job learns of a model one round later; where it says
`evaluate_all_every`, the tests over all silos alone decide (docs/protocol.md 7.18). Pure: the coordinator
and a simulation decide alike. Silos know these rules and check none of it: docs/decisions/0018-best-round.md.
Whom a round names they compute themselves; why groups: docs/decisions/0030-groups-that-take-turns.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol, TypeAlias

from pydantic import Field

from chorale.spec.fields import SpecPart
from chorale.spec.privacy_spec import PrivacySpec
from crypto.errors import ConfigError
from crypto.session.cohort import SMALLEST_FEDERATION, CohortRule, expected_overlaps, group_fractions
from strategies.methods import Strategy
from strategies.parts.closing.ffc import CALIBRATE
from strategies.phases.enrollment import ENROLLMENT
from strategies.phases.evaluation import EVALUATE
from strategies.tasks.temperature import TEMPERATURE

Draw: TypeAlias = Literal["rounds", "groups"]  # what a fraction below 1 draws
Measured: TypeAlias = tuple[int, float]  # a round, and the metric of the model after it
Figures: TypeAlias = Mapping[str, float]


MIN_SPARE_STEPS, STEPS_PER_SPARE = 2, 20  # of a job that does not say its spare steps
MAX_ROUNDS = 100_000
TEST_SHARE = 0.5  # of the hold-outs, where rounds are chosen by the rest: both figures are then as sure


class _HasEnds(Protocol):
    """A JobSpec, whose module imports this one."""

    @property
    def privacy(self) -> PrivacySpec | None: ...

    @property
    def rounds(self) -> int: ...

    @property
    def evaluate_all_every(self) -> int | None: ...

    @property
    def steps(self) -> int | None: ...

    @property
    def spare_steps(self) -> int | None: ...

    @property
    def keep(self) -> KeepSpec | None: ...

    @property
    def stop(self) -> StopSpec | None: ...


class MetricSpec(SpecPart):
    """A figure of the secure evaluation, and which of its values is the best."""

    metric: str = Field(
        min_length=1, max_length=63, description="such as loss or accuracy, as the task has it"
    )
    best: Literal["lowest", "highest"] = Field(description="lowest for a loss or an error, else highest")

    def is_better(self, value: float, than: float, *, by: float = 0.0) -> bool:
        """No number is better than NaN, which a round without a hold-out measures."""
        if math.isnan(than):
            return not math.isnan(value)
        return value < than - by if self.best == "lowest" else value > than + by


class KeepSpec(MetricSpec):
    """Hand out the model of the best round in place of the last."""


class StopSpec(MetricSpec):
    """End the rounds once they bring nothing any more; the closing phases follow."""

    rounds: int = Field(ge=1, le=100_000, description="measured rounds in a row without improvement")
    improvement: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="what the metric has to change by, and more, to count as improved"
    )


def with_rounds_of_steps(values: Mapping[object, object]) -> dict[object, object]:
    """A job's fields, with a round for each step and for each spare one where it says steps.

    Raises ValueError for a job of steps that says none, and for more of both than a job has rounds.
    """
    filled, steps = dict(values), values.get("steps")
    if isinstance(steps, int):
        if filled.get("spare_steps") is None:
            filled["spare_steps"] = max(MIN_SPARE_STEPS, steps // STEPS_PER_SPARE)
        spare = filled["spare_steps"]
        if isinstance(spare, int):
            if max(steps, spare) <= MAX_ROUNDS < steps + spare:
                raise ValueError(
                    f"steps and spare_steps: expected at most {MAX_ROUNDS} together, got {steps} + {spare}"
                )
            filled.setdefault("rounds", steps + spare)
    elif steps is None and filled.get("rounds") is None and _has_shared_noise(values.get("privacy")):
        raise ValueError("steps: a value is required with privacy.records.noise: sum")
    return filled


def with_test_share(values: Mapping[object, object]) -> dict[object, object]:
    """A job's fields, with a share of the hold-outs that keep, stop and search do not choose by."""
    filled = dict(values)
    if filled.get("test_share") is None and any(filled.get(name) for name in ("keep", "stop", "search")):
        filled["test_share"] = TEST_SHARE
    return filled


def _has_shared_noise(privacy: object) -> bool:
    """privacy: as a job's file has it, unchecked."""
    records = privacy.get("records") if isinstance(privacy, Mapping) else None
    return isinstance(records, Mapping) and records.get("noise") == "sum"


def check_count(spec: _HasEnds) -> None:
    """Steps where silos share their noise, and rounds everywhere else; some of them after the first test over
    all silos. Raises ConfigError."""
    if spec.evaluate_all_every is not None and spec.evaluate_all_every >= spec.rounds:
        raise ConfigError(
            f"evaluate_all_every: expected fewer than the job's {spec.rounds} rounds, got "
            f"{spec.evaluate_all_every}: after the last round all silos test the model anyway"
        )
    if spec.privacy is None or not spec.privacy.has_shared_noise:
        for field, count in (("steps", spec.steps), ("spare_steps", spec.spare_steps)):
            if count is not None:
                raise ConfigError(f"{field}: needs privacy.records.noise: sum; other jobs have rounds")
        return
    if spec.steps is None or spec.spare_steps is None:
        raise ConfigError("steps: a value is required with privacy.records.noise: sum, in place of rounds")
    if spec.rounds != spec.steps + spec.spare_steps:
        raise ConfigError(
            f"rounds: expected none beside steps, or steps + spare_steps, {spec.steps} + {spec.spare_steps}, "
            f"got {spec.rounds}"
        )
    for field, rule in (("keep", spec.keep), ("stop", spec.stop)):
        if rule is not None:
            raise ConfigError(f"{field}: not allowed with steps, where only the last model is evaluated")


def check_ends(spec: _HasEnds, method: Strategy) -> None:
    """Raises ConfigError for a metric that no round measures, for ends that the method cannot have, and for
    tests of a model that no round moves."""
    keep, stop, rounds = spec.keep, spec.stop, spec.rounds
    if spec.evaluate_all_every is not None and method.recipe.personalization.shares_nothing:
        raise ConfigError(
            f"evaluate_all_every: with personalization {method.recipe.personalization} the whole model is "
            "each silo's own, and there is none that all silos could test: expected none"
        )
    if method.task.asked and method.recipe.personalization.shares_nothing:
        raise ConfigError(
            f"task.metrics: with personalization {method.recipe.personalization} the whole model is each "
            "silo's own, and they measure the common one: expected none"
        )
    known = method.task.round_metrics
    for name, rule in (("keep", keep), ("stop", stop)):
        if rule is not None and rule.metric not in known:
            raise ConfigError(f"{name}.metric: expected one of {', '.join(known)}, got {rule.metric}")
        if rule is not None and method.recipe.personalization.shares_nothing:
            raise ConfigError(
                f"{name}: where the whole model is each silo's own no round measures {rule.metric}"
            )
        if rule is not None and rounds == 0:
            raise ConfigError(f"{name}: not allowed with rounds: 0, where there is one model")
    close, own = method.recipe.closing, method.recipe.personalization
    if keep is not None and close.before_evaluation is not None:
        raise ConfigError(f"keep: not allowed with closing {close}, which changes the last model")
    if keep is not None and TEMPERATURE in method.task.asked:
        raise ConfigError(f"keep: not allowed with metric {TEMPERATURE}, which is of the last model")
    kinds = (*method.opening, *method.closing)
    further = [kind for kind in kinds if kind not in (ENROLLMENT, CALIBRATE, EVALUATE)]
    further += [f"personalization {own}"] if own.beside_evaluation else []
    if rounds == 0 and further:
        raise ConfigError(
            f"rounds: 0 rounds evaluate a given model, and {method.name} has {further[0]} besides; "
            "take preset fedavg, or the parts of head and features alone"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What the rounds of a job measured so far, of a coordinator's records or of a simulation.

    trained: the last round that moved the model. by_round: figures of the model after each such round, 0 for
    the first one, by the round that followed; closing: of the last one, by the closing evaluation.
    """

    trained: int = 0
    by_round: Mapping[int, Figures] = field(default_factory=dict)
    closing: Mapping[int, Figures] = field(default_factory=dict)

    def after_round(self, round: int, figures: Figures | None) -> Measurements:
        """A round whose sum was applied. After one that is used up the same model is tested again. figures:
        None in a job that measures by evaluations over all silos alone."""
        measured = {} if figures is None else {self.trained: dict(figures)}
        return replace(self, trained=round, by_round={**measured, **self.by_round})

    def after_evaluation(self, figures: Figures) -> Measurements:
        """Over all silos, between rounds."""
        return replace(self, by_round={**self.by_round, self.trained: dict(figures)})

    def after_closing(self, figures: Figures) -> Measurements:
        return replace(self, closing={self.trained: dict(figures)})

    def best(self, rule: KeepSpec) -> Measured | None:
        """The first of those that none is better than; None where nothing was measured."""
        best: Measured | None = None
        for round, value in _values(rule.metric, {**self.closing, **self.by_round}):
            if not math.isnan(value) and (best is None or rule.is_better(value, best[1])):
                best = round, value
        return best

    def stalled(self, spec: _HasEnds) -> str:
        """Why the job has fewer rounds than it says; empty while further ones may follow."""
        rule = spec.stop
        if rule is None or self.trained >= spec.rounds:
            return ""
        best, since = math.nan, 0
        for _, value in _values(rule.metric, self.by_round):
            if rule.is_better(value, best, by=rule.improvement):
                best, since = value, 0
            else:
                since += 1
        if since < rule.rounds:
            return ""
        word = "lower" if rule.best == "lowest" else "higher"
        return (
            f"stopped after round {self.trained} of {spec.rounds}: {rule.metric} no {word} for "
            f"{rule.rounds} rounds"
        )


def _values(metric: str, figures: Mapping[int, Figures]) -> list[Measured]:
    return [(round, figures[round].get(metric, math.nan)) for round in sorted(figures)]


class _Drawn(Protocol):
    """A JobSpec, as far as it says whom its rounds name and when all silos test its model."""

    @property
    def silos(self) -> Sequence[str]: ...

    @property
    def rounds(self) -> int: ...

    @property
    def evaluate_all_every(self) -> int | None: ...

    @property
    def privacy(self) -> object | None: ...

    @property
    def named_per_round(self) -> int: ...

    @property
    def draws_rounds(self) -> bool: ...

    @property
    def draw(self) -> Draw | None: ...

    def rule(self, members: int) -> CohortRule: ...


def is_by_groups(spec: _Drawn) -> bool:
    """Whether the silos of rounds are drawn once, into groups that take turns."""
    return spec.draw == "groups"


def redraws(spec: _Drawn) -> bool:
    """Whether each round draws a new set of silos."""
    return spec.draws_rounds and not is_by_groups(spec)


def draws(spec: _Drawn) -> int:
    """How many sets of silos are drawn: one a round, or the groups."""
    groups = len(spec.silos) // spec.named_per_round
    return min(spec.rounds, groups) if is_by_groups(spec) else spec.rounds


def check_named(spec: _Drawn) -> None:
    """Raises ValueError for a silo named twice, rounds of too few silos, where nothing is drawn, and for
    groups of different sizes."""
    if twice := sorted({name for name in spec.silos if spec.silos.count(name) > 1}):
        raise ValueError(f"silos: expected each silo once, got {twice[0]} twice")
    silos, members = len(spec.silos), spec.named_per_round
    if members < SMALLEST_FEDERATION:
        raise ValueError(
            f"fraction: expected at least {SMALLEST_FEDERATION} silos in a round, got {members} of {silos}"
        )
    if spec.draw is not None and not spec.draws_rounds:
        raise ValueError(f"draw: expected none where a round names all {silos} silos, got {spec.draw}")
    if is_by_groups(spec) and silos % members:
        fitting = ", ".join(f"{each:g}" for each in group_fractions(silos)) or "none"
        raise ValueError(
            f"draw: groups of {members} do not divide {silos} silos; fractions that do: {fitting}"
        )


def evaluations(spec: _Drawn) -> int:
    """How many such tests the job has if no round is lost."""
    return 0 if spec.evaluate_all_every is None else (spec.rounds - 1) // spec.evaluate_all_every


def is_evaluated_after(spec: _Drawn, round: int) -> bool:
    """Whether all silos test the model after a round; after the last one the closing evaluation does."""
    every = spec.evaluate_all_every
    return every is not None and 0 < round < spec.rounds and round % every == 0


def tests_in(spec: _Drawn) -> bool:
    """Whether rounds test the model that they start from.

    Security: where all silos test models between rounds, a round that follows one that moved nothing would
    test the same model on the same hold-outs, and the difference shows the silos that are in one sum alone;
    noise hides it where there is some. Source: docs/protocol.md 6.10.
    """
    return spec.privacy is not None or spec.evaluate_all_every is None


def names_nearly_all(spec: _Drawn) -> bool:
    """Whether the silos of a round and all silos are so nearly the same that their sums overlap (6.2)."""
    silos = len(spec.silos)
    return silos - spec.named_per_round < spec.rule(silos).min_cohort


def expected_cohort_changes(spec: _Drawn) -> float:
    """Of the rounds, and of the tests between them, each of which overlaps where a round names nearly all."""
    silos, named = len(spec.silos), spec.named_per_round
    min_cohort = spec.rule(named).min_cohort
    of_rounds = 0.0  # a group is disjoint from the others
    if not is_by_groups(spec):
        of_rounds = expected_overlaps(silos, named, min_cohort=min_cohort, rounds=spec.rounds)
    return of_rounds + (evaluations(spec) if spec.draws_rounds and names_nearly_all(spec) else 0)
