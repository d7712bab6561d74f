"""A model's parameters and float buffers as named arrays of the global state, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chorale.spec.first_state import Shape
from chorale.spec.job_spec import JobSpec
from chorale_models.model import Start
from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from silo_agent.training.models.base import BODY, FederatedModel, float_tensors
from silo_agent.training.models.registry import job_model, job_model_on_its_base, model_of, starts_of
from strategies.base import MODEL, Array, Arrays
from strategies.phases.trees import check_splits

FloatArray = NDArray[np.float32]


def shapes_and_starts(spec: JobSpec) -> tuple[dict[str, Shape], Mapping[str, Start]]:
    """Shapes of a model's arrays, named model/<parameter>, as it is built; and how those of its body start
    that no usual rule suits. Raises ConfigError as `build_model`."""
    shapes = {MODEL + name: tuple(tensor.shape) for name, tensor in shared_tensors(empty_model(spec)).items()}
    if spec.adapters is not None:
        return shapes, {}
    named, body = model_of(spec.model, code=spec.code), MODEL + BODY
    arrays = [name.removeprefix(body) for name in shapes if name.startswith(body)]
    return shapes, starts_of(spec.model, named, arrays)


def empty_model(spec: JobSpec) -> FederatedModel:
    """Of names and shapes; what values it has says nothing. Raises ConfigError as `build_model`."""
    model_of(spec.model, code=spec.code)  # an author's module is not imported on the meta device
    try:
        with torch.device("meta"):  # no memory, no values
            return job_model(spec)
    except ConfigError:
        if spec.model.source is None:
            raise
        return job_model(spec)  # an author's function may read numbers while it builds


def shared_tensors(model: FederatedModel) -> dict[str, Tensor]:
    """What travels, without prefix: parameters and running means. Other buffers are constants of the code,
    and what adapters are put beside stays as well."""
    return {name: tensor for name, tensor in float_tensors(model).items() if model.shares(name)}


def model_arrays(model: FederatedModel) -> dict[str, Array]:
    """The model as arrays of the global state, named model/<parameter>, float32."""
    return {MODEL + name: _array(tensor) for name, tensor in shared_tensors(model).items()}


def load_arrays(model: FederatedModel, state: Arrays) -> None:
    """Copy the global state into the model; integer arrays, if a state has any, are left alone.

    Raises RemoteProtocolError if names, shapes or types are not this model's.
    """
    tensors = shared_tensors(model)
    received = {
        name.removeprefix(MODEL): array
        for name, array in state.items()
        if name.startswith(MODEL) and array.dtype.kind == "f"
    }
    if tensors.keys() != received.keys():
        odd = ", ".join(sorted(tensors.keys() ^ received.keys())[:3])
        raise RemoteProtocolError(
            f"global state: its arrays are not the job's model, differing in {odd}", code=Refusal.STATE
        )
    for name, tensor in tensors.items():
        array = received[name]
        if array.dtype != np.float32 or array.shape != tuple(tensor.shape):
            raise RemoteProtocolError(
                f"global state: {MODEL}{name} is {array.dtype} {array.shape}, "
                f"expected float32 {tuple(tensor.shape)}",
                code=Refusal.STATE,
            )
        tensor.copy_(torch.tensor(array))


def flat_values(model: FederatedModel, names: Sequence[str]) -> FloatArray:
    """Named tensors, flattened and joined in the order of the names."""
    tensors = shared_tensors(model)
    return flat_arrays([_array(tensors[name]) for name in names])


def flat_arrays(arrays: Sequence[Array]) -> FloatArray:
    """Arrays flattened and joined; empty for none."""
    flat = [np.asarray(array, dtype=np.float32).reshape(-1) for array in arrays]
    return np.concatenate(flat) if flat else np.empty(0, dtype=np.float32)


def _array(tensor: Tensor) -> Array:
    values: Array = tensor.detach().cpu().numpy().copy()
    return values


def loaded_model(spec: JobSpec, arrays: Arrays, *, base_models: Path | None) -> FederatedModel:
    """The model of a file, in eval mode; one of adapters with the weights beside them, of that folder. Raises
    ConfigError for arrays that are not the model's."""
    model = job_model_on_its_base(spec, base_models)
    try:
        with torch.no_grad():
            load_arrays(model, arrays)
    except RemoteProtocolError as error:
        raise ConfigError(f"model {spec.model.name}: {error}") from None
    if spec.grows_trees:
        check_splits(arrays, inputs=math.prod(spec.input_shape))
    return model.eval()
