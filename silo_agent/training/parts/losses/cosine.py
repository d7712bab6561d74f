"""Losses of cosines: the scores of unit features on a head of unit rows without bias.

Sphere-MSE: SphereFed (Dong, Zhang, Li, Kung 2022), Eq. 5: scores against one-hot targets. No softmax, no
temperature. 1/C makes its gradient small, at most 3/(C ||z||) for a raw feature z, so it wants learning rates
of ten times those of cross-entropy and more. Behind a ReLU its least value is above zero: a feature
without negative entries comes no nearer to a random row than a cosine of about 0.7.

Dot-regression: a feature is pulled to its own class's vector, pushed away from none. FedDr+, Kim et al. 2024
(arXiv 2406.02355), Eq. 2: L_DR = 1/2 (cos(f, v_y) - 1)^2, 0 to 2. There is no temperature, scale or bias.
With c = cos(f, v_y) its gradient (Theorem C.1) is
-(1 - c)/|f| (v_y - c f/|f|): orthogonal to f, falling with 1/|f|, so it wants large learning rates.
Features that end in ReLU have mixed-sign class vectors out of reach: c stays below about 0.71.
Neither adds anything to what leaves the silo.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, nll_loss, one_hot

from crypto.errors import Refusal, RemoteProtocolError
from silo_agent.training.base.passes import Outputs
from silo_agent.training.base.setting import Setting
from silo_agent.training.models.row_functions import mean_squares

UNIT_TOLERANCE = 1e-4  # of a float32 row's length


class SphereMse:
    """1/C ||s - onehot(y)||^2, one value a sample."""

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        scores_NC = outputs.logits_NC
        targets_NC = one_hot(labels_N, scores_NC.shape[1]).to(scores_NC.dtype)
        return mean_squares(scores_NC, targets_NC)


class DotRegression:
    """1/2 (c - 1)^2, in two operations of torch: nll_loss is -c, and Huber's loss without its linear part
    half a square."""

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        opposite_N = nll_loss(outputs.logits_NC, labels_N, reduction="none")
        return huber_loss(opposite_N, torch.full_like(opposite_N, -1.0), reduction="none", delta=math.inf)


def dot_regression(setting: Setting) -> DotRegression:
    """Raises RemoteProtocolError if the head that came with the state has rows of another length."""
    lengths_C = setting.received.head.weight.norm(dim=1)
    if not torch.allclose(lengths_C, torch.ones_like(lengths_C), rtol=0.0, atol=UNIT_TOLERANCE):
        raise RemoteProtocolError(
            "global state: dot-regression needs head rows of length 1, got lengths from "
            f"{float(lengths_C.min()):.4g} to {float(lengths_C.max()):.4g}",
            code=Refusal.STATE,
        )
    return DotRegression()
