"""Data sets that are read by place: in memory where they fit, else streamed, the same samples either way."""

from __future__ import annotations

import py_compile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chorale.runtime import distributions
from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.base.batches import batches_of
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.data.loading import load_data, load_partition
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.data.streamed import Streamed
from silo_agent.training.data.workers import Workers
from silo_agent.training.machine.seeding import shuffler
from tests.support import own_code
from tests.support.scans import SIDE, Scans, given, settings_of
from tests.unit.data.loading import make_job
from tests.unit.data.test_private_loading import PRIVATE

COUNT = 700  # 4.5 MB in the job's form
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_given() -> Iterator[None]:
    yield
    given.clear()


def job_of(*, is_private: bool = False) -> JobSpec:
    return make_job(10, (1, SIDE, SIDE), privacy=PRIVATE if is_private else None)


def loaded(source: Any = None, *, is_private: bool = False, fields: Any = None, **settings: Any) -> SiloData:
    given.update(train=Scans(COUNT) if source is None else source, **(fields or {}))
    return load_data(settings_of(**settings), job_of(is_private=is_private))


def every(samples: Any) -> Samples:
    (whole,) = samples.read([np.arange(len(samples))])
    return whole


def bad_scans(place: int, bad: Any) -> Scans:
    return Scans(COUNT, bad={place: bad})


@pytest.mark.parametrize("is_private", [False, True], ids=["plain", "private"])
@pytest.mark.parametrize("workers", [0, 1])
def test_streamed_batches_are_those_of_the_same_data_in_memory(is_private: bool, workers: int) -> None:
    memory = loaded(is_private=is_private)
    streamed = loaded(is_private=is_private, cache_megabytes=1, workers=workers)
    assert isinstance(memory.train, Samples)
    assert isinstance(streamed.train, Streamed)
    for whole, by_place in ((memory.train, streamed.train), (memory.holdout, streamed.holdout)):
        assert len(whole) == len(by_place) > 100
        np.testing.assert_array_equal(by_place.labels, whole.labels)
        ours, theirs = batches_of(by_place, CPU), batches_of(whole, CPU)
        for _ in range(2):  # the second time a part of them is kept
            pairs = zip(
                ours.at(ours.shuffled(32, generator=shuffler(1))),
                theirs.at(theirs.shuffled(32, generator=shuffler(1))),
                strict=True,
            )
            for mine, expected in pairs:
                assert torch.equal(mine.inputs, expected.inputs)
                assert torch.equal(mine.labels_N, expected.labels_N)
                assert torch.equal(mine.places_N, expected.places_N)
        both = zip(ours.passes(is_private=True), theirs.passes(is_private=True), strict=True)
        assert all(torch.equal(mine.inputs, expected.inputs) for mine, expected in both)


def test_a_pass_that_is_given_up_leaves_the_next_one_whole() -> None:
    samples = loaded(cache_megabytes=1, workers=1).train
    begun = samples.read([np.arange(start, start + 32) for start in range(0, 320, 32)])
    next(begun)
    places = np.arange(100, 200)
    (found,) = samples.read([places])
    np.testing.assert_array_equal(found.labels, samples.labels[100:200])


@pytest.mark.parametrize("cache_megabytes", [64, 1], ids=["memory", "streamed"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ValueError("no such slice"), "record 17: ValueError: no such slice"),
        (np.zeros(3, np.uint8), "record 17: ValueError: too many values to unpack"),
        ((np.zeros((3, 3), np.uint8), 1), r"record 17: a sample has shape \(3, 3\)"),
        ((np.full((SIDE, SIDE), np.nan), 1), "record 17: features hold NaN or infinity"),
        ((np.zeros((SIDE, SIDE), np.uint8), 10), "record 17: labels must be 0 to 9"),
        ((np.zeros((SIDE, SIDE), np.uint8), [1, 2]), r"record 17: a label has shape \(2,\)"),
        ((np.full((SIDE, SIDE), "x"), 1), "record 17: features are numbers, got <U1"),
    ],
)
def test_a_sample_that_cannot_be_used_is_named_and_in_a_private_job_left_out(
    bad: Any, message: str, cache_megabytes: int
) -> None:
    fields = {"cache_megabytes": cache_megabytes, "workers": int(isinstance(bad, ValueError))}
    with pytest.raises(ConfigError, match=message):
        loaded(bad_scans(17, bad), **fields)
    private = loaded(bad_scans(17, bad), is_private=True, **fields)
    whole = loaded(is_private=True, **fields)
    for without, samples in ((private.train, whole.train), (private.holdout, whole.holdout)):
        assert [place for place in places_of(without) if place != 17] == [
            place for place in places_of(samples) if place != 17
        ], "no other record moved"
    is_there = "NaN" in message  # its values are moved
    assert len(private.train) + len(private.holdout) == COUNT - 1 + is_there


