"""Softmax losses with weights: by how many samples of each class the silo has, or one for all scores.

Scaled softmax: cross-entropy of tau z on scores that are cosines. SphereFed (Dong, Zhang, Li, Kung 2022),
its ablation of the loss: without tau a softmax of cosines stays nearly even.

Balanced softmax: cross-entropy under the silo's own share of each class. FedETF, Li et al. 2023 (arXiv
2303.10058): -log( n_y^b exp(z_y) / sum_c n_c^b exp(z_c) ), where n_c counts the silo's training samples of
class c and z is the learned scale times the cosines of the projected features. A class that the silo lacks
has weight 0: nothing pushes it away.

Client-adapted: each class's logit scaled by the silo's share of that class. FedGELA, Fan et al. 2023, as the
FedDr+ paper's authors run it: training uses z_c C n_c / n on a frozen simplex ETF, where n_c of the silo's n
training samples are of class c. A class that the silo lacks has logit 0 whatever the feature is. Its own
authors' code (MediaBrain-SJTU/FedGELA at b5b20d5, FedGELA.py, lines 205 to 208) divides by a temperature.

The counts stay at the silo, but what it learns from its own classes shows in its delta, which only leaves
inside a sum. Silos are tested with plain cross-entropy: a hold-out may have classes of which one trains none.
C = classes, N = samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from silo_agent.training.base.passes import Outputs
from silo_agent.training.base.setting import Setting
from strategies.parts.losses import BalancedSoftmaxOptions, ClientAdaptedOptions, ScaledSoftmaxOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSoftmax:
    """Cross-entropy of tau z. scale: tau."""

    scale: float

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        return cross_entropy(self.scale * outputs.logits_NC, labels_N, reduction="none")


class BalancedSoftmax:
    """Cross-entropy of z + b log n. Shapes: counts (C,). balance: b, the exponent of the counts."""

    def __init__(self, counts_C: Tensor, *, balance: float) -> None:
        # -inf for an absent class: its probability and its gradient are 0, never NaN
        self._log_weights_C = balance * counts_C.log()

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        return cross_entropy(outputs.logits_NC + self._log_weights_C, labels_N, reduction="none")


class ClientAdapted:
    """Cross-entropy of z_c C n_c / (n tau). Shapes: counts (C,)."""

    def __init__(self, counts_C: Tensor, *, tau: float = 1.0) -> None:
        self._scales_C = len(counts_C) * counts_C / counts_C.sum() / tau

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        return cross_entropy(outputs.logits_NC * self._scales_C, labels_N, reduction="none")


def scaled_softmax(setting: Setting) -> ScaledSoftmax:
    return ScaledSoftmax(scale=setting.options(ScaledSoftmaxOptions).score_scale)


def client_adapted(setting: Setting) -> ClientAdapted:
    return ClientAdapted(setting.class_counts_C, tau=setting.options(ClientAdaptedOptions).adapted_tau)


def balanced_softmax(setting: Setting) -> BalancedSoftmax:
    options = setting.options(BalancedSoftmaxOptions)
    return BalancedSoftmax(setting.class_counts_C, balance=options.balance)
