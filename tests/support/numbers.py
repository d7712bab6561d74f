"""Streams of numbers by a small seed."""

from __future__ import annotations

from strategies.number_stream import NumberStream


def numbers(seed: int = 0) -> NumberStream:
    return NumberStream(seed.to_bytes(32, "big"))
