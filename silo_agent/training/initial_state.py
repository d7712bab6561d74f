"""The global state that a job starts from, built from model name and seed by the operator."""

from __future__ import annotations

from chorale.spec.job_spec import JobSpec
from silo_agent.seeding import derive_seed, seeded
from silo_agent.training.models.registry import build_model
from silo_agent.training.models.state import model_arrays
from strategies.base import Array
from strategies.parts.heads import HEAD, frozen_head


def initial_state(spec: JobSpec) -> dict[str, Array]:
    """Arrays named model/<parameter>, float32; the same seed gives the same bytes everywhere.

    Raises ConfigError if the model is not built in: such a job brings its own file.
    """
    recipe = spec.method.recipe
    with seeded(derive_seed("model", spec.model.seed)):
        model = build_model(spec.model, classes=spec.classes, input_shape=spec.input_shape, recipe=recipe)
    arrays = model_arrays(model)
    if recipe.head.is_frozen:
        _, width = arrays[HEAD].shape
        seed = derive_seed("head", spec.model.seed)
        arrays[HEAD] = frozen_head(recipe.head, classes=spec.classes, width=width, seed=seed)
    return arrays
