"""Formats of images: what each reads, and the one line that it says about what it cannot read."""

from __future__ import annotations

import gzip
import io
import pickle  # noqa: TID251 - the official CIFAR files are pickles, so the test writes such files
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats.image_folder import FORMATS
from tests.support.shared_data import shared_folder
from tests.unit.data.loading import load, make_job

# idx


def idx_bytes(array: NDArray[np.uint8], *, magic: int) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def write_idx(folder: Path, *, packed: bool = False) -> None:
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 12), ("t10k", 6)):
        images = idx_bytes(rng.integers(0, 256, (count, 4, 5)).astype(np.uint8), magic=2051)
        labels = idx_bytes((np.arange(count) % 3).astype(np.uint8), magic=2049)
        for name, content in (("images-idx3", images), ("labels-idx1", labels)):
            file = folder / f"{prefix}-{name}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_plain_and_gzipped(tmp_path: Path, packed: bool) -> None:
    write_idx(tmp_path, packed=packed)
    data = load(make_job(3, (1, 4, 5)), format="mnist", path=tmp_path)
    assert data.train.features.shape == (12, 1, 4, 5)
    assert sorted(data.holdout.labels.tolist()) == [0, 0, 1, 1, 2, 2]
    expected = np.random.default_rng(0).integers(0, 256, (12, 4, 5)) / 255
    np.testing.assert_allclose(data.train.features[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "expected an idx file with magic number 2051, got nothing"),
        (struct.pack(">4I", 2049, 12, 4, 5), "magic number 2051, got 2049"),
        (struct.pack(">4I", 2051, 12, 4, 5) + bytes(239), "expected 240 bytes of data, got 239"),
        # a ValueError left
        (struct.pack(">4I", 2051, 0, 0xFFFFFFFF, 0xFFFFFFFF), "no array has the shape"),
        (struct.pack(">4I", 2051, 11, 4, 5) + bytes(220), "train has 11 images but 12 labels"),
    ],
)
def test_damaged_idx_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load(make_job(3, (1, 4, 5)), format="mnist", path=tmp_path)


def test_truncated_gzip_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path, packed=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"train-images-idx3-ubyte\.gz: not a whole gzip file"):
        load(make_job(3, (1, 4, 5)), format="mnist", path=tmp_path)


def test_folder_without_idx_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds neither train-images-idx3-ubyte nor"):
        load(make_job(3, (1, 4, 5)), format="mnist", path=tmp_path)


@pytest.mark.parametrize("name, first_labels", [("mnist", [5, 0, 4]), ("fashion_mnist", [9, 0, 0])])
def test_real_idx_files_are_whole(name: str, first_labels: list[int]) -> None:
    partition = {"kind": "shards", "shards_per_silo": 2, "silos": 100, "index": 7}
    folder = shared_folder(name)
    data = load(make_job(shape=(1, 28, 28)), format="mnist", path=folder)
    assert (len(data.train), len(data.holdout)) == (60_000, 10_000)
    assert data.train.labels[:3].tolist() == first_labels
    part = load(make_job(shape=(1, 28, 28)), format="mnist", path=folder, partition=partition)
    assert len(set(part.train.labels)) <= 2


# image folders


def write_images(root: Path, classes: int, *, mode: str = "RGB") -> None:
    for label in range(classes):
        folder = root / f"class-{label}"
        folder.mkdir()
        for index in range(3):
            Image.new(mode, (6, 4), color=label if mode == "L" else (label, 0, 0)).save(
                folder / f"{index}.png"
            )


def folder_job(classes: int, shape: tuple[int, ...]) -> JobSpec:
    return make_job([f"class-{label}" for label in range(classes)], shape)


