"""Models by the name that a job gives them, and the global state that a job starts from."""

from __future__ import annotations

from chorale.spec.job_spec import JobSpec, ModelSpec
from crypto.errors import ConfigError
from silo_agent.seeding import derive_seed, seeded
from silo_agent.training.models.base import CutModel
from silo_agent.training.models.plain import cnn, mlp, vgg11
from silo_agent.training.models.residual import mobilenet_v2, resnet18
from silo_agent.training.models.state import model_arrays
from strategies.base import Array
from strategies.parts.heads import HEAD, frozen_head
from strategies.presets import FEDAVG
from strategies.recipe import Recipe

IMAGE_BACKBONES = {"cnn": cnn, "resnet18": resnet18, "vgg11": vgg11, "mobilenet_v2": mobilenet_v2}


def build_model(
    spec: ModelSpec, *, classes: int, input_shape: tuple[int, ...], recipe: Recipe = FEDAVG
) -> CutModel:
    """Freshly initialized, on the CPU, from torch's global generator: call it inside `seeded`.

    Raises ConfigError if the name is not one of ours or the input does not suit it.
    """
    if spec.name == "mlp":
        backbone = mlp(input_shape=input_shape, hidden=spec.hidden, norm=spec.norm)
    elif spec.name not in IMAGE_BACKBONES:
        known = ", ".join(["mlp", *IMAGE_BACKBONES])
        raise ConfigError(f"model.name: the built-in training has {known}, got {spec.name}")
    elif len(input_shape) != 3:
        raise ConfigError(
            f"input_shape: model {spec.name} needs (channels, height, width), the job says {input_shape}"
        )
    else:
        backbone = IMAGE_BACKBONES[spec.name](input_shape=input_shape, norm=spec.norm)
    return CutModel(backbone, classes=classes, head=recipe.head, features=recipe.features)


def initial_state(spec: JobSpec) -> dict[str, Array]:
    """The global state that a job starts from, built from model name and seed by the operator.

    Arrays named model/<parameter>, float32; the same seed gives the same bytes everywhere.

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
