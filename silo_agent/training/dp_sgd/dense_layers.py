"""What dense layers are given in a pass, and the loss' gradient of what they give.

N = samples of one micro-batch, O and K = outputs and inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from silo_agent.training.dp_sgd.outer_products import OuterProducts, SampleRows


@dataclass(slots=True)
class _Use:
    """Of a layer, in one pass. outputs: the gradient of what it gave, zero where the loss does not use it."""

    inputs: Tensor
    outputs: Tensor

    def take(self, gradient: Tensor) -> None:
        self.outputs = gradient


class DenseLayers:
    """Linear layers of one model, noted while `noted` is open.

    trained: the parameters that are theirs to take. parameters: of them those of these layers; weights: the
    matrices.
    """

    def __init__(self, layers: Sequence[nn.Linear], *, trained: Collection[nn.Parameter]) -> None:
        self._trained = set(trained)
        self._layers = [layer for layer in layers if self._trained.intersection(layer.parameters())]
        own = [each for layer in self._layers for each in layer.named_parameters(recurse=False)]
        self.parameters = [each for _, each in own if each in self._trained]
        self.weights = [each for name, each in own if each in self._trained and name == "weight"]
        self._uses: dict[nn.Linear, list[_Use]] = {}
        self._is_noting = False

    def attach(self) -> None:
        self._hooks = [layer.register_forward_hook(self._note) for layer in self._layers]

    def detach(self) -> None:
        for each in self._hooks:
            each.remove()

    @contextmanager
    def noted(self) -> Iterator[None]:
        self._uses = {layer: [] for layer in self._layers}
        self._is_noting = True
        try:
            yield
        finally:
            self._is_noting = False

    def taken(self, samples: int) -> dict[nn.Parameter, SampleRows]:
        """Of the last pass, and forgotten. Shapes: (N, *shape) of each parameter; samples: N."""
        found: dict[nn.Parameter, SampleRows] = {}
        for layer, uses in self._uses.items():
            for name, each in layer.named_parameters(recurse=False):
                if each in self._trained:
                    found[each] = (_of_weight if name == "weight" else _of_bias)(each, uses, samples)
        self._uses = {}
        return found

    def _note(self, layer: nn.Linear, given: tuple[Any, ...], output: Tensor) -> None:
        if not self._is_noting:
            return
        if not output.requires_grad:  # nothing before it takes a gradient, nor does the layer now
            output.requires_grad_()
        # a copy: what follows may write into it
        use = _Use(given[0].detach().clone(), torch.zeros_like(output))
        self._uses[layer].append(use)
        output.register_hook(use.take)  # type: ignore[no-untyped-call]


def _of_weight(weight: Tensor, uses: Sequence[_Use], samples: int) -> SampleRows:
    if len(uses) == 1 and uses[0].inputs.dim() == 2:
        return OuterProducts(uses[0].inputs, uses[0].outputs)
    # where the factors of several products are cut, their sum may become longer
    rows = [torch.einsum("n...o,n...k->nok", use.outputs, use.inputs) for use in uses]
    return _added(rows, weight, samples)


def _of_bias(bias: Tensor, uses: Sequence[_Use], samples: int) -> SampleRows:
    return _added([torch.einsum("n...o->no", use.outputs) for use in uses], bias, samples)


def _added(rows: Sequence[Tensor], parameter: Tensor, samples: int) -> Tensor:
    return reduce(torch.add, rows) if rows else parameter.new_zeros((samples, *parameter.shape))
