"""Each format: what it reads, and the one line that it says about what it cannot read."""

from __future__ import annotations

import gzip
import pickle  # noqa: TID251 - the official CIFAR files are pickles, so the test writes such files
import struct
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

from chorale.job_spec import ColumnSpec, JobSpec, ModelSpec, TrainingSpec
from crypto.errors import ConfigError
from silo_agent.data import load_data
from silo_agent.data.base import Samples, SiloData
from silo_agent.data.settings import DataSettings
from tests.support.shared_data import shared_folder


def make_job(classes: int = 10, shape: tuple[int, ...] = (1, 8, 8), **fields: Any) -> JobSpec:
    return JobSpec(
        name="test",
        federation="test",
        not_after=datetime(2100, 1, 1, tzinfo=UTC),
        silos=("a", "b", "c"),
        rounds=1,
        model=ModelSpec(name="mlp"),
        training=TrainingSpec(learning_rate=0.1),
        classes=classes,
        input_shape=shape,
        **fields,
    )


def load(job: JobSpec, **fields: Any) -> SiloData:
    return load_data(DataSettings(**fields), job)


# digits, holdout and partition


def test_digits_are_float32_between_0_and_1_with_a_fifth_held_out() -> None:
    data = load(make_job(), format="digits", name="digits")
    assert data.train.features.dtype == np.float32
    assert data.train.features.shape == (1438, 1, 8, 8)
    assert len(data.holdout) == 359
    assert data.train.features.min() == 0.0
    assert data.train.features.max() == 1.0
    assert data.name == "digits"


def test_flat_input_shape_flattens_images() -> None:
    assert load(make_job(shape=(64,)), format="digits").train.features.shape == (1438, 64)


def test_holdout_is_the_same_whatever_the_job_asks() -> None:
    first, second = load(make_job(), format="digits"), load(make_job(seed=9), format="digits")
    assert np.array_equal(first.holdout.features, second.holdout.features)


@pytest.mark.parametrize(
    "partition", [{"kind": "iid"}, {"kind": "shards", "shards_per_silo": 5}, {"kind": "dirichlet"}]
)
def test_silos_of_one_partition_share_nothing_and_leave_nothing(partition: dict[str, Any]) -> None:
    parts = [
        load(make_job(), format="digits", partition={**partition, "silos": 4, "index": index, "seed": 3})
        for index in range(4)
    ]
    for side, expected in (("train", 1438), ("holdout", 359)):
        rows = np.concatenate([getattr(part, side).features.reshape(-1, 64) for part in parts])
        labels = np.concatenate([getattr(part, side).labels for part in parts])
        whole = getattr(load(make_job(), format="digits"), side)
        assert len(rows) == expected
        assert sorted(map(bytes, rows)) == sorted(map(bytes, whole.features.reshape(-1, 64)))
        assert np.array_equal(np.bincount(labels), np.bincount(whole.labels))


def test_silos_test_on_the_classes_they_train_on() -> None:
    partition = {"kind": "shards", "shards_per_silo": 5, "silos": 4, "index": 1}
    data = load(make_job(), format="digits", partition=partition)
    assert set(data.holdout.labels) == set(data.train.labels)
    assert len(set(data.train.labels)) <= 5


def test_end_of_the_holdout_is_not_all_one_class(tmp_path: Path) -> None:
    file = write_npz(tmp_path, x=np.zeros((100, 2)), y=np.repeat([0, 1], 50))
    data = load(make_job(2, (2,)), format="npz", path=file)
    assert data.holdout.labels.sum() == 10
    assert 0 < data.holdout.labels[-10:].sum() < 10


def test_job_with_another_number_of_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="classes: the digits data has 10 classes, the job says 3"):
        load(make_job(classes=3), format="digits")


def test_job_with_another_input_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape \(1, 8, 8\), the job's input_shape is \(3, 32, 32\)"):
        load(make_job(shape=(3, 32, 32)), format="digits")


