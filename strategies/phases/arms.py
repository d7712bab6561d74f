"""Arms of a search: copies of a job that differ in a few fields and train side by side in the same phases.

Successive halving (Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", 2016): after each rung of rounds the better half of the arms stays. Which half follows from
tagged sums, so silos compute it. Source: docs/protocol.md 7.19, docs/decisions/0038-search.md.

The leading arm's arrays and quantities have their plain names. Those of arm 2 are `method/arm/2/model/...`
and `delta@2`. Leaks of each arm what its phase leaks by itself.

A = arms that are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from crypto.errors import ConfigError
from crypto.fixed_point.layout import CLIPPED, Quantity
from strategies.base import (
    DRAW_SEED,
    METHOD,
    MODEL,
    PRESENCE,
    TOTAL,
    Array,
    Arrays,
    OptionValue,
    Phase,
    PhaseContext,
    PhaseResult,
    Pieces,
    pieces_of,
)
from strategies.phases.columns import KEPT, MEANS, SCALES
from strategies.phases.enrollment import MAX_SAMPLES
from strategies.tasks.base import LOSS, LOSS_SUM, DeclaredTask, Ratio

ARMS = METHOD + "search/arms"  # (A,) int64: the arms that are left, the best first; absent before the first
ROUNDS = METHOD + "search/rounds"  # () int64: applied since the last halving
OTHERS = METHOD + "arm/"  # prefix of the arrays of all arms but the first
OF_ARM = "@"  # between a quantity's name and its arm
ARM = "arm"  # a figure: the leading one
WINNER = "winner"  # a figure: the arm that is left, once there is one
MAX_ARMS = 8
V = TypeVar("V")
SHARED = (TOTAL, PRESENCE, DRAW_SEED, MEANS, SCALES, KEPT)  # of the job, whatever its arms do


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A phase as one arm has it."""

    phase: Phase
    options: Mapping[str, OptionValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """When arms are halved, and by what. rounds: of a rung. metric: of the task's round figures."""

    rounds: int
    metric: str
    is_lowest_best: bool
    task: DeclaredTask

    @property
    def sums(self) -> frozenset[str]:
        """Names of the sums that the metric follows from."""
        ratio = ratio_of(self.task, self.metric)
        return frozenset((ratio.above, ratio.below))

    def value(self, sums: Mapping[str, Array]) -> float:
        """The metric, also out of its range, to which noise may bring it; NaN without anything tested."""
        ratio = ratio_of(self.task, self.metric)
        above, below = float(sums[ratio.above]), float(sums[ratio.below])
        return above / below if below > 0 else math.nan

    def better_half(self, values: Mapping[int, float]) -> list[int]:
        """The arms that stay, the best first: half of them, rounded down. values: by arm, in the order that
        decides between equal ones; NaN is worse than any number."""
        sign = 1.0 if self.is_lowest_best else -1.0
        ranked = sorted(values, key=lambda arm: (math.isnan(values[arm]), sign * values[arm]))
        return ranked[: max(1, len(ranked) // 2)]


def ratio_of(task: DeclaredTask, metric: str) -> Ratio:
    """What a round's metric is."""
    return LOSS if metric == "loss" else task.ratios[metric]


def judging_metrics(task: DeclaredTask) -> list[str]:
    """Round metrics of counts and of losses: others would be rounding in the 47 bits of a tagged sum."""
    sums = {each.name: each for each in task.round_sums}
    ratios = {metric: ratio_of(task, metric) for metric in task.round_metrics}
    return [
        metric
        for metric, ratio in ratios.items()
        if all(
            name in sums and (sums[name].is_count or name == LOSS_SUM.name)
            for name in (ratio.above, ratio.below)
        )
    ]


def live_arms(state: Arrays, arms: int) -> list[int]:
    """The arms that are left of so many, the leading one first. Raises ConfigError for an array that no
    search writes: the state may come from outside."""
    found = state.get(ARMS)
    if found is None:
        return list(range(arms))
    live = found.tolist() if found.ndim == 1 and found.dtype == np.int64 else []
    if not live or len({*live}) != len(live) or not all(0 <= arm < arms for arm in live):
        raise ConfigError(f"state: {ARMS}: expected 1 to {arms} different arms below {arms}, got {found}")
    return live


def state_of(state: Arrays, arm: int, arms: int) -> dict[str, Array]:
    """The global state as it is for one arm. Before the first training all arms have the same."""
    plain = leading_state(state)
    if ARMS not in state or live_arms(state, arms)[0] == arm:
        return plain
    prefix = f"{OTHERS}{arm}/"
    own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
    return {name: plain[name] for name in SHARED if name in plain} | own


def leading_state(state: Arrays) -> dict[str, Array]:
    """The global state as it is for the leading arm, and as every arm's is in its shapes."""
    return {
        name: array
        for name, array in state.items()
        if name not in (ARMS, ROUNDS) and not name.startswith(OTHERS)
    }


def joined(states: Mapping[int, Arrays], live: Sequence[int], *, rounds: int) -> dict[str, Array]:
    """One state of the live arms, the leading one first and the others in order."""
    first, *others = live
    live = [first, *sorted(others)]
    state = dict(states[first])
    for arm in live[1:]:
        own = {name: array for name, array in states[arm].items() if name not in SHARED}
        state |= {f"{OTHERS}{arm}/{name}": array for name, array in own.items()}
    return state | {ARMS: np.array(live, np.int64), ROUNDS: np.array(rounds, np.int64)}


def with_arms(state: Arrays, live: Sequence[int]) -> dict[str, Array]:
    """A state in which these arms are left, all of them the same."""
    return joined(dict.fromkeys(live, state), live, rounds=0)


def arms_in(figures: Mapping[str, float]) -> list[int]:
    """The arms of a round's phase by its figures, the leading one first; empty where they name none."""
    if ARM not in figures:
        return []
    prefix = ARM + OF_ARM
    others = [name.removeprefix(prefix) for name in figures if name.startswith(prefix)]
    return [int(figures[ARM]), *sorted(int(other) for other in others)]


def _has_moved(context: PhaseContext, after: Arrays) -> bool:
    """Whether a round moved an arm's model. One that stays would be asked again and again: its training came
    to no numbers at any silo, or its rate moves nothing. Source: docs/protocol.md 6.10."""
    return any(
        not np.array_equal(context.state[MODEL + name], after[MODEL + name]) for name in context.trained
    )


def suffix_of(arm: int, live: Sequence[int]) -> str:
    """What an arm's quantities have behind their names."""
    return "" if arm == live[0] else f"{OF_ARM}{arm}"


def without_arm(name: str) -> str:
    """A quantity's name in a job without search."""
    return name.partition(OF_ARM)[0]


def context_of_arm(
    context: PhaseContext, state: Arrays, options: Mapping[str, OptionValue], suffix: str
) -> PhaseContext:
    """The context of all arms as it is for one of them."""
    return replace(context, state=state, options=options, noise=of_arm(context.noise, suffix))


def of_arm(values: Mapping[str, V], suffix: str) -> dict[str, V]:
    """What there is of one arm, such as a silo's values, under its plain names."""
    return {plain: values[plain + suffix] for plain in names_of_arm(values, suffix)}


def names_of_arm(names: Iterable[str], suffix: str) -> list[str]:
    """Plain names of the quantities of one arm."""
    return [without_arm(name) for name in names if name.removeprefix(without_arm(name)) == suffix]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmsPhase:
    """A phase of all live arms at once. halving: of the phase that ends a round, else None."""

    kind: str
    arms: tuple[Arm, ...]
    halving: Halving | None = None

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Of each live arm what its phase sums; of several, what they are judged by is tagged."""
        contexts = self._contexts(context)
        judged = self.halving.sums if self.halving else frozenset()
        found = []
        for arm, suffix in self._suffixes(contexts).items():
            for quantity in self.arms[arm].phase.quantities(contexts[arm]):
                if len(contexts) > 1 and quantity.name in judged:
                    found.append(_of_arm(_tagged(quantity), suffix))
                elif not suffix or quantity.name != CLIPPED:  # one count for all arms
                    found.append(_of_arm(quantity, suffix))
        return tuple(found)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Every arm's own; none where one of them is not applied. Ends a rung where it is time; an arm that
        did not move falls out at once."""
        contexts = self._contexts(context)
        of_arms = {arm: _SumsOfArm(sums, suffix) for arm, suffix in self._suffixes(contexts).items()}
        results = {arm: self.arms[arm].phase.next_state(each, of_arms[arm]) for arm, each in contexts.items()}
        first = next(iter(results.values()))
        states = dict[int, Arrays]()
        for arm, result in results.items():
            if result.state is None:
                return result
            states[arm] = result.state
        live, rounds = list(contexts), int(context.state.get(ROUNDS, 0))
        if self.halving is not None and len(live) > 1:
            rounds += 1
            if rounds >= self.halving.rounds:
                rounds = 0
                live = self.halving.better_half({arm: self.halving.value(of_arms[arm]) for arm in live})
            live = [arm for arm in live if _has_moved(contexts[arm], states[arm])] or live
        figures = {**first.figures, WINNER: float(live[0])} if len(live) == 1 else first.figures
        return replace(first, state=joined(states, live, rounds=rounds), figures=figures)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """The leading arm's; `arm`, which one that is, and `arm@2` for each other one that is left; of every
        arm the task's figures as `loss@2`."""
        contexts = self._contexts(context)
        suffixes = self._suffixes(contexts)
        leading = next(iter(contexts))
        # what was clipped is counted over all arms: their mean stands for each
        of_leading = _SumsOfArm(sums, "", clipped_by=len(contexts))
        found = dict(self.arms[leading].phase.figures(contexts[leading], of_leading))
        found |= {ARM: float(leading)}
        found |= {ARM + suffix: 1.0 for suffix in suffixes.values() if suffix}
        if self.halving is not None and len(contexts) > 1:
            for arm, suffix in suffixes.items():
                noise = contexts[arm].noise_of_survivors
                figures = self.halving.task.figures(_SumsOfArm(sums, suffix), noise)
                names = self.halving.task.round_metrics
                found |= {f"{name}{OF_ARM}{arm}": figures[name].value for name in names}
        return found

    def _contexts(self, context: PhaseContext) -> dict[int, PhaseContext]:
        """By live arm, the leading one first."""
        count = len(self.arms)
        live = live_arms(context.state, count)
        return {
            arm: context_of_arm(
                context,
                state_of(context.state, arm, count),
                self.arms[arm].options,
                suffix_of(arm, live),
            )
            for arm in live
        }

    def _suffixes(self, contexts: Mapping[int, PhaseContext]) -> dict[int, str]:
        return {arm: suffix_of(arm, [*contexts]) for arm in contexts}


def _tagged(quantity: Quantity) -> Quantity:
    """One that the next state may follow from. A count fits the 47 bits of a tagged sum."""
    bound = min(quantity.bound, MAX_SAMPLES) if quantity.is_count else quantity.bound
    return replace(quantity, is_tagged=True, bound=bound)


def _of_arm(quantity: Quantity, suffix: str) -> Quantity:
    at_most = quantity.at_most and quantity.at_most + suffix
    return replace(quantity, name=quantity.name + suffix, at_most=at_most)


class _SumsOfArm(Mapping[str, Array]):
    """The sums of one arm under their plain names. clipped_by: what the count of clipped values is divided
    by."""

    def __init__(self, sums: Mapping[str, Array], suffix: str, *, clipped_by: int = 1) -> None:
        self._sums, self._suffix, self._clipped_by = sums, suffix, clipped_by

    def __getitem__(self, name: str) -> Array:
        found = self._sums[name + self._suffix]
        return np.asarray(found / self._clipped_by) if name == CLIPPED else found

    def pieces(self, name: str) -> Pieces:
        return pieces_of(self._sums, name + self._suffix)

    def __iter__(self) -> Iterator[str]:
        return iter(names_of_arm(self._sums, self._suffix))

    def __len__(self) -> int:
        return len(names_of_arm(self._sums, self._suffix))
