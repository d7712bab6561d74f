"""From a recipe to a method that runs: its phases and its options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from crypto import encoding
from crypto.errors import ConfigError
from crypto.fixed_point.layout import RING_BITS, Disclosure, Quantity
from strategies.analysis.partition import Partition
from strategies.analysis.subgroups import SubgroupsPhase
from strategies.base import MODEL, TOTAL, Array, Arrays, Phase, PhaseContext, T, model_in, options_of
from strategies.checks import check_recipe, check_task
from strategies.parts.heads import HEAD, HEAD_PREFIX
from strategies.parts.regularizers import NO_REGULARIZER, SECOND_WEIGHT, SecondWeight
from strategies.phases.arms import Arm, ArmsPhase, Halving, live_arms, state_of
from strategies.phases.columns import ColumnMomentsPhase
from strategies.phases.enrollment import CLASS_PRESENCE, ClassPresencePhase, EnrollmentPhase
from strategies.phases.evaluation import ACCURACY, EVALUATE_ALL, EvaluatePhase, Evaluation
from strategies.phases.step import GRADIENT, StepPhase
from strategies.phases.training import TRAIN, TrainPhase
from strategies.phases.trees import TREES, TreesPhase
from strategies.presets import PRESETS, recipe_of
from strategies.recipe import Options, Part, Recipe
from strategies.server_optimizer import StepOptimizer
from strategies.tasks.base import DeclaredTask, TaskSizes
from strategies.tasks.classification import CLASSIFICATION
from strategies.tasks.declared_tasks import TASKS, task_of
from strategies.tasks.stated import StatedTask
from strategies.update_scale import UpdateScale

RUNNING_MEAN = "norm.running_mean"  # of the model of one weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A recipe with its options, and its phases in order: once before the rounds, in each, once after.

    between: phases between two rounds, where the job asks for them. arms: the method of each arm of a search;
    none without one.
    passed_over: rules that the recipe breaks, where the job says `allow_unusual`.
    """

    name: str
    recipe: Recipe
    options: Options
    opening: tuple[str, ...]
    round_phases: tuple[str, ...]
    closing: tuple[str, ...]
    phases: Mapping[str, Phase]
    task: DeclaredTask
    passed_over: tuple[str, ...] = ()
    trains_head_alone: bool = False
    between: tuple[str, ...] = ()
    arms: tuple[Strategy, ...] = ()

    @property
    def main_figure(self) -> str:
        """What its results tell first."""
        return self.task.main

    def phase(self, kind: str) -> Phase:
        """Raises ConfigError for a kind that this method does not have."""
        try:
            return self.phases[kind]
        except KeyError:
            known = ", ".join(sorted(self.phases))
            raise ConfigError(f"phase: expected one of {known} for {self.name}, got {kind}") from None

    def summed(
        self, parameters: Sequence[str], buffers: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of a model's parameters those that silos train together, and of its running means those that they
        average: all but a frozen head and what is each silo's own; where the head alone is trained, that."""
        if self.recipe.growth is not None:
            return (), ()
        own = self.own(parameters, buffers)
        in_head = {name for name in parameters if name.startswith(HEAD_PREFIX)}
        if self.trains_head_alone:
            own = own.union(parameters) - in_head
        elif self.recipe.head.is_frozen:
            own = own | in_head
        return (
            tuple(name for name in parameters if name not in own),
            tuple(name for name in buffers if name not in own),
        )

    def own(self, parameters: Sequence[str], buffers: Sequence[str]) -> set[str]:
        """Those of a model's parameters and running means that each silo has of its own, in no sum. Raises
        ConfigError for a model without what the method keeps at the silo."""
        personalization = self.recipe.personalization
        if personalization.own is None:
            return set()
        if personalization.needs_running_means and not buffers:
            raise ConfigError(
                f"model: personalization {personalization} keeps batch normalization at the silo, and the "
                "model has none with running means"
            )
        own = personalization.own(parameters, buffers)
        return {name for name in own if not (self.recipe.head.is_frozen and name.startswith(HEAD_PREFIX))}

    @property
    def needs_head(self) -> str:
        """Why the method needs a model with a named last linear layer, or "" where it needs none: any."""
        if self.arms:
            return next((needed for arm in self.arms if (needed := arm.needs_head)), "")
        named = [
            f"{field} {part}" for field, part in self.recipe.parts.items() if part.needs_head(self.options)
        ]
        return ", ".join([*named, *(["trains head"] if self.trains_head_alone else [])])

    @property
    def server_rate(self) -> float:
        """What the mean delta is multiplied by; for the adaptive optimizers their step by parameter."""
        rate = self.recipe.server_update.rate
        return 1.0 if rate is None else rate(self.options)

    def reads_state(self, kind: str) -> bool:
        """Whether silos put into such a phase what follows from the training arrays: all but the opening, and
        phases whose sums tell at most how many samples a silo has."""
        if kind in self.opening:
            return False
        context = _smallest_context(self.options, has_buffers=False, update_bits=max(RING_BITS))
        summed = self.phase(kind).quantities(context)
        return any(each.discloses is not Disclosure.CONSTANT for each in summed)

    def moves_model(self, kind: str) -> bool:
        """Whether what such a phase gives may be another state to the phases that follow (`use_digest`)."""
        return self.reads_state(kind) and kind not in self.kinds_before_training

    def training_arrays(self, state: Arrays) -> list[str]:
        """Names of the arrays that silos train and test with: the model's, and what parts declare."""
        read = (MODEL, *(name for part in self.recipe.parts.values() for name in part.reads))
        return [name for name in sorted(state) if name.startswith(read)]

    def live_arms(self, kind: str, state: Arrays) -> list[int]:
        """The arms that such a phase trains or tests, the leading one first: outside of rounds it alone.

        Empty without a search. Raises ConfigError.
        """
        live = live_arms(state, len(self.arms)) if self.arms else []
        return live if kind in self.round_phases else live[:1]

    def use_digests(self, kind: str, state: Arrays) -> tuple[bytes, ...]:
        """Of what silos are asked with in such a phase, sorted: one for each arm whose arrays are its own."""
        live = self.live_arms(kind, state)
        if not live:
            return (self.use_digest(kind, state),)
        count = len(self.arms)
        return tuple(sorted({self.arms[arm].use_digest(kind, state_of(state, arm, count)) for arm in live}))

    def use_digest(self, kind: str, state: Arrays) -> bytes:
        """Digest of what silos are asked with in such a phase: equal for states that are the same to it.

        The model decides, whatever else moved: what a method keeps beside it changes an input little, and a
        state that moved that alone would be asked again as another one. What is sent before the training
        follows from `Statistic.asks`, and has no number in common with what is sent otherwise. Where the
        state's model never moves, because silos keep their own, what parts read of the state decides, too.
        Source: docs/protocol.md 6.10.
        """
        if kind in self.kinds_before_training:
            assert self.recipe.statistic is not None
            asked = self.recipe.statistic.asks(state)
            return encoding.digest("asked-arrays", kind, _fingerprints(asked))
        if self.recipe.personalization.shares_nothing:
            asked = {name: state[name] for name in self.training_arrays(state)}
        else:
            asked = model_in(state)
        return encoding.digest("training-arrays", _fingerprints(asked))

    @property
    def kinds_before_training(self) -> tuple[str, ...]:
        """Of the phases that sum a statistic of the received model before a round trains it."""
        return self.round_phases[: self.round_phases.index(TRAIN)]

    @property
    def least_rows(self) -> int:
        """Of how many classes its sums need rows, so that it is this method; 0 where no row is held back."""
        if CLASS_PRESENCE not in self.opening:
            return 0
        if self.arms:
            return max(arm.least_rows for arm in self.arms)
        return max(part.least_rows(self.options) for part in self.recipe.parts.values())

    def under_noise(self) -> Strategy:
        """The method in a private job: without the class-presence phase (strategies/phases/enrollment.py)."""
        opening = tuple(kind for kind in self.opening if kind != CLASS_PRESENCE)
        phases = {kind: phase for kind, phase in self.phases.items() if kind != CLASS_PRESENCE}
        return replace(self, opening=opening, phases=MappingProxyType(phases))

    def standardizing(self, columns: int, categories: Sequence[int] = ()) -> Strategy:
        """The method in a job that computes mean and scale of so many columns before its first round, and
        counts the categories of others, so many each."""
        first, *others = self.opening
        added = ColumnMomentsPhase(columns=columns, categories=tuple(categories))
        return replace(
            self,
            opening=(first, added.kind, *others),
            phases=MappingProxyType({**self.phases, added.kind: added}),
        )

    def evaluated_between_rounds(self) -> Strategy:
        """The method in a job that tests its model on all silos' hold-outs between rounds."""
        tested = (Evaluation(task=self.task), *self.recipe.personalization.beside_evaluation)
        phase = EvaluatePhase(kind=EVALUATE_ALL, statistics=tested)
        phases = MappingProxyType({**self.phases, phase.kind: phase})
        return replace(self, phases=phases, between=(phase.kind,))

    def tested_by(self, partition: Partition, min_cell: int) -> Strategy:
        """The method in a job that tests its final model by the parts of a column, too."""
        phase = SubgroupsPhase(task=self.task, partition=partition, min_cell=min_cell)
        phases = MappingProxyType({**self.phases, phase.kind: phase})
        return replace(self, phases=phases, closing=(*self.closing, phase.kind))

    def by_steps(self, optimizer: StepOptimizer) -> Strategy:
        """The method in a job whose silos share their noise: each round sums one gradient for the server."""
        step = StepPhase(
            optimizer=optimizer, update=self.recipe.server_update.rule, keepers=self.recipe.keepers
        )
        return replace(self, phases=MappingProxyType({**self.phases, TRAIN: step}))

    def growing(self, *, rate: float, own_edges: Mapping[int, tuple[float, ...]]) -> Strategy:
        """The method in a job of trees. own_edges: of bins, by input."""
        phase = self.phase(TRAIN)
        assert isinstance(phase, TreesPhase)
        train = replace(phase, rate=rate, own_edges=own_edges)
        return replace(self, phases=MappingProxyType({**self.phases, TRAIN: train}))

    def searched(self, arms: tuple[Strategy, ...], halving: Halving) -> Strategy:
        """The method in a job with a search: its rounds are of all arms that are left. Raises ConfigError for
        arms of other phases, or that sum something else: what people are shown of one holds of all."""
        for place, arm in enumerate(arms):
            if (arm.round_phases, arm.closing, arm._summed) != (
                self.round_phases,
                self.closing,
                self._summed,
            ):
                raise ConfigError(
                    f"search.values: expected values with which all arms sum the same, arm {place} sums "
                    "something else than the first"
                )
        of_rounds = {
            kind: ArmsPhase(
                kind=kind,
                arms=tuple(Arm(phase=arm.phase(kind), options=arm.options) for arm in arms),
                halving=halving if kind == TRAIN else None,
            )
            for kind in self.round_phases
        }
        return replace(
            self,
            arms=arms,
            phases=MappingProxyType({**self.phases, **of_rounds}),
            passed_over=tuple(dict.fromkeys(rule for arm in arms for rule in arm.passed_over)),
        )

    @property
    def _summed(self) -> list[tuple[object, ...]]:
        """What its phases sum, apart from sizes."""
        found = self.quantities(has_buffers=True, update_bits=max(RING_BITS))
        return [
            (
                each.name,
                each.discloses,
                each.is_tagged,
                each.is_count,
                len(each.shape),
                each.bound,
                each.sensitivity_l2,
            )
            for each in found
        ]

    @property
    def weights(self) -> tuple[float, ...]:
        """Of the loss, then of each regularizer."""
        joined = self.recipe.mix.weights(self.options)
        if self.recipe.second_regularizer is None:
            return joined
        return (*joined, self.options_of(SecondWeight).second_mu)

    def options_of(self, part: type[T]) -> T:
        """The options of one part."""
        return options_of(part, self.options)

    def quantities(self, *, has_buffers: bool, update_bits: int) -> tuple[Quantity, ...]:
        """All that its phases sum, of a model of one weight: what they are, and not how large.

        has_buffers: whether the model keeps running means.
        """
        has_buffers = has_buffers and bool(self.summed((), (RUNNING_MEAN,))[1])
        context = _smallest_context(self.options, has_buffers=has_buffers, update_bits=update_bits)
        return tuple(each for phase in self.phases.values() for each in phase.quantities(context))


def strategy_for(preset: str, options: Options) -> Strategy:
    """The method of a preset. Raises ConfigError for unknown names and options."""
    return strategy_of(preset, recipe_of(preset), options)


def strategy_of(
    name: str,
    recipe: Recipe,
    options: Options,
    task: DeclaredTask = CLASSIFICATION,
    *,
    allow_unusual: bool = False,
) -> Strategy:
    """The method of a recipe, for a task. Raises ConfigError for options that no part has, and for parts
    that do not go together: where they do so to little use alone, only without `allow_unusual`."""
    resolved = {**recipe.defaults, **options}
    parts = parts_with_options(recipe)
    known = sorted({field for part in parts for field in part.options.model_fields})
    unknown = sorted(set(resolved) - set(known))
    if unknown:
        raise ConfigError(
            f"strategy.options.{unknown[0]}: unknown option, {name} has {', '.join(known) or 'none'}"
        )
    for part in parts:
        options_of(part.options, resolved)
    passed_over = check_recipe(recipe, resolved, allow_unusual=allow_unusual)
    check_task(recipe, resolved, task)
    method = replace(_compose(name, recipe, resolved, task), passed_over=passed_over)
    if isinstance(task, StatedTask):
        _check_stated(method, task)
    return method


def _check_stated(method: Strategy, task: StatedTask) -> None:
    """Raises ConfigError for sums under names of Chorale's own, which a policy that allows those does not
    mean, and for methods that need a score."""
    taken = sorted({each.name for each in task.sums} & known_quantities())
    if taken:
        raise ConfigError(f"task.sums: {taken[0]} is the name of a quantity of Chorale's own")
    summed = method.quantities(has_buffers=False, update_bits=RING_BITS[0])
    if ACCURACY in {quantity.name for quantity in summed}:
        raise ConfigError(
            f"strategy: {method.name} sums how good each silo's own model is, from 0 to 1, which task "
            f"{task.word} does not say: it needs a task of Chorale's own"
        )


@lru_cache(maxsize=1)
def known_quantities() -> frozenset[str]:
    """Names of all that Chorale's own methods and tasks sum: of all presets, which have every part that sums
    something, and of the option that adds names."""
    methods = [strategy_for(name, {}).standardizing(1, [1]) for name in PRESETS]
    methods += [strategy_for("fedcsd", {"count_weighted": True}), strategy_for(TREES.word, {})]
    tasks = []
    for word, kind in TASKS.items():
        required = [name for name, field in kind.options.model_fields.items() if field.is_required()]
        options = {name: float(place) for place, name in enumerate(required)}  # a low and a high, if any
        # names of sums follow from no size
        sizes = TaskSizes(classes=3, input_shape=(4,) if kind.has_tokens else (1, 2, 2))
        plain = task_of(word, sizes, options=options, metrics=())
        tasks.append(task_of(word, sizes, options=options, metrics=tuple(plain.further)))
    return (
        frozenset(
            quantity.name
            for method in methods
            for ring_bits in RING_BITS
            for quantity in method.quantities(has_buffers=True, update_bits=ring_bits)
        )
        | {GRADIENT}
        | {each.name for task in tasks for each in (*task.round_sums, *task.closing_sums)}
        | {name for task in tasks if task.subgroup_sums for name in _names_by_subgroup(task)}
    )


def _names_by_subgroup(task: DeclaredTask) -> list[str]:
    phase = SubgroupsPhase(task=task, partition=Partition(parts=1), min_cell=1)
    context = _smallest_context({}, has_buffers=False, update_bits=RING_BITS[0])
    return [each.name for each in phase.quantities(context)]


def parts_with_options(recipe: Recipe) -> list[Part]:
    """Whose numbers a job with this recipe may set: without a regularizer there is nothing to mix."""
    has_mix = recipe.regularizer is not NO_REGULARIZER
    parts = [part for part in recipe.parts.values() if has_mix or part is not recipe.mix]
    return parts if recipe.second_regularizer is None else [*parts, SECOND_WEIGHT]


def _fingerprints(arrays: Arrays) -> list[encoding.Field]:
    """Name, type, shape and SHA-256 of each array, in order of name."""
    return [[name, *_fingerprint(array)] for name, array in sorted(arrays.items())]


def _fingerprint(array: Array) -> list[encoding.Field]:
    data = np.asarray(array, order="C").reshape(-1).view(np.uint8).data  # no copy, however large
    return [array.dtype.str, list(array.shape), hashlib.sha256(data).digest()]


def _smallest_context(options: Options, *, has_buffers: bool, update_bits: int) -> PhaseContext:
    """A model of one weight: of a quantity, the state decides the size and never the name."""
    buffers = (RUNNING_MEAN,) if has_buffers else ()
    ones = np.ones((1, 1), np.float32)
    return PhaseContext(
        round=1,
        members=1,
        classes=1,
        state={HEAD: ones, **{MODEL + name: ones[0] for name in buffers}, TOTAL: np.array(1)},
        trained=(HEAD.removeprefix(MODEL),),
        buffers=buffers,
        update_bits=update_bits,
        options=options,
    )


def _compose(name: str, recipe: Recipe, options: Options, task: DeclaredTask) -> Strategy:
    statistic, close = recipe.statistic, recipe.closing
    own_models = recipe.personalization.beside_evaluation
    beside = () if statistic is None else statistic.beside_training
    train: Phase
    if recipe.personalization.shares_nothing:
        # nobody trains the model in the state: a test would tell of the data, and say nothing of a method
        train = TrainPhase(update=None, statistics=(*own_models, *beside) if beside else ())
        closing_sums = own_models
    elif recipe.growth is not None:
        train = TreesPhase(task=task, own_edges={}, statistics=(Evaluation(task=task),))
        closing_sums = (Evaluation(task=task, is_closing=True),)
    else:
        train = TrainPhase(
            update=recipe.server_update.rule,
            statistics=(UpdateScale(), Evaluation(task=task), *own_models, *beside),
            keepers=recipe.keepers,
        )
        closing_sums = (Evaluation(task=task, is_closing=True), *own_models)
    has_rows = statistic is not None or close.least_class_samples > 0
    opening: list[Phase] = [EnrollmentPhase(), *([ClassPresencePhase()] if has_rows else [])]
    rounds: list[Phase] = [*(() if statistic is None else statistic.before_training), train]
    calibration = () if close.before_evaluation is None else close.before_evaluation(options)
    closing: list[Phase] = [
        *calibration,
        EvaluatePhase(statistics=closing_sums),
        *close.after_evaluation,
    ]
    return Strategy(
        name=name,
        recipe=recipe,
        options=MappingProxyType(dict(options)),
        opening=tuple(phase.kind for phase in opening),
        round_phases=tuple(phase.kind for phase in rounds),
        closing=tuple(phase.kind for phase in closing),
        phases=MappingProxyType({phase.kind: phase for phase in (*opening, *rounds, *closing)}),
        task=task,
    )
