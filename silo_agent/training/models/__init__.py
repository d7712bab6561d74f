"""Backbones by the name that a job gives them."""

from __future__ import annotations

from chorale.spec.job_spec import ModelSpec
from crypto.errors import ConfigError
from silo_agent.training.models.base import Backbone, CutModel
from silo_agent.training.models.cnn import cnn
from silo_agent.training.models.mlp import mlp
from silo_agent.training.models.mobilenet_v2 import mobilenet_v2
from silo_agent.training.models.resnet18 import resnet18
from silo_agent.training.models.vgg11 import vgg11
from strategies.recipe import Recipe

PLAIN = Recipe()  # a trained head on raw features
IMAGE_BACKBONES = {"cnn": cnn, "resnet18": resnet18, "vgg11": vgg11, "mobilenet_v2": mobilenet_v2}


def build_model(
    spec: ModelSpec, *, classes: int, input_shape: tuple[int, ...], recipe: Recipe = PLAIN
) -> CutModel:
    """Freshly initialized, on the CPU, from torch's global generator: call it inside `seeded`.

    Raises ConfigError if the name is not one of ours or the input does not suit it.
    """
    backbone = _backbone(spec, input_shape)
    return CutModel(backbone, classes=classes, head=recipe.head, features=recipe.features)


def _backbone(spec: ModelSpec, input_shape: tuple[int, ...]) -> Backbone:
    if spec.name == "mlp":
        return mlp(input_shape=input_shape, hidden=spec.hidden, norm=spec.norm)
    if spec.name not in IMAGE_BACKBONES:
        known = ", ".join(["mlp", *IMAGE_BACKBONES])
        raise ConfigError(f"model.name: the built-in training has {known}, got {spec.name}")
    if len(input_shape) != 3:
        raise ConfigError(
            f"input_shape: model {spec.name} needs (channels, height, width), the job says {input_shape}"
        )
    return IMAGE_BACKBONES[spec.name](input_shape=input_shape, norm=spec.norm)
