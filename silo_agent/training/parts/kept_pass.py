"""What a teacher answers, kept from one phase of a round to the next so that it is asked once.

N = samples, C = classes.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class KeptPass:
    """One pass, the last: N * C floats. Whoever asks with another key replaces it."""

    def __init__(self) -> None:
        self._key = b""
        self._logits_NC: Tensor | None = None

    def logits(self, key: bytes, run: Callable[[], Tensor]) -> Tensor:
        """What `run` gave under this key. Shapes: -> (N, C)."""
        if self._logits_NC is None or key != self._key:
            self._logits_NC = None  # the old one's memory first
            self._logits_NC, self._key = run(), key
        return self._logits_NC
