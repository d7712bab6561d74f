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
        self.outputs = _copied(gradient)


class DenseLayers:
    """Linear layers of one model, noted while `noted` is open.

    trained: the parameters that are theirs to take. products: the weights whose gradients are products, and
    no others; None: those of layers that a pass uses once, at one position. parameters: all that they take;
    weights: of them those that may be products.
    """

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        *,
        trained: Collection[nn.Parameter],
        products: Collection[nn.Parameter] | None,
    ) -> None:
        self._trained = set(trained)
        self._products = None if products is None else set(products)
        self._layers = [layer for layer in layers if self._trained.intersection(layer.parameters())]
        own = [each for layer in self._layers for each in layer.named_parameters(recurse=False)]
        self.parameters = [each for _, each in own if each in self._trained]
        weights = [each for name, each in own if each in self._trained and name == "weight"]
        self.weights = [each for each in weights if self._products is None or each in self._products]
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
        """Of the last pass, and forgotten. Shapes: (N, *shape) of each parameter; samples: N.

        Raises RuntimeError where a product is none: a layer is used now as it was not when that was found.
        """
        found: dict[nn.Parameter, SampleRows] = {}
        for layer, uses in self._uses.items():
            for name, each in layer.named_parameters(recurse=False):
                if each in self._trained:
                    of_name = self._of_weight if name == "weight" else _of_bias
                    found[each] = of_name(each, uses, samples)
        self._uses = {}
        return found

    def _of_weight(self, weight: nn.Parameter, uses: Sequence[_Use], samples: int) -> SampleRows:
        is_product = len(uses) == 1 and uses[0].inputs.dim() == 2
        if self._products is not None:
            if weight in self._products and not is_product:
                raise RuntimeError("a dense layer that was used once in a pass is used otherwise now")
            is_product = weight in self._products
        if is_product:
            return OuterProducts(uses[0].inputs, uses[0].outputs)
        # where the factors of several products are cut, their sum may become longer
        rows = [torch.einsum("n...o,n...k->nok", use.outputs, use.inputs) for use in uses]
        return _added(rows, weight, samples)

    def _note(self, layer: nn.Linear, given: tuple[Any, ...], output: Tensor) -> None:
        if not self._is_noting:
            return
        if not output.requires_grad:  # nothing before it takes a gradient, nor does the layer now
            output.requires_grad_()
        use = _Use(_copied(given[0]), torch.zeros_like(_copied(output)))
        self._uses[layer].append(use)
        output.register_hook(use.take)  # type: ignore[no-untyped-call]


def _copied(tensor: Tensor) -> Tensor:
    """What follows may write into it, and autograd gives two layers the same gradient. In float32 at least:
    an author's pass may compute in bfloat16."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)


def _of_bias(bias: Tensor, uses: Sequence[_Use], samples: int) -> SampleRows:
    return _added([torch.einsum("n...o->no", use.outputs) for use in uses], bias, samples)


def _added(rows: Sequence[Tensor], parameter: Tensor, samples: int) -> Tensor:
    return reduce(torch.add, rows) if rows else parameter.new_zeros((samples, *parameter.shape))
