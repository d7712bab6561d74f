"""The built-in objective on this machine: in the agent's process, or shared between several."""

from __future__ import annotations

from pathlib import Path

import torch

from silo_agent.training.base.shares import BatchShares
from silo_agent.training.machine.settings import MachineSettings
from silo_agent.training.models.forms import Forms
from silo_agent.training.objective import Objective
from silo_agent.training.processes.group import SharedTraining, check_devices
from silo_agent.training.torch_objective import TorchObjective


def objective_of(machine: MachineSettings, *, folder: Path, worker: str) -> Objective:
    """folder: for files of training processes. worker: the module that each of them runs, with the settings.

    Raises ConfigError for devices that this machine does not have.
    """
    check_devices(machine, torch.cuda.device_count())
    alone = TorchObjective(
        device=machine.device,
        threads=machine.torch_threads,
        base_models=machine.base_models,
        forms=Forms(precision=machine.precision, memory_format=machine.memory_format),
        shares=BatchShares(micro_batch=machine.micro_batch),
    )
    return alone if machine.devices == 1 else SharedTraining(machine, alone, folder=folder, worker=worker)
