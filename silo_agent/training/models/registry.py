"""Models and tasks by the names that a job gives them."""

from __future__ import annotations

from collections.abc import Callable

from chorale.spec.image_specs import NormalizeSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.plug_in_specs import ModelSpec
from chorale_models.model import Model, Sizes
from chorale_models.networks.plain import cnn, mlp, vgg11
from chorale_models.networks.residual import mobilenet_v2, resnet18
from chorale_models.task import Task
from chorale_models.tasks.classification import Classification
from chorale_models.tasks.multi_label import MultiLabel
from chorale_models.tasks.next_token import NextToken
from chorale_models.tasks.regression import Regression
from chorale_models.tasks.segmentation import Segmentation
from chorale_models.tasks.survival import Survival
from crypto.errors import ConfigError
from silo_agent.training.models.base import FederatedModel, by_channel
from strategies.presets import FEDAVG
from strategies.recipe import Recipe

OWN = {"mlp": mlp, "cnn": cnn, "resnet18": resnet18, "vgg11": vgg11, "mobilenet_v2": mobilenet_v2}

OWN_TASKS: dict[str, Callable[..., Task]] = {
    "classification": Classification,
    "multi-label": MultiLabel,
    "regression": Regression,
    "segmentation": Segmentation,
    "survival": Survival,
    "next-token": NextToken,
}


def build_task(spec: JobSpec) -> Task:
    """Raises ConfigError if the name is not one of ours."""
    declared = spec.method.task
    return OWN_TASKS[declared.word](spec.sizes, **declared.chosen.model_dump())


def build_model(
    spec: ModelSpec,
    *,
    classes: int,
    input_shape: tuple[int, ...],
    recipe: Recipe = FEDAVG,
    normalize: NormalizeSpec | None = None,
) -> FederatedModel:
    """On the CPU, with torch's own weights, which a job's state replaces (models/state.py).

    Raises ConfigError if the name is not one of ours or the input does not suit it.
    """
    model, sizes = model_of(spec), Sizes(classes=classes, input_shape=input_shape)
    module = model(sizes, **_options(spec)).float()
    return FederatedModel(
        module,
        cut=model.head,
        head=recipe.head,
        features=recipe.features,
        normalize=None if normalize is None else by_channel(normalize),
    )


def model_of(spec: ModelSpec) -> Model:
    """Raises ConfigError."""
    if spec.name not in OWN:
        raise ConfigError(f"model.name: the built-in training has {', '.join(OWN)}, got {spec.name}")
    return OWN[spec.name]


def _options(spec: ModelSpec) -> dict[str, object]:
    if spec.source is not None:
        return dict(spec.options)
    own: dict[str, object] = {"norm": spec.norm}
    return own | ({"hidden": spec.hidden} if spec.name == "mlp" else {}) | spec.options
