"""Options of the losses; what they compute stands in silo_agent/training/parts/, a file a loss."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field

from strategies.recipe import Loss, PartOptions


class BalancedSoftmaxOptions(PartOptions):
    """FedETF's loss."""

    balance: float = Field(
        default=1.0, gt=0, le=10, description="beta of FedETF: exponent of the silo's class counts"
    )


LOSS_OPTIONS: Mapping[Loss, type[PartOptions]] = MappingProxyType(
    {
        **dict.fromkeys(Loss, PartOptions),
        Loss.BALANCED_SOFTMAX: BalancedSoftmaxOptions,
    }
)
