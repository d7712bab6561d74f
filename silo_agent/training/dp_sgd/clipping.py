"""Gradients of single samples, clipped, cut to whole numbers and summed without any rounding.

In floating point a sum depends on the order of its terms, so one sample more may move it by more than its
own length, and the last bits of a noised float tell what was added to it (Mironov 2012; Casacuberta et al.
2022, arXiv 2207.10635). Here a clipped gradient is a vector of whole units, shorter than the clip after it
was cut towards zero, and whole numbers add up exactly. Source: docs/privacy-proofs.md "Records".
"""

# N = samples of one micro-batch, P = values of all trained parameters together

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from silo_agent.training.dp_sgd import compiled

# room for the float32 products below and the float64 norm: less than 2^-22 together
_MARGIN = 1.0 - 2.0**-20
_PART_VALUES = 1 << 17  # 1 MiB in float64
_GPU_PART_VALUES = 1 << 24  # 128 MiB in float64: a launch costs more than the pass over a small part


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """sum_P: int64, in units. dropped: samples without a finite gradient, which count as zero."""

    sum_P: Tensor
    dropped: int


def clipped_sum(gradients: list[Tensor], *, count: int, clip_norm: float, clip_units: float) -> Clipped:
    """The sum of the first `count` gradients, each clipped to clip_norm over all parameters together.

    Shapes: (N, *shape) of each parameter -> (P,). Units: clip_norm is clip_units units. A sample moves the
    sum by whole numbers of norm at most clip_units, whatever its gradient: one that is not finite counts as
    zero, one that is zero stays zero. What is past `count` fills up and weighs nothing. Overwrites the
    gradients.
    """
    rows = [gradient.flatten(1) for gradient in gradients]
    factor_N, dropped = clip_factors(rows, count=count, clip_norm=clip_norm, clip_units=clip_units)
    return Clipped(sum_P=torch.cat([_units(row, factor_N) for row in rows]), dropped=dropped)


def clip_factors(
    rows: Sequence[Tensor], *, count: int, clip_norm: float, clip_units: float
) -> tuple[Tensor, int]:
    """What takes each sample to units, within the clip; and how many of the first `count` are not finite.

    Those, and what is past `count`, get zero. Overwrites what is not finite: NaN times zero is NaN.
    Shapes: (N, values) of each parameter -> (N,) float64.
    """
    norm_N = _squares(rows).sqrt()
    is_finite_N = norm_N.isfinite()
    factor_N = (_MARGIN * clip_units / norm_N.clamp(min=clip_norm)).masked_fill(~is_finite_N, 0.0)
    factor_N[count:] = 0.0
    if not is_finite_N.all():
        for row in rows:
            row.masked_fill_(~is_finite_N[:, None], 0.0)
    return factor_N, int((~is_finite_N[:count]).sum())


def _squares(rows: Sequence[Tensor]) -> Tensor:
    """Of all values of each sample, in float64: no square of a float32 overflows, and the sum is right to
    P 2^-53. Shapes: -> (N,)."""
    is_compiled = sum(row.shape[1] for row in rows) >= compiled.WORTH_VALUES and rows[0].device.type == "cpu"
    loops = compiled.loops() if is_compiled else None
    if loops is None:
        parts = [part.double().square_().sum(dim=1) for row in rows for part in _parts(row)]
        return torch.stack(parts).sum(dim=0)
    squares_N = np.zeros(len(rows[0]))
    for row in rows:
        loops[0](row.contiguous().numpy(), squares_N)
    return torch.from_numpy(squares_N)


def _units(row: Tensor, factor_N: Tensor) -> Tensor:
    """Whole numbers below 2^33, cut towards zero by the cast: their sum in int64 is exact."""
    factor_N1 = factor_N.to(row.dtype)[:, None]
    sums = []
    for part in _parts(row):
        # a product that is no number would be cast to the largest whole number there is, before any noise
        units = part.mul_(factor_N1).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        sums.append(units.to(torch.int64).sum(dim=0))
    return torch.cat(sums)


def _parts(row: Tensor) -> tuple[Tensor, ...]:
    """All samples, as many columns at a time as stay in a core's cache: memory that is used again, not new
    pages for each sample."""
    values = _PART_VALUES if row.device.type == "cpu" else _GPU_PART_VALUES
    return torch.split(row, max(1, values // len(row)), dim=1)
