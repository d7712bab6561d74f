"""The state that a job starts from, and the shapes of its model. Of a network of Chorale's without torch: its
shapes are declared (chorale_models/networks/shapes.py); another model says them itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import numpy as np

from chorale.spec.first_state import SEED_ALONE, Shape, first_state
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import MAX_STATE_BYTES
from chorale.spec.training.trees_spec import room_of
from chorale_models.model import Start
from chorale_models.networks.shapes import HEAD, declared, trees_shapes
from crypto.errors import ConfigError
from silo_agent.training.machine.entry_point import load_entry_point
from strategies.base import MODEL, Array

BODY = MODEL + "body."
NO_STARTS: Mapping[str, Start] = {}  # all arrays of Chorale's networks start by the usual rules
ShapesAndStarts: TypeAlias = tuple[dict[str, Shape], Mapping[str, Start]]
BY_TORCH = "silo_agent.training.models.state:shapes_and_starts"


def initial_state(
    spec: JobSpec, *, base: bytes = SEED_ALONE, max_bytes: int = MAX_STATE_BYTES
) -> dict[str, Array]:
    """The global state that a job starts from, the same bytes on every machine.

    Arrays named model/<parameter>, float32. base: SHA-256 of the job without its digest (JobSpec.base); left
    out, as in a simulation, the state follows from the model's seed alone.
    Raises ConfigError as `build_model`, and if the model needs more than max_bytes.
    """
    shapes, starts = (_declared_shapes(spec), NO_STARTS) if is_declared(spec) else _by_torch(spec)
    if spec.method.recipe.growth is not None:
        starts = {name.removeprefix(BODY): 0.0 for name in shapes}
    needed = sum(map(math.prod, shapes.values())) * np.dtype(np.float32).itemsize
    if needed > max_bytes:
        raise ConfigError(f"model {spec.model.name}: expected at most {max_bytes} bytes, needs {needed}")
    return first_state(spec, shapes, base=base, starts=starts)


def model_shapes(spec: JobSpec) -> dict[str, Shape]:
    """Shapes of a model's arrays, named model/<parameter>. Raises ConfigError as `build_model`."""
    return _declared_shapes(spec) if is_declared(spec) else _by_torch(spec)[0]


def is_declared(spec: JobSpec) -> bool:
    """Whether the shapes of the job's model are known without building it."""
    return spec.model.source is None and spec.model.is_built_in and spec.adapters is None


def _declared_shapes(spec: JobSpec) -> dict[str, Shape]:
    """As models/base.py's FederatedModel names them: the network's last layer is a head of its own."""
    network, recipe, sizes = spec.model, spec.method.recipe, spec.sizes
    if recipe.growth is not None:
        return {BODY + name: shape for name, shape in trees_shapes(sizes, **room_of(network)).items()}
    arrays = declared(network.name, sizes, norm=network.norm, hidden=network.hidden)
    outputs, width = arrays[f"{HEAD}weight"]
    found = {BODY + name: shape for name, shape in arrays.items() if not name.startswith(HEAD)}
    if recipe.features.is_projected:
        found |= {f"{MODEL}scale": (1,), f"{MODEL}projection.weight": (outputs, width)}
        width = outputs
    found[f"{MODEL}{HEAD}weight"] = (outputs, width)
    if recipe.head.has_bias:
        found[f"{MODEL}{HEAD}bias"] = (outputs,)
    return found


def _by_torch(spec: JobSpec) -> ShapesAndStarts:
    made = load_entry_point(BY_TORCH, field=f"model {spec.model.name} cannot be built here")
    return cast("Callable[[JobSpec], ShapesAndStarts]", made)(spec)
