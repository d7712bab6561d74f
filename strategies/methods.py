"""From a recipe to a method that runs: its phases, its options, and why some parts do not go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Quantity
from strategies.base import MODEL, TOTAL, Keeper, Phase, PhaseContext, Statistic
from strategies.combinations import check_options, check_recipe
from strategies.parts.class_presence import CLASS_PRESENCE_KIND, ClassPresencePhase
from strategies.parts.ema_teacher import EmaTeacher
from strategies.parts.enrollment import EnrollmentPhase
from strategies.parts.evaluation import EvaluatePhase, Evaluation
from strategies.parts.ffc import CalibratePhase, FfcOptions
from strategies.parts.heads import HEAD
from strategies.parts.logit_prototypes import PrototypeOptions, PrototypesPhase
from strategies.parts.losses import LOSS_OPTIONS
from strategies.parts.own import OWN_OPTIONS, OwnAccuracy
from strategies.parts.personal import PersonalOptions, PersonalPhase, check_personal
from strategies.parts.regularizers import MIX_OPTIONS, REGULARIZER_OPTIONS
from strategies.parts.server_updates import SERVER_UPDATE_OPTIONS, SERVER_UPDATES
from strategies.parts.soft_labels import SoftLabels
from strategies.parts.update_scale import UpdateScale
from strategies.parts.weighted_mean import TrainPhase
from strategies.presets import PRESETS
from strategies.recipe import (
    OptionValue,
    Own,
    PartOptions,
    Recipe,
    Regularizer,
    StatisticName,
    T,
    options_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticParts:
    """What a statistic adds to every round: sums beside the deltas, or a phase before the training."""

    options: type[PartOptions] = PartOptions
    beside_training: tuple[Statistic, ...] = ()
    before_training: tuple[Phase, ...] = ()


STATISTICS: Mapping[StatisticName, StatisticParts] = MappingProxyType(
    {
        StatisticName.SOFT_LABELS: StatisticParts(beside_training=(SoftLabels(),)),
        StatisticName.LOGIT_PROTOTYPES: StatisticParts(
            options=PrototypeOptions, before_training=(PrototypesPhase(),)
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A recipe with its options, and its phases in order: once before the rounds, in each, once after."""

    name: str
    recipe: Recipe
    options: Mapping[str, OptionValue]
    opening: tuple[str, ...]
    round_phases: tuple[str, ...]
    closing: tuple[str, ...]
    phases: Mapping[str, Phase]

    def phase(self, kind: str) -> Phase:
        """Raises ConfigError for a kind that this method does not have."""
        try:
            return self.phases[kind]
        except KeyError:
            known = ", ".join(sorted(self.phases))
            raise ConfigError(f"phase: expected one of {known} for {self.name}, got {kind}") from None

    def trains(self, parameter: str) -> bool:
        """Whether silos train a parameter together: all but those of a frozen head or one of their own."""
        has_no_sum = self.recipe.head.is_frozen or self.recipe.own.has_head
        return not (has_no_sum and parameter.startswith("head."))

    def under_noise(self) -> Strategy:
        """The method in a private job: without the phase of presence (strategies/parts/class_presence.py)."""
        opening = tuple(kind for kind in self.opening if kind != CLASS_PRESENCE_KIND)
        phases = {kind: phase for kind, phase in self.phases.items() if kind != CLASS_PRESENCE_KIND}
        return replace(self, opening=opening, phases=MappingProxyType(phases))

    def options_of(self, part: type[T]) -> T:
        """The options of one part."""
        return options_of(part, self.options)

    def quantities(self, *, has_buffers: bool, update_bits: int) -> tuple[Quantity, ...]:
        """All that its phases sum, of a model of one weight: what they are, and not how large.

        has_buffers: whether the model keeps running means.
        """
        context = _smallest_context(self.options, has_buffers=has_buffers, update_bits=update_bits)
        return tuple(each for phase in self.phases.values() for each in phase.quantities(context))

    def quantity_names(self, *, has_buffers: bool, update_bits: int) -> tuple[str, ...]:
        """The same by name."""
        summed = self.quantities(has_buffers=has_buffers, update_bits=update_bits)
        return tuple(dict.fromkeys(quantity.name for quantity in summed))


def recipe_of(preset: str) -> Recipe:
    """The row of that name. Raises ConfigError."""
    if preset not in PRESETS:
        known = ", ".join(sorted(PRESETS))
        raise ConfigError(f"strategy.preset: expected one of {known}, got {preset}")
    return PRESETS[preset]