def test_more_silos_than_samples_leaves_an_empty_silo_which_is_refused() -> None:
    with pytest.raises(ConfigError, match="no training samples in this silo"):
        load(make_job(), format="digits", partition={"kind": "iid", "silos": 2000, "index": 1999})


# npz


def write_npz(path: Path, **arrays: Any) -> Path:
    file = path / "data.npz"
    np.savez(file, **arrays)
    return file


def test_npz_with_its_own_test_split_uses_it(tmp_path: Path) -> None:
    file = write_npz(
        tmp_path,
        x_train=np.zeros((6, 3)),
        y_train=np.arange(6) % 2,
        x_test=np.ones((4, 3)),
        y_test=np.arange(4) % 2,
    )
    data = load(make_job(2, (3,)), format="npz", path=file)
    assert (len(data.train), len(data.holdout)) == (6, 4)
    assert data.holdout.features.tolist() == np.ones((4, 3)).tolist()


@pytest.mark.parametrize(
    "stored, shape", [((5, 4, 6), (1, 4, 6)), ((5, 4, 6, 3), (3, 4, 6)), ((5, 3, 4, 6), (3, 4, 6))]
)
def test_npz_bytes_become_channels_first_between_0_and_1(
    tmp_path: Path, stored: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, stored).astype(np.uint8)
    pixels.flat[0] = 255
    file = write_npz(tmp_path, x=pixels, y=np.zeros((5, 1), dtype=np.uint8))
    data = load(make_job(2, shape), format="npz", path=file, holdout=0.0)
    assert data.train.features.shape == (5, *shape)
    assert data.train.features.max() == 1.0
    if stored[-1] == 3:
        assert data.train.features[2, 1, 3, 5] == np.float32(pixels[2, 3, 5, 1]) / np.float32(255)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"a": np.zeros(3)}, "expected arrays x and y, or x_train and y_train; it holds nothing"),
        ({"x": np.zeros((3, 2))}, "expected arrays x and y, or x_train and y_train; it holds x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, r"4 labels for features of shape \(3, 2\)"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, 0.5])}, "labels are whole numbers, got a fraction"),
        ({"x": np.zeros((3, 2)), "y": np.array(["a", "b", "c"])}, "labels are one whole number per sample"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, 2])}, r"labels must be 0 to 1 .* got 0 to 2"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, -1])}, r"labels must be 0 to 1 .* got -1 to 1"),
        ({"x": np.full((3, 2), np.nan), "y": np.zeros(3)}, "features hold NaN or infinity"),
        ({"x": np.full((3, 2), np.inf), "y": np.zeros(3)}, "features hold NaN or infinity"),
        ({"x": np.full((3, 2), 1e300), "y": np.zeros(3)}, "features hold NaN or infinity"),
        ({"x": np.full((3, 2), "a"), "y": np.zeros(3)}, "features are numbers, got <U1"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "no training samples in this silo"),
        ({"x": np.zeros((3, 5)), "y": np.zeros(3)}, r"shape \(5,\), the job's input_shape is \(2,\)"),
    ],
)
def test_npz_mistakes_are_named(tmp_path: Path, arrays: dict[str, NDArray[Any]], message: str) -> None:
    file = write_npz(tmp_path, **arrays)
    with pytest.raises(ConfigError, match=message):
        load(make_job(2, (2,)), format="npz", path=file)


@pytest.mark.parametrize("kind", ["iid", "shards", "dirichlet"])
def test_labels_are_checked_before_they_are_cut(tmp_path: Path, kind: str) -> None:
    file = write_npz(tmp_path, x=np.zeros((40, 2)), y=np.r_[np.zeros(39), 7])
    partition = {"kind": kind, "silos": 2, "index": 0, "min_samples": 1}
    with pytest.raises(ConfigError, match=r"labels must be 0 to 1 .* got 0 to 7"):
        load(make_job(2, (2,)), format="npz", path=file, partition=partition)


