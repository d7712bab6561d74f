"""Samples as tensors, batched by indexing: the arrays are in memory, so no worker process helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from silo_agent.data.base import Samples

PASS_BATCH = 512  # most samples of a pass without gradients
PASS_BYTES = 1 << 17  # of its inputs on a CPU: 32 images of 28 x 28 pass twice as fast as 512 at a time
LEAST_PASS_BATCH = 32
PRIVATE_BATCH = 32  # samples of every pass over data in a private job, the last one padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a pass is given; only the first `count` of its samples are samples."""

    inputs: Tensor
    labels_N: Tensor
    count: int


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

    def passes(self, *, is_private: bool) -> Iterator[Batch]:
        """All samples once, in their order. is_private: every batch has one shape, whatever their number."""
        size = PRIVATE_BATCH if is_private else self._pass_batch
        for start in range(0, len(self), size):
            inputs, labels_N = self.features[start : start + size], self.labels[start : start + size]
            count = len(labels_N)
            if is_private:
                inputs, labels_N = padded(inputs, size), padded(labels_N, size)
            yield Batch(inputs=inputs, labels_N=labels_N, count=count)

    @property
    def _pass_batch(self) -> int:
        if self.features.device.type != "cpu" or not len(self):
            return PASS_BATCH
        fitting = PASS_BYTES // max(1, self.features[0].nbytes)
        return min(max(fitting, LEAST_PASS_BATCH), PASS_BATCH)

    def take(self, places_N: Tensor) -> tuple[Tensor, Tensor]:
        """Features and labels at those places, in their order."""
        return self.features.index_select(0, places_N), self.labels.index_select(0, places_N)

    def shuffled(self, batch_size: int, *, generator: torch.Generator, least: int = 1) -> Iterator[Tensor]:
        """The places of one epoch's batches, in random order. A last batch of fewer than `least` samples
        is left out."""
        order = torch.randperm(len(self), generator=generator)
        for chosen in torch.split(order, batch_size):
            if len(chosen) >= least:
                yield chosen.to(self.labels.device)


def padded(rows: Tensor, size: int) -> Tensor:
    """As many rows as `size`, zeros behind, in memory of its own.

    Kernels round by the shape of what they are given, and a state of large weights that nearly cancel makes
    other answers of it: batches of one shape keep the number of samples out of the answers. That a sample's
    place in such a batch stays out of them too is what training/dp_sgd/checks.py looks at.
    """
    filled = rows.new_zeros((size, *rows.shape[1:]))
    filled[: len(rows)] = rows
    return filled