def test_image_folder_numbers_classes_by_the_jobs_names(tmp_path: Path) -> None:
    write_images(tmp_path, 3)
    (tmp_path / "class-1" / "notes.txt").write_text("not an image")
    data = load(folder_job(3, (3, 4, 6)), format="image-folder", path=tmp_path, holdout=0.0)
    assert data.train.features.shape == (9, 3, 4, 6)
    assert np.array_equal(data.train.labels, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_allclose(data.train.features[:, 0, 0, 0] * 255, data.train.labels, rtol=1e-6)


def test_image_folder_resizes_and_turns_gray(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    data = load(folder_job(2, (1, 8, 8)), format="image-folder", path=tmp_path, holdout=0.0)
    assert data.train.features.shape == (6, 1, 8, 8)


def test_image_folder_may_have_an_empty_class_or_miss_one(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    (tmp_path / "class-2").mkdir()
    for classes in (3, 4):
        data = load(folder_job(classes, (3, 4, 6)), format="image-folder", path=tmp_path, holdout=0.0)
        assert set(data.train.labels) == {0, 1}


def test_image_folder_without_any_image_is_an_empty_silo(tmp_path: Path) -> None:
    for label in range(2):
        (tmp_path / str(label)).mkdir()
    with pytest.raises(ConfigError, match="no training samples in this silo"):
        load(folder_job(2, (3, 4, 6)), format="image-folder", path=tmp_path)


def test_damaged_image_is_named(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    (tmp_path / "class-0" / "bad.png").write_bytes(b"not a picture")
    with pytest.raises(ConfigError, match=r"class-0/bad\.png: not a readable image"):
        load(folder_job(2, (3, 4, 6)), format="image-folder", path=tmp_path)


def test_image_whose_decoder_raises_a_value_error_is_named(tmp_path: Path) -> None:
    """A ValueError left the loader."""
    write_images(tmp_path, 2)
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, "TIFF")
    bad = bytearray(out.getvalue())
    bad[24] = 12  # the type of the second tag, the height: a fraction
    (tmp_path / "class-0" / "bad.tif").write_bytes(bad)
    with pytest.raises(ConfigError, match=r"class-0/bad\.tif: not a readable image"):
        load(folder_job(2, (3, 4, 6)), format="image-folder", path=tmp_path)


@pytest.mark.parametrize("kind", ["EPS", "GIF", "PPM"])
def test_image_of_no_listed_format_is_not_read_whatever_its_name(tmp_path: Path, kind: str) -> None:
    """Every decoder of the library read an institution's files; one of them starts a program."""
    write_images(tmp_path, 2)
    Image.new("RGB", (6, 4)).save(tmp_path / "class-0" / "other.png", kind)
    with pytest.raises(
        ConfigError, match=r"class-0/other\.png: not a readable image \(UnidentifiedImageError"
    ):
        load(folder_job(2, (3, 4, 6)), format="image-folder", path=tmp_path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_images_of_every_listed_suffix_are_read(tmp_path: Path, suffix: str) -> None:
    write_images(tmp_path, 2)
    Image.new("RGB", (6, 4)).save(tmp_path / "class-0" / f"more{suffix.upper()}", FORMATS[suffix])
    data = load(folder_job(2, (3, 4, 6)), format="image-folder", path=tmp_path, holdout=0.0)
    assert len(data.train) == 7


def test_image_folder_needs_an_image_shape(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected \(1 or 3, height, width\) for .*, got \(5,\)"):
        load(folder_job(2, (5,)), format="image-folder", path=tmp_path)


def test_image_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="file is not a folder"):
        load(folder_job(2, (3, 4, 6)), format="image-folder", path=file)


# cifar


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows a batch, in the official layout. The official checksums are those of the whole files."""
    from silo_agent.training.machine.torchvision_compat import torchvision

    reader = torchvision.datasets.CIFAR10
    monkeypatch.setattr(reader, "_check_integrity", lambda self: (root / reader.base_folder).is_dir())
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *arguments: True)
    folder = root / reader.base_folder
    folder.mkdir()
    for number, (name, _) in enumerate(reader.train_list + reader.test_list):
        rows = np.full((3, 3072), number, dtype=np.uint8)
        rows[:, :1024] += 100  # the red plane
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": [0, 1, 9]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))


def test_cifar_batches_are_read_channels_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path, monkeypatch)
    data = load(make_job(shape=(3, 32, 32)), format="cifar10", path=tmp_path)
    assert data.train.features.shape == (15, 3, 32, 32)
    assert sorted(data.holdout.labels.tolist()) == [0, 1, 9]
    np.testing.assert_allclose(data.holdout.features[0, :, 0, 0] * 255, [105, 5, 5], rtol=1e-6)


@pytest.mark.parametrize(
    "kind, classes, folder", [("cifar10", 10, "cifar-10-batches-py"), ("cifar100", 100, "cifar-100-python")]
)
def test_folder_without_cifar_is_named_and_nothing_is_downloaded(
    tmp_path: Path, kind: str, classes: int, folder: str
) -> None:
    with pytest.raises(ConfigError, match=f"does not hold the folder {folder} with whole, official files"):
        load(make_job(classes, (3, 32, 32)), format=kind, path=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_cifar_with_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="classes: expected 100 for cifar100, got 10"):
        load(make_job(10, (3, 32, 32)), format="cifar100", path=tmp_path)
