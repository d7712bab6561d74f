"""Private jobs: one record more, less or changed moves that record alone and refuses nothing."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from chorale_models import Data
from crypto.errors import ConfigError
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.private import FARTHEST
from silo_agent.training.data.settings import DataSettings
from tests.support.own_loader import OWN, gives
from tests.unit.data import loading

RECORDS = {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1}
PRIVATE = {"records": RECORDS, "statistics_noise_multiplier": 5.0}
ALTERED = 17  # the record in which neighbors differ
Write = Callable[[Path, "Records"], DataSettings]
Records = list[tuple[list[float], int]]


def make_job(
    shape: tuple[int, ...] = (4,), *, classes: int | Sequence[str] = 3, is_private: bool = True, **fields: Any
) -> JobSpec:
    return loading.make_job(classes, shape, privacy=PRIVATE if is_private else None, **fields)


def image_job(*, is_private: bool = True) -> JobSpec:
    classes = [f"class-{label}" for label in range(3)]
    return make_job((1, 2, 2), classes=classes, is_private=is_private)


def table_job(*names: str, scale: float = 1.0, label: str = "ill", **fields: Any) -> JobSpec:
    columns = tuple(ColumnSpec(name=name, mean=50.0, scale=scale, fill=50.0) for name in names)
    return make_job((len(names),), columns=columns, label_column=label, **fields)


def records_of(count: int = 300) -> Records:
    """Whole numbers 0 to 255, so that every format holds them."""
    rng = np.random.default_rng(1)
    return [([float(x) for x in rng.integers(0, 256, 4)], int(rng.integers(0, 3))) for _ in range(count)]


def write_csv(folder: Path, records: Records) -> DataSettings:
    lines = ["a,b,c,d,ill"] + [",".join(map(str, [*values, label])) for values, label in records]
    return table(folder, "\n".join(lines) + "\n")


def table(folder: Path, text: str, **fields: Any) -> DataSettings:
    folder.mkdir(exist_ok=True)
    (folder / "data.csv").write_text(text)
    return DataSettings(format="csv", path=folder / "data.csv", **fields)


def write_npz(folder: Path, records: Records) -> DataSettings:
    folder.mkdir(exist_ok=True)
    x = np.array([values for values, _ in records])
    np.savez(folder / "data.npz", x=x, y=np.array([label for _, label in records]))
    return DataSettings(format="npz", path=folder / "data.npz")


def write_images(folder: Path, records: Records) -> DataSettings:
    """Names follow the order, so that one image less renames none."""
    for label in range(3):
        (folder / f"class-{label}").mkdir(parents=True)
    for values, label in records:
        pixels = np.array(values, dtype=np.uint8).reshape(2, 2)
        name = "-".join(f"{value:.0f}" for value in values)
        Image.fromarray(pixels).save(folder / f"class-{label}" / f"{name}.png")
    return DataSettings(format="image-folder", path=folder)


FORMATS = pytest.mark.parametrize(
    ("write", "job"),
    [
        pytest.param(write_csv, table_job("a", "b", "c", "d"), id="csv"),
        pytest.param(write_npz, make_job(), id="npz"),
        pytest.param(write_images, image_job(), id="image-folder"),
    ],
)


def bag(samples: Samples) -> Counter[bytes]:
    rows = zip(samples.features, samples.labels.tolist(), strict=True)
    return Counter(features.tobytes() + repr(label).encode() for features, label in rows)


def moved(one: SiloData, other: SiloData) -> tuple[int, int]:
    """How many records of one are not on the same side of the other: train, hold-out."""
    train = bag(one.train) - bag(other.train)
    return train.total(), (bag(one.holdout) - bag(other.holdout)).total()


@FORMATS
@pytest.mark.parametrize("place", [0, 5, 6, 17, 299])
def test_one_record_less_is_missing_on_its_side_and_nothing_else_moves(
    tmp_path: Path, write: Write, job: JobSpec, place: int
) -> None:
    records = records_of()
    whole = load_data(write(tmp_path / "whole", records), job)
    less = load_data(write(tmp_path / "less", records[:place] + records[place + 1 :]), job)
    assert moved(less, whole) == (0, 0)
    assert sorted(moved(whole, less)) == [0, 1]


@FORMATS
def test_both_sides_are_used_and_the_share_is_about_the_settings(
    tmp_path: Path, write: Write, job: JobSpec
) -> None:
    data = load_data(write(tmp_path / "data", records_of()), job)
    assert len(data.train) + len(data.holdout) == 300
    assert 30 < len(data.holdout) < 90  # 60 expected, deviation 7


@FORMATS
def test_one_label_changed_moves_that_record_alone(tmp_path: Path, write: Write, job: JobSpec) -> None:
    records = records_of()
    values, label = records[ALTERED]
    changed = [*records[:ALTERED], (values, (label + 1) % 3), *records[ALTERED + 1 :]]
    one = load_data(write(tmp_path / "one", records), job)
    other = load_data(write(tmp_path / "other", changed), job)
    assert sorted(moved(one, other)) == [0, 1]
    assert sorted(moved(other, one)) == [0, 1]


def test_a_job_without_privacy_keeps_its_even_split(tmp_path: Path) -> None:
    data = load_data(write_npz(tmp_path, records_of()), make_job(is_private=False))
    assert len(data.holdout) == 60


def test_sides_of_a_table_do_not_follow_the_job(tmp_path: Path) -> None:
    """Another standardization of the same rows, and other columns of it."""
    settings = write_csv(tmp_path, [([float(number), 0.0, 0.0, 0.0], 0) for number in range(100)])
    one = load_data(settings, table_job("a", "b"))
    other = load_data(settings, table_job("a", scale=0.5))
    assert np.array_equal(one.holdout.features[:, 0] * 2, other.holdout.features[:, 0])


def test_a_number_format_that_another_record_brings_moves_none(tmp_path: Path) -> None:
    """A missing value turns whole numbers into floats, of features and of labels."""
    x, y = np.arange(400).reshape(100, 4), np.zeros(100, dtype=np.int64)
    np.savez(tmp_path / "whole.npz", x=x, y=y)
    np.savez(tmp_path / "more.npz", x=np.vstack([x, np.full((1, 4), np.nan)]), y=np.append(y, 0.5))
    whole, more = (
        load_data(DataSettings(format="npz", path=tmp_path / name), make_job())
        for name in ("whole.npz", "more.npz")
    )
    assert moved(whole, more) == moved(more, whole) == (0, 0)


def test_silos_cut_from_one_pool_hold_out_by_record(tmp_path: Path) -> None:
    settings = write_npz(tmp_path, records_of())
    cut = {"kind": "iid", "silos": 3}
    parts = [
        load_data(
            settings.model_validate({**settings.model_dump(), "partition": {**cut, "index": i}}), make_job()
        )
        for i in range(3)
    ]
    whole = load_data(settings, make_job())
    assert sum((bag(part.train) for part in parts), Counter()) == bag(whole.train)
    assert sum((bag(part.holdout) for part in parts), Counter()) == bag(whole.holdout)
    cut |= {"index": 0, "whole_test": True}
    tested = load_data(settings.model_validate({**settings.model_dump(), "partition": cut}), make_job())
    assert (bag(tested.train), bag(tested.holdout)) == (bag(parts[0].train), bag(whole.holdout))


# what a job could ask of one record

AGES = "age,ill\n" + "".join(f"{age},{age % 2}\n" for age in range(30, 80))


@pytest.mark.parametrize("record", ["", "91,1\n"], ids=["without", "with"])
@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        pytest.param({"scale": 40 / 3.4e38}, "features hold NaN or infinity", id="overflow"),
        pytest.param({"column": "ill", "label": "age", "classes": 90}, "labels must be 0 to 89", id="label"),
    ],
)
def test_no_predicate_on_one_record_refuses_a_private_job(
    tmp_path: Path, job: dict[str, Any], sentence: str, record: str
) -> None:
    settings = table(tmp_path, AGES + record)
    column = job.get("column", "age")
    fields = {name: value for name, value in job.items() if name != "column"}
    data = load_data(settings, table_job(column, **fields))
    assert 50 <= len(data.train) + len(data.holdout) <= 51
    plain = table_job(column, **fields, is_private=False)
    if record:
        with pytest.raises(ConfigError, match=sentence):
            load_data(settings, plain)
    else:
        load_data(settings, plain)


@pytest.mark.parametrize(
    ("row", "added"),
    [
        ("old,1", 1),
        ("inf,1", 1),
        ("1e308,1", 1),
        ("60,3", 0),
        ("60,-1", 0),
        ("60,0.5", 0),
        ("60,1e300", 0),
        ("60,yes", 0),
        ("60", 0),
        ("60,1,5,6", 1),
        ('"60,1', 0),
        ('60,"1', 1),
        ("\ufffd\x00,1", 1),
        ("1" * 200_000 + ",1", 0),
    ],
)
def test_an_odd_row_is_put_right_or_left_out_by_itself(tmp_path: Path, row: str, added: int) -> None:
    head, *rows = AGES.splitlines()
    job = table_job("age", classes=3)
    whole = load_data(table(tmp_path / "whole", AGES), job)
    odd = load_data(table(tmp_path / "odd", "\n".join([head, row, *rows])), job)
    assert moved(whole, odd) == (0, 0)
    assert sum(moved(odd, whole)) == added
    assert np.abs(odd.train.features).max() <= FARTHEST


def test_bytes_that_are_no_text_reach_no_other_row(tmp_path: Path) -> None:
    settings = table(tmp_path, AGES)
    (tmp_path / "data.csv").write_bytes(AGES.encode() + b"\xff\xfe,1\n")
    data = load_data(settings, table_job("age"))
    assert len(data.train) + len(data.holdout) == 51


def test_an_odd_array_entry_is_put_right_or_left_out_by_itself(tmp_path: Path) -> None:
    x, y = np.ones((6, 4)), np.array([0, 1, 2, 3, 0.5, np.nan])
    x[0], x[1] = [np.nan, np.inf, -np.inf, 1e300], [1e6, -1e7, 0, 1]
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:1], y_test=np.array([7]))
    data = load_data(DataSettings(format="npz", path=tmp_path / "data.npz"), make_job())
    expected = [[0, 0, 0, 1e6], [1e6, -1e6, 0, 1], [1, 1, 1, 1]]
    assert data.train.features.tolist() == expected
    assert data.train.labels.tolist() == [0, 1, 2]
    assert len(data.holdout) == 0


def test_an_image_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    settings = write_images(tmp_path / "images", records_of())
    whole = load_data(settings, image_job())
    (tmp_path / "images" / "class-1" / "0.png").write_bytes(b"no image")
    assert moved(whole, load_data(settings, image_job())) == (0, 0)
    with pytest.raises(ConfigError, match="not a readable image"):
        load_data(settings, image_job(is_private=False))


def test_an_idx_label_beyond_the_classes_leaves_that_image_out(tmp_path: Path) -> None:
    for prefix, labels in (("train", [0, 1, 9]), ("t10k", [2, 3])):
        count = len(labels)
        images = struct.pack(">4I", 2051, count, 2, 2) + bytes(range(4 * count))
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2I", 2049, count) + bytes(labels)
        )
    data = load_data(DataSettings(format="mnist", path=tmp_path), make_job((1, 2, 2)))
    assert data.train.labels.tolist() == [0, 1]
    assert data.holdout.labels.tolist() == [2]


def test_a_loader_of_the_institutions_own_keeps_its_split(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(features=np.full((3, 4), np.inf), labels=np.array([0, 5, 1]))
    gives(monkeypatch, Data(train=samples, holdout=samples))
    data = load_data(DataSettings(**OWN), make_job())
    assert data.train.labels.tolist() == data.holdout.labels.tolist() == [0, 1]
    assert not data.train.features.any()


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64, np.int8])
@pytest.mark.parametrize(
    "fields", [{"task": {"name": "next-token"}}, {"vocabulary": 3}], ids=["text", "class"]
)
def test_a_token_beyond_the_vocabulary_leaves_its_record_out(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], kind: type[np.integer[Any]]
) -> None:
    """Every silo refused private jobs of tokens; and a token without a row in the model refuses a phase."""
    x = np.random.default_rng(1).integers(0, 3, (60, 4)).astype(kind)
    y = x.astype(np.int64) if "task" in fields else np.zeros(60, np.int64)
    job = make_job(input_type="int64", **fields)
    whole = load_of(monkeypatch, x, y, job)
    assert whole.train.features.dtype == np.int64
    assert len(whole.train) + len(whole.holdout) == 60
    for token in (3, np.iinfo(kind).max, np.iinfo(kind).min):
        if token == 0:
            continue
        odd_x, odd_y = np.concatenate([x, x[:1]]), np.concatenate([y, y[:1]])
        odd_x[60, 2] = token
        odd = load_of(monkeypatch, odd_x, odd_y, job)
        assert (moved(whole, odd), moved(odd, whole)) == ((0, 0), (0, 0))
        plain = make_job(input_type="int64", is_private=False, **fields)
        with pytest.raises(
            ConfigError, match=r"record 60: inputs must be 0 to 2 \(by the job's vocabulary\)"
        ):
            load_of(monkeypatch, odd_x, odd_y, plain)


def load_of(monkeypatch: pytest.MonkeyPatch, x: Any, y: Any, job: JobSpec) -> SiloData:
    gives(monkeypatch, Data(train=Samples(features=x, labels=y)))
    return load_data(DataSettings(**OWN), job)


def test_whole_numbers_of_a_private_job_of_floats_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (np.int32, np.uint64):
        x = np.full((3, 4), np.iinfo(kind).max, kind)
        data = load_of(monkeypatch, x, np.zeros(3, np.int64), make_job())
        assert {*data.train.features.ravel(), *data.holdout.features.ravel()} == {FARTHEST}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"input_type": "int64"}, "vocabulary: a value is required in a private job with input_type int64"),
        ({"vocabulary": 3}, "vocabulary: not allowed with input_type float32, only with int64"),
        (
            {"input_type": "int64", "vocabulary": 3, "task": {"name": "next-token"}},
            "vocabulary: expected none in a task of tokens, where it is classes",
        ),
    ],
)
def test_a_vocabulary_is_said_once_and_where_it_is_needed(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_job(**fields)


@pytest.mark.parametrize("rows", ["", "60,7\n"], ids=["no rows", "none that fits"])
@pytest.mark.parametrize("shape", [(1,)])
def test_a_data_set_may_end_up_empty(tmp_path: Path, rows: str, shape: tuple[int, ...]) -> None:
    data = load_data(table(tmp_path, "age,ill\n" + rows), table_job("age"))
    assert data.train.features.shape == data.holdout.features.shape == (0, *shape)


def test_an_empty_array_may_be_made_flat(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((1, 2, 2)), y=np.array([9]))
    data = load_data(DataSettings(format="npz", path=tmp_path / "data.npz"), make_job())
    assert data.train.features.shape == (0, 4)


@pytest.mark.parametrize(
    ("text", "fields", "sentence"),
    [
        ("", {}, "expected a header line"),
        ("age,sick\n", {}, "no column 'ill'"),
        ("age,age,ill\n", {}, "a column is named twice"),
    ],
)
def test_what_no_record_decides_is_still_refused(
    tmp_path: Path, text: str, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_data(table(tmp_path, text, **fields), table_job("age"))


def test_the_silos_own_log_counts_what_did_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = AGES + "old,1\n60,7\n60,8\n1e300,1\n"
    with caplog.at_level(logging.WARNING, logger="chorale"):
        load_data(table(tmp_path, text), table_job("age"))
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert fields == [{"data": "data", "problems": 4, "left_out": 2, "values_out_of_range": 1}]


def test_the_log_is_silent_where_everything_fits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_data(table(tmp_path, AGES), table_job("age"))
    assert not caplog.records
