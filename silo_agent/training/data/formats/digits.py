"""scikit-learn's handwritten digits: 1,797 real 8x8 scans, embedded in the package.

Source: UCI "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import RawData, Records, Samples
from silo_agent.training.data.private import stored
from silo_agent.training.data.settings import DataSettings

CLASSES = 10
BRIGHTEST = 16.0  # pixels are counts of set dots in a 4x4 block


FILE = ("datasets", "data", "digits.csv.gz")  # in scikit-learn's package


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Shapes: features (1797, 1, 8, 8) float32 in 0..1. Raises ConfigError."""
    if job.classes != CLASSES:
        raise ConfigError(f"classes: expected {CLASSES} for the digits data, got {job.classes}")
    return RawData(train=read_all())


def records(settings: DataSettings) -> Records:
    """Raises ConfigError."""
    return Records(train=stored(read_all()))


def read_all() -> Samples:
    """Every sample, in the package's order. Raises ConfigError where scikit-learn is not installed."""
    # importing it takes a second and a half and 50 MB, for a file of 57 kB
    package = PathFinder.find_spec("sklearn")
    if package is None or package.submodule_search_locations is None:
        raise ConfigError("data.format: the digits come with scikit-learn: pip install '.[silo]'")
    path = Path(package.submodule_search_locations[0]).joinpath(*FILE)
    rows = np.loadtxt(path, np.float32, delimiter=",")
    features = (rows[:, :-1] / np.float32(BRIGHTEST)).reshape(-1, 1, 8, 8)
    return Samples(features=features, labels=rows[:, -1].astype(np.int64))
