"""Adapters in a model, and the weights that they are put beside: a file of the silo's own, or drawn.

The base is no part of the global state: nothing of it is sent, summed or stored by a round.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from chorale.spec.first_state import SEED_ALONE, first_state
from chorale.spec.job_spec import JobSpec
from chorale.spec.plug_in_specs import MARK, AdaptersSpec
from chorale_models.model import Start
from crypto.errors import ConfigError
from silo_agent.training.models.base import BODY, FederatedModel, float_tensors
from strategies.base import MODEL

SUFFIX = ".safetensors"
WRAPPERS = ("base_model.model.",)  # what peft's own wrapper puts before the names of a module
SHOWN = 3  # names in an error


def put_in(model: FederatedModel, spec: AdaptersSpec) -> None:
    """Give the layers that the job names their adapters, in place.

    Raises ConfigError for a silo without peft, and for layers that the model lacks or that take no adapter.
    """
    if spec.targets:
        peft = _peft()
        config = peft.LoraConfig(
            r=spec.rank, lora_alpha=spec.alpha, target_modules=list(spec.targets), lora_dropout=0.0
        )
        _check_targets(model.body, spec.targets)
        try:
            peft.inject_adapter_in_model(config, model.body)
        except ValueError as error:
            raise ConfigError(f"adapters.targets: {str(error).splitlines()[0]}") from None
    model.has_adapters = True
    if not any(MARK in name for name, _ in model.body.named_parameters()):
        raise ConfigError("adapters.targets: none is named, and the model's own function has put in no LoRA")
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):
        raise ConfigError(
            "adapters: the model has batch normalization, whose running means belong to no adapter"
        )


def load_base(
    model: FederatedModel,
    job: JobSpec,
    folder: Path | None,
    *,
    starts: Callable[[Sequence[str]], Mapping[str, Start]] = lambda _: {},
) -> None:
    """Set all that is no part of the state. folder: the silo's `base_models`. starts: of the author's arrays
    of those names, where the base is drawn.

    Raises ConfigError where the file is missing, is another one, or lacks an array of the model.
    """
    assert job.adapters is not None
    tensors = {
        _own_name(name): tensor for name, tensor in float_tensors(model).items() if not model.shares(name)
    }
    with torch.no_grad():
        if job.adapters.base is None:
            own_names = [_own_name(name) for name in float_tensors(model) if name.startswith(BODY)]
            _draw(tensors, job, starts(own_names))
        else:
            _read(tensors, job.adapters.base, folder)


def _draw(tensors: dict[str, Tensor], job: JobSpec, starts: Mapping[str, Start]) -> None:
    before = MODEL + BODY
    shapes = {before + name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, array in first_state(job, shapes, base=SEED_ALONE, starts=starts).items():
        tensors[name.removeprefix(before)].copy_(torch.from_numpy(array))


def _read(tensors: dict[str, Tensor], digest: str, folder: Path | None) -> None:
    if folder is None:
        raise ConfigError(f"base_models: the job's adapters need weights {digest[:12]}, and no folder is set")
    path = folder / f"{digest}{SUFFIX}"
    try:
        # Security: before a byte of the file is used; nobody but the institution writes into its folder
        if _sha256(path) != digest:
            raise ConfigError(f"{path}: its SHA-256 is not its name: it is not the file that the job names")
        with safetensors.safe_open(path, framework="pt") as file:
            _check_names(tensors, file, path)
            for name, tensor in tensors.items():
                tensor.copy_(file.get_tensor(name))
    except FileNotFoundError:
        raise ConfigError(f"base_models: the job's adapters need {path}, which is not there") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise ConfigError(f"{path}: not a readable safetensors file: {error}") from None


def _check_names(tensors: dict[str, Tensor], file: Any, path: Path) -> None:
    """The file may hold more, such as the head that its model was trained with."""
    missing = sorted(tensors.keys() - set(file.keys()))
    if missing:
        raise ConfigError(
            f"{path}: it lacks {len(missing)} arrays of the job's model, such as {', '.join(missing[:SHOWN])}"
        )
    for name, tensor in tensors.items():
        found = tuple(file.get_slice(name).get_shape())
        if found != tuple(tensor.shape):
            raise ConfigError(f"{path}: {name} has shape {found}, the job's model {tuple(tensor.shape)}")


def _own_name(name: str) -> str:
    """As the author's module names it, without what adapters put around it."""
    own = name.removeprefix(BODY).replace(".base_layer.", ".")
    for wrapper in WRAPPERS:
        own = own.removeprefix(wrapper)
    return own


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_targets(body: nn.Module, targets: tuple[str, ...]) -> None:
    """peft lets a name pass that no layer has, where another of the list is found."""
    layers = [name for name, layer in body.named_modules() if isinstance(layer, nn.Linear)]
    names = [name for name, _ in body.named_modules()]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            # of a layer in a list the end alone is a number
            ends = dict.fromkeys(re.sub(r".*\.(?=[^.]*[A-Za-z_])", "", name) for name in layers)
            shown = ", ".join([*ends][:8]) or "none"
            raise ConfigError(f"adapters.targets: no layer is named {target}; linear ones are {shown}")


def _peft() -> ModuleType:
    """Raises ConfigError."""
    import silo_agent.training.machine.torchvision_compat  # noqa: F401  peft imports transformers, which imports torchvision

    try:
        return importlib.import_module("peft")
    except ImportError:
        raise ConfigError("adapters: this silo has no peft: pip install '.[language]'") from None
