"""Data from a function of this machine, named in the silo's own settings file and never by a peer."""

from __future__ import annotations

from crypto.errors import ConfigError
from silo_agent.data.base import SiloData
from silo_agent.data.settings import DataSettings


def load(settings: DataSettings) -> SiloData:
    """What `module: package.module:function` returns for these settings.

    Raises ConfigError if it cannot be loaded or returns anything but SiloData.
    """
    from silo_agent.objective import resolve  # it imports this package

    assert settings.module is not None  # DataSettings refuses this format without it
    data = resolve(settings.module, field="data.module")(settings)
    if not isinstance(data, SiloData):
        raise ConfigError(f"data.module: {settings.module} returned {type(data).__name__}, expected SiloData")
    return data
