"""Models by the name that a job gives them."""

from __future__ import annotations

from chorale.spec.job_spec import ModelSpec
from crypto.errors import ConfigError
from silo_agent.training.models.base import CutModel
from silo_agent.training.models.plain import cnn, mlp, vgg11
from silo_agent.training.models.residual import mobilenet_v2, resnet18
from strategies.presets import FEDAVG
from strategies.recipe import Recipe

IMAGE_BACKBONES = {"cnn": cnn, "resnet18": resnet18, "vgg11": vgg11, "mobilenet_v2": mobilenet_v2}


def build_model(
    spec: ModelSpec, *, classes: int, input_shape: tuple[int, ...], recipe: Recipe = FEDAVG
) -> CutModel:
    """On the CPU, with torch's own weights, which a job's state replaces (models/state.py).

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
