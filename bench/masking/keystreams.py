"""The floor under every mask: key streams drawn block by block by crypto/prg.py, and left at that."""

from __future__ import annotations

import numpy as np

from crypto import prg


def draw(streams: int, *, stream_bytes: int) -> None:
    """That many AES-256-CTR streams of that many bytes each, in one thread, into one block."""
    block = np.empty(min(prg.BLOCK_BYTES, stream_bytes), np.uint8)
    for index in range(streams):
        stream = prg.Keystream(index.to_bytes(prg.KEY_BYTES, "big"))
        for start in range(0, stream_bytes, block.size):
            stream.fill(block[: stream_bytes - start])
