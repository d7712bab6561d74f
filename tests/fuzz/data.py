"""Targets: data files of an institution. No peer writes them, but a torn one is told in one sentence."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from chorale.spec.privacy_spec import PrivacySpec, RecordsSpec
from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats import csv, idx, image_folder, npz
from silo_agent.training.data.settings import DataFormat, DataSettings
from tests.fuzz import mutate
from tests.fuzz.files import in_file
from tests.fuzz.target import Target
from tests.unit.data.loading import make_job

Given = TypeVar("Given")

PRIVACY = PrivacySpec(
    delta=1e-5,
    records=RecordsSpec(clip_norm=1.0, noise_multiplier=1.0, sample_rate=0.1),
    statistics_noise_multiplier=1.0,
)
TABLE = {
    "columns": (ColumnSpec(name="age", mean=1.0), ColumnSpec(name="sex")),
    "label_column": "y",
    "shape": (2,),
}
IMAGE = {"shape": (1, 2, 2)}
TABLES = (make_job(2, **TABLE), make_job(2, **TABLE, privacy=PRIVACY))
IMAGES = (make_job(2, **IMAGE), make_job(2, **IMAGE, privacy=PRIVACY))
FOLDERS = tuple(make_job(["a", "b"], **IMAGE, privacy=each) for each in (None, PRIVACY))


def _csv(path: Path) -> None:
    settings = DataSettings(format=DataFormat.CSV, path=path, missing={"age": ("0",)})
    _any(lambda job: csv.load(settings, job), TABLES)


def _npz(path: Path) -> None:
    settings = DataSettings(format=DataFormat.NPZ, path=path)
    _any(lambda job: npz.load(settings, job), IMAGES)


def _idx(path: Path) -> None:
    """The bytes are the images of both splits, plain and as they are in a gzip file."""
    content, labels = path.read_bytes(), idx.LABELS_MAGIC.to_bytes(4) + (1).to_bytes(4) + b"\0"
    folders = []
    for ending in ("", ".gz"):
        folder = path.with_name(f"idx{ending}")
        folder.mkdir()
        folders.append(folder)
        for name in ("train", "t10k"):
            (folder / f"{name}-images-idx3-ubyte{ending}").write_bytes(content)
            (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    _any(lambda folder: idx.load(DataSettings(format=DataFormat.MNIST, path=folder), IMAGES[0]), folders)


def _image(path: Path) -> None:
    (path.parent.parent / "b").mkdir()
    settings = DataSettings(format=DataFormat.IMAGE_FOLDER, path=path.parent.parent)
    _any(lambda job: image_folder.load(settings, job), FOLDERS)


def _any(load: Callable[[Given], object], given: Iterable[Given]) -> None:
    """Loads each, whichever is refused; all are: so is the input."""
    refused, loaded = None, 0
    for one in given:
        try:
            load(one)
            loaded += 1
        except ConfigError as error:
            refused = error
    if refused is not None and not loaded:
        raise refused


def _tables() -> Iterator[bytes]:
    yield b"age,sex,y\n41,1,0\n0.0,?,1\n,NaN,1\n"
    yield b'\xef\xbb\xbf"age",sex,y\r\n"4""1", 1e3 ,0\r\n'


def _archives() -> Iterator[bytes]:
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        save(out, x=np.zeros((2, 1, 2, 2), np.uint8), y=np.array([0, 1]))
        yield out.getvalue()
    out = io.BytesIO()
    np.savez(
        out, x_train=np.zeros((1, 2)), y_train=np.array([1.0]), x_test=np.zeros((1, 2)), y_test=np.zeros(1)
    )
    yield out.getvalue()


def _idx_files() -> Iterator[bytes]:
    plain = idx.IMAGES_MAGIC.to_bytes(4) + b"".join(size.to_bytes(4) for size in (1, 2, 2)) + b"\1\2\3\4"
    yield plain
    yield gzip.compress(plain, mtime=0)


def _images() -> Iterator[bytes]:
    for kind in ("PNG", "JPEG", "BMP", "WEBP", "TIFF"):
        out = io.BytesIO()
        Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(out, kind)
        yield out.getvalue()


TARGETS = (
    Target(
        name="csv",
        read=in_file(_csv),
        seeds=_tables,
        refuses=(ConfigError,),
        mutate=mutate.either(
            mutate.raw, mutate.tokens((",", '"', "nan", "1e400", "age", "sex", "y", "_", "1_0"))
        ),
    ),
    Target(name="npz", read=in_file(_npz), seeds=_archives, refuses=(ConfigError,)),
    Target(name="idx", read=in_file(_idx), seeds=_idx_files, refuses=(ConfigError,)),
    Target(name="image", read=in_file(_image, name="images/a/x.png"), seeds=_images, refuses=(ConfigError,)),
)
