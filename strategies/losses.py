"""Options of the losses; what they compute stands in silo_agent/objectives/, a file a loss."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from strategies.recipe import Loss, PartOptions

LOSS_OPTIONS: Mapping[Loss, type[PartOptions]] = MappingProxyType(dict.fromkeys(Loss, PartOptions))
