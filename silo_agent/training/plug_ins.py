"""What a job's distributions say of themselves, and one step of their code on made-up samples.

Runs at submission and, before its first phase, at every silo: nothing here touches data.
N = samples of a probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chorale.runtime.distributions import error_line
from chorale.spec.job_spec import JobSpec
from chorale.spec.plug_in_specs import TargetSpec, TaskSpec
from chorale.spec.settings_file import check_values
from chorale.spec.state import BUFFER_SUFFIXES
from chorale_models.model import Model
from chorale_models.task import Task
from crypto.errors import ConfigError
from silo_agent.training.dp_sgd.checks import check_keeps_samples_apart
from silo_agent.training.machine.seeding import seeded
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import (
    build_loss,
    build_module,
    build_regularizer,
    build_task,
    model_of,
)
from silo_agent.training.models.trial import author_errors, one_tensor, try_training_step

PROBES = 2
NEAR = 1e-4  # relative: one float32 product of matrices in another order


def checked(spec: JobSpec) -> JobSpec:
    """The job with what the code of its distributions declares, tried out once.

    Raises ConfigError where the job says something else already, where the model lacks what the method needs
    of it, and where a step of the code on made-up samples fails.
    """
    if not spec.distributions:
        return spec
    spec = declared(spec)
    with seeded(0):
        _try(spec)
    return spec


def declared(spec: JobSpec) -> JobSpec:
    """The job with sums, metrics and targets of a foreign task, and with what foreign losses are.

    Raises ConfigError where the job says something else already.
    """
    values = spec.model_dump()
    if spec.task is not None and spec.task.source is not None:
        stated = _stated(spec.task, build_task(spec))
        for name, given in spec.task.stated.items():
            if given is not None and given != stated.stated[name]:
                raise ConfigError(
                    f"task.{name}: the job does not say what task {spec.task.name} of {spec.task.source} "
                    "declares: leave it out, `job submit` fills it in"
                )
        values["task"] = stated.model_dump()
    for field, named, build in (
        ("loss", spec.strategy.loss, build_loss),
        ("regularizer", spec.strategy.regularizer, build_regularizer),
    ):
        if named is None:
            continue
        is_mean = bool(build(spec, named).is_mean)
        if named.is_mean not in (None, is_mean):
            raise ConfigError(f"strategy.{field}.is_mean: {named.name} of {named.source} declares {is_mean}")
        values["strategy"][field]["is_mean"] = is_mean
    return check_values(JobSpec, values, source=f"job {spec.name}")


def _stated(named: TaskSpec, task: Task) -> TaskSpec:
    try:
        sums = [
            {
                "name": each.name,
                "shape": each.shape,
                "bound": each.bound,
                "per_record": each.per_record,
                "is_count": each.is_count,
                "is_by_class": each.is_by_class,
                "at_most": each.at_most,
            }
            for each in task.sums
        ]
        values = {
            "sums": sums,
            "ratios": dict(task.metrics),
            "target": TargetSpec.of(task.target),
            "is_mean": bool(task.is_mean),
        }
    except Exception as error:  # a declaration of other types
        raise ConfigError(
            f"task {named.name} of {named.source}: its declaration: {error_line(error)}"
        ) from error
    source = f"task {named.name} of {named.source}"
    return check_values(TaskSpec, {**named.model_dump(), **values}, source=source)


def _try(spec: JobSpec) -> None:
    model = model_of(spec.model, code=spec.code)
    module = build_module(spec.model, model, spec.sizes)
    _check_constants(spec, model, module)
    if spec.method.needs_head and model.head is None:
        raise ConfigError(
            f"{_model(spec)}: strategy {spec.strategy.name} ({spec.method.needs_head}) needs the model's "
            "last linear layer, and the model names none: model(head=...)"
        )
    inputs = _inputs(spec)
    trained = try_training_step(module, inputs, what=_model(spec))
    with torch.no_grad(), author_errors(f"{_model(spec)}: given {PROBES} samples of the job's input_shape"):
        outputs = one_tensor(module.eval()(inputs), what=_model(spec))
    if trained.shape != outputs.shape:
        raise ConfigError(
            f"{_model(spec)}: it gives {tuple(trained.shape)} in training and {tuple(outputs.shape)} "
            "otherwise, expected one shape"
        )
    federated = _cut(spec, model, module, inputs, outputs)
    if spec.privacy is not None:
        check_keeps_samples_apart(federated)
    _try_losses(spec, outputs)


def _cut(spec: JobSpec, model: Model, module: nn.Module, inputs: Tensor, outputs: Tensor) -> FederatedModel:
    """The model without its last linear layer, which really is the last one."""
    last = None if model.head is None else _layer(module, model.head)
    with author_errors(_model(spec)):
        recipe = spec.method.recipe
        federated = FederatedModel(module, cut=model.head, head=recipe.head, features=recipe.features)
    if last is None:
        return federated
    with torch.no_grad(), author_errors(f"{_model(spec)}: {model.head} is not its last layer, without it"):
        features_ND = module(inputs)
        again = last(features_ND)
    is_last = again.shape == outputs.shape and torch.allclose(again, outputs, rtol=NEAR, atol=NEAR)
    if not is_last or (spec.method.needs_head and features_ND.dim() != 2):
        raise ConfigError(
            f"{_model(spec)}: {model.head} is not its last layer: what it gives of the features is not what "
            "the model gives"
        )
    return federated


def _layer(module: nn.Module, name: str) -> nn.Module | None:
    try:
        return module.get_submodule(name)
    except AttributeError:
        return None  # FederatedModel says so


def _try_losses(spec: JobSpec, outputs: Tensor) -> None:
    task, strategy = build_task(spec), spec.strategy
    targets = torch.from_numpy(spec.method.task.target.examples(PROBES))
    found = tuple(outputs.shape[1:])
    if task.answer not in (None, found):
        raise ConfigError(
            f"{_model(spec)}: its answer to a sample has shape {found}, the job's task expects {task.answer}"
        )
    rows: dict[str, Tensor] = {}
    with torch.no_grad():
        with author_errors(f"task {spec.method.task.word}"):
            measured = task.measure(outputs, targets)
            rows["loss"] = task.loss(outputs, targets) if strategy.loss is None else torch.zeros(PROBES)
        if strategy.loss is not None:
            with author_errors(f"strategy.loss {strategy.loss.name}"):
                rows["strategy.loss"] = build_loss(spec, strategy.loss).loss(outputs, targets)
        if strategy.regularizer is not None:
            with author_errors(f"strategy.regularizer {strategy.regularizer.name}"):
                regularizer = build_regularizer(spec, strategy.regularizer)
                rows["strategy.regularizer"] = regularizer.penalty(outputs, outputs, targets)
    for name, row_N in rows.items():
        shape = tuple(row_N.shape) if isinstance(row_N, Tensor) else type(row_N).__name__
        if shape != (PROBES,):
            raise ConfigError(f"{name}: expected one number a sample, ({PROBES},) of {PROBES}, got {shape}")
        if bool(row_N.isnan().any()):
            raise ConfigError(f"{name}: expected numbers, got NaN for samples that are made up")
    if spec.task is not None and spec.task.source is not None:
        _check_measured(spec, measured)


def _check_measured(spec: JobSpec, measured: Mapping[str, Tensor]) -> None:
    expected = {each.name: each for each in build_task(spec).sums}
    title = f"task {spec.method.task.word}: measure"
    if not isinstance(measured, Mapping) or measured.keys() != expected.keys():
        names = ", ".join(map(str, measured)) if isinstance(measured, Mapping) else type(measured).__name__
        raise ConfigError(f"{title}: expected {', '.join(expected) or 'no sums'}, got {names or 'none'}")
    for name, value in measured.items():
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if found != expected[name].shape:
            raise ConfigError(f"{title}: {name}: expected shape {expected[name].shape}, got {found}")
        if expected[name].is_count and not bool((value == value.round()).all()):
            raise ConfigError(f"{title}: {name}: expected whole numbers, it is declared as a count")


def _check_constants(spec: JobSpec, model: Model, module: nn.Module) -> None:
    """Buffers that no sum holds stand in the code, so every silo has to build the same ones."""
    constants = {name: each for name, each in module.named_buffers() if not name.endswith(BUFFER_SUFFIXES)}
    if not constants:
        return
    with seeded(1):
        again = dict(build_module(spec.model, model, spec.sizes).named_buffers())
    for name, each in constants.items():
        if not torch.equal(each, again[name]):
            raise ConfigError(
                f"{_model(spec)}: buffer {name} has other values each time: it is never sent, so every silo "
                "has to build the same one"
            )


def _inputs(spec: JobSpec) -> Tensor:
    shape = (PROBES, *spec.input_shape)
    if spec.input_type == "int64":
        return torch.arange(math.prod(shape)).reshape(shape) % 2
    return torch.rand(shape)


def _model(spec: JobSpec) -> str:
    source = "" if spec.model.source is None else f" of {spec.model.source}"
    return f"model {spec.model.name}{source}"
