"""What every format gives, and arrays and modules: what is read, and the one line about what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from chorale_models import Data
from crypto.errors import ConfigError
from silo_agent.training.data.base import Samples
from silo_agent.training.data.formats import digits
from tests.support.own_loader import OWN, gives
from tests.unit.data.loading import load, make_job

# digits, holdout and partition


def test_digits_are_those_of_scikit_learn() -> None:
    given = load_digits()
    read = digits.read_all()
    np.testing.assert_array_equal(read.features[:, 0], given.images / 16)
    np.testing.assert_array_equal(read.labels, given.target)


def test_digits_say_where_they_come_from_when_scikit_learn_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("silo_agent.training.data.formats.digits.PathFinder.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="the digits come with scikit-learn"):
        digits.read_all()


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


def test_silos_of_one_partition_test_on_all_of_the_holdout_where_it_is_not_cut() -> None:
    cut = {"kind": "shards", "shards_per_silo": 5, "silos": 4, "index": 1}
    whole = load(make_job(), format="digits").holdout
    apart, together = (
        load(make_job(), format="digits", partition={**cut, "whole_test": flag}) for flag in (False, True)
    )
    assert np.array_equal(apart.train.features, together.train.features)
    assert sorted(map(bytes, together.holdout.features)) == sorted(map(bytes, whole.features))


def test_end_of_the_holdout_is_not_all_one_class(tmp_path: Path) -> None:
    file = write_npz(tmp_path, x=np.zeros((100, 2)), y=np.repeat([0, 1], 50))
    data = load(make_job(2, (2,)), format="npz", path=file)
    assert data.holdout.labels.sum() == 10
    assert 0 < data.holdout.labels[-10:].sum() < 10


@pytest.mark.parametrize(
    ("job", "fields", "message"),
    [
        ({"classes": 3}, {}, "classes: expected 10 for the digits data, got 3"),
        ({"shape": (3, 32, 32)}, {}, r"shape \(1, 8, 8\), the job's input_shape is \(3, 32, 32\)"),
        (
            {},
            {"partition": {"kind": "iid", "silos": 2000, "index": 1999}},
            "no training samples in this silo",
        ),
    ],
)
def test_job_that_the_digits_do_not_fit_is_refused(
    job: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(make_job(**job), format="digits", **fields)


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
        # it said "it holds nothing" of a file of other arrays, and named two of three accepted pairs
        (
            {"jpeg": np.zeros(3), "labels": np.zeros(3)},
            "expected arrays x and y, or train_images and train_labels, or x_train and y_train; "
            "it holds jpeg, labels$",
        ),
        ({"x": np.zeros((3, 2))}, "it holds x$"),
        ({}, "it holds no array$"),
        ({f"{place:099}": np.zeros(1) for place in range(22)}, f"{'0' * 60}, 2 more$"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, r"4 labels for features of shape \(3, 2\)"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, 0.5])}, "labels are whole numbers, got a fraction"),
        ({"x": np.zeros((3, 2)), "y": np.array(["a", "b", "c"])}, "labels are one whole number per sample"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, 2])}, r"labels must be 0 to 1 .* got 2"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, -1])}, r"labels must be 0 to 1 .* got -1"),
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
    with pytest.raises(ConfigError, match=r"record 39: labels must be 0 to 1 .* got 7"):
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


@pytest.mark.parametrize(("place", "byte"), [(6, 1), (8, 99)], ids=["encrypted", "unknown compression"])
def test_npz_that_zipfile_does_not_open_is_refused(tmp_path: Path, place: int, byte: int) -> None:
    """RuntimeError and NotImplementedError left the loader."""
    file = write_npz(tmp_path, x=np.zeros((1, 2)), y=np.zeros(1))
    content = bytearray(file.read_bytes())
    local, central = content.index(b"PK\3\4"), content.index(b"PK\1\2")
    content[local + place] = content[central + place + 2] = byte
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"data\.npz: not a readable \.npz archive"):
        load(make_job(2, (2,)), format="npz", path=file)


def test_npz_label_that_is_no_int64_is_refused(tmp_path: Path) -> None:
    """The cast was undefined and made one of it."""
    file = write_npz(tmp_path, x=np.zeros((1, 2)), y=np.array([1e300]))
    with pytest.raises(ConfigError, match="labels are whole numbers"):
        load(make_job(2, (2,)), format="npz", path=file)


def test_single_array_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.zeros((3, 2)))
    with pytest.raises(ConfigError, match=r"data\.npy: expected an \.npz archive, got a single array"):
        load(make_job(2, (2,)), format="npz", path=tmp_path / "data.npy")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: no such file or folder: .*gone\.npz"):
        load(make_job(2, (2,)), format="npz", path=tmp_path / "gone.npz")


# module


def test_module_function_of_the_silo_gives_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(features=np.ones((4, 2), dtype=np.float64), labels=np.array([0, 1, 0, 1]))
    gives(monkeypatch, Data(train=samples, holdout=samples))
    data = load(make_job(2, (2,)), **OWN, name="ward")
    assert data.name == "ward"
    assert data.train.features.dtype == np.float32


def data_with(*labels: float) -> Data:
    samples = Samples(features=np.ones((len(labels), 2)), labels=np.array(labels))
    return Data(train=samples, holdout=samples)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (data_with(0, 1, 0, 5), r"record 3: labels must be 0 to 1 .* got 5"),
        (data_with(0.0, 1.0), "labels are whole numbers, got float64"),
        ([1, 2], "own_loader:load returned list, expected chorale_models.Data"),
    ],
)
def test_module_data_is_checked_like_any_other(
    monkeypatch: pytest.MonkeyPatch, given: Any, message: str
) -> None:
    gives(monkeypatch, given)
    with pytest.raises(ConfigError, match=message):
        load(make_job(2, (2,)), **OWN)


def test_samples_need_a_label_each() -> None:
    with pytest.raises(ConfigError, match=r"one label per sample, got features \(3, 2\) and labels \(2,\)"):
        Samples(features=np.ones((3, 2)), labels=np.zeros(2, dtype=np.int64))


def test_module_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data\.module: cannot load no_such_module_here:read"):
        load(make_job(2, (2,)), format="module", module="no_such_module_here:read")
