"""Client-adapted cross-entropy: each class's logit scaled by the silo's share of that class.

FedGELA, Fan et al. 2023, as the FedDr+ paper's authors run it: training uses z_c C n_c / n on a frozen
simplex ETF, where n_c of the silo's n training samples are of class c; testing uses z itself. A class that
the silo lacks has logit 0 whatever the feature is. The shares stay at the silo.
C = classes, N = samples.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from silo_agent.training.parts.base import Outputs


class ClientAdapted:
    """Cross-entropy of z_c C n_c / n. Shapes: counts (C,)."""

    def __init__(self, counts_C: Tensor) -> None:
        self._scales_C = len(counts_C) * counts_C / counts_C.sum()

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        return cross_entropy(outputs.logits_NC * self._scales_C, labels_N, reduction="none")
