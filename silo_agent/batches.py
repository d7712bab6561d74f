"""Samples as tensors, batched by indexing: the arrays are in memory, so no worker process helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from silo_agent.data.base import Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Shapes: features (N, ...) float32, labels (N,) int64, on one device."""

    features: Tensor
    labels: Tensor

    @classmethod
    def of(cls, samples: Samples, device: torch.device) -> Tensors:
        """Without a copy on the CPU, unless the arrays are read-only."""
        features, labels = (
            torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)
            for array in (samples.features, samples.labels)
        )
        return cls(features=features, labels=labels)

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self.features[start:stop], self.labels[start:stop]

    def take(self, places_N: Tensor) -> tuple[Tensor, Tensor]:
        """Features and labels at those places, in their order."""
        return self.features[places_N], self.labels[places_N]

    @staticmethod
    def filled_up(places_N: Tensor, size: int) -> Tensor:
        """As many places as `size`, the first one over again. Kernels round by the shape of what they are
        given: in batches of one size what comes out for a sample does not tell how many others there were."""
        return torch.cat([places_N, places_N[:1].expand(size - len(places_N))])

    def shuffled(self, batch_size: int, *, generator: torch.Generator, least: int = 1) -> Iterator[Tensor]:
        """The places of one epoch's batches, in random order. A last batch of fewer than `least` samples
        is left out."""
        order = torch.randperm(len(self), generator=generator)
        for chosen in torch.split(order, batch_size):
            if len(chosen) >= least:
                yield chosen.to(self.labels.device)
