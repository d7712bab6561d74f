"""Gradients of single samples, clipped, cut to whole numbers and summed without any rounding.

In floating point a sum depends on the order of its terms, so one sample more may move it by more than its
own length, and the last bits of a noised float tell what was added to it (Mironov 2012; Casacuberta et al.
2022, arXiv 2207.10635). Here a clipped gradient is a vector of whole units, shorter than the clip after it
was cut towards zero, and whole numbers add up exactly. Source: docs/privacy-proofs.md "Records".
"""

# N = samples of one micro-batch, P = values of all trained parameters together

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chorale.privacy.products import are_worth_it
from silo_agent.training.dp_sgd import compiled
from silo_agent.training.dp_sgd.outer_products import (
    MARGIN,
    OuterProducts,
    ProductSum,
    SampleRows,
    materialized,
)

_PART_VALUES = 1 << 17  # 1 MiB in float64
_GPU_PART_VALUES = 1 << 24  # 128 MiB in float64: a launch costs more than the pass over a small part


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """sum_P: int64, in units. dropped: samples without a finite gradient, which count as zero."""

    sum_P: Tensor
    dropped: int


class ClippedSums:
    """The sum over a step of gradients, each clipped to clip_norm over all parameters together.

    shapes: of the parameters. A sample moves the sum by whole units of norm at most the clip_units given,
    whatever its gradient: one that is not finite counts as zero, one that is zero stays zero.
    products: how many values are in weights whose samples' gradients may come as products. Their sum is
    rounded, for which sqrt(products) units are taken off: then clip_norm is `clip_units` units.
    """

    def __init__(
        self,
        shapes: Sequence[torch.Size],
        *,
        clip_norm: float,
        clip_units: float,
        device: torch.device,
        products: int = 0,
    ) -> None:
        self._has_products = are_worth_it(products, clip_units=clip_units)
        self.clip_units = clip_units - math.sqrt(products) if self._has_products else clip_units
        self._clip_norm, self._device = clip_norm, device
        self._shapes = shapes
        self._sums = [torch.zeros(each.numel(), dtype=torch.int64, device=device) for each in shapes]
        self._products: dict[int, ProductSum] = {}  # by the parameter's place
        self._dropped = 0

    def add(self, gradients: Sequence[SampleRows], *, count: int) -> None:
        """The first `count`; what is past them fills up and weighs nothing.

        Shapes: (N, *shape) of each parameter.
        """
        rows = [
            each if self._has_products and isinstance(each, OuterProducts) else materialized(each).flatten(1)
            for each in gradients
        ]
        factor_N, dropped = clip_factors(
            rows, count=count, clip_norm=self._clip_norm, clip_units=self.clip_units
        )
        self._dropped += dropped
        for place, row in enumerate(rows):
            if isinstance(row, OuterProducts):
                self._product(place).add(row, factor_N)
            else:
                self._sums[place] += _units(row, factor_N)

    def total(self) -> Clipped:
        """Shapes: -> (P,)."""
        for place, product in self._products.items():
            self._sums[place] += product.units()
        return Clipped(sum_P=torch.cat(self._sums), dropped=self._dropped)

    def _product(self, place: int) -> ProductSum:
        if place not in self._products:
            outputs, inputs = self._shapes[place]
            self._products[place] = ProductSum(
                (outputs, inputs), clip_units=self.clip_units, device=self._device
            )
        return self._products[place]


def clip_factors(
    rows: list[SampleRows], *, count: int, clip_norm: float, clip_units: float
) -> tuple[Tensor, int]:
    """What takes each sample to units, within the clip; and how many of the first `count` are not finite.

    Those, and what is past `count`, get zero. Puts zeros in place of those rows: NaN times zero is NaN.
    Shapes: (N, values) of each parameter -> (N,) float64.
    """
    norm_N = squares(rows).sqrt()
    is_finite_N = norm_N.isfinite()
    factor_N = (MARGIN * clip_units / norm_N.clamp(min=clip_norm)).masked_fill(~is_finite_N, 0.0)
    factor_N[count:] = 0.0
    if not is_finite_N.all():
        for place, row in enumerate(rows):
            # not in the row's own memory: parameters may share it
            is_out_N = ~is_finite_N
            rows[place] = (
                row.without(is_out_N)
                if isinstance(row, OuterProducts)
                else row.masked_fill(is_out_N[:, None], 0.0)
            )
    return factor_N, int((~is_finite_N[:count]).sum())


def squares(rows: Sequence[SampleRows]) -> Tensor:
    """Of all values of each sample, in float64: no square of a float32 overflows, and the sum is right to
    P 2^-53. Shapes: (N, values) of each parameter -> (N,)."""
    plain = [row for row in rows if isinstance(row, Tensor)]
    products = [row.squares() for row in rows if isinstance(row, OuterProducts)]
    return torch.stack([*products, *_squares_of(plain)]).sum(dim=0)


def _squares_of(rows: Sequence[Tensor]) -> list[Tensor]:
    is_compiled = sum(row.shape[1] for row in rows) >= compiled.WORTH_VALUES and rows[0].device.type == "cpu"
    loops = compiled.loops() if is_compiled else None
    if loops is None:
        return [part.double().square().sum(dim=1) for row in rows for part in _parts(row)]
    squares_N = np.zeros(len(rows[0]))
    for row in rows:
        loops[0](row.contiguous().numpy(), squares_N)
    return [torch.from_numpy(squares_N)]


def _units(row: Tensor, factor_N: Tensor) -> Tensor:
    """Whole numbers below 2^33, cut towards zero by the cast: their sum in int64 is exact."""
    factor_N1 = factor_N.to(row.dtype)[:, None]
    sums = []
    for part in _parts(row):
        # a product that is no number would be cast to the largest whole number there is, before any noise
        units = part.mul(factor_N1).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        sums.append(units.to(torch.int64).sum(dim=0))
    return torch.cat(sums)


def _parts(row: Tensor) -> tuple[Tensor, ...]:
    """All samples, as many columns at a time as stay in a core's cache: memory that is used again, not new
    pages for each sample."""
    values = _PART_VALUES if row.device.type == "cpu" else _GPU_PART_VALUES
    return torch.split(row, max(1, values // len(row)), dim=1)
