"""How a batch is shared out: in parts one after the other, and between processes with a device each.

The gradient of a batch is the sum of its parts' gradients, each of the sum of its losses over the samples of
the whole batch: the same as of one batch, up to the order in which float32 numbers are added. Layers that
normalize over the batch see a part of it alone.
N = samples of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from silo_agent.training.base.batches import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShares:
    """micro_batch: most samples of a part; None: a share is one part. rank: of this one of `processes`."""

    micro_batch: int | None = None
    rank: int = 0
    processes: int = 1

    def parts(self, batch: Batch, *, least: int) -> list[Batch]:
        """This process's parts, of `least` samples or more; a batch that is too small is not shared."""
        if self.is_shared(batch, least=least):
            batch = _cut(batch, self.processes)[self.rank]
        if self.micro_batch is None:
            return [batch]
        return _cut(batch, max(1, min(math.ceil(batch.count / self.micro_batch), batch.count // least)))

    def is_shared(self, batch: Batch, *, least: int) -> bool:
        return self.processes > 1 and batch.count >= least * self.processes

    def most(self, batch_size: int) -> int:
        """Samples that are in the model at a time, of a job's batches."""
        return min(self.micro_batch or batch_size, math.ceil(batch_size / self.processes))

    @torch.no_grad()
    def add_up(self, parameters: Iterable[Tensor]) -> None:
        """The gradients become the sums of all processes': the same bits at each."""
        gradients = [each.grad for each in parameters if each.grad is not None]
        if self.processes == 1 or not gradients:
            return
        flat_P = torch.cat([gradient.reshape(-1) for gradient in gradients])
        distributed.all_reduce(flat_P)
        for gradient, sums in zip(
            gradients, torch.split(flat_P, [each.numel() for each in gradients]), strict=True
        ):
            gradient.copy_(sums.view_as(gradient))

    @torch.no_grad()
    def average(self, buffers: Iterable[Tensor]) -> None:
        """Running means of batches that each process saw a share of."""
        for buffer in buffers:
            if self.processes > 1 and buffer.is_floating_point():
                distributed.all_reduce(buffer)
                buffer.div_(self.processes)


ALONE = BatchShares()


def _cut(batch: Batch, parts: int) -> list[Batch]:
    """As even as can be, in order."""
    if parts == 1:
        return [batch]
    rows = (torch.tensor_split(each, parts) for each in (batch.inputs, batch.labels_N, batch.places_N))
    return [
        Batch(inputs=inputs, labels_N=labels_N, places_N=places_N, count=len(places_N))
        for inputs, labels_N, places_N in zip(*rows, strict=True)
    ]
