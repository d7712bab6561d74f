"""The silo's part of CCVR: counts, features and products of features of its training samples, by class.

Luo et al. 2021 (arXiv 2106.05001), section 4.2; strategies/parts/closing/ccvr.py says what the sums do and
what they leak. Eval mode, no augmentation, sums in float64.

C = classes, D = feature width, T = D(D+1)/2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from silo_agent.training.base.class_sums import class_sums
from silo_agent.training.base.setting import Setting
from strategies.base import Array
from strategies.parts.closing.ccvr import LEAST_CLASS_SAMPLES


def class_moments(setting: Setting) -> Mapping[str, Array]:
    """Shapes: class_counts (C,), class_feature_sums (C, D), class_feature_products (C, T).

    Rows of classes that are not sent, or of which this silo has too few samples, are zero. Raises Cancelled.
    """
    sums = class_sums(setting, setting.train, has_products=True)
    is_sent_C = setting.sent_rows_C & (sums.counts_C >= LEAST_CLASS_SAMPLES)
    return {
        "class_counts": np.where(is_sent_C, sums.counts_C, 0),
        "class_feature_sums": np.where(is_sent_C[:, None], sums.features_CD, 0.0),
        "class_feature_products": np.where(is_sent_C[:, None], sums.products_CT, 0.0),
    }
