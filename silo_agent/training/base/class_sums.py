"""What a model makes of a silo's samples, summed by class: counts, features, and products of features.

N = samples, C = classes, D = feature width, T = D(D+1)/2 values of an upper triangle.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from silo_agent.training.base.batches import Batches
from silo_agent.training.base.setting import Setting
from silo_agent.training.objective import Cancelled
from strategies.base import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSums:
    """Shapes: counts (C,), features (C, D), products (C, T), float64; without products (C, 0)."""

    counts_C: FloatArray
    features_CD: FloatArray
    products_CT: FloatArray


@torch.no_grad()
def class_sums(setting: Setting, samples: Batches, *, has_products: bool) -> ClassSums:
    """Of what the received model's head is given, in eval mode, in float64; no feature outlives its batch.

    Samples weigh as `Units.weights_N`. Raises Cancelled.
    """
    model, device = setting.received.eval(), setting.device
    classes, width = model.head.weight.shape
    rows_T, columns_T = torch.triu_indices(width, width, device=device)
    counts_C = torch.zeros(classes, dtype=torch.float64, device=device)
    sums_CD = torch.zeros((classes, width), dtype=torch.float64, device=device)
    products_CT = torch.zeros(
        (classes, len(rows_T) if has_products else 0), dtype=torch.float64, device=device
    )
    weights_N = samples.weights_N(setting.weight_steps)
    for batch in samples.passes(is_private=False):
        if setting.work.is_cancelled():
            raise Cancelled("forward pass: no longer wanted")
        feature_ND = model.embed(model.features(batch.inputs)).double()
        labels_N, weight_N = batch.labels_N, weights_N[batch.places_N]
        weighted_ND = weight_N[:, None] * feature_ND
        counts_C.index_add_(0, labels_N, weight_N)
        sums_CD.index_add_(0, labels_N, weighted_ND)
        for label in torch.unique(labels_N) if has_products else ():
            is_of_class_N = labels_N == label
            product_DD = weighted_ND[is_of_class_N].T @ feature_ND[is_of_class_N]
            products_CT[label] += product_DD[rows_T, columns_T]
    return ClassSums(
        counts_C=counts_C.cpu().numpy(),
        features_CD=sums_CD.cpu().numpy(),
        products_CT=products_CT.cpu().numpy(),
    )
