"""What a silo minimises, one file a part; a preset names its loss."""

from __future__ import annotations

from crypto.errors import ConfigError
from silo_agent.objectives.base import SampleLoss
from silo_agent.objectives.cross_entropy import CrossEntropy

LOSSES: dict[str, SampleLoss] = {"fedavg": CrossEntropy()}


def loss_of(preset: str) -> SampleLoss:
    """The loss that a preset trains and tests with. Raises ConfigError if the preset has none here."""
    if preset not in LOSSES:
        raise ConfigError(f"strategy.preset: this silo can train {', '.join(LOSSES)}, got {preset}")
    return LOSSES[preset]
