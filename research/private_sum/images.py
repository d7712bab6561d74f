"""Three sets of images and how a seed deals them to silos.

Rates are chosen on the last part of a training file, and silos hold records of the rest alone.
"""

# N = samples

from __future__ import annotations

import gzip
import io
import itertools
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.training.data.base import Samples, SiloData

VALIDATION_SHARE = 6  # one record in six of the training file
IDX_FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
IDX_TEST = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Shapes: features (N, channels, height, width) float32 in 0..1."""

    own: Samples
    validation: Samples
    test: Samples

    def silos(self, count: int, *, records: int, seed: int) -> list[SiloData]:
        """The first records of a shuffle, dealt out evenly; no silo holds anything out."""
        places_N = np.random.default_rng(seed).permutation(len(self.own))[: count * records]
        return [
            SiloData(train=self.own.take(part), holdout=self.own.take(part[:0]), name="images")
            for part in np.split(places_N, count)
        ]


@lru_cache(maxsize=1)  # trials of one data set follow each other
def images(folder: Path) -> Images:
    """Raises ConfigError where a file is missing."""
    try:
        read = _idx if (folder / IDX_FILES[0]).exists() else _jpeg
        train, test = read(folder, is_test=False), read(folder, is_test=True)
    except OSError as error:
        raise ConfigError(f"images: {folder}: {error}") from None
    first = len(train) - len(train) // VALIDATION_SHARE
    return Images(own=train.take(slice(first)), validation=train.take(slice(first, None)), test=test)


def _idx(folder: Path, *, is_test: bool) -> Samples:
    pixels, labels = (_array(folder / name) for name in (IDX_TEST if is_test else IDX_FILES))
    return _samples(pixels[:, np.newaxis], labels)


def _array(path: Path) -> NDArray[np.uint8]:
    """An idx file: magic number, sizes, bytes."""
    data = gzip.decompress(path.read_bytes())
    sizes = struct.unpack_from(f">{data[3]}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)


def _jpeg(folder: Path, *, is_test: bool) -> Samples:
    """JPEG files one after another, with the place where each begins."""
    from PIL import Image

    with np.load(folder / ("test.npz" if is_test else "train.npz")) as file:
        raw, offsets, labels = file["jpeg"].tobytes(), file["offsets"], file["labels"]
    pixels = [
        np.asarray(Image.open(io.BytesIO(raw[first:after])).convert("RGB"))
        for first, after in itertools.pairwise(offsets)
    ]
    return _samples(np.stack(pixels).transpose(0, 3, 1, 2), labels)


def _samples(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Samples:
    return Samples(features=pixels.astype(np.float32) / np.float32(255.0), labels=labels.astype(np.int64))
