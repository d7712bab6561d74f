"""Balanced softmax: cross-entropy under the silo's own share of each class.

FedETF, Li et al. 2023 (arXiv 2303.10058): -log( n_y^b exp(z_y) / sum_c n_c^b exp(z_c) ), where n_c counts
the silo's training samples of class c and z is the learned scale times the cosines of the projected
features. A class that the silo lacks has weight 0: nothing pushes it away. The counts stay at the silo,
but what it learns from its own classes shows in its delta, which only leaves inside a sum.
The silo is tested with plain cross-entropy: a hold-out may have classes of which it trains none.
C = classes, N = samples.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from silo_agent.training.parts.base import Outputs


class BalancedSoftmax:
    """Cross-entropy of z + b log n. Shapes: counts (C,). balance: b, the exponent of the counts."""

    def __init__(self, counts_C: Tensor, *, balance: float) -> None:
        # -inf for an absent class: its probability and its gradient are 0, never NaN
        self._log_weights_C = balance * counts_C.log()

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        return cross_entropy(outputs.logits_NC + self._log_weights_C, labels_N, reduction="none")
