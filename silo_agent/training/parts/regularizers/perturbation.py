"""FedSOL: the loss is taken at weights moved to where the regularizer grows fastest.

Lee, Jeong, Kim, Oh, Yun, "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated
Learning", CVPR 2024 (arXiv 2308.12532). With g_p the gradient of the regularizer over a batch,
    e = rho g_p / |g_p|,   w <- w - eta grad L(w + e):
where the loss falls there, too, its gradient has little to do with g_p. In the paper the regularizer is the
divergence from the received model's answers (kd; the factor tau^2 cancels). With radius adaptive, as the
authors' code has it, each number of e is multiplied by |w - w_g| / | |w - w_g| |_2, the norm over the first
axis of its array, with w_g the received weights: what has not moved is not perturbed. In the first step of a
round g_p is zero but for rounding, which a fixed radius takes for a direction, and an adaptive one multiplies
by zero. Batch normalization's running means follow the first of the two passes alone.
Adds nothing to what leaves the silo.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.functional import normalize

from silo_agent.training.base.setting import Setting
from silo_agent.training.dp_sgd.checks import BATCH_NORM
from silo_agent.training.models.base import FederatedModel
from strategies.parts.regularizers import PerturbedOptions, Radius

SMALLEST_NORM = 1e-12  # of the authors' code


class ProximalPerturbation:
    """rho: length of the step where the radius is fixed."""

    def __init__(self, received: FederatedModel, *, rho: float, is_adaptive: bool) -> None:
        self._rho, self._is_adaptive = rho, is_adaptive
        self._start = {
            name: each.detach().clone() for name, each in received.named_parameters() if each.requires_grad
        }

    @contextmanager
    def moved(self, model: FederatedModel) -> Iterator[None]:
        """Along the gradients that the parameters have, and back."""
        pairs = [
            (each, each.grad, self._start[name])
            for name, each in model.named_parameters()
            if name in self._start and each.grad is not None
        ]
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for _, g, _ in pairs]))
        scale = self._rho / (length + SMALLEST_NORM)
        before = [each.detach().clone() for each, _, _ in pairs]
        with torch.no_grad():
            for each, gradient, start in pairs:
                radius = normalize((each - start).abs(), dim=0) if self._is_adaptive else 1.0
                each.add_(scale * radius * gradient)
        with _still_running_means(model):
            yield
        with torch.no_grad():
            for (each, _, _), kept in zip(pairs, before, strict=True):
                each.copy_(kept)


@contextmanager
def _still_running_means(model: nn.Module) -> Iterator[None]:
    layers = [layer for layer in model.modules() if isinstance(layer, BATCH_NORM)]
    shares = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    yield
    for layer, share in zip(layers, shares, strict=True):
        layer.momentum = share


def proximal_perturbation(setting: Setting) -> ProximalPerturbation:
    options = setting.options(PerturbedOptions)
    is_adaptive = options.radius is Radius.ADAPTIVE
    return ProximalPerturbation(setting.received, rho=options.rho, is_adaptive=is_adaptive)
