"""Everything random that DP-SGD relies on, from AES-256-CTR under keys drawn for one round's training alone.

Neither the job's seed nor the round is in it: whoever knew them could draw the same and subtract it.
"""

# N = records of the training set, P = trained parameters

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from crypto.noise.gaussian import GaussianStream
from crypto.prg import KEY_BYTES, Keystream

_WORD_BITS = 64


class Draws:
    """Who is in each step, and its noise. random: the system's CSPRNG, asked for two keys."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._records = Keystream(random(KEY_BYTES))
        self._noise = GaussianStream(random(KEY_BYTES))
        self._position = 0

    def records(self, count: int, *, rate: float) -> NDArray[np.int64]:
        """The places of the records of a step: each is drawn by itself, with a chance of at most `rate`.

        Shapes: -> (<= N,), ascending. The chance is the rate cut to 64 bits.
        """
        word_N = np.empty(count, "<u8")
        self._records.fill(word_N.view(np.uint8))
        below = int(math.ldexp(rate, _WORD_BITS))
        if below >> _WORD_BITS:
            return np.arange(count)
        return np.flatnonzero(word_N < np.uint64(below))

    def noise(self, count: int) -> NDArray[np.int64]:
        """Fresh noise of standard deviation crypto.noise.gaussian.DEVIATION. Shapes: -> (P,)."""
        noise_P = self._noise.sample(self._position, count)
        self._position += count
        return noise_P
