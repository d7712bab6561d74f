"""Data: map-style data sets, as torch's, and what cutting them needs.

N = samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Samples(Protocol):
    """A map-style data set: torch.utils.data.Dataset, or anything with a length and places.

    A place gives the same sample every time: random transforms belong in the job, or in
    `Data.train_transform`. With `data.workers` it
    is pickled to processes of the silo's own, so it is of a class that can be imported there and opens
    files when it is asked for a sample.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> tuple[Any, Any]:
        """Input and target of one sample: arrays, tensors on the CPU or numbers.

        What it raises is shown with the place, and refuses the job; in a private job that sample is left out.
        """


class Identities(Protocol):
    """What each sample is as it is stored, in bytes, by place."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What a data function returns.

    train: the samples. holdout: samples that are kept for evaluation; None: the silo's settings say what
    share of `train` is. strata: one whole number a sample of `train`, such as its class: the hold-out gets
    its share of each, and so does each part of a partition; None: the classes, where a target is one.
    identities: each sample of `train` as it is stored, for the hold-out of private jobs; None: its input and
    target are that. units: whose each sample of `train` is, such as a patient's number: private jobs protect
    all samples of one unit as one, and the hold-out is cut by unit; None: every sample is one.
    A sample whose unit is None is left out.
    train_transform(input, target): gives both as training sees them, in the same shapes and types, tensors of
    the job's form on the CPU; called for each sample in each epoch, never for what is held out. It draws by
    torch alone, whose generator is seeded for each sample.
    """

    train: Samples
    holdout: Samples | None = None
    strata: Sequence[int] | None = None
    identities: Identities | None = None
    units: Sequence[str | int | None] | None = None
    train_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None
