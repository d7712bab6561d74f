"""scikit-learn's handwritten digits: 1,797 real 8x8 scans, embedded in the package.

Source: UCI "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak.
"""

from __future__ import annotations

import numpy as np

from chorale.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.data.base import Samples, Source
from silo_agent.data.settings import DataSettings

CLASSES = 10
BRIGHTEST = 16.0  # pixels are counts of set dots in a 4x4 block


def load(settings: DataSettings, job: JobSpec) -> Source:
    """Shapes: features (1797, 1, 8, 8) float32 in 0..1."""
    from sklearn.datasets import load_digits  # one second to import

    if job.classes != CLASSES:
        raise ConfigError(f"classes: the digits data has {CLASSES} classes, the job says {job.classes}")
    digits = load_digits()
    features = (digits.images[:, np.newaxis] / BRIGHTEST).astype(np.float32)
    return Source(train=Samples(features=features, labels=digits.target.astype(np.int64)))
