"""The words that coordinator and silo share about a phase: context, options, quantities, result.

A phase is pure: context in, quantities out; context and revealed sums in, next global state out. The next
state follows from the tagged sums alone, which silos check and have too; figures may follow from all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Quantity
from strategies.expected import wrong_value

OptionValue: TypeAlias = bool | float | str | None
Array = NDArray[Any]
Arrays = Mapping[str, Array]
FloatArray = NDArray[np.float64]

MODEL = "model/"  # prefix of a model's parameters and buffers in the global state
METHOD = "method/"  # prefix of what a method keeps between rounds
PRESENCE = "method/presence"  # (C,) int64: how many silos hold each class, written by class-presence
TOTAL = "method/total"  # sum of the rounded sample counts, written by enrollment
DRAW_SEED = "method/draw_seed"  # (32,) uint8: what rounds are drawn by, written once, at the opening


def model_in(state: Arrays) -> Arrays:
    """The model's parameters and buffers, under their names in the state."""
    return {name: array for name, array in state.items() if name.startswith(MODEL)}


Pieces: TypeAlias = Callable[[slice], FloatArray]  # of a flat vector of numbers, anywhere in it

BLOCK_VALUES = 1 << 16  # of one piece: 512 KiB, which stay in a core's cache


@runtime_checkable
class HasPieces(Protocol):
    """Sums of which a vector need not be held whole."""

    def pieces(self, name: str) -> Pieces: ...


def pieces_of(sums: Mapping[str, Array], name: str) -> Pieces:
    """A vector of the sums, piece by piece."""
    if isinstance(sums, HasPieces):
        return sums.pieces(name)
    whole_N = sums[name]
    return lambda place: whole_N[place]


def blocks(size: int) -> Iterator[slice]:
    """The pieces of a vector of that size, in order."""
    return (slice(first, min(first + BLOCK_VALUES, size)) for first in range(0, size, BLOCK_VALUES))


class PartOptions(BaseModel):
    """Numbers of one part. Each field says its symbol in the paper and its range."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


T = TypeVar("T", bound=PartOptions)


def total_of(state: Arrays) -> int:
    """What enrollment wrote as TOTAL. Raises ConfigError where it is none: it came from outside."""
    found = state.get(TOTAL)
    if found is None or found.shape != () or found.dtype.kind not in "iu":
        got = "got none" if found is None else f"got an array of shape {found.shape} and type {found.dtype}"
        raise ConfigError(f"{TOTAL}: expected one whole number, {got}")
    return int(found)


def array_in(state: Arrays, name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Raises ConfigError for another one, and for what is not finite: the state came from outside."""
    found = state.get(name)
    if found is None or found.shape != shape or found.dtype != dtype:
        got = "none" if found is None else f"{found.dtype} of shape {found.shape}"
        raise ConfigError(f"state: {name}: expected {np.dtype(dtype)} of shape {shape}, got {got}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ConfigError(f"state: {name}: expected finite numbers")
    return found


def options_of(part: type[T], given: Mapping[str, OptionValue], *, field: str = "strategy.options") -> T:
    """A part's options out of all those given. Raises ConfigError that names option and what is allowed."""
    try:
        return part.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(place) for place in first["loc"])
        raise ConfigError(f"{field}.{name}: {wrong_value(first)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseContext:
    """Everything quantities and server steps may depend on: the job and the global state.

    state: arrays named model/<parameter>, method/<name>. trained: names (without prefix) of
    the float parameters that silos train, in the order of the delta vector. buffers: float
    buffers (BatchNorm) averaged as a quantity of their own. members: m of this session.
    public_seed: 32 bytes of job, round and phase.
    update_clip: L2 norm to which every silo's update is clipped, where noise protects silos; else None.
    survivors: silos whose values a revealed sum holds; None before there is a sum.
    draw_seed: what the opening enrollment of a job that draws its rounds writes into the state; else None.
    tests_model: False in the rounds of a job whose silos all test models between them.
    noise: of each noised quantity, the standard deviation of the noise of all m silos in a number of the
    sum, in the quantity's units; public, and of no use to what a silo computes.
    """

    round: int
    members: int
    classes: int
    state: Arrays
    trained: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    update_bound: float = 8.0
    update_bits: int = 32
    update_clip: float | None = None
    public_seed: bytes = bytes(32)
    survivors: int | None = None
    draw_seed: bytes | None = None
    min_weight: float = 0.0
    tests_model: bool = True
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)

    @property
    def noise_of_survivors(self) -> dict[str, float]:
        """The noise that is in a revealed sum, by quantity: silos that were lost added none."""
        share = 1.0 if self.survivors is None else self.survivors / self.members
        return {name: deviation * math.sqrt(share) for name, deviation in self.noise.items()}

    @property
    def trained_values(self) -> int:
        """P, of all trained parameters together."""
        return sum(self.state[MODEL + name].size for name in self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """What a revealed sum did. state is None where it was not applied, with the reason.

    figures: those that the step itself knows. tables: matrices and curves of a closing evaluation.
    """

    state: Arrays | None
    figures: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Array] = field(default_factory=dict)
    data_share: float = 0.0
    reason: str = ""


class Phase(Protocol):
    """One phase of a strategy."""

    @property
    def kind(self) -> str:
        """enrollment, class-presence, train, evaluate, calibrate ...: the ledger's unit of reveals."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """What every silo sums in this phase, in declared order."""

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """The next global state from the decoded tagged sums over the revealed cohort.

        It reads no other sum: silos compute the state from the tagged ones alone, bit for bit. A phase that
        tags nothing returns the context's state. Shapes: each sum has its quantity's shape, float64 or int64
        for counts. The sums are handed over: next_state may use them up. Source: docs/protocol.md 7.9.
        """

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> Mapping[str, float]:
        """Numbers for the phase's record, of any sums, tagged or not. The coordinator's alone."""
        return {}


class SummedBeside(Protocol):
    """What is summed in a phase in addition to its main sum: quantities, and what their sums say."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """What every silo sums for it, in declared order."""

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> Mapping[str, float]:
        """Numbers for the phase's record, of any sums."""

    def arrays(self, context: PhaseContext, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """method/ arrays that it writes into the next global state, of tagged sums alone."""


class Keeper(Protocol):
    """What a method keeps of the models that its rounds lead to. Needs nothing summed."""

    def arrays(self, context: PhaseContext, state: Arrays) -> Mapping[str, Array]:
        """method/ arrays to keep. context: before the round; state: after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStep:
    """How the model moves: piece by piece of its trained parameters, by steps(place) / divisor, in float64.

    arrays: method/ arrays to keep.
    """

    steps: Pieces
    divisor: float = 1.0
    arrays: Mapping[str, Array] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)


class ServerRule(Protocol):
    """What the mean delta, and the update's further sums, do to the model."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """What it needs summed besides p * delta and p, all of it tagged."""

    def step(self, context: PhaseContext, sums: Mapping[str, Array]) -> ServerStep:
        """The step from the tagged sums; the sum of p is above 0.

        Shapes: sums["delta"] (P,), sums["weight"] (). A vector of the model's length is read by `pieces_of`:
        as a whole in float64 it takes the memory of two models.
        """
