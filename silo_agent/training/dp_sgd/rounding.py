"""Gradients of single samples, clipped and rounded by chance to ring units, for a sum with shared noise.

A unit of the ring is far coarser than one of clipping.py: the sum of all silos has to fit in its word. So
each coordinate is rounded up with the probability of its fraction, and a sample is rounded again until its
length is within the sensitivity that the noise is made for. That is checked on whole numbers, so it holds
whatever floating point did before. Source: docs/privacy-proofs.md, "Records".
"""

# N = samples of one micro-batch, P = values of all trained parameters together, B = of one block

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crypto.errors import ConfigError
from crypto.fixed_point.encoder import MAX_ROUNDINGS, ROUNDING_STEPS
from crypto.noise.sensitivity import clipped_sensitivity
from crypto.prg import Keystream
from silo_agent.training.dp_sgd import compiled
from silo_agent.training.dp_sgd.clipping import Clipped, clip_factors
from silo_agent.training.dp_sgd.outer_products import SampleRows, materialized

_BLOCK_VALUES: Final = 1 << 13  # with bits for 32 samples half a MiB: an L2 cache
_GPU_BLOCK_VALUES: Final = 1 << 19  # 32 MiB of bits: few launches, and few copies to the GPU
_BITS: Final = np.dtype("<u2")
_MOST_UNITS: Final = 1 << 30  # of one sample's number: they are added up as int32


class RoundedSums:
    """Sums of clipped, rounded gradients of one model.

    Units: scale, ring units per unit of the gradient. values: P. bits: a key stream of this input alone.
    Raises ConfigError where a clip is more units than a whole number holds.
    """

    def __init__(self, *, clip_norm: float, scale: float, values: int, bits: Keystream) -> None:
        most = clipped_sensitivity(clip_norm, scale=scale, coordinates=values)
        if most.l2 > _MOST_UNITS:
            raise ConfigError(
                f"privacy.records: a clip of {clip_norm:g} is {most.l2:.3g} units, expected at most "
                f"{_MOST_UNITS}: ask for a larger noise_multiplier"
            )
        self._clip_norm, self._clip_units, self._most = clip_norm, scale * clip_norm, most.squared_l2
        self._bits, self._values, self._offset_bytes = bits, values, 0

    def of(self, gradients: Sequence[SampleRows], *, count: int) -> Clipped:
        """The sum of the first `count` gradients, each clipped over all parameters together and rounded.

        Shapes: (N, *shape) of each parameter -> (P,). A sample moves the sum by whole numbers whose squares
        add up to at most `clipped_sensitivity`. One that is not finite counts as zero, and one of which
        MAX_ROUNDINGS roundings are too long. What is past `count` fills up and weighs nothing. May overwrite
        the gradients.
        """
        found: list[SampleRows] = [materialized(each).flatten(1).contiguous() for each in gradients]
        factor_N, dropped = clip_factors(
            found, count=count, clip_norm=self._clip_norm, clip_units=self._clip_units
        )
        rows = [materialized(each) for each in found]
        factor_N = factor_N.to(rows[0].dtype)
        sum_P = torch.zeros(self._values, dtype=torch.int64, device=factor_N.device)
        for _ in range(MAX_ROUNDINGS):
            tried_P, squares_N = self._rounded(rows, factor_N)
            is_long_N = squares_N > self._most
            if not is_long_N.any():
                break
            # the same bits again: the others keep their rounding, and only these get another
            tried_P, _ = self._rounded(rows, factor_N.masked_fill(is_long_N, 0.0))
            sum_P += tried_P
            factor_N = factor_N.masked_fill(~is_long_N, 0.0)
            self._offset_bytes += _BITS.itemsize * len(factor_N) * self._values
        else:
            return Clipped(sum_P=sum_P, dropped=dropped + int(is_long_N.sum()))
        self._offset_bytes += _BITS.itemsize * len(factor_N) * self._values
        return Clipped(sum_P=sum_P.add_(tried_P), dropped=dropped)

    def _rounded(self, rows: Sequence[Tensor], factor_N: Tensor) -> tuple[Tensor, Tensor]:
        """The sum, and each sample's sum of squares; of the same bits until the offset moves."""
        samples = len(factor_N)
        sum_P = torch.empty(self._values, dtype=torch.int64, device=factor_N.device)
        squares_N = torch.zeros(samples, dtype=torch.int64, device=factor_N.device)
        is_compiled = self._values >= compiled.WORTH_VALUES and factor_N.device.type == "cpu"
        loops = compiled.loops() if is_compiled else None
        into: Callable[..., None] = round_into if loops is None else loops[1]
        given: Callable[[Tensor], Any] = _same if loops is None else Tensor.numpy
        self._bits.seek(self._offset_bytes)
        most = _BLOCK_VALUES if factor_N.device.type == "cpu" else _GPU_BLOCK_VALUES
        bits = np.empty(samples * most, _BITS)
        first = 0
        for row_NP in rows:
            for start in range(0, row_NP.shape[1], most):
                width = min(most, row_NP.shape[1] - start)
                bits_NB = bits[: samples * width].reshape(samples, width)
                self._bits.fill(bits_NB.reshape(-1).view(np.uint8))
                sum_B = sum_P[first : first + width]
                into(given(row_NP), start, bits_NB, given(factor_N), given(sum_B), given(squares_N))
                first += width
        return sum_P, squares_N


def round_into(
    value_NP: Tensor,
    start: int,
    bits_NB: NDArray[np.uint16],
    factor_N: Tensor,
    sum_B: Tensor,
    squares_N: Tensor,
) -> None:
    """The sum of the values from `start` on, scaled and rounded up where the bits are below the fraction; the
    squares of what was rounded are added to."""
    bits = torch.from_numpy(bits_NB.view(np.int16)).to(value_NP.device).int() & 0xFFFF
    units_NB = value_NP[:, start : start + bits_NB.shape[1]] * factor_N[:, None]
    whole_NB = units_NB.floor()
    is_up_NB = bits < (units_NB - whole_NB) * ROUNDING_STEPS
    rounded_NB = whole_NB.long() + is_up_NB
    torch.sum(rounded_NB, dim=0, out=sum_B)
    squares_N += rounded_NB.square().sum(dim=1)


def _same(tensor: Tensor) -> Tensor:
    return tensor
