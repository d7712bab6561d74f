"""What a silo holds out is cut in two where the closing evaluation has a part of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from silo_agent.training.data.base import SampleSet, SiloData
from silo_agent.training.data.loading import load_data, load_partition
from silo_agent.training.data.settings import DataSettings
from tests.fuzz.data import PRIVACY
from tests.unit.data.loading import make_job

ROWS = 400
KEEP = {"metric": "loss", "best": "lowest"}
CUT = {"kind": "dirichlet", "alpha": 1.0, "silos": 3, "index": 1, "seed": 1}


def npz(folder: Path, *, units: Sequence[str] | None = None, own_holdout: bool = False) -> Path:
    """Rows whose first number says which each is."""
    x, y = np.stack([np.arange(ROWS), np.zeros(ROWS)], axis=1).astype(np.float32), np.arange(ROWS) % 2
    arrays = {"x": x, "y": y} | ({} if units is None else {"patient": np.array(units)})
    if own_holdout:
        arrays |= {"x_test": x[:100] + ROWS, "y_test": y[:100]}
    np.savez(folder / "rows.npz", **arrays)  # type: ignore[arg-type]
    return folder / "rows.npz"


def load(path: Path, *, is_private: bool, test_share: float = 0.0, **settings: Any) -> SiloData:
    job = make_job(2, (2,), privacy=PRIVACY if is_private else None, test_share=test_share)
    values = {"format": "npz", "path": path, "name": "rows", "holdout": 0.4, **settings}
    return load_data(DataSettings.model_validate(values), job)


def rows_of(samples: SampleSet | None) -> set[float]:
    return set() if samples is None else set(samples.features[:, 0].tolist())


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize(
    "given", [{}, {"own_holdout": True}, {"units": [f"p{row // 4}" for row in range(ROWS)]}], ids=str
)
def test_rounds_and_the_closing_evaluation_test_on_different_records(
    tmp_path: Path, given: dict[str, Any], is_private: bool
) -> None:
    path, settings = npz(tmp_path, **given), {"unit": "patient"} if "units" in given else {}
    whole = load(path, is_private=is_private, **settings)
    cut = load(path, is_private=is_private, test_share=0.5, **settings)
    assert whole.test is None
    assert whole.tested is whole.holdout
    held, tested = rows_of(cut.holdout), rows_of(cut.test)
    assert rows_of(cut.train) == rows_of(whole.train)
    assert held | tested == rows_of(whole.holdout)
    assert not held & tested
    assert 0.3 * len(held | tested) < len(tested) < 0.7 * len(held | tested)
    if "units" in given:
        assert not {row // 4 for row in held} & {row // 4 for row in tested}


def test_a_larger_test_keeps_what_a_smaller_one_has(tmp_path: Path) -> None:
    """In a private job each record is by itself on its side: one more moves no other."""
    path = npz(tmp_path)
    few, many = (rows_of(load(path, is_private=True, test_share=share).test) for share in (0.3, 0.6))
    assert few < many


def test_every_silo_of_a_cut_file_has_a_part_of_each_class(tmp_path: Path) -> None:
    settings = {"format": "npz", "path": npz(tmp_path), "name": "rows", "partition": CUT}
    for part in load_partition(DataSettings.model_validate(settings), make_job(2, (2,), test_share=0.5)):
        assert part.test is not None
        counts = [np.bincount(each.labels, minlength=2) for each in (part.holdout, part.test)]
        assert np.abs(counts[0] - counts[1]).max() <= 1


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({}, 0.0),
        ({"keep": KEEP}, 0.5),
        ({"stop": {**KEEP, "rounds": 2}}, 0.5),
        ({"keep": KEEP, "test_share": 0.2}, 0.2),
        ({"keep": KEEP, "test_share": 0}, 0.0),
        ({"test_share": 0.3}, 0.3),
    ],
    ids=str,
)
def test_where_rounds_are_chosen_half_of_the_hold_out_is_left_for_the_end(
    fields: dict[str, Any], share: float
) -> None:
    job = make_job(2, (2,), **fields)
    assert job.test_part == share
    assert type(job).from_yaml(job.to_yaml(), source="job.yaml") == job


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_that_leaves_nothing_to_one_of_them_is_refused(share: float) -> None:
    with pytest.raises(ValidationError, match="test_share"):
        make_job(2, (2,), test_share=share)
