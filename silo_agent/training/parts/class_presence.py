"""Presence: a 1 for every class that this silo trains on. strategies/parts/class_presence.py says what the
sum tells.

C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from silo_agent.training.parts.base import Setting
from strategies.base import Array


def presence(setting: Setting) -> Mapping[str, Array]:
    """Shapes: presence (C,) int64."""
    counts_C = np.bincount(setting.work.data.train.labels, minlength=setting.work.spec.classes)
    return {"class_presence": (counts_C > 0).astype(np.int64)}
