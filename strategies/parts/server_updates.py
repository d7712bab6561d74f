"""What the mean delta does to the model, by the words of a recipe: one file a server update."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from strategies.base import ServerUpdate
from strategies.parts.fedexp import FedExP, FedExPOptions
from strategies.parts.fednova import FedNova
from strategies.parts.fedopt import FedOpt, FedOptOptions
from strategies.parts.scaffold import Scaffold
from strategies.parts.weighted_mean import WeightedMean
from strategies.recipe import PartOptions
from strategies.recipe import ServerUpdate as Name

SERVER_UPDATES: Mapping[Name, ServerUpdate] = MappingProxyType(
    {
        Name.WEIGHTED_MEAN: WeightedMean(),
        Name.FEDEXP: FedExP(),
        Name.FEDOPT: FedOpt(),
        Name.FEDNOVA: FedNova(),
        Name.SCAFFOLD: Scaffold(),
    }
)
SERVER_UPDATE_OPTIONS: Mapping[Name, type[PartOptions]] = MappingProxyType(
    {
        Name.WEIGHTED_MEAN: PartOptions,
        Name.FEDEXP: FedExPOptions,
        Name.FEDOPT: FedOptOptions,
        Name.FEDNOVA: PartOptions,
        Name.SCAFFOLD: PartOptions,
    }
)
