"""The silo's part of Fast Federated Calibration: what the pass over its training samples sums.

SphereFed (Dong, Zhang, Li, Kung 2022), Eq. 9; strategies/ffc.py says what the sums do and what they leak.
Eval mode, no augmentation, sums in float64.

N = samples, D = feature width, C = classes, T = D(D+1)/2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import one_hot

from silo_agent.batches import Tensors
from silo_agent.objective import Cancelled
from silo_agent.objectives.base import Setting
from silo_agent.objectives.teacher import PASS_BATCH
from strategies.base import Array
from strategies.ffc import packed


@torch.inference_mode()
def calibrate(setting: Setting) -> Mapping[str, Array]:
    """Shapes: gram (T,), moment (D, C), float64. Raises Cancelled.

    No feature outlives its batch.
    """
    model, device = setting.received.eval(), setting.device
    samples = Tensors.of(setting.work.data.train, device)
    classes, width = model.head.weight.shape
    gram_DD = torch.zeros(width, width, dtype=torch.float64, device=device)
    moment_DC = torch.zeros(width, classes, dtype=torch.float64, device=device)
    for start in range(0, len(samples), PASS_BATCH):
        if setting.work.is_cancelled():
            raise Cancelled("calibrate: no longer wanted")
        inputs, labels_N = samples.slice(start, start + PASS_BATCH)
        unit_ND = model.embed(model.features(inputs)).double()
        gram_DD += unit_ND.T @ unit_ND
        moment_DC += unit_ND.T @ one_hot(labels_N, classes).double()
    return {"gram": packed(gram_DD.cpu().numpy()), "moment": moment_DC.cpu().numpy()}
