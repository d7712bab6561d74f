"""Images that an archive holds as JPEG files, as the arrays that format npz reads.

An archive of a split, train.npz or test.npz: `jpeg` is the files' bytes one after another, `offsets` (N + 1)
where each begins and ends, `labels` (N). N = images, H = height, W = width.
"""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError


def decoded(folder: Path, into: Path) -> Path:
    """Write both splits as x_train, y_train, x_test, y_test into one file; its path. Raises ConfigError."""
    arrays: dict[str, NDArray[np.uint8]] = {}
    for split in ("train", "test"):
        path = folder / f"{split}.npz"
        try:
            with np.load(path, allow_pickle=False) as archive:
                raw, offsets, labels = archive["jpeg"].tobytes(), archive["offsets"], archive["labels"]
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(f"{path}: expected arrays jpeg, offsets and labels") from error
        images = [raw[start:end] for start, end in pairwise(offsets)]
        arrays[f"x_{split}"] = np.stack([_pixels(each) for each in images])
        arrays[f"y_{split}"] = labels
    path = into / "decoded.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return path


def _pixels(image: bytes) -> NDArray[np.uint8]:
    """Shapes: -> (H, W, 3)."""
    from PIL import Image  # of the development's packages: all that has no JPEGs runs without it

    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))
