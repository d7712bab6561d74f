"""Models, tasks, losses and regularizers by the names that a job gives them: Chorale's own, or of an
installed distribution whose digest the job pins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import cast

from torch import nn
from torch.nn.parameter import is_lazy

from chorale.runtime import distributions
from chorale.spec.job_spec import JobSpec
from chorale.spec.plug_in_specs import AdaptersSpec, CodeSpec, GivenPartSpec, ModelSpec, PlugInSpec
from chorale.spec.samples.image_specs import NormalizeSpec
from chorale_models.model import Model, Normal, Sizes, Start
from chorale_models.networks import plain, residual, separable, trees
from chorale_models.parts import Loss, Regularizer
from chorale_models.task import Task
from chorale_models.tasks.classification import Classification
from chorale_models.tasks.multi_label import MultiLabel
from chorale_models.tasks.next_token import NextToken
from chorale_models.tasks.regression import Regression
from chorale_models.tasks.segmentation import Segmentation
from chorale_models.tasks.survival import Survival
from crypto.errors import ChoraleError, ConfigError
from silo_agent.training.models.adapters import load_base, put_in
from silo_agent.training.models.base import FederatedModel, by_channel
from strategies.presets import FEDAVG
from strategies.recipe import Recipe

OWN = {
    "mlp": plain.mlp,
    "cnn": plain.cnn,
    "lenet": plain.lenet,
    "lenet_linear": plain.lenet_linear,
    "alexnet": plain.alexnet,
    "vgg11": plain.vgg11,
    "vgg13": plain.vgg13,
    "convnet7": plain.convnet7,
    "resnet18": residual.resnet18,
    "resnet18_imagenet": residual.resnet18_imagenet,
    "resnet50": residual.resnet50,
    "resnet50_imagenet": residual.resnet50_imagenet,
    "senet18": residual.senet18,
    "mobilenet": separable.mobilenet,
    "mobilenet_v2": separable.mobilenet_v2,
    "mobilenet_v2_relu": separable.mobilenet_v2_relu,
    "trees": trees.trees,
}

GIVEN: dict[str, Model] = {}  # of this process alone, by what stands for a distribution: client/notebook.py

OWN_TASKS: dict[str, Callable[..., Task]] = {
    "classification": Classification,
    "multi-label": MultiLabel,
    "regression": Regression,
    "segmentation": Segmentation,
    "survival": Survival,
    "next-token": NextToken,
}

Code = Sequence[CodeSpec] | None


def build_task(spec: JobSpec) -> Task:
    """Raises ConfigError."""
    named = spec.task
    if named is None or named.source is None:
        declared = spec.method.task
        return OWN_TASKS[declared.word](spec.sizes, **declared.chosen.model_dump())
    return cast(Task, _made(spec, "task", named, group=distributions.TASKS, kind=Task))


def build_loss(spec: JobSpec, named: GivenPartSpec) -> Loss:
    """The job's loss of another distribution. Raises ConfigError."""
    return cast(Loss, _made(spec, "strategy.loss", named, group=distributions.PARTS, kind=Loss))


def build_regularizer(spec: JobSpec, named: GivenPartSpec) -> Regularizer:
    """The job's regularizer of another distribution. Raises ConfigError."""
    made = _made(spec, "strategy.regularizer", named, group=distributions.PARTS, kind=Regularizer)
    return cast(Regularizer, made)


def build_model(
    spec: ModelSpec,
    *,
    classes: int,
    input_shape: tuple[int, ...],
    recipe: Recipe = FEDAVG,
    code: Code = None,
    normalize: NormalizeSpec | None = None,
    adapters: AdaptersSpec | None = None,
) -> FederatedModel:
    """On the CPU, with torch's own weights, which a job's state replaces (models/starting.py).

    code: of the job, with the digests of distributions. Raises ConfigError.
    """
    model = model_of(spec, code=code)
    federated = FederatedModel(
        build_module(spec, model, Sizes(classes=classes, input_shape=input_shape)),
        cut=model.head,
        head=recipe.head,
        features=recipe.features,
        normalize=None if normalize is None else by_channel(normalize),
    )
    if adapters is not None:
        put_in(federated, adapters)
    return federated


def job_model(spec: JobSpec) -> FederatedModel:
    """The model of a job, with all that the job says of it. Raises ConfigError as `build_model`."""
    return build_model(
        spec.model,
        classes=spec.classes,
        input_shape=spec.input_shape,
        recipe=spec.method.recipe,
        code=spec.code,
        normalize=spec.normalize,
        adapters=spec.adapters,
    )


