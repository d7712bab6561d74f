"""What pixels of plain images mean, mode by mode, and which files are refused."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crypto.errors import ConfigError
from silo_agent.training.data.formats.images.plain import read

ORIENTATION = 274
# what a viewer does with each value, as a function of (rows, columns)
SHOWN = {
    1: lambda stored: stored,
    2: np.fliplr,
    3: lambda stored: np.rot90(stored, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).T,
    8: np.rot90,
}


def drawn(seed: int, dtype: Any, shape: tuple[int, ...] = (5, 7)) -> Any:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def values(path: Path, size: tuple[int, int] = (5, 7), *, channels: int = 1) -> Any:
    return read(path, size, False, channels=channels).values


@pytest.mark.parametrize("ending", [".png", ".tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_gray_of_16_bits_is_a_part_of_its_brightest(ending: str, channels: int, tmp_path: Path) -> None:
    """All but the darkest were white."""
    for seed in range(5):
        pixels, path = drawn(seed, np.uint16), tmp_path / f"{seed}{ending}"
        Image.fromarray(pixels).save(path)
        found = values(path, channels=channels)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.broadcast_to(pixels / 65535, found.shape), atol=1e-6)
        bright = values(path, (3, 4))
        assert 0 <= bright.min() <= bright.max() <= 1


def test_tiff_of_other_byte_order_or_with_white_as_zero_reads_the_same(tmp_path: Path) -> None:
    pixels = drawn(1, np.uint16)
    Image.frombytes("I;16B", (7, 5), pixels.astype(">u2").tobytes()).save(tmp_path / "big.tif")
    np.testing.assert_allclose(values(tmp_path / "big.tif")[0], pixels / 65535, atol=1e-6)
    Image.fromarray(65535 - pixels).save(tmp_path / "white.tif")
    content = (tmp_path / "white.tif").read_bytes()
    tag = struct.pack("<HHI", 262, 3, 1)
    assert content.count(tag + struct.pack("<H", 1)) == 1
    (tmp_path / "white.tif").write_bytes(content.replace(tag + b"\1\0", tag + b"\0\0"))
    np.testing.assert_allclose(values(tmp_path / "white.tif")[0], pixels / 65535, atol=1e-6)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_8_bits_are_what_pillow_makes_of_them(mode: str, channels: int, tmp_path: Path) -> None:
    image = Image.fromarray(drawn(2, np.uint8, (5, 7, 3))).convert(mode)
    if "A" in mode:
        image.putalpha(255)
    path = tmp_path / "a.tif"
    image.save(path)
    expected = np.asarray(image.convert({1: "L", 3: "RGB"}[channels]).resize((4, 3)))
    found = values(path, (3, 4), channels=channels)
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected.reshape(3, 4, channels).transpose(2, 0, 1))


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("ending", [".png", ".jpg", ".tif", ".webp"])
def test_the_orientation_of_a_camera_is_applied(orientation: int, ending: str, tmp_path: Path) -> None:
    stored = np.kron(np.array([[20, 90, 200], [50, 130, 240]], np.uint8), np.ones((16, 16), np.uint8))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = tmp_path / f"a{ending}"
    Image.fromarray(stored).save(path, exif=exif, **({} if ending == ".tif" else {"quality": 100}))
    expected = SHOWN[orientation](stored)
    found = read(path, expected.shape, False, channels=1)
    assert found.grid.size == expected.shape
    np.testing.assert_allclose(found.values[0].astype(int), expected, atol=4)


def _frames(kind: str) -> Any:
    def save(path: Path) -> None:
        first, second = (Image.new("RGB", (7, 5), gray) for gray in ("red", "blue"))
        first.save(path, kind, save_all=True, append_images=[second])

    return save


def _palette() -> Image.Image:
    image = Image.fromarray(np.arange(35, dtype=np.uint8).reshape(5, 7) % 3)
    image.putpalette([9, 9, 9, 99, 99, 99, 200, 200, 200])
    return image


def _with(image: Image.Image, **fields: Any) -> Any:
    return lambda path: image.save(path, **fields)


@pytest.mark.parametrize(
    "name, save, message",
    [
        ("float.tif", _with(Image.new("F", (7, 5), 0.5)), r"pixels of mode F \(TIFF\) have no brightest"),
        ("whole.tif", _with(Image.new("I", (7, 5), 5)), r"pixels of mode I \(TIFF\) have no brightest"),
        ("clear.png", _with(Image.new("RGBA", (7, 5), (9, 9, 9, 254))), "mode RGBA with transparent pixels"),
        ("gray.png", _with(Image.new("LA", (7, 5), (9, 0))), "mode LA with transparent pixels"),
        ("palette.png", _with(_palette(), transparency=1), "mode P with transparent pixels"),
        (
            "color.png",
            _with(Image.new("RGB", (7, 5), 0), transparency=(0, 0, 0)),
            "mode RGB with transparent",
        ),
        ("pages.tif", _frames("TIFF"), "more than one frame"),
        ("moving.png", _frames("PNG"), "more than one frame"),
        ("moving.webp", _frames("WEBP"), "more than one frame"),
    ],
)
def test_a_file_that_means_more_than_one_opaque_picture_is_refused(
    name: str, save: Any, message: str, tmp_path: Path
) -> None:
    save(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name}: .*{message}"):
        values(tmp_path / name)


def test_a_mask_keeps_its_numbers_or_is_refused(tmp_path: Path) -> None:
    numbers = drawn(3, np.uint8) % 4
    palette = Image.fromarray(numbers)
    palette.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200, 9, 9, 9])
    for name, image in (
        ("p.png", palette),
        ("l.png", Image.fromarray(numbers)),
        ("i.png", Image.fromarray(numbers.astype(np.uint16))),
        ("b.tif", Image.frombytes("I;16B", (7, 5), numbers.astype(">u2").tobytes())),
    ):
        image.save(tmp_path / name)
        found = read(tmp_path / name, (5, 7), True, channels=1)
        assert found.values[0].tolist() == numbers.tolist(), name
    two_bits = tmp_path / "two.png"  # which Pillow spreads over 0 to 255
    palette.save(two_bits, bits=2)
    content = bytearray(two_bits.read_bytes())
    assert (content[24], content[25]) == (2, 3)
    content[25] = 0  # gray in place of a palette
    start = content.index(b"PLTE") - 4
    del content[start : start + 12 + struct.unpack_from(">I", content, start)[0]]
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    two_bits.write_bytes(content)
    Image.new("RGB", (7, 5)).save(tmp_path / "rgb.png")
    Image.new("F", (7, 5)).save(tmp_path / "f.tif")
    for name in ("two.png", "rgb.png", "f.tif"):
        with pytest.raises(ConfigError, match=f"{name}: (a mask has one channel|pixels of mode F)"):
            read(tmp_path / name, (5, 7), True, channels=1)
