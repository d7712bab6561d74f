"""What one input to a phase reveals about a silo's data, as the ledger keeps it.

A release is one noised sum, one noised step, or one run of DP-SGD. `accountant` and `privacy_filter` say what
releases cost. Source: docs/privacy-proofs.md, "Accounting".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, TypeAlias

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Side

MAX_STEPS: Final = 1 << 40
MAX_DRAWS: Final = 1 << 60  # of one release
MAX_RELEASES_BYTES: Final = 1 << 16  # of one input; a release takes about 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """One sum of whole numbers with Gaussian noise.

    noise_multiplier: standard deviation of the noise that must be there, that of h silos, in sensitivities.
    draws: samples of it from a table. failure: the probability with which the sensitivity may be exceeded.
    side: the records that it is about.
    """

    noise_multiplier: float
    draws: int
    failure: float = 0.0
    side: Side = Side.BOTH

    @property
    def distance(self) -> float:
        return 0.0

    def __post_init__(self) -> None:
        _check_positive("gaussian", "noise_multiplier", self.noise_multiplier)
        _check_failure_and_side("gaussian", self)
        _check_range("gaussian", "draws", self.draws, 0, MAX_DRAWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGaussian:
    """One noised sum over a batch that was drawn by Poisson sampling. Fields as those of Gaussian.

    distance: how far the law may be from that of the sum of all that was drawn, in total variation: a batch
    may be cut.
    """

    noise_multiplier: float
    sample_rate: float
    draws: int
    failure: float = 0.0
    distance: float = 0.0
    side: Side = Side.TRAIN

    def __post_init__(self) -> None:
        _check_positive("sampled-gaussian", "noise_multiplier", self.noise_multiplier)
        _check_rate("sampled-gaussian", self.sample_rate)
        _check_failure_and_side("sampled-gaussian", self)
        _check_range("sampled-gaussian", "draws", self.draws, 0, MAX_DRAWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgd:
    """Steps of DP-SGD: Poisson sampling at a rate, Gaussian noise in units of the clip norm.

    draws: samples of noise in all steps, where they come from a table (crypto/noise/gaussian.py). failure and
    distance: of all steps together, as above.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    draws: int = 0
    failure: float = 0.0
    distance: float = 0.0
    side: Side = Side.TRAIN

    def __post_init__(self) -> None:
        _check_positive("dp-sgd", "noise_multiplier", self.noise_multiplier)
        _check_rate("dp-sgd", self.sample_rate)
        _check_range("dp-sgd", "steps", self.steps, 1, MAX_STEPS)
        _check_failure_and_side("dp-sgd", self)
        _check_range("dp-sgd", "draws", self.draws, 0, MAX_DRAWS)


Release: TypeAlias = Gaussian | SampledGaussian | DpSgd
Releases: TypeAlias = Iterable[Release] | Mapping[Release, int]  # a mapping says how often each

_KINDS: Final[Mapping[str, type[Release]]] = {
    "gaussian": Gaussian,
    "sampled-gaussian": SampledGaussian,
    "dp-sgd": DpSgd,
}


def releases_to_json(releases: Sequence[Release]) -> str:
    """As the ledger keeps them."""
    kinds = {made: kind for kind, made in _KINDS.items()}
    rows = [{"kind": kinds[type(release)], **asdict(release)} for release in releases]
    return json.dumps(rows, sort_keys=True, separators=(",", ":"), allow_nan=False)


def releases_from_json(text: str) -> tuple[Release, ...]:
    """Raises ConfigError for anything that `releases_to_json` does not write."""
    try:
        rows = json.loads(text) if len(text) <= MAX_RELEASES_BYTES else None
        if not isinstance(rows, list):
            raise ConfigError("releases: expected a list")
        return tuple(_release_of(dict(row)) for row in rows)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"releases: damaged, {error}") from None


def _release_of(values: dict[str, Any]) -> Release:
    made = _KINDS[values.pop("kind")]
    if set(values) != {field.name for field in fields(made)}:
        raise ConfigError(f"releases: expected the fields of {made.__name__}")
    if "side" in values:
        values["side"] = Side(values["side"])
    for name, value in values.items():
        if name != "side" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError("releases: expected numbers")
    return made(**values)


def _check_positive(what: str, name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):  # a comparison alone would let NaN pass
        raise ConfigError(f"{what}: {name}: expected a finite number above 0, got {value}")


def _check_rate(what: str, rate: float) -> None:
    _check_positive(what, "sample_rate", rate)
    if rate > 1:
        raise ConfigError(f"{what}: sample_rate: expected at most 1, got {rate}")


def _check_range(what: str, name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{what}: {name}: expected {least} to {most}, got {value}")


def _check_failure_and_side(what: str, release: Release) -> None:
    for name in ("failure", "distance"):
        if not 0 <= getattr(release, name) < 1:
            raise ConfigError(f"{what}: {name}: expected 0 to 1, got {getattr(release, name)}")
    if not isinstance(release.side, Side):
        raise ConfigError(f"{what}: side: expected one of {', '.join(Side)}, got {release.side!r}")