def places_of(samples: Any) -> list[int]:
    """By what an image holds, because places go unsaid."""
    known = {np.float32(Scans(COUNT)[place][0] / np.float32(255)).tobytes(): place for place in range(COUNT)}
    return sorted(known.get(image.tobytes(), 17) for image in every(samples).features)


def test_all_bad_samples_are_collected_and_the_rest_can_be_read() -> None:
    problems = Problems()
    given["train"] = Scans(COUNT, bad={3: OSError("gone"), 90: ValueError("cut off")})
    found = load_data(settings_of(cache_megabytes=1), job_of(), problems=problems)
    assert problems.lines == ["record 3: OSError: gone", "record 90: ValueError: cut off"]
    assert len(found.train) + len(found.holdout) == COUNT - 2
    assert len(found.holdout) == int(0.2 * (COUNT - 2))


@pytest.mark.parametrize("is_private", [False, True], ids=["plain", "private"])
def test_a_sample_that_fails_later_refuses_a_plain_job_alone(is_private: bool) -> None:
    scans = Scans(COUNT)
    samples = loaded(scans, is_private=is_private, cache_megabytes=1).train
    scans.bad = dict.fromkeys(range(COUNT), OSError("the disk is gone"))
    if is_private:
        assert not every(samples).features[-20:].any(), "the first are kept, the last are zeros"
    else:
        with pytest.raises(ConfigError, match="record 4.*: OSError: the disk is gone"):
            every(samples)


def test_strata_of_the_function_decide_holdout_and_partition() -> None:
    given.update(train=Scans(COUNT), strata=[place // 350 for place in range(COUNT)])
    cut = {"kind": "shards", "silos": 2, "shards_per_silo": 1, "index": 0}
    parts = load_partition(settings_of(cache_megabytes=1, partition=cut), job_of())
    sides = {len({place // 350 for place in places_of(part.train)}) for part in parts}
    assert sides == {1}, "each silo has one stratum, which is not the class"
    assert [len(part.holdout) for part in parts] == [70, 70]
    given["strata"] = [0, 1]
    with pytest.raises(ConfigError, match="data: strata: expected one for each of 700 samples, got 2"):
        load_data(settings_of(), job_of())


def test_a_function_that_raises_and_a_data_set_that_cannot_travel_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"data data: .*:data: TypeError"):
        load_data(settings_of(), job_of())
    scans = Scans(COUNT)
    scans.bad = {0: lambda: None}
    given["train"] = scans
    with pytest.raises(ConfigError, match=r"data\.workers: the data set cannot go to another process"):
        load_data(settings_of(workers=1), job_of())


def test_images_that_do_not_fit_are_streamed_as_they_are_in_memory(tmp_path: Path) -> None:
    from PIL import Image

    for place in range(300):
        path = tmp_path / f"{place % 2}" / f"{place}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(Scans(COUNT)[place][0]).save(path)
    for is_private in (False, True):
        job = make_job(["0", "1"], (1, SIDE, SIDE), privacy=PRIVATE if is_private else None)
        whole, streamed = (
            load_data(DataSettings(format="image-folder", path=tmp_path, cache_megabytes=megabytes), job)
            for megabytes in (64, 1)
        )
        assert isinstance(streamed.train, Streamed)
        np.testing.assert_array_equal(every(streamed.train).features, every(whole.train).features)
        np.testing.assert_array_equal(every(streamed.holdout).features, every(whole.holdout).features)


def test_a_process_that_reads_imports_the_files_that_were_compared(tmp_path: Path) -> None:
    """It imported them as Python does: a compiled cache, which the agent reads past, ran there."""
    with own_code.importable(tmp_path) as site:
        found = distributions.load(own_code.PINNED, group=distributions.DATA, name="stored")
        assert callable(found)
        source = site / own_code.PACKAGE / "code.py"
        kept = source.read_text()
        source.write_text(kept.replace("COMPARED = 1", "COMPARED = 0"))
        py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        source.write_text(kept)
        samples = found(None).train
        (read,) = Workers(samples, count=1, ahead=1).read([[0]])
        assert [int(target) for _, target in read] == [1]  # type: ignore[misc]
