"""The silo's part of Fast Federated Calibration: what the pass over its training samples sums.

SphereFed (Dong, Zhang, Li, Kung 2022), Eq. 9; strategies/parts/closing/ffc.py says what the sums do and what
they leak. Eval mode, no augmentation, sums in float64. In a private job lengths are taken in float64 as well,
all batches have one shape, and a sample whose feature is not finite counts as zero: a refusal would reveal
of one sample what no noise covers.

N = samples, D = feature width, C = classes, T = D(D+1)/2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from silo_agent.training.base.batches import padded
from silo_agent.training.base.passes import finite_rows
from silo_agent.training.base.setting import Setting
from silo_agent.training.models.row_functions import SMALLEST_NORM
from silo_agent.training.objective import Cancelled
from strategies.base import Array, FloatArray
from strategies.parts.closing.ffc import packed


def calibrate(setting: Setting) -> Mapping[str, Array]:
    """Shapes: gram (T,), moment (D, C), float64. Raises Cancelled."""
    gram_DD, moment_DC = feature_sums(setting)
    return {"gram": packed(gram_DD), "moment": moment_DC}


@torch.inference_mode()
def feature_sums(setting: Setting) -> tuple[FloatArray, FloatArray]:
    """V_k and U_k over the silo's training samples. Shapes: (D, D), (D, C). Raises Cancelled.

    No feature outlives its batch.
    """
    model, device = setting.received.eval(), setting.device
    classes, width = model.head.weight.shape
    gram_DD = torch.zeros(width, width, dtype=torch.float64, device=device)
    moment_DC = torch.zeros(width, classes, dtype=torch.float64, device=device)
    weights_N = setting.train.weights_N(setting.weight_steps)
    for batch in setting.train.passes(is_private=setting.is_private):
        if setting.work.is_cancelled():
            raise Cancelled("calibrate: no longer wanted")
        unit_ND = model.embed(model.features(batch.inputs))
        if not model.is_unit:  # the class that a head without bias answers is the same at any length
            unit_ND = normalize(unit_ND, dim=1, eps=SMALLEST_NORM)
        unit_ND = unit_ND.double()
        if setting.is_private:
            # at a length of at most 1, in float64: float32 may leave a wide vector longer by UNIT_ROUNDING
            lengths_N1: Tensor = torch.linalg.vector_norm(unit_ND, dim=1, keepdim=True)
            unit_ND = finite_rows(unit_ND / lengths_N1.clamp(min=1.0))
        weight_N = padded(weights_N[batch.places_N[: batch.count]], len(batch.places_N))
        weighted_ND = weight_N[:, None] * unit_ND
        gram_DD += weighted_ND.T @ unit_ND
        moment_DC += weighted_ND.T @ one_hot(batch.labels_N, classes).double()
    return gram_DD.cpu().numpy(), moment_DC.cpu().numpy()
