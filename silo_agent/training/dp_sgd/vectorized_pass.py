"""Gradients of single samples by one more pass through a model, vectorized over the samples.

It takes about as long as forward and backward together, and knows nothing of layers.
"""

# N = samples of one micro-batch

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.models.base import FederatedModel


class WholePass(nn.Module):
    """A model's pass as a call, for functions that put other values in place of its parameters."""

    def __init__(self, model: FederatedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Outputs:
        return run_model(self.model, inputs)


class VectorizedPass:
    """For some parameters of a model that has no hooks yet: through hooks torch vectorizes nothing."""

    def __init__(self, model: FederatedModel, parameters: Sequence[nn.Parameter]) -> None:
        same: dict[int, object] = {id(each): each for each in model.parameters()}
        self._unhooked = WholePass(copy.deepcopy(model, same))  # layers of its own, with the same weights
        self._unhooked.model.is_vectorized = True
        chosen = {id(each) for each in parameters}
        self._named = {name: each for name, each in self._unhooked.named_parameters() if id(each) in chosen}

    def gradients(self, inputs: Tensor, back: Sequence[Tensor]) -> dict[nn.Parameter, Tensor]:
        """back: the loss' gradients of features and logits, (N, ...) each. Shapes: -> (N, *shape)."""
        values = {name: each.detach() for name, each in self._named.items()}

        def of_one(one: Tensor, *back_of_one: Tensor) -> dict[str, Tensor]:
            def run(tried: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
                outputs = functional_call(self._unhooked, tried, (one[None],))
                return outputs.features_ND, outputs.logits_NC

            pull = vjp(run, values)[1]
            pulled: dict[str, Tensor] = pull(tuple(each[None] for each in back_of_one))[0]
            return pulled

        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            rows = vmap(of_one, randomness="different")(inputs, *back)
        return {self._named[name]: each for name, each in rows.items()}
