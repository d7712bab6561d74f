"""Data: map-style data sets, as torch's, and what cutting them needs.

N = samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Samples(Protocol):
    """A map-style data set: torch.utils.data.Dataset, or anything with a length and places."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> tuple[Any, Any]:
        """Input and target of one sample: arrays, tensors or numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What a data function returns.

    train: the samples. holdout: samples that are kept for evaluation; None: the silo's settings say what
    share of `train` is. strata: one whole number a sample of `train`, such as its class: the hold-out gets
    its share of each.
    """

    train: Samples
    holdout: Samples | None = None
    strata: Sequence[int] | None = None
