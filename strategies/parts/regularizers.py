"""Options of the regularizers; what they compute stands in silo_agent/training/parts/, a file a part."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from pydantic import Field

from strategies.parts.ema_teacher import TeacherOptions
from strategies.parts.moon import MoonOptions
from strategies.parts.soft_labels import SoftLabelOptions
from strategies.recipe import Mix, PartOptions, Regularizer


class AdditiveWeight(PartOptions):
    """loss + mu R."""

    mu: float = Field(default=1.0, ge=0, le=1e6, description="mu: weight of the regularizer")


class ConvexWeight(PartOptions):
    """beta loss + (1 - beta) R."""

    beta: float = Field(default=0.9, ge=0, le=1, description="beta: share of the loss")


class TemperatureOptions(PartOptions):
    """Softened softmax of teacher and student."""

    tau: float = Field(default=3.0, gt=0, le=1e3, description="tau: temperature of both softmaxes")


class Mask(StrEnum):
    """Which samples the teacher teaches: where it gives the true class more than chance, where it is right,
    or all."""

    ADAPTIVE = "adaptive"
    FORCIBLE = "forcible"
    NONE = "none"


class Distance(StrEnum):
    """From teacher to student: cross-entropy as the paper writes it, or KL, its value less the entropy."""

    CE = "ce"
    KL = "kl"


class CsdOptions(TemperatureOptions, TeacherOptions):
    """FedCSD's self-distillation."""

    mask: Mask = Field(default=Mask.ADAPTIVE, description="M: which samples the teacher teaches")
    form: Distance = Field(default=Distance.CE, description="ce or kl; same gradient unless through delta")
    similarity: bool = Field(
        default=True, description="delta-hat: class similarity on the teacher's logits; false leaves them be"
    )
    grad_through_delta: bool = Field(
        default=False, description="whether the student's gradient also flows through delta-hat"
    )


MIX_OPTIONS: Mapping[Mix, type[PartOptions]] = MappingProxyType(
    {Mix.ADDITIVE: AdditiveWeight, Mix.CONVEX: ConvexWeight}
)
REGULARIZER_OPTIONS: Mapping[Regularizer, type[PartOptions]] = MappingProxyType(
    {
        **dict.fromkeys(Regularizer, PartOptions),
        Regularizer.KD: TemperatureOptions,
        Regularizer.NTD: TemperatureOptions,
        Regularizer.MOON: MoonOptions,
        Regularizer.CSD: CsdOptions,
        Regularizer.SOFT_LABELS: SoftLabelOptions,
    }
)
