"""A model as its author knows it: a plain state_dict in, and the module whole again, its last layer put back.

N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.training.models.base import BODY, FederatedModel
from silo_agent.training.models.registry import job_model
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import empty_model, load_arrays, shared_tensors
from strategies.base import MODEL, Array

MAX_LISTED = 8  # names of one list in an error
HEAD = "head."


class EmbeddingLinear(nn.Linear):
    """The last layer of a method with features at unit length, projected first if `width` is given."""

    def __init__(self, features: int, outputs: int, *, bias: bool, width: int | None = None) -> None:
        super().__init__(features, outputs, bias=bias)
        self.projection = None if width is None else nn.Linear(width, features, bias=False)
        self.scale = None if width is None else nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        projected = inputs if self.projection is None else self.projection(inputs)
        outputs = super().forward(normalize(projected, dim=1))
        return outputs if self.scale is None else self.scale * outputs


def plain_names(model: FederatedModel) -> dict[str, str]:
    """Names of the shared arrays, by what they are called in the author's own module."""
    found = {}
    for name in shared_tensors(model):
        # what a method adds before the head is of the last layer
        own = (
            name.removeprefix(BODY)
            if name.startswith(BODY)
            else f"{model.head_path}.{name.removeprefix(HEAD)}"
        )
        found[own] = name
    return found


def given_state(spec: JobSpec, given: Mapping[str, Array], *, base: bytes, source: str) -> dict[str, Array]:
    """A plain state_dict as the first state of a job. given: by the names of the author's module.

    A frozen head, a projection and its scale may be left out; they are drawn as in a job without `--init`.
    base: JobSpec.base. Raises ConfigError that lists what is missing, what is extra and what does not fit.
    """
    if spec.adapters is not None:
        raise ConfigError(
            f"{source}: the job trains adapters beside the weights of adapters.base; here --init takes a "
            "fetched model"
        )
    model = empty_model(spec)
    names = plain_names(model)
    shapes = {MODEL + name: tuple(tensor.shape) for name, tensor in shared_tensors(model).items()}
    # counters, constants, and second names of one array
    idle = {name.removeprefix(BODY) for name in model.state_dict() if name.startswith(BODY)}
    if not np.any(given.get(f"{model.head_path}.bias", 0.0)):
        idle.add(f"{model.head_path}.bias")  # where the method has none
    extra = sorted(given.keys() - names.keys() - idle)
    drawn = {own for own, name in names.items() if not name.startswith(BODY) and not _is_trained(spec, name)}
    missing = sorted(names.keys() - given.keys() - drawn)
    unfit = [
        f"{own} is {given[own].dtype} {given[own].shape}, expected float32 {shapes[MODEL + name]}"
        for own, name in sorted(names.items())
        if own in given and (given[own].dtype != np.float32 or given[own].shape != shapes[MODEL + name])
    ]
    odd = [
        f"{what}: {_listed(which)}"
        for what, which in (("missing", missing), ("extra", extra), ("unfit", unfit))
        if which
    ]
    if odd:
        raise ConfigError(
            f"{source}: not a state_dict of model {spec.model.name} in this job; {'; '.join(odd)}"
        )
    state = {MODEL + name: given[own] for own, name in names.items() if own in given}
    if state.keys() == shapes.keys():
        return state
    return {**initial_state(spec, base=base), **state}


def whole_module(model: FederatedModel) -> nn.Module:
    """The author's module, with the model's head as its last layer: it gives what the model gives.

    The model is taken apart. Its parameters have the names of `plain_names`. Where the method has no bias and
    the author's layer does, the bias is 0, so that the state_dict loads into what the author's code builds.
    """
    if not model.has_head or model.head_path is None:
        return model.body
    last = last_layer(model)
    before = {
        own.removeprefix(f"{model.head_path}."): model.get_parameter(name)
        for own, name in plain_names(model).items()
        if not name.startswith(BODY)
    }
    if last.bias is not None:
        before.setdefault("bias", nn.Parameter(torch.zeros_like(last.bias)))
    last.load_state_dict(before)
    put_in(model.body, model.head_path, last)
    return model.body


def model_state_dict(spec: JobSpec, state: Mapping[str, Array]) -> dict[str, Tensor]:
    """A job's model as a state_dict, on the CPU.

    Names are those of the author's own module, as `chorale model export` writes them. Of a job whose module
    cannot be built here (model `custom`, adapters) they are those of the global state, without `model/`.
    Raises ConfigError where the job's code is not installed, or does not build a model of this state.
    """
    given = {name: array for name, array in state.items() if name.startswith(MODEL)}
    if not spec.model.is_built_in or spec.adapters is not None:
        return {name.removeprefix(MODEL): torch.tensor(array) for name, array in given.items()}
    model = job_model(spec)
    try:
        with torch.no_grad():
            load_arrays(model, given)
    except RemoteProtocolError as error:
        raise ConfigError(f"model {spec.model.name}: {error}") from None
    return {name: value.detach() for name, value in whole_module(model).state_dict().items()}


def last_layer(model: FederatedModel) -> nn.Linear:
    """A layer in place of the one that was taken out, with values of its own."""
    head = model.head
    if not model.is_unit:
        has_bias = model.head_had_bias or "bias" in head.state_dict()
        return nn.Linear(head.in_features, head.out_features, bias=has_bias)
    width = None if model.projection is None else model.projection.in_features
    return EmbeddingLinear(head.in_features, head.out_features, bias="bias" in head.state_dict(), width=width)


def put_in(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace the module's layer of that name."""
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, layer)


def _is_trained(spec: JobSpec, name: str) -> bool:
    return name.startswith(HEAD) and not spec.method.recipe.head.is_frozen


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more
