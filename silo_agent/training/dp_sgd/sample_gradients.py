"""The gradient of each sample's loss by itself, by opacus' hooks on the layers.

N = samples of one micro-batch, P = trained parameters.
"""

from __future__ import annotations

import warnings
from types import TracebackType

import torch
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.func import functional_call

from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.models.base import FederatedModel


class SampleGradients:
    """Per-sample gradients of one model, as a context: at its end the model is as it was.

    parameters: those that take a gradient, in the order of the gradients.
    """

    def __init__(self, model: FederatedModel) -> None:
        self._pass = _Pass(model)
        self._model = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        scale = model.scale
        self._scale = scale if scale is not None and scale.requires_grad else None

    def __enter__(self) -> SampleGradients:
        if self._scale is not None:  # belongs to no layer: opacus would take the whole model for one
            self._scale.requires_grad_(False)
        self._hooked = GradSampleModule(self._model, loss_reduction="sum")
        self._hooked.disable_hooks()  # but in `of`: a penalty may run a layer too
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooked.to_standard_module()
        if self._scale is not None:
            self._scale.requires_grad_(True)

    def of(self, loss: LocalLoss, inputs: Tensor, labels_N: Tensor, places_N: Tensor) -> list[Tensor]:
        """Shapes: -> (N, *shape) for each parameter. inputs: the caller's last use of them."""
        if inputs.is_floating_point():
            # without it the hooks of the first layer warn that they see no gradient of an input
            inputs.requires_grad_()
        scale_N1: Tensor | None = None
        if self._scale is not None:
            # a scale of its own for every sample: the gradient of that is the per-sample gradient
            scale_N1 = self._scale.detach().expand(len(labels_N), 1).clone().requires_grad_()
        self._hooked.enable_hooks()
        if scale_N1 is None:
            outputs = run_model(self._model, inputs)
        else:
            outputs = functional_call(self._pass, {"model.scale": scale_N1}, (inputs,))
        with warnings.catch_warnings():
            # tokens take no gradient, and the hook of their embedding says so
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            torch.autograd.backward(loss.per_sample(outputs, inputs.detach(), labels_N, places_N).sum())
        self._hooked.disable_hooks()
        return [self._taken(parameter, scale_N1) for parameter in self.parameters]

    def _taken(self, parameter: nn.Parameter, scale_N1: Tensor | None) -> Tensor:
        """And forgotten: what autograd left with it is a sum that nothing clipped."""
        if parameter is self._scale:
            assert scale_N1 is not None
            assert scale_N1.grad is not None
            return scale_N1.grad
        gradient: Tensor = parameter.grad_sample  # type: ignore[attr-defined]
        parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]
        return gradient


class _Pass(nn.Module):
    def __init__(self, model: FederatedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Outputs:
        return run_model(self.model, inputs)
