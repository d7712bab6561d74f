"""FedDW's statistic at a silo: what its trained model answers, summed by true class.

Liu et al., FedDW, Eqs. 4 to 6: softmax of each sample's logits without a temperature, misclassified
samples included, over the whole training set in eval mode. strategies/parts/soft_labels.py divides the sums
over all silos by the counts and says what that leaks.

N = samples, C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from silo_agent.training.batches import Tensors
from silo_agent.training.parts.base import Setting
from silo_agent.training.parts.teacher import finite_rows, outputs_of
from strategies.base import Array


def soft_labels(setting: Setting, samples: Tensors) -> Mapping[str, Array]:
    """Shapes: soft_labels (C, C) float64, class_counts (C,) int64; zero rows for classes that are not sent.

    A class that this silo lacks has a zero row of its own accord. In a private job an answer that is no
    number counts as zero, because a refusal would tell of one sample what no noise covers. Raises Cancelled.
    """
    work, classes = setting.work, setting.work.spec.classes
    is_private = work.spec.privacy is not None
    outputs = outputs_of(setting.received, samples, is_cancelled=work.is_cancelled, is_private=is_private)
    sums_CC = probability_sums(
        outputs.logits_NC, samples.labels, classes=classes, is_private=is_private
    ).numpy(force=True)
    counts_C = torch.bincount(samples.labels, minlength=classes).cpu().numpy()
    is_sent_C = setting.sent_rows_C
    return {
        "soft_labels": np.where(is_sent_C[:, None], sums_CC, 0.0),
        "class_counts": np.where(is_sent_C, counts_C, 0),
    }


def probability_sums(
    logits_NC: Tensor, labels_N: Tensor, *, classes: int, is_private: bool = False
) -> Tensor:
    """A: row i sums softmax(logits) over the samples of class i. Shapes: -> (C, C) float64.

    is_private: a sample whose softmax is no number counts as zero.
    """
    probabilities_NC = torch.softmax(logits_NC.double(), dim=1)
    if is_private:
        probabilities_NC = finite_rows(probabilities_NC)
    sums_CC = torch.zeros((classes, classes), dtype=torch.float64, device=logits_NC.device)
    return sums_CC.index_add_(0, labels_N, probabilities_NC)
