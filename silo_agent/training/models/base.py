"""A model as a federation shares it: the author's module, with its last linear layer taken out where it is
named.

N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from chorale.spec.plug_in_specs import MARK
from chorale.spec.samples.image_specs import NormalizeSpec
from chorale.spec.state import BUFFER_SUFFIXES
from crypto.errors import ConfigError
from silo_agent.training.models.row_functions import SMALLEST_NORM, unit_rows
from strategies.parts.heads import RAW, TRAINED
from strategies.recipe import Features, Head

BODY = "body."  # before the names of the author's module
Normalization: TypeAlias = Callable[[Tensor], Tensor]


class FederatedModel(nn.Module):
    """features(x) -> (N, D), logits(features) -> (N, C), forward(x) = logits(features(x)).

    Parameters are named body.* and head.*. A frozen head is a parameter that takes no gradient. A model
    whose last linear layer is not named has a body alone: its features are its outputs, of any shape.
    With projected features there are projection.weight (C, D), which the head's input goes through, and
    scale (1,), which multiplies the logits. Source: FedETF, Li et al. 2023 (arXiv 2303.10058).
    """

    head: nn.Linear  # where it `has_head`
    has_adapters: bool  # beside the body's own weights, which then are no part of the global state

    def __init__(
        self,
        module: nn.Module,
        *,
        cut: str | None,
        head: Head = TRAINED,
        features: Features = RAW,
        normalize: Normalization | None = None,
    ) -> None:
        """cut: name of the module's last linear layer. normalize: of every input of the module, in any pass.

        Raises ConfigError where the layer is none of the module's.
        """
        super().__init__()
        last = None if cut is None else taken_out(module, cut)
        if normalize is not None:
            module.register_forward_pre_hook(lambda _, inputs: normalize(*inputs))
        self.body = module
        self.has_adapters = False
        self.head_path = cut
        self.projection: nn.Linear | None = None
        self.scale: nn.Parameter | None = None
        self.is_unit = features.is_unit
        self.is_bfloat16 = False  # models/forms.py
        self.is_channels_last = False
        self.is_vectorized = False  # dp_sgd/vectorized_pass.py, where torch takes its own operations alone
        self.head_had_bias = last is not None and last.bias is not None
        if last is None:
            return
        width, outputs = last.in_features, last.out_features
        if features.is_projected:
            self.projection = nn.Linear(width, outputs, bias=False)
            self.scale = nn.Parameter(torch.ones(1))
            width = outputs
        # the author's own layer may have no bias either
        self.head = nn.Linear(width, outputs, bias=head.has_bias and last.bias is not None)

    def shares(self, name: str) -> bool:
        """Whether a parameter or buffer is in the global state: of a body with adapters, these alone."""
        return not self.has_adapters or not name.startswith(BODY) or MARK in name

    @property
    def has_head(self) -> bool:
        return "head" in self._modules

    def parameters_named(self, names: Sequence[str]) -> list[Tensor]:
        """In the order of the names; in every step of some methods, so without a walk over all modules."""
        return [attrgetter(name)(self) for name in names]

    def features(self, inputs: Tensor) -> Tensor:
        """What the backbone gives, not normalized: float32, whatever it computes in."""
        if self.is_channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if self.is_bfloat16:
            with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
                rounded_ND: Tensor = self.body(inputs)
            return rounded_ND.float()
        features_ND: Tensor = self.body(inputs)
        return features_ND

    def embed(self, features_ND: Tensor) -> Tensor:
        """What the head is given: projected and at unit length where the method says so."""
        projected = features_ND if self.projection is None else self.projection(features_ND)
        if not self.is_unit:
            return projected
        if self.is_vectorized:
            return normalize(projected, dim=1, eps=SMALLEST_NORM)
        return unit_rows(projected)

    def logits(self, features_ND: Tensor) -> Tensor:
        if not self.has_head:
            return features_ND
        logits_NC: Tensor = self.head(self.embed(features_ND))
        return logits_NC if self.scale is None else self.scale * logits_NC

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits(self.features(inputs))


def float_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and running means, without gradients; one that two layers share by its first name. Other
    buffers are constants of the model's code."""
    parameters = {id(each) for each in model.parameters()}
    tensors = {
        id(each): (name, each)
        for name, each in reversed(model.state_dict(keep_vars=True).items())
        if id(each) in parameters or name.endswith(BUFFER_SUFFIXES)
    }
    return {name: each.detach() for name, each in reversed(tensors.values())}


def by_channel(spec: NormalizeSpec) -> Normalization:
    """Shapes: (N, channels, ...) -> the same."""
    mean_C, std_C = torch.tensor(spec.mean), torch.tensor(spec.std)

    def normalized(inputs: Tensor) -> Tensor:
        shape = (-1, *(1,) * (inputs.dim() - 2))
        mean, std = (each.to(inputs).view(shape) for each in (mean_C, std_C))
        return (inputs - mean) / std

    return normalized


def taken_out(module: nn.Module, name: str) -> nn.Linear:
    """The module's layer of that name; what went into it is from now on what the module gives.

    Raises ConfigError if it has none, one that is not linear, or one that shares a weight with another.
    """
    parent, _, own = name.rpartition(".")
    try:
        holder = module.get_submodule(parent)
        last = holder.get_submodule(own)
    except AttributeError:
        raise ConfigError(f"model: it has no layer {name}, which is named as its last linear one") from None
    if not isinstance(last, nn.Linear):
        raise ConfigError(f"model: {name} is named as its last linear layer, but is a {type(last).__name__}")
    setattr(holder, own, nn.Identity())
    kept = {id(each): name for name, each in module.named_parameters()}
    shared = next((kept[id(each)] for each in last.parameters() if id(each) in kept), None)
    if shared is not None:
        raise ConfigError(f"model: {name} shares its weight with {shared} and cannot be taken out")
    return last
