"""Images in one folder a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image


def write_folders(root: Path, images: Mapping[str, Sequence[int]]) -> Path:
    """images: gray values, by the folder's name."""
    for name, values in images.items():
        (root / name).mkdir(parents=True)
        for place, value in enumerate(values):
            Image.new("L", (2, 2), value).save(root / name / f"{place}.png")
    return root
