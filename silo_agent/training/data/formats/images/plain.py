"""Plain images by Pillow: what the pixels of each mode mean, from 0 (black) to the brightest one.

8-bit pixels stay as they are: the job divides them by 255. Gray ones of 16 bits are divided by their own
brightest, so both mean the same. A file that means more than one opaque picture is refused by its mode.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.training.data.formats.images.grids import Grid, Picture
from silo_agent.training.data.formats.memory import check_values

# Pillow's names by suffix; no other decoder reads a file, whatever its name (EPS starts a program)
FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
}
MODES = {1: "L", 3: "RGB"}  # Pillow's names by number of channels
EIGHT_BIT = ("1", "L", "P", "RGB", "CMYK", "YCbCr", "LA", "PA", "RGBA")  # which Pillow turns into those
SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
BITS_PER_SAMPLE, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF
WHITE_IS_ZERO = 0


def read(path: Path, size: tuple[int, ...], is_mask: bool, *, channels: int) -> Picture:
    """As scans.Read. A mask is gray, or a palette whose numbers are the classes. Raises ConfigError, and
    whatever a decoder does."""
    from PIL import Image, ImageOps

    # by its path, Pillow 13 maps an uncompressed TIFF that lies on its side, and mixes its rows
    with path.open("rb") as file, Image.open(file, formats=tuple(FORMATS.values())) as image:
        check_values(math.prod(image.size) * len(image.getbands()), size, source=path)
        if getattr(image, "is_animated", False):
            raise ConfigError(f"{path}: more than one frame, expected one picture a file")
        top = None if image.mode in EIGHT_BIT else _brightest(image, path)
        inverted = top is not None and _tag(image, PHOTOMETRIC, 1) == WHITE_IS_ZERO
        is_scaled = image.format == "PNG" and str(image.tile[0][3]) in ("L;2", "L;4")
        shown = ImageOps.exif_transpose(image)  # decodes it
    assert shown is not None
    grid = Grid(size=(shown.height, shown.width))
    if is_mask:
        if is_scaled or inverted or (top is None and shown.mode not in ("1", "L", "P")):
            raise ConfigError(
                f"{path}: a mask has one channel of whole numbers as they are, this one is {shown.mode}"
            )
        return Picture(values=_mask(shown, size), grid=grid)
    _check_opaque(shown, path)
    shown.info.pop("transparency", None)
    if top is None:
        pixels = np.asarray(shown.convert(MODES[channels]).resize((size[1], size[0])))
        return Picture(values=pixels.reshape(*size, channels).transpose(2, 0, 1), grid=grid)
    gray_HW = np.asarray(shown).astype(np.float32)
    made = Image.fromarray(top - gray_HW if inverted else gray_HW).resize((size[1], size[0]))
    values = np.clip(np.asarray(made), 0, top) / np.float32(top)
    return Picture(values=np.repeat(values[np.newaxis], channels, axis=0), grid=grid)


def _brightest(image: Any, path: Path) -> int:
    """Of a gray picture of more than 8 bits. Raises ConfigError for a mode that has none."""
    is_png = image.mode == "I" and image.format == "PNG"  # of 16 bits, in older Pillow
    if (image.mode not in SIXTEEN_BIT and not is_png) or _tag(image, SAMPLE_FORMAT, 1) != 1:
        raise ConfigError(
            f"{path}: pixels of mode {image.mode} ({image.format}) have no brightest value, expected 8 or 16 "
            "bits without a sign"
        )
    return (1 << _tag(image, BITS_PER_SAMPLE, 16)) - 1


def _tag(image: Any, tag: int, default: int) -> int:
    """The first value of a tag of TIFF."""
    found = getattr(image, "tag_v2", {}).get(tag, default)
    return int(found[0] if isinstance(found, tuple) else found)


def _check_opaque(image: Any, path: Path) -> None:
    """Raises ConfigError for a picture whose colors depend on what lies behind it."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return
    if image.mode in EIGHT_BIT and image.convert("RGBA").getchannel("A").getextrema()[0] == 255:
        return
    raise ConfigError(f"{path}: a picture of mode {image.mode} with transparent pixels, expected opaque ones")


def _mask(image: Any, size: tuple[int, ...]) -> NDArray[np.int64]:
    from PIL import Image

    whole = image.convert("I") if image.mode in SIXTEEN_BIT else image
    made = whole.resize((size[1], size[0]), Image.Resampling.NEAREST)
    return np.asarray(made, np.int64)[np.newaxis]
