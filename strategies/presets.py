"""Methods by name: a preset is a row that names its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from crypto.errors import ConfigError
from strategies.base import Phase
from strategies.evaluation import EvaluatePhase, Evaluation
from strategies.roll_call import RollCallPhase
from strategies.weighted_mean import TrainPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The phases of a method, in order: once before the rounds, in each round, once after them."""

    name: str
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


def strategy_for(preset: str, options: Mapping[str, float]) -> Strategy:
    """The method of that name. Raises ConfigError for unknown names and options."""
    if preset not in PRESETS:
        known = ", ".join(sorted(PRESETS))
        raise ConfigError(f"strategy.preset: expected one of {known}, got {preset}")
    return PRESETS[preset](options)


def fedavg(options: Mapping[str, float]) -> Strategy:
    """Weighted mean of the deltas, evaluated in the same sum."""
    _check_options("fedavg", options, allowed=())
    return _compose("fedavg", opening=(RollCallPhase(),), rounds=(_TRAIN,), closing=(EvaluatePhase(),))


_TRAIN = TrainPhase(statistics=(Evaluation(),))

PRESETS: Mapping[str, Callable[[Mapping[str, float]], Strategy]] = MappingProxyType({"fedavg": fedavg})


def _compose(
    name: str, *, opening: tuple[Phase, ...], rounds: tuple[Phase, ...], closing: tuple[Phase, ...]
) -> Strategy:
    return Strategy(
        name=name,
        opening=tuple(phase.kind for phase in opening),
        round_phases=tuple(phase.kind for phase in rounds),
        closing=tuple(phase.kind for phase in closing),
        phases=MappingProxyType({phase.kind: phase for phase in (*opening, *rounds, *closing)}),
    )


def _check_options(preset: str, options: Mapping[str, float], *, allowed: tuple[str, ...]) -> None:
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        known = ", ".join(allowed) or "none"
        raise ConfigError(f"strategy.options.{unknown[0]}: unknown option, {preset} has {known}")
