"""Options of MOON's contrastive term; silo_agent/training/parts/moon.py computes it."""

from __future__ import annotations

from pydantic import Field

from strategies.recipe import PartOptions


class MoonOptions(PartOptions):
    """How sharply the two models are told apart."""

    contrast_tau: float = Field(
        default=0.5, gt=0, le=1e3, description="tau of MOON: temperature of the two cosines"
    )
