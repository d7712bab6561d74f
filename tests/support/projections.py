"""Projections that keep a share of their words: of the protocol's form, and of no job."""

from __future__ import annotations

from dataclasses import replace

from crypto.fixed_point.projection import Projection


def keeping(share: float, size: int, *, seed: bytes) -> Projection:
    """share: of the rows, rounded to whole ones, at least one."""
    whole = Projection.of(size, seed=seed)
    return replace(whole, kept=max(1, round(share * whole.block)) * whole.blocks)
