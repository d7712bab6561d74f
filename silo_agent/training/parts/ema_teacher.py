"""FedCSD's teacher at a silo: the moving mean of the global models, run once a round over the samples.

Yan et al. 2023 (arXiv 2308.10162), Eq. 12; strategies/parts/ema_teacher.py makes the mean. The teacher is in
eval mode, takes no gradient, and draws no random number that training would miss. The prototypes phase and
training want the same answers, so the second of them finds those of the first.

N = samples, C = classes.
"""

from __future__ import annotations

import hashlib

import numpy as np
from torch import Tensor

from silo_agent.training.batches import Tensors
from silo_agent.training.models.state import load_arrays
from silo_agent.training.parts.base import Outputs, Setting
from silo_agent.training.parts.teacher import frozen_copy, outputs_of
from strategies.base import Arrays
from strategies.parts.ema_teacher import teacher_state


def ema_teacher(setting: Setting, samples: Tensors) -> Outputs:
    """Logits alone: nothing compares this teacher's features. Raises RemoteProtocolError, Cancelled."""
    logits_NC = teacher_logits(setting, samples)
    return Outputs(features_ND=logits_NC.new_empty((len(samples), 0)), logits_NC=logits_NC)


def teacher_logits(setting: Setting, samples: Tensors) -> Tensor:
    """Shapes: -> (N, C). Raises RemoteProtocolError for a teacher that is not the job's model, Cancelled."""
    arrays = teacher_state(setting.work.state)
    return setting.kept.logits(_key(setting, arrays), lambda: _run(setting, arrays, samples))


def _run(setting: Setting, arrays: Arrays, samples: Tensors) -> Tensor:
    teacher = frozen_copy(setting.received)
    load_arrays(teacher, arrays)
    work = setting.work
    is_private = work.spec.privacy is not None
    return outputs_of(teacher, samples, is_cancelled=work.is_cancelled, is_private=is_private).logits_NC


def _key(setting: Setting, arrays: Arrays) -> bytes:
    """Job, silo and every byte of the teacher: the digest of the whole state changes within a round."""
    hashed = hashlib.sha256((setting.work.spec.model_dump_json() + setting.work.silo).encode())
    for name in sorted(arrays):
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(arrays[name]).data)
    return hashed.digest()
