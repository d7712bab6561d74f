"""FedCSD's statistic at a silo: the teacher's mean logits by true class, before training.

Yan et al. 2023 (arXiv 2308.10162), Eq. 6: P_k[c] = mean of f(w_xi; x) over the silo's samples of class c.
Raw logits, every sample once, summed in float64. strategies/parts/statistics/logit_prototypes.py joins the
silos' and says what that leaks.

N = samples, C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from silo_agent.training.base.passes import finite_rows
from silo_agent.training.base.setting import Setting
from silo_agent.training.parts.regularizers.csd import logit_sums, teacher_logits
from strategies.base import Array
from strategies.parts.statistics.logit_prototypes import PrototypeOptions


def logit_prototypes(setting: Setting) -> Mapping[str, Array]:
    """Shapes: prototypes (C, C), or prototype_sums (C, C) and class_counts (C,). Rows of classes that this
    silo lacks, or does not send, are zero. Raises RemoteProtocolError, Cancelled."""
    samples, classes = setting.train, setting.work.spec.classes
    options = setting.options(PrototypeOptions)
    logits_NC = clipped_rows(teacher_logits(setting, samples), options.logit_clip)
    weights_N = samples.weights_N(setting.weight_steps)
    sums_CC = np.asarray(logit_sums(weights_N[:, None] * logits_NC, samples.labels, classes=classes).cpu())
    counts_C = torch.bincount(samples.labels, weights=weights_N, minlength=classes).numpy(force=True)
    is_sent_C = setting.sent_rows_C
    if options.count_weighted:
        return {
            "prototype_sums": np.where(is_sent_C[:, None], sums_CC, 0.0),
            "class_counts": np.where(is_sent_C, counts_C, 0),
        }
    means_CC = sums_CC / np.maximum(counts_C, 1)[:, None]
    return {"prototypes": np.where(is_sent_C[:, None], means_CC, 0.0)}


def clipped_rows(logits_NC: Tensor, clip: float | None) -> Tensor:
    """Each row at a norm of at most `clip`, in float64; a row with a value that is not finite becomes zero.

    None: as they are. Shapes: -> (N, C).
    """
    if clip is None:
        return logits_NC
    wide_NC = finite_rows(logits_NC.double())
    norms_N1: Tensor = torch.linalg.vector_norm(wide_NC, dim=1, keepdim=True)
    return wide_NC * (clip / norms_N1.clamp(min=clip))
