"""Gradients of single samples that are outer products: of a dense layer's weights, where it was used once.

The gradient of sample n is outputs_n inputs_n^T, so its length is that of the one by that of the other, and
whole numbers of both that were cut towards zero give a product that is no longer. The sum over a batch is a
product of two matrices of whole numbers, exact in float64 while it stays below 2^53: no sample's gradient is
ever in memory. Source: docs/privacy-proofs.md "Products".
"""

# N = samples of one micro-batch, O and K = outputs and inputs of a layer

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

INPUT_BITS: Final = 21  # of an input of unit length as whole numbers
OUTPUT_BITS: Final = 24  # of an output as long as the clip, at most
_EXACT: Final = 1 << 53  # whole numbers below it are exact in float64
# room for floating point before numbers are whole: a float64 norm and two roundings a product, also of
# float32, take less than 2^-22 together
MARGIN: Final = 1.0 - 2.0**-20


@dataclass(frozen=True, slots=True)
class OuterProducts:
    """inputs_NK: what a layer was given. outputs_NO: the loss' gradient of what it gave."""

    inputs_NK: Tensor
    outputs_NO: Tensor

    def __len__(self) -> int:
        return len(self.inputs_NK)

    @property
    def shape(self) -> torch.Size:
        """(N, O, K); (0,) where the two do not fit."""
        (inputs, *width), (outputs, *height) = self.inputs_NK.shape, self.outputs_NO.shape
        return torch.Size((inputs, *height, *width) if inputs == outputs else (0,))

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        return self.inputs_NK, self.outputs_NO

    def squares(self) -> Tensor:
        """Of the length of each sample's gradient, in float64. Shapes: -> (N,)."""
        inputs_N, outputs_N = (each.double().square().sum(dim=1) for each in self.parts)
        return inputs_N * outputs_N

    def without(self, is_out_N: Tensor) -> OuterProducts:
        """Those samples are zero: NaN times zero is NaN."""
        is_out_N1 = is_out_N[:, None]
        return OuterProducts(
            self.inputs_NK.masked_fill(is_out_N1, 0.0), self.outputs_NO.masked_fill(is_out_N1, 0.0)
        )

    def materialized(self) -> Tensor:
        """Shapes: -> (N, O, K)."""
        return torch.einsum("no,nk->nok", self.outputs_NO, self.inputs_NK)


SampleRows: TypeAlias = Tensor | OuterProducts  # of one parameter; a Tensor is (N, *shape)


def materialized(rows: SampleRows) -> Tensor:
    """Shapes: -> (N, *shape)."""
    return rows.materialized() if isinstance(rows, OuterProducts) else rows


class ProductSum:
    """The sum over a step of one layer's clipped products, of any number of samples.

    clip_units: no gradient is longer once its factor was applied. Products are whole numbers of a unit's
    2^-shift.
    """

    def __init__(self, shape: tuple[int, int], *, clip_units: float, device: torch.device) -> None:
        self._sum_OK = torch.zeros(shape, dtype=torch.float64, device=device)
        self._whole_OK = torch.zeros((), dtype=torch.int64, device=device)  # what was carried, in units
        coarser_bits = max(0, math.ceil(math.log2(clip_units)) - OUTPUT_BITS)
        self._shift, self._coarser = INPUT_BITS - coarser_bits, math.ldexp(1.0, -coarser_bits)
        # less one: what `_carry` leaves is less than a sample's
        self._most = math.floor(_EXACT / (clip_units * self._coarser * (1 << INPUT_BITS))) - 1
        self._room = self._most

    def add(self, rows: OuterProducts, factor_N: Tensor) -> None:
        """factor_N: what takes each sample's gradient to units within the clip, float64. All is finite."""
        if self._room < len(rows):
            self._carry()
            self._room = self._most
        self._room -= len(rows)
        if len(rows) > self._most:
            raise ValueError(f"products: expected at most {self._most} samples at a time, got {len(rows)}")
        inputs_NK = rows.inputs_NK.double()
        length_N1 = inputs_NK.square().sum(dim=1, keepdim=True).sqrt_()
        per_length_N1 = math.ldexp(MARGIN, INPUT_BITS) / length_N1.clamp(min=1e-100)  # of zero, zero
        unit_NK = inputs_NK.mul(per_length_N1).trunc_()
        output_NO = rows.outputs_NO.double().mul(self._coarser * factor_N[:, None] * length_N1).trunc_()
        self._sum_OK.addmm_(output_NO.T, unit_NK)

    def units(self) -> Tensor:
        """The nearest whole units. Shapes: -> (O K,) int64.

        Two sums that are d apart are less than d + sqrt(O K) units apart afterwards.
        """
        half = 1 << (self._shift - 1)
        rest_OK = (self._sum_OK.to(torch.int64) + half) >> self._shift
        return (rest_OK + self._whole_OK).flatten()

    def _carry(self) -> None:
        """Whole units, rounded down; what is left of a unit stays. Nothing is lost."""
        down_OK = self._sum_OK.to(torch.int64) >> self._shift
        self._whole_OK = self._whole_OK + down_OK
        self._sum_OK -= down_OK.double() * math.ldexp(1.0, self._shift)