def strategy_for(preset: str, options: Mapping[str, OptionValue]) -> Strategy:
    """The method of a preset. Raises ConfigError for unknown names and options."""
    return strategy_of(preset, recipe_of(preset), options)


def strategy_of(name: str, recipe: Recipe, options: Mapping[str, OptionValue]) -> Strategy:
    """The method of a recipe. Raises ConfigError for options that no part has, and for parts that do not
    go together."""
    resolved = {**recipe.defaults, **options}
    parts = option_parts(recipe)
    _check_known(name, resolved, parts)
    for part in parts:
        options_of(part, resolved)
    check_recipe(recipe)
    check_personal(recipe, resolved)
    check_options(recipe, resolved)
    return _compose(name, recipe, resolved)


def option_parts(recipe: Recipe) -> list[type[PartOptions]]:
    """Whose numbers a job with this recipe may set."""
    parts = [
        LOSS_OPTIONS[recipe.loss],
        REGULARIZER_OPTIONS[recipe.regularizer],
        SERVER_UPDATE_OPTIONS[recipe.server_update],
    ]
    if recipe.regularizer is not Regularizer.NONE:
        parts.append(MIX_OPTIONS[recipe.mix])
    parts.append(_statistic(recipe).options)
    parts.append(OWN_OPTIONS[recipe.own])
    if recipe.closing.has_ffc:
        parts.append(FfcOptions)
    if recipe.closing.has_personal:
        parts.append(PersonalOptions)
    return parts


def _smallest_context(
    options: Mapping[str, OptionValue], *, has_buffers: bool, update_bits: int
) -> PhaseContext:
    """A model of one weight: of a quantity, the state decides the size and never the name."""
    buffers = ("norm.running_mean",) if has_buffers else ()
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


def _check_known(name: str, options: Mapping[str, OptionValue], parts: Iterable[type[PartOptions]]) -> None:
    known = sorted({field for part in parts for field in part.model_fields})
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(
            f"strategy.options.{unknown[0]}: unknown option, {name} has {', '.join(known) or 'none'}"
        )


def _compose(name: str, recipe: Recipe, options: Mapping[str, OptionValue]) -> Strategy:
    has_class_rows = recipe.statistic is not None
    opening: list[Phase] = [EnrollmentPhase(), *([ClassPresencePhase()] if has_class_rows else [])]
    rounds: list[Phase] = [*_statistic(recipe).before_training, _train_phase(recipe)]
    closing: list[Phase] = [*_calibration(recipe, options), _evaluate_phase(recipe), *_personal(recipe)]
    return Strategy(
        name=name,
        recipe=recipe,
        options=MappingProxyType(dict(options)),
        opening=tuple(phase.kind for phase in opening),
        round_phases=tuple(phase.kind for phase in rounds),
        closing=tuple(phase.kind for phase in closing),
        phases=MappingProxyType({phase.kind: phase for phase in (*opening, *rounds, *closing)}),
    )


def _train_phase(recipe: Recipe) -> TrainPhase:
    keepers: list[Keeper] = [EmaTeacher()] if recipe.regularizer is Regularizer.CSD else []
    return TrainPhase(
        update=SERVER_UPDATES[recipe.server_update],
        statistics=(UpdateScale(), *_tested(recipe), *_statistic(recipe).beside_training),
        keepers=tuple(keepers),
    )


def _evaluate_phase(recipe: Recipe) -> EvaluatePhase:
    return EvaluatePhase(statistics=_tested(recipe))


def _tested(recipe: Recipe) -> tuple[Statistic, ...]:
    return (Evaluation(),) if recipe.own is Own.NONE else (Evaluation(), OwnAccuracy())


def _statistic(recipe: Recipe) -> StatisticParts:
    return StatisticParts() if recipe.statistic is None else STATISTICS[recipe.statistic]


def _calibration(recipe: Recipe, options: Mapping[str, OptionValue]) -> list[Phase]:
    if not recipe.closing.has_ffc:
        return []
    return [CalibratePhase(ridge=options_of(FfcOptions, options).ridge)]


def _personal(recipe: Recipe) -> list[Phase]:
    """After the evaluation, so that a job whose silos cannot fine-tune has its final figures."""
    return [PersonalPhase()] if recipe.closing.has_personal else []
