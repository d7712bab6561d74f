"""The gradient of each sample's loss by itself, layer by layer.

A dense layer's comes as what it was given and what it gave back (outer_products.py), and is multiplied out
where it was used at several positions or more than once. Opacus' hooks serve convolutions, normalizations and
others that they know. What is left, such as an attention's weights, an embedding's, whose rows may be no
samples', or one that two layers share, takes another pass, vectorized over samples.

N = samples of one micro-batch, P = trained parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.func import functional_call

from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.dp_sgd.dense_layers import DenseLayers
from silo_agent.training.dp_sgd.outer_products import SampleRows
from silo_agent.training.dp_sgd.vectorized_pass import VectorizedPass, WholePass
from silo_agent.training.models.base import FederatedModel

HOOKED = GradSampleModule.GRAD_SAMPLERS.keys() - {nn.Embedding, nn.EmbeddingBag}


class SampleGradients:
    """Per-sample gradients of one model, as a context: at its end the model is as it was.

    parameters: those that take a gradient, in the order of the gradients. product_names: of those that come
    as products, as probes have shown them (checks.py); None: wherever a pass gives one. products: how many
    values they have.
    """

    def __init__(self, model: FederatedModel, product_names: Collection[str] | None = None) -> None:
        self._pass = WholePass(model)
        self._model = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        scale = model.scale
        self._scale = scale if scale is not None and scale.requires_grad else None
        hooked = _hooked(model)
        self._dense = DenseLayers(
            [layer for layer in model.modules() if type(layer) is nn.Linear],
            trained=hooked,
            products=None if product_names is None else [model.get_parameter(each) for each in product_names],
        )
        self.products = sum(each.numel() for each in self._dense.weights)
        self._others = [each for each in self.parameters if each is not self._scale and each not in hooked]
        self._vectorized = VectorizedPass(model, self._others) if self._others else None

    def __enter__(self) -> SampleGradients:
        with self._set_apart():
            self._hooked = GradSampleModule(self._model, loss_reduction="sum")
        self._hooked.disable_hooks()  # but in `of`: a penalty may run a layer too
        self._dense.attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dense.detach()
        self._hooked.to_standard_module()
        for layer in self._model.modules():
            vars(layer).pop("activations", None)  # of a pass that an error ended; they are samples

    def of(self, loss: LocalLoss, inputs: Tensor, labels_N: Tensor, places_N: Tensor) -> list[SampleRows]:
        """Shapes: -> (N, *shape) for each parameter. inputs: the caller's last use of them.

        Raises RuntimeError where a layer was not given all samples, each in a row of its own.
        """
        if inputs.is_floating_point():
            # without it the hooks of the first layer warn that they see no gradient of an input
            inputs.requires_grad_()
        scale_N1: Tensor | None = None
        if self._scale is not None:
            # a scale of its own for every sample: the gradient of that is the per-sample gradient
            scale_N1 = self._scale.detach().expand(len(labels_N), 1).clone().requires_grad_()
        with self._set_apart(), self._dense.noted(), warnings.catch_warnings():
            # tokens take no gradient, and the hook of their embedding says so
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            self._hooked.enable_hooks()
            if scale_N1 is None:
                outputs = run_model(self._model, inputs)
            else:
                outputs = functional_call(self._pass, {"model.scale": scale_N1}, (inputs,))
            back = _gradients_of(outputs, loss, inputs.detach(), labels_N, places_N)
            pairs = [pair for pair in zip(_tensors(outputs), back, strict=True) if pair[0].requires_grad]
            if pairs:
                torch.autograd.backward([each for each, _ in pairs], [gradient for _, gradient in pairs])
            self._hooked.disable_hooks()
        found: dict[nn.Parameter, SampleRows] = self._dense.taken(len(labels_N))
        if self._scale is not None:
            assert scale_N1 is not None
            assert scale_N1.grad is not None
            found[self._scale] = scale_N1.grad
        if self._vectorized is not None:
            found |= self._vectorized.gradients(inputs.detach(), back)
        rows = [found[each] if each in found else _taken(each, len(labels_N)) for each in self.parameters]
        for each, row in zip(self.parameters, rows, strict=True):
            if row.shape != (len(labels_N), *each.shape):
                raise RuntimeError(f"gradients of shape {tuple(row.shape)} for {len(labels_N)} samples")
        return [_at_least_float32(each) for each in rows]

    @contextmanager
    def _set_apart(self) -> Iterator[None]:
        """Opacus takes what takes a gradient, and autograd adds up what nothing has clipped."""
        apart = [*self._dense.parameters, *self._others, *([] if self._scale is None else [self._scale])]
        for each in apart:
            each.requires_grad_(False)
        try:
            yield
        finally:
            for each in apart:
                each.requires_grad_()


def _gradients_of(
    outputs: Outputs, loss: LocalLoss, inputs: Tensor, labels_N: Tensor, places_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Of the samples' losses, by features and by logits, each as if the other did not move."""
    features_ND, logits_NC = (each.detach().requires_grad_() for each in _tensors(outputs))
    loss_N = loss.per_sample(
        Outputs(features_ND=features_ND, logits_NC=logits_NC), inputs, labels_N, places_N
    )
    by_features_ND, by_logits_NC = torch.autograd.grad(
        loss_N.sum(), (features_ND, logits_NC), allow_unused=True, materialize_grads=True
    )
    return by_features_ND, by_logits_NC


def _tensors(outputs: Outputs) -> tuple[Tensor, Tensor]:
    return outputs.features_ND, outputs.logits_NC


def _at_least_float32(rows: SampleRows) -> SampleRows:
    """Of a pass in bfloat16: its products with a factor would be rounded past the clip."""
    if isinstance(rows, Tensor):
        return rows.to(torch.promote_types(rows.dtype, torch.float32))
    return rows


def _hooked(model: nn.Module) -> set[nn.Parameter]:
    """Trained weights and biases of one layer each, of a kind whose hooks serve these two and no others."""
    uses: dict[nn.Parameter, list[bool]] = {}
    for layer in model.modules():
        for name, each in layer.named_parameters(recurse=False):
            uses.setdefault(each, []).append(type(layer) in HOOKED and name in ("weight", "bias"))
    return {each for each, are_hooked in uses.items() if each.requires_grad and are_hooked == [True]}


def _taken(parameter: nn.Parameter, samples: int) -> Tensor:
    """And forgotten: what autograd left with it is a sum that nothing clipped. Of an unused layer zero."""
    gradient: Tensor | None = parameter.grad_sample  # type: ignore[attr-defined]
    parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]
    return parameter.new_zeros((samples, *parameter.shape)) if gradient is None else gradient