def job_model_on_its_base(spec: JobSpec, base_models: Path | None) -> FederatedModel:
    """The same, and of a job of adapters with the weights that they are put beside.

    base_models: the silo's folder of such weights. Raises ConfigError as `load_base`.
    """
    model = job_model(spec)
    if spec.adapters is not None:
        starts = partial(starts_of, spec.model, model_of(spec.model, code=spec.code))
        load_base(model, spec, base_models, starts=starts)
    return model


def build_module(spec: ModelSpec, model: Model, sizes: Sizes) -> nn.Module:
    """The author's own module, in float32. Raises ConfigError for options that it does not take."""
    try:
        distributions.check_options(_title("model", spec), model.build, spec.options)
        module = model(sizes, **options_of(spec))
    except ChoraleError:
        raise
    except Exception as error:  # whatever an author's function raises
        raise ConfigError(
            f"{_title('model', spec)} cannot be built: {distributions.error_line(error)}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{_title('model', spec)} returned {type(module).__name__}, expected a torch nn.Module"
        )
    lazy = next((name for name, each in module.named_parameters() if is_lazy(each)), None)
    if lazy is not None:
        raise ConfigError(
            f"{_title('model', spec)}: parameter {lazy} has no shape before the first sample (a lazy layer): "
            "give the layer its sizes"
        )
    odd = next((name for name, each in module.named_parameters() if not each.is_floating_point()), None)
    if odd is not None:
        raise ConfigError(f"{_title('model', spec)}: parameter {odd} is no floating-point number")
    return module.float()


def model_of(spec: ModelSpec, *, code: Code = None) -> Model:
    """Raises ConfigError."""
    if spec.source in GIVEN:
        return GIVEN[spec.source]
    if spec.source is not None:
        found = loaded("model", spec, group=distributions.MODELS, code=code)
        if not isinstance(found, Model):
            raise ConfigError(
                f"{_title('model', spec)} is no function with the decorator chorale_models.model"
            )
        return found
    if spec.name not in OWN:
        raise ConfigError(f"model.name: the built-in training has {', '.join(OWN)}, got {spec.name}")
    return OWN[spec.name]


def starts_of(spec: ModelSpec, model: Model, arrays: Sequence[str]) -> Mapping[str, Start]:
    """How arrays of the body start that no usual rule suits. arrays: the body's, by the author's names.

    Raises ConfigError for a pattern without arrays, and for numbers that float32 does not hold.
    """
    found: dict[str, Start] = {}
    for pattern, start in model.starts.items():
        matched = [name for name in arrays if fnmatchcase(name, pattern)]
        number = start.std if isinstance(start, Normal) else start
        if not matched or not math.isfinite(number) or abs(number) > 1e30:
            why = f"expected a number, got {number}" if matched else "no array has such a name"
            raise ConfigError(f"{_title('model', spec)}: starts: {pattern}: {why}")
        found |= {name: start for name in matched if name not in found}
    return found


def loaded(field: str, spec: PlugInSpec | GivenPartSpec, *, group: str, code: Code) -> object:
    """What an entry point of the job's distribution names, from the files that the job pins.

    Raises ConfigError.
    """
    # an author's module may import torchvision, as transformers does: a CPU build of torch needs this before
    import silo_agent.training.machine.torchvision_compat  # noqa: F401

    digests = {each.distribution: each.sha256 for each in code or ()}
    assert spec.source is not None
    try:
        return distributions.load(spec.source, group=group, name=spec.name, sha256=digests.get(spec.source))
    except ConfigError as error:
        raise ConfigError(f"{field}.from: {error}") from error.__cause__


def _made(
    spec: JobSpec, field: str, named: PlugInSpec | GivenPartSpec, *, group: str, kind: type[object]
) -> object:
    """A task or part of a distribution, made with its options. Raises ConfigError."""
    found = loaded(field, named, group=group, code=spec.code)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ConfigError(f"{_title(field, named)} is no subclass of chorale_models.{kind.__name__}")
    try:
        make: Callable[..., object] = found
        distributions.check_options(_title(field, named), make, named.options)
        return make(spec.sizes, **named.options)
    except ChoraleError:
        raise
    except Exception as error:  # whatever an author's class raises
        raise ConfigError(
            f"{_title(field, named)} cannot be made: {distributions.error_line(error)}"
        ) from error


def _title(field: str, spec: PlugInSpec | GivenPartSpec) -> str:
    return f"{field} {spec.name}" + ("" if spec.source is None else f" of {spec.source}")


def options_of(spec: ModelSpec) -> dict[str, object]:
    """Keyword arguments of the function that builds the model."""
    if spec.source is not None or spec.name == "trees":
        return dict(spec.options)
    own: dict[str, object] = {"norm": spec.norm}
    return own | ({"hidden": spec.hidden} if spec.name == "mlp" else {})
