"""The built-in objective as a silo's settings file describes its machine."""

from __future__ import annotations

import torch

from silo_agent.objective import Objective
from silo_agent.settings import SiloSettings
from silo_agent.training.base.shares import BatchShares
from silo_agent.training.models.forms import Forms
from silo_agent.training.processes.group import SharedTraining, check_devices
from silo_agent.training.torch_objective import TorchObjective


def objective_of(settings: SiloSettings) -> Objective:
    """Raises ConfigError for devices that this machine does not have."""
    check_devices(settings, torch.cuda.device_count())
    alone = TorchObjective(
        device=settings.device.value,
        threads=settings.torch_threads,
        base_models=settings.base_models,
        forms=Forms.of_settings(settings),
        shares=BatchShares(micro_batch=settings.micro_batch),
    )
    return alone if settings.devices == 1 else SharedTraining(settings, alone)
