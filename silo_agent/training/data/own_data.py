"""Data that a function of the institution's own gives: of a module of this machine, or of an installed
distribution. The silo's own settings name it; no peer can.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from chorale.runtime import distributions
from chorale.spec.job_spec import JobSpec
from chorale_models.data import Data
from crypto.errors import ChoraleError, ConfigError
from silo_agent.training.data.settings import DataSettings, SettingsFault
from silo_agent.training.data.units import Excluded
from silo_agent.training.machine.entry_point import load_entry_point


def own_function(settings: DataSettings) -> Callable[..., object] | None:
    """What the settings name, imported now; None of a format of Chorale's. Raises ConfigError."""
    if settings.module is not None:
        return load_entry_point(settings.module, field="data.module")
    if settings.source is None:
        return None
    if find_spec("torch") is not None:
        import silo_agent.training.machine.torchvision_compat  # noqa: F401  an author's module may import torchvision in its own way
    try:
        found = distributions.load(settings.source, group=distributions.DATA, name=str(settings.format))
    except ConfigError as error:
        raise ConfigError(f"data.from: {error}") from error.__cause__
    if not callable(found):
        raise ConfigError(f"data.format: {settings.format} of {settings.source} is no function")
    distributions.check_options(
        f"data {settings.name}: {settings.format} of {settings.source}", found, settings.options
    )
    return partial(found, **settings.options)


def check_named(settings: DataSettings) -> None:
    """Raises SettingsFault where a path, or a function of the institution's own, is not there."""
    if settings.path is not None and not settings.path.exists():
        raise SettingsFault(f"data.path: no such file or folder: {settings.path}")
    if settings.exclude is not None:
        Excluded.of(settings.exclude)
    try:
        own_function(settings)
    except ConfigError as error:
        raise SettingsFault(str(error)) from error


def own_data(settings: DataSettings, job: JobSpec | None) -> Data:
    """What that function returns: of a module for the settings alone, of a distribution for the job's sizes.

    Raises ConfigError for whatever it raises, and for what is no Data.
    """
    function = own_function(settings)
    assert function is not None
    field, named = "data.module", settings.module
    if settings.source is not None:
        field, named = "data.from", f"{settings.format} of {settings.source}"
    try:
        if settings.source is None:
            own = function(settings)
        else:
            assert job is not None
            own = function(job.sizes)
    except ChoraleError:
        raise
    except Exception as error:  # it is not our code
        raise ConfigError(f"data {settings.name}: {named}: {distributions.error_line(error)}") from error
    if not isinstance(own, Data):
        returned = type(own).__name__
        raise ConfigError(f"{field}: {named} returned {returned}, expected chorale_models.Data")
    return own
