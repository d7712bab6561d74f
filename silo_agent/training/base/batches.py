"""Samples as tensors in batches: of data in memory, and of data that is read when it is wanted.

N = samples of a batch.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from silo_agent.training.data.base import Features, Indices, SampleSet
from silo_agent.training.data.streamed import Streamed
from silo_agent.training.data.units import Units

PASS_BATCH = 512  # most samples of a pass without gradients
PASS_BYTES = 3 << 18  # of its inputs on a CPU: 64 images of 3 x 32 x 32; more is slower for convolutions
LEAST_PASS_BATCH = 32
PRIVATE_BATCH = 32  # samples of every pass over data in a private job, the last one padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Shapes: inputs (N, ...), labels (N, *target), places (N,): where its samples stand in their set.

    Only the first `count` of its samples are samples; what is behind them fills up.
    """

    inputs: Tensor
    labels_N: Tensor
    places_N: Tensor
    count: int

    def padded(self, size: int) -> Batch:
        """Of `size` samples, zeros behind."""
        rows = (self.inputs, self.labels_N, self.places_N)
        inputs, labels_N, places_N = (padded(each, size) for each in rows)
        return Batch(inputs=inputs, labels_N=labels_N, places_N=places_N, count=self.count)


class Batches(ABC):
    """A silo's training set or hold-out as one phase reads it: batches on one device.

    micro_batch: most samples of a pass without gradients, too; None: what the device takes. constant_work:
    units that a pass of a private job computes for at least, of `rows_per_unit` rows each.
    """

    constant_work: int
    micro_batch: int | None

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """The targets of all samples. Raises ConfigError where they are more than one number a sample and
        not in memory."""

    @property
    @abstractmethod
    def units_N(self) -> Indices | None:
        """As SampleSet's."""

    @property
    @abstractmethod
    def rows_per_unit(self) -> int:
        """As SampleSet's."""

    @property
    def units(self) -> Units:
        return Units.of(self.units_N, len(self))

    def weights_N(self, steps: int) -> Tensor:
        """What each sample counts in a statistic, as `Units.weights_N`; 1 where each is a unit."""
        return torch.from_numpy(self.units.weights_N(steps)).to(self.device)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def at(self, plan: Iterable[Tensor]) -> Iterator[Batch]:
        """A batch for each of the plan's places, in their order. Places: on the CPU or on the device.

        One pass at a time: a pass ends where another begins. Raises ConfigError for a sample that cannot be
        used.
        """

    @property
    def pass_batch(self) -> int:
        """Samples in a batch of a pass without gradients."""
        most = PASS_BATCH
        if self.device.type == "cpu":
            most = min(max(PASS_BYTES // (4 * math.prod(self.input_shape)), LEAST_PASS_BATCH), PASS_BATCH)
        return most if self.micro_batch is None else min(most, self.micro_batch)

    @property
    def keeps_outputs(self) -> bool:
        """Whether a model's outputs for all samples may be kept, in memory beside them."""
        return True

    def passes(self, *, is_private: bool) -> Iterator[Batch]:
        """All samples once, in their order. is_private: every batch has one shape, whatever their number, and
        there are as many of them as for `constant_work` units, one at least."""
        for batch in self.in_order(PRIVATE_BATCH if is_private else self.pass_batch):
            yield batch.padded(PRIVATE_BATCH) if is_private else batch
        if is_private:
            rows = (len(self), max(1, self.constant_work * self.rows_per_unit))
            taken, least = (math.ceil(each / PRIVATE_BATCH) for each in rows)
            for _ in range(taken, least):
                yield self.filler()

    def filler(self) -> Batch:
        """One of a private job without samples."""
        (nothing,) = self.at([torch.zeros(0, dtype=torch.int64, device=self.device)])
        return nothing.padded(PRIVATE_BATCH)

    def in_order(self, size: int) -> Iterator[Batch]:
        """All samples once, `size` in a batch."""
        return self.at(torch.split(torch.arange(len(self)), size)) if len(self) else iter(())

    def shuffled(self, batch_size: int, *, generator: torch.Generator, least: int = 1) -> Iterator[Tensor]:
        """The places of one epoch's batches, in random order, where `at` wants them. A last batch of fewer
        than `least` samples is left out."""
        order = self.placed(torch.randperm(len(self), generator=generator))
        for chosen in torch.split(order, batch_size):
            if len(chosen) >= least:
                yield chosen

    def placed(self, order: Tensor) -> Tensor:
        """Places on the device, all at once: a copy waits for what the device computes."""
        return order.to(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors(Batches):
    """Data in memory. Shapes: features (N, ...), labels (N, *target), both on one device."""

    features: Tensor
    labels: Tensor
    constant_work: int = 0
    micro_batch: int | None = None
    units_N: Indices | None = None
    rows_per_unit: int = 1

    @classmethod
    def of(
        cls,
        samples: SampleSet,
        device: torch.device,
        *,
        constant_work: int = 0,
        micro_batch: int | None = None,
    ) -> Tensors:
        """Without a copy on the CPU, unless the arrays are read-only."""
        features, labels = (
            torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)
            for array in (samples.features, samples.labels)
        )
        return cls(
            features=features,
            labels=labels,
            constant_work=constant_work,
            micro_batch=micro_batch,
            units_N=samples.units_N,
            rows_per_unit=samples.rows_per_unit,
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.features.shape[1:])

    def at(self, plan: Iterable[Tensor]) -> Iterator[Batch]:
        for places_N in plan:
            yield self._batch(places_N, places_N)

    def in_order(self, size: int) -> Iterator[Batch]:
        """Without a copy."""
        order = torch.arange(len(self), device=self.device)
        for start in range(0, len(self), size):
            chosen = slice(start, start + size)
            yield self._batch(chosen, order[chosen])

    def _batch(self, chosen: Tensor | slice, places_N: Tensor) -> Batch:
        if isinstance(chosen, slice):
            inputs, labels_N = self.features[chosen], self.labels[chosen]
        else:  # in half the time of an index
            inputs, labels_N = (each.index_select(0, chosen) for each in (self.features, self.labels))
        return Batch(inputs=inputs, labels_N=labels_N, places_N=places_N, count=len(places_N))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Batches):
    """Samples that come to the device batch by batch."""

    samples: SampleSet
    device: torch.device
    input_shape: tuple[int, ...]
    rows: int = PASS_BATCH
    micro_batch: int | None = None
    keeps_outputs: bool = True
    constant_work: int = 0

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def pass_batch(self) -> int:
        return self.rows if self.micro_batch is None else min(self.rows, self.micro_batch)

    def placed(self, order: Tensor) -> Tensor:
        """On the CPU, which reads the samples."""
        return order

    @property
    def labels(self) -> Tensor:
        return self._there(self.samples.labels)

    @property
    def units_N(self) -> Indices | None:
        return self.samples.units_N

    @property
    def rows_per_unit(self) -> int:
        return self.samples.rows_per_unit

    def at(self, plan: Iterable[Tensor]) -> Iterator[Batch]:
        places = list(plan)
        read = self.samples.read([places_N.numpy(force=True) for places_N in places])
        for places_N, samples in zip(places, read, strict=True):
            yield Batch(
                inputs=self._there(samples.features),
                labels_N=self._there(samples.labels),
                places_N=self._moved(places_N),
                count=len(places_N),
            )

    def _there(self, array: Features) -> Tensor:
        return self._moved(torch.from_numpy(np.require(array, requirements=["C", "W"])))

    def _moved(self, tensor: Tensor) -> Tensor:
        """Pinned, so that this thread reads the next batch while the device computes."""
        if tensor.device == self.device:
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


def batches_of(
    samples: SampleSet, device: torch.device, *, constant_work: int = 0, micro_batch: int | None = None
) -> Batches:
    """The form in which these samples are read on that device: in its memory, where they take no more than
    half of what is free."""
    if isinstance(samples, Streamed):
        return Stream(
            samples=samples,
            device=device,
            input_shape=samples.job.input_shape,
            rows=samples.rows,
            keeps_outputs=False,
            constant_work=constant_work,
            micro_batch=micro_batch,
        )
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        if samples.features.nbytes + samples.labels.nbytes > free_bytes // 2:
            shape = samples.features.shape[1:]
            return Stream(
                samples=samples,
                device=device,
                input_shape=shape,
                constant_work=constant_work,
                micro_batch=micro_batch,
            )
    return Tensors.of(samples, device, constant_work=constant_work, micro_batch=micro_batch)


class DeviceCopies:
    """What was copied to a GPU's memory, kept from one phase to the next: one training set, one hold-out. A
    copy goes when nobody else has the samples any more, as after a job or when a person was left out."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[weakref.ref[SampleSet], Tensors]] = {}

    def of(
        self,
        part: str,
        samples: SampleSet,
        device: torch.device,
        *,
        constant_work: int,
        micro_batch: int | None,
    ) -> Batches:
        """As `batches_of`. part: what they are, of which one is kept."""
        kept = self._kept.get(part)
        if kept is not None and kept[0]() is samples and kept[1].device == device:
            return replace(kept[1], constant_work=constant_work, micro_batch=micro_batch)
        self._kept.pop(part, None)  # the old one's memory first
        found = batches_of(samples, device, constant_work=constant_work, micro_batch=micro_batch)
        if isinstance(found, Tensors) and device.type != "cpu":
            self._kept[part] = weakref.ref(samples, lambda _: self._kept.pop(part, None)), found
        return found


def padded(rows: Tensor, size: int) -> Tensor:
    """As many rows as `size`, zeros behind, in memory of its own.

    Kernels round by the shape of what they are given, and a state of large weights that nearly cancel makes
    other answers of it: batches of one shape keep the number of samples out of the answers. That a sample's
    place in such a batch stays out of them too is what training/dp_sgd/checks.py looks at.
    """
    filled = rows.new_zeros((size, *rows.shape[1:]))
    filled[: len(rows)] = rows
    return filled
