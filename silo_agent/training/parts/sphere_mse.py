"""SphereFed's loss (Dong, Zhang, Li, Kung 2022), Eq. 5: scores against one-hot targets.

Features of unit length and a head with unit rows make the scores cosines. No softmax, no temperature.
1/C makes its gradient small, at most 3/(C ||z||) for a raw feature z, so it wants learning rates of
ten times those of cross-entropy and more. Behind a ReLU its least value is above zero: a feature
without negative entries comes no nearer to a random row than a cosine of about 0.7.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot

from silo_agent.training.parts.base import Outputs


class SphereMse:
    """1/C ||s - onehot(y)||^2, one value a sample."""

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        scores_NC = outputs.logits_NC
        targets_NC = one_hot(labels_N, scores_NC.shape[1]).to(scores_NC.dtype)
        return (scores_NC - targets_NC).square().mean(dim=1)
