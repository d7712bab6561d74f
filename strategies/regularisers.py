"""Options of the regularisers; what they compute stands in silo_agent/objectives/, a file a part."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field

from strategies.recipe import Mix, PartOptions, Regulariser


class AdditiveWeight(PartOptions):
    """loss + mu R."""

    mu: float = Field(default=1.0, ge=0, le=1e6, description="mu: weight of the regulariser")


class ConvexWeight(PartOptions):
    """beta loss + (1 - beta) R."""

    beta: float = Field(default=0.9, ge=0, le=1, description="beta: share of the loss")


class TemperatureOptions(PartOptions):
    """Softened softmax of teacher and student."""

    tau: float = Field(default=3.0, gt=0, le=1e3, description="tau: temperature of both softmaxes")


MIX_OPTIONS: Mapping[Mix, type[PartOptions]] = MappingProxyType(
    {Mix.ADDITIVE: AdditiveWeight, Mix.CONVEX: ConvexWeight}
)
REGULARISER_OPTIONS: Mapping[Regulariser, type[PartOptions]] = MappingProxyType(
    {
        **dict.fromkeys(Regulariser, PartOptions),
        Regulariser.KD: TemperatureOptions,
        Regulariser.NTD: TemperatureOptions,
    }
)
