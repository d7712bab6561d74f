"""The words in which a method is written down: which head, which loss, which regularizer, and so on.

A recipe names parts; the parts' own numbers are options. Both sides read the same recipe:
strategies/ says what is summed and what the sums do, silo_agent/training/parts/ how a silo computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from crypto.errors import ConfigError

OptionValue: TypeAlias = bool | float | str


class Head(StrEnum):
    """The last linear layer. Only a trained one is summed; a frozen one travels in the state."""

    TRAINED = "trained"
    TRAINED_UNBIASED = "trained-unbiased"
    FROZEN_RANDOM = "frozen-random"
    FROZEN_ORTHONORMAL = "frozen-orthonormal"
    FROZEN_ETF = "frozen-etf"

    @property
    def is_frozen(self) -> bool:
        return self.value.startswith("frozen")


class Features(StrEnum):
    """What the head is given: the backbone's output, that at unit length, or a unit projection of it."""

    RAW = "raw"
    UNIT = "unit"
    PROJECTED_UNIT = "projected-unit"


class Loss(StrEnum):
    CROSS_ENTROPY = "cross-entropy"
    SPHERE_MSE = "sphere-mse"
    DOT_REGRESSION = "dot-regression"
    BALANCED_SOFTMAX = "balanced-softmax"
    CLIENT_ADAPTED = "client-adapted"


class Regularizer(StrEnum):
    NONE = "none"
    PROX = "prox"
    MOON = "moon"
    KD = "kd"
    NTD = "ntd"
    LD = "ld"
    FD = "fd"
    CSD = "csd"
    SOFT_LABELS = "soft-labels"


class Mix(StrEnum):
    """How loss and regularizer join: loss + mu R, or beta loss + (1 - beta) R."""

    ADDITIVE = "additive"
    CONVEX = "convex"


class ServerUpdate(StrEnum):
    WEIGHTED_MEAN = "weighted-mean"
    FEDEXP = "fedexp"
    FEDOPT = "fedopt"
    FEDNOVA = "fednova"
    SCAFFOLD = "scaffold"


class Own(StrEnum):
    """What of the model is each silo's own in every round: nothing, the head, trained together with the body
    or before it, a whole model beside the global one, or the global one after a step at the silo."""

    NONE = "none"
    HEAD = "head"
    HEAD_FIRST = "head-first"
    MODEL = "model"
    ADAPTED = "adapted"

    @property
    def has_head(self) -> bool:
        return self in (Own.HEAD, Own.HEAD_FIRST)

    @property
    def is_kept(self) -> bool:
        """Whether it goes on from round to round; an adapted model follows anew from the global one."""
        return self.has_head or self is Own.MODEL


class StatisticName(StrEnum):
    SOFT_LABELS = "soft-labels"
    LOGIT_PROTOTYPES = "logit-prototypes"


class Closing(StrEnum):
    """What follows the last round: a calibrated head, personal models, or the one and then the other."""

    NONE = "none"
    FFC = "ffc"
    PERSONAL = "personal"
    FFC_PERSONAL = "ffc-personal"

    @property
    def has_ffc(self) -> bool:
        return self in (Closing.FFC, Closing.FFC_PERSONAL)

    @property
    def has_personal(self) -> bool:
        return self in (Closing.PERSONAL, Closing.FFC_PERSONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A method as the parts it is made of. defaults: its own values of the parts' options."""

    head: Head = Head.TRAINED
    features: Features = Features.RAW
    loss: Loss = Loss.CROSS_ENTROPY
    regularizer: Regularizer = Regularizer.NONE
    mix: Mix = Mix.ADDITIVE
    server_update: ServerUpdate = ServerUpdate.WEIGHTED_MEAN
    statistic: StatisticName | None = None
    own: Own = Own.NONE
    closing: Closing = Closing.NONE
    defaults: Mapping[str, OptionValue] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def keeps_local_state(self) -> bool:
        """Whether silos keep arrays of their own between rounds. Source: docs/protocol.md 7.8."""
        return (
            self.own.is_kept
            or self.regularizer is Regularizer.MOON
            or self.server_update is ServerUpdate.SCAFFOLD
        )


class PartOptions(BaseModel):
    """Numbers of one part. Each field says its symbol in the paper and its range."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


T = TypeVar("T", bound=PartOptions)


def options_of(part: type[T], given: Mapping[str, OptionValue]) -> T:
    """A part's options out of all those given. Raises ConfigError that names option and what is allowed."""
    try:
        return part.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(place) for place in first["loc"])
        raise ConfigError(f"strategy.options.{name}: {first['msg'].lower()}, got {first['input']}") from None
