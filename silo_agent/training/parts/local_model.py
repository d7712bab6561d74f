"""A whole model, or its head, in the local state: out of it and into it."""

from __future__ import annotations

from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.training.models.base import CutModel
from silo_agent.training.models.state import load_arrays, model_arrays
from silo_agent.training.parts.base import Setting
from silo_agent.training.parts.teacher import frozen_copy
from strategies.base import MODEL, Array


def kept_model(setting: Setting, prefix: str) -> CutModel | None:
    """The received model with the arrays that the local state has of it, frozen; None where it has none.

    Raises ConfigError for arrays of another model.
    """
    kept = {
        MODEL + name.removeprefix(prefix): array
        for name, array in setting.work.local.arrays.items()
        if name.startswith(prefix)
    }
    if not kept:
        return None
    model = frozen_copy(setting.received)
    try:
        load_arrays(model, {**model_arrays(model), **kept})
    except RemoteProtocolError:
        raise ConfigError(f"local state: {prefix} is not of this job's model") from None
    return model


def model_to_keep(model: CutModel, prefix: str, *, part: str = "") -> dict[str, Array]:
    """Arrays for the local state. part: only what begins with it, such as `head.`."""
    return {
        prefix + name.removeprefix(MODEL): array
        for name, array in model_arrays(model).items()
        if name.startswith(MODEL + part)
    }
