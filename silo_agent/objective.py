"""The objective that a silo's settings file names: the institution's own, or the built-in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from crypto.errors import ConfigError
from silo_agent.settings import SiloSettings
from silo_agent.training.machine.entry_point import load_entry_point
from silo_agent.training.objective import Objective

# imports torch, so not before the agent is connected
BUILT_IN = "silo_agent.training.built_in:objective_of"
WORKER = "silo_agent.training_process"


def load_objective(settings: SiloSettings) -> Objective:
    """Raises ConfigError where it cannot be loaded, or for devices that this machine does not have."""
    if settings.objective is not None:
        own = cast(Callable[[], Objective], load_entry_point(settings.objective, field="objective"))
        try:
            return own()
        except SystemExit as error:  # as a script does: it would end the agent
            raise ConfigError(f"objective: {settings.objective} exits: {error}") from error
    built_in = cast(Callable[..., Objective], load_entry_point(BUILT_IN, field="objective"))
    return built_in(settings, folder=settings.processes_directory, worker=WORKER)
