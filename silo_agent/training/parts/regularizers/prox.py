"""The proximal term: trained parameters stay near those of the model that came in.

FedProx, Li et al. 2020 (arXiv 1812.06127), Eq. 2: loss + mu/2 |theta - theta_g|^2. In the convex mixes of
the FedDr+ paper (Table 2 of the journal version) it has no 1/2: beta loss + (1 - beta) |theta - theta_g|^2.
A frozen head is no part of theta. It depends on the weights alone, so it needs no per-sample gradient, and
it adds nothing to what leaves the silo.
"""

from __future__ import annotations

import torch
from torch import Tensor

from silo_agent.training.base.loss import add_to_gradients
from silo_agent.training.base.setting import Setting
from silo_agent.training.models.base import FederatedModel
from strategies.parts.regularizers import ADDITIVE, PROX


class Prox:
    """factor |theta - theta_g|^2 over the parameters that take a gradient."""

    def __init__(self, received: FederatedModel, *, factor: float) -> None:
        self._factor = factor
        self._start = {
            name: parameter.detach().clone()
            for name, parameter in received.named_parameters()
            if parameter.requires_grad
        }

    def penalty(self, model: FederatedModel) -> Tensor:
        parameters = dict(model.named_parameters())
        squares = [(parameters[name] - start).square().sum() for name, start in self._start.items()]
        return self._factor * torch.stack(squares).sum()

    def add_gradient(self, model: FederatedModel, *, weight: float) -> None:
        parameters = model.parameters_named(tuple(self._start))
        with torch.no_grad():
            moved = torch._foreach_sub(parameters, tuple(self._start.values()))
        add_to_gradients(parameters, moved, weight=2.0 * self._factor * weight)


def prox(setting: Setting) -> Prox:
    """The two papers differ in a factor of 1/2; a second regularizer is added as FedProx's is."""
    recipe = setting.work.spec.method.recipe
    is_fedprox = recipe.mix is ADDITIVE or recipe.second_regularizer is PROX
    return Prox(setting.received, factor=0.5 if is_fedprox else 1.0)
