"""Random transforms of an institution's own data: drawn for each sample and epoch, in training alone."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from chorale_models import Data
from crypto.errors import ConfigError
from silo_agent.training.base.augmentation import Augmentation, augmentation_of
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import make_data, make_job, make_work
from tests.unit.training.dp_sgd import privacy
from tests.unit.training.test_augmentation import batch_of, image_work

Transform = Any


def shifted(image: Any, label: Any) -> tuple[Any, Any]:
    return image + torch.rand(1), label


def made_of(transform: Transform, **fields: Any) -> Augmentation:
    work = image_work(**fields)
    made = augmentation_of(replace(work, data=replace(work.data, train_transform=transform)))
    assert made is not None
    return made


def test_each_sample_is_drawn_again_in_each_epoch_and_by_the_seed_of_the_phase() -> None:
    batch, made = batch_of([0, 1, 2]), made_of(shifted)
    first, second = made(batch, step=0), made(batch, step=1)
    moves = (first.inputs - batch.inputs).flatten(1)[:, 0]
    assert len({round(float(each), 4) for each in moves}) == 3
    assert not torch.equal(first.inputs, second.inputs)
    torch.testing.assert_close(made_of(shifted)(batch, step=0).inputs, first.inputs)
    assert torch.equal(first.labels_N, batch.labels_N)


def test_it_follows_the_jobs_own_and_reaches_training_alone() -> None:
    seen: list[int] = []

    def counted(image: Any, label: Any) -> tuple[Any, Any]:
        seen.append(int(label))
        return image, label

    rng = np.random.default_rng(1)
    features, labels = rng.random((20, 1, 8, 8), dtype=np.float32), np.zeros(20, np.int64)
    data = make_data(features, labels, holdout=(features[:7], labels[:7] + 1))
    job = make_job(training={"local_epochs": 3})
    work = make_work(job, replace(data, train_transform=counted), kind="train")
    TorchObjective(device="cpu").compute(work)
    assert len(seen) == 60  # each sample once an epoch
    assert set(seen) == {0}  # and none that is held out
    both = made_of(lambda image, label: (image * 0, label), augment=[{"kind": "vertical-flip"}])
    assert not both(batch_of([0]), step=0).inputs.any()


def test_what_it_gives_is_compared_and_its_errors_are_named() -> None:
    batch = batch_of([0])
    with pytest.raises(
        ConfigError, match=r"train_transform: input: expected shape \(3, 8, 8\), got \(3, 4, 8\)"
    ):
        made_of(lambda image, label: (image[:, ::2], label))(batch, step=0)
    with pytest.raises(ConfigError, match="train_transform: ZeroDivisionError: integer division"):
        made_of(lambda image, label: (image / (1 // 0), label))(batch, step=0)


def test_in_a_private_job_a_sample_that_it_fails_on_stays_as_it_is() -> None:
    """No record refuses such a job: who chose the data would learn that it is there."""
    batch = batch_of([0, 1])
    made = made_of(lambda image, label: (image[:, ::2], label), privacy=privacy())
    torch.testing.assert_close(made(batch, step=0).inputs, batch.inputs)


@pytest.mark.parametrize("label", [-1, 99])
def test_in_a_private_job_a_target_that_is_none_of_the_jobs_stays_as_it_is(label: int) -> None:
    """It ended the phase, which tells of that record."""
    batch = batch_of([0, 1])
    made = made_of(lambda image, old: (image, old * 0 + label), privacy=privacy())
    torch.testing.assert_close(made(batch, step=0).labels_N, batch.labels_N)
    with pytest.raises(ConfigError, match="train_transform: target: expected 0 to"):
        made_of(lambda image, old: (image, old * 0 + label))(batch, step=0)


class Drawn:
    """Samples that are others each time."""

    def __init__(self, *, is_drawn: bool) -> None:
        self._rng, self._is_drawn = np.random.default_rng(1), is_drawn

    def __len__(self) -> int:
        return 20

    def __getitem__(self, place: int) -> tuple[Any, int]:
        number = self._rng.random() if self._is_drawn else place
        return np.full((1, 8, 8), number, np.float32), place % 2


@pytest.mark.parametrize("is_drawn", [True, False])
def test_samples_that_are_others_when_they_are_read_again_are_named(
    monkeypatch: pytest.MonkeyPatch, is_drawn: bool
) -> None:
    """Each is read once, so what was drawn for it stayed for all epochs, and for the hold-out too."""
    module = ModuleType("own_data")
    module.samples = lambda _: Data(train=Drawn(is_drawn=is_drawn), train_transform=shifted)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_data", module)
    settings = DataSettings.model_validate({"format": "module", "module": "own_data:samples"})
    problems = Problems()
    data = load_data(settings, make_job(), problems=problems)
    expected = ["record 0: it is another sample when it is read again: random transforms belong in the job"]
    assert [line.partition(" (augment)")[0] for line in problems.lines] == (expected if is_drawn else [])
    assert data.train_transform is shifted
