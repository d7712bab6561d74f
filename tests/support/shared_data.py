"""Data sets that tests may use and the repository does not hold: a folder next to the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER_VARIABLE = "SHARED_DATA"  # in the environment: another folder than ../shared/data
DEFAULT = Path(__file__).parents[2] / ".." / "shared" / "data"


def shared_folder(name: str) -> Path:
    """Skips the test where the data set is not there."""
    folder = Path(os.environ.get(FOLDER_VARIABLE, DEFAULT)) / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not in ../shared/data next to this checkout, nor in ${FOLDER_VARIABLE}")
    return folder.resolve()