def test_npz_with_objects_is_not_unpickled(tmp_path: Path) -> None:
    file = write_npz(tmp_path, x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(ConfigError, match=r"data\.npz: not a readable \.npz archive of plain arrays"):
        load(make_job(2, (2,)), format="npz", path=file)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut short"])
def test_npz_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "data.npz"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"data\.npz: not a readable \.npz archive"):
        load(make_job(2, (2,)), format="npz", path=file)


def test_single_array_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.zeros((3, 2)))
    with pytest.raises(ConfigError, match=r"data\.npy: expected an \.npz archive, got a single array"):
        load(make_job(2, (2,)), format="npz", path=tmp_path / "data.npy")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: no such file or folder: .*gone\.npz"):
        load(make_job(2, (2,)), format="npz", path=tmp_path / "gone.npz")


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


def test_image_folder_numbers_classes_by_sorted_names(tmp_path: Path) -> None:
    write_images(tmp_path, 3)
    (tmp_path / "class-1" / "notes.txt").write_text("not an image")
    data = load(make_job(3, (3, 4, 6)), format="image-folder", path=tmp_path, holdout=0.0)
    assert data.train.features.shape == (9, 3, 4, 6)
    assert np.array_equal(data.train.labels, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_allclose(data.train.features[:, 0, 0, 0] * 255, data.train.labels, rtol=1e-6)


def test_image_folder_resizes_and_turns_grey(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    data = load(make_job(2, (1, 8, 8)), format="image-folder", path=tmp_path, holdout=0.0)
    assert data.train.features.shape == (6, 1, 8, 8)


def test_image_folder_may_have_an_empty_class_but_not_miss_one(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    (tmp_path / "class-2").mkdir()
    data = load(make_job(3, (3, 4, 6)), format="image-folder", path=tmp_path, holdout=0.0)
    assert set(data.train.labels) == {0, 1}
    with pytest.raises(ConfigError, match="has 3 class folders, the job says classes 4"):
        load(make_job(4, (3, 4, 6)), format="image-folder", path=tmp_path)


def test_image_folder_without_any_image_is_an_empty_silo(tmp_path: Path) -> None:
    for label in range(2):
        (tmp_path / str(label)).mkdir()
    with pytest.raises(ConfigError, match="no training samples in this silo"):
        load(make_job(2, (3, 4, 6)), format="image-folder", path=tmp_path)


def test_damaged_image_is_named(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    (tmp_path / "class-0" / "bad.png").write_bytes(b"not a picture")
    with pytest.raises(ConfigError, match=r"class-0/bad\.png: not a readable image"):
        load(make_job(2, (3, 4, 6)), format="image-folder", path=tmp_path)


def test_image_folder_needs_an_image_shape(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs \(1 or 3, height, width\), the job says \(5,\)"):
        load(make_job(2, (5,)), format="image-folder", path=tmp_path)


def test_image_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="file is not a folder"):
        load(make_job(2, (3, 4, 6)), format="image-folder", path=file)


# cifar


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows a batch, in the official layout. The official checksums are those of the whole files."""
    from silo_agent.torchvision_compat import torchvision

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
    with pytest.raises(ConfigError, match="cifar100 has 100 classes, the job says 10"):
        load(make_job(10, (3, 32, 32)), format="cifar100", path=tmp_path)


# csv

COLUMNS = (ColumnSpec(name="age", mean=50, scale=10, fill=40), ColumnSpec(name="chol", scale=100, fill=200))


def csv_job(classes: int = 2) -> JobSpec:
    return make_job(classes, (2,), columns=COLUMNS, label_column="sick")


def load_csv(tmp_path: Path, text: str, **fields: Any) -> SiloData:
    file = tmp_path / "table.csv"
    file.write_text(text)
    return load(csv_job(), format="csv", path=file, holdout=0.0, **fields)


def test_csv_takes_the_jobs_columns_in_the_jobs_order(tmp_path: Path) -> None:
    data = load_csv(tmp_path, "sick,chol,note,age\n1,250,x,60\n0, 100.0,y,.5e2\n")
    np.testing.assert_allclose(data.train.features, [[1.0, 2.5], [0.0, 1.0]])
    assert data.train.labels.tolist() == [1, 0]


@pytest.mark.parametrize("missing", ["", "?", "NA", "nan", " ? "])
def test_csv_fills_what_is_missing_in_the_columns_own_units(tmp_path: Path, missing: str) -> None:
    data = load_csv(tmp_path, f"age,chol,sick\n{missing},300,1\n60,{missing},0\n")
    np.testing.assert_allclose(data.train.features, [[-1.0, 3.0], [1.0, 2.0]])


def test_csv_without_header_takes_names_from_the_settings(tmp_path: Path) -> None:
    data = load_csv(tmp_path, "60,0,1\n50,100,0\n", columns_in_file=["age", "chol", "sick"])
    assert data.train.labels.tolist() == [1, 0]
    assert len(data.train) == 2


def test_csv_settings_say_what_else_is_missing_and_what_labels_mean(tmp_path: Path) -> None:
    data = load_csv(
        tmp_path,
        "age,chol,sick\n60,0,yes\n0,100,no\n",
        missing={"chol": ["0"]},
        labels={"no": 0, "yes": 1},
    )
    np.testing.assert_allclose(data.train.features, [[1.0, 2.0], [-5.0, 1.0]])
    assert data.train.labels.tolist() == [1, 0]


def test_csv_number_that_means_missing_does_so_however_it_is_written(tmp_path: Path) -> None:
    written = ["0", "0.0", ".0", "-0", "0e5"]
    text = "age,chol,sick\n" + "".join(f"60,{cell},0\n" for cell in [*written, "0.1"])
    data = load_csv(tmp_path, text, missing={"chol": ["none", "0"]})
    np.testing.assert_allclose(data.train.features[:, 1], [2.0] * len(written) + [0.001])


@pytest.mark.parametrize(
    "text, fields, message",
    [
        ("age,sick\n1,0\n", {}, r"table\.csv: no column 'chol'; it has age, sick"),
        ("age,chol,ill\n1,2,0\n", {}, r"table\.csv: no column 'sick'; it has age, chol, ill"),
        ("age,chol,sick\n1,2,0\n3,many,0\n", {}, r"line 3, column chol: expected a number, got 'many'"),
        ("age,chol,sick\n1,inf,0\n", {}, r"line 2, column chol: expected a number, got 'inf'"),
        ("age,chol,sick\n1,2,0.5\n", {}, r"line 2, column sick: expected a whole number, got '0\.5'"),
        ("age,chol,sick\n1,2,?\n", {}, r"line 2, column sick: expected a number, got '\?'"),
        ("age,chol,sick\n1,2\n", {}, r"line 2: expected 3 values, got 2"),
        ("age,age,sick\n1,2,0\n", {}, r"a column is named twice: age, age, sick"),
        ("age,chol,sick\n1,2,7\n", {}, r"labels must be 0 to 1 \(job: classes 2\), got 7 to 7"),
        (
            "age,chol,sick\n1,2,maybe\n",
            {"labels": {"no": 0}},
            r"column sick: expected one of no, got 'maybe'",
        ),
        ("age,chol,sick\n1,2,0\n", {"missing": {"choll": ["0"]}}, r"no column 'choll'"),
        ("age,chol,sick\n", {}, "no training samples in this silo"),
        ("", {}, "expected a header line, the file is empty"),
    ],
)
def test_csv_mistakes_are_named(tmp_path: Path, text: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_csv(tmp_path, text, **fields)


def test_csv_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a readable csv file in UTF-8"):
        load(csv_job(), format="csv", path=file)


def test_csv_needs_a_job_that_declares_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("a,b\n1,0\n")
    with pytest.raises(ConfigError, match="format csv needs columns and label_column"):
        load(make_job(2, (1,)), format="csv", path=file)


HEART = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
HEART += ["slope", "ca", "thal", "num"]


@pytest.mark.parametrize(
    "hospital, patients, sick",
    [("cleveland", 303, 139), ("hungarian", 294, 106), ("switzerland", 123, 115), ("va", 200, 149)],
)
def test_four_real_hospitals_load_with_their_missing_values(hospital: str, patients: int, sick: int) -> None:
    columns = tuple(ColumnSpec(name=name, fill=-1.0) for name in HEART[:-1])
    data = load(
        make_job(2, (13,), columns=columns, label_column="num"),
        format="csv",
        path=shared_folder("heart_disease") / f"processed.{hospital}.data",
        columns_in_file=HEART,
        missing={"chol": ["0"]},
        labels={"0": 0, "1": 1, "2": 1, "3": 1, "4": 1},
        holdout=0.0,
    )
    assert len(data.train) == patients
    assert int(data.train.labels.sum()) == sick
    missing_chol = {"cleveland": 0, "hungarian": 23, "switzerland": 123, "va": 56}
    assert int((data.train.features[:, HEART.index("chol")] == -1).sum()) == missing_chol[hospital]


# module


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("own_hospital_data")
    monkeypatch.setitem(sys.modules, "own_hospital_data", module)
    return module


def test_module_function_of_the_silo_gives_its_data(own_module: ModuleType) -> None:
    samples = Samples(features=np.ones((4, 2), dtype=np.float64), labels=np.array([0, 1, 0, 1]))
    own_module.__dict__["read"] = lambda settings: SiloData(
        train=samples, holdout=samples, name=settings.name
    )
    data = load(make_job(2, (2,)), format="module", module="own_hospital_data:read", name="ward")
    assert data.name == "ward"
    assert data.train.features.dtype == np.float32


def test_module_data_is_checked_like_any_other(own_module: ModuleType) -> None:
    samples = Samples(features=np.ones((4, 2)), labels=np.array([0, 1, 0, 5]))
    own_module.__dict__["read"] = lambda settings: SiloData(train=samples, holdout=samples, name="ward")
    with pytest.raises(ConfigError, match=r"labels must be 0 to 1 .* got 0 to 5"):
        load(make_job(2, (2,)), format="module", module="own_hospital_data:read")


def test_module_labels_are_whole_numbers(own_module: ModuleType) -> None:
    labels: Any = np.array([0.0, 1.0])
    samples = Samples(features=np.ones((2, 2)), labels=labels)
    own_module.__dict__["read"] = lambda settings: SiloData(train=samples, holdout=samples, name="ward")
    with pytest.raises(ConfigError, match="labels are whole numbers, got float64"):
        load(make_job(2, (2,)), format="module", module="own_hospital_data:read")


def test_samples_need_a_label_each() -> None:
    with pytest.raises(ConfigError, match=r"one label per sample, got features \(3, 2\) and labels \(2,\)"):
        Samples(features=np.ones((3, 2)), labels=np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"format": "npz"}, "path: format npz needs one"),
        ({"format": "digits", "path": "somewhere"}, "path: format digits takes none"),
        ({"format": "module"}, "module: expected with format: module, and only with it"),
        (
            {"format": "digits", "partition": {"kind": "iid", "silos": 2, "index": 2}},
            "expected 0 to 1, got 2",
        ),
    ],
)
def test_settings_that_contradict_themselves_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSettings.model_validate(fields)


def test_module_that_returns_something_else_is_named(own_module: ModuleType) -> None:
    own_module.__dict__["read"] = lambda settings: [1, 2]
    with pytest.raises(ConfigError, match="own_hospital_data:read returned list, expected SiloData"):
        load(make_job(2, (2,)), format="module", module="own_hospital_data:read")


def test_module_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data\.module: cannot load no_such_module_here:read"):
        load(make_job(2, (2,)), format="module", module="no_such_module_here:read")
