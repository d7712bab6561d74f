"""Random transforms and normalization that a job names: whom they reach, what decides them, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from silo_agent.training.base.augmentation import Augmentation, augmentation_of, by_torchvision
from silo_agent.training.base.batches import Batch
from silo_agent.training.base.crops_and_flips import crops_and_flips
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import SiloData
from silo_agent.training.local_loss import local_loss
from silo_agent.training.machine.seeding import seeded
from silo_agent.training.models.registry import build_model
from silo_agent.training.models.row_functions import unit_rows
from silo_agent.training.models.state import load_arrays
from silo_agent.training.objective import LocalState, Work
from silo_agent.training.parts.regularizers.moon import PREVIOUS
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import MODEL, Array
from tests.support.objectives import CPU, make_data, make_job, make_work
from tests.unit.training.dp_sgd import privacy

SHAPE = (3, 8, 8)
EVERY = [
    {"kind": "random-crop", "padding": 2, "border": "reflect"},
    {"kind": "horizontal-flip"},
    {"kind": "vertical-flip", "chance": 0.3},
    {"kind": "random-rotation", "degrees": 20},
    {"kind": "random-resized-crop", "scale": [0.5, 1.0]},
    {"kind": "color-jitter", "brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.1},
    {"kind": "rand-augment", "operations": 2, "magnitude": 9},
    {"kind": "gaussian-blur", "kernel": 3},
    {"kind": "random-erasing", "chance": 1.0},
]
GEOMETRIC = [each for each in EVERY if each["kind"] not in ("rand-augment", "random-erasing")]
CROP = [{"kind": "random-crop", "padding": 2}, {"kind": "horizontal-flip"}]
RESIZED, BLUR = EVERY[4], EVERY[7]
NORMALIZE = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}


def make_images(count: int = 24) -> SiloData:
    rng = np.random.default_rng(5)
    return make_data(rng.random((count, *SHAPE), dtype=np.float32), rng.integers(0, 4, count))


def image_work(strategy: dict[str, Any] | None = None, *, kind: str = "train", **fields: Any) -> Work:
    job = make_job(strategy, **{"classes": 4, "input_shape": SHAPE, **fields})
    return replace(make_work(job, make_images(), kind=kind), class_rows=np.ones(4, np.bool_))


def setting_of(work: Work) -> Setting:
    spec = work.spec
    model = build_model(
        spec.model,
        classes=spec.classes,
        input_shape=spec.input_shape,
        recipe=spec.method.recipe,
        normalize=spec.normalize,
    )
    load_arrays(model, work.state)
    return Setting(work=work, received=model, device=CPU)


def augmentation(transforms: list[dict[str, Any]] = EVERY, **fields: Any) -> Augmentation:
    made = augmentation_of(image_work(augment=transforms, **fields))
    assert made is not None
    return made


def batch_of(places: list[int], features: Array | None = None) -> Batch:
    data = make_images().train
    places_N = torch.tensor(places)
    inputs = torch.from_numpy(data.features if features is None else features)
    return Batch(
        inputs=inputs[places_N],
        labels_N=torch.from_numpy(data.labels)[places_N],
        places_N=places_N,
        count=len(places),
    )


def test_a_sample_becomes_the_same_wherever_it_stands_in_a_batch() -> None:
    made = augmentation()
    together = made(batch_of([4, 9, 17]), step=3).inputs
    assert torch.equal(made(batch_of([17, 2, 4]), step=3).inputs[[2, 0]], together[[0, 2]])
    assert torch.equal(made(batch_of([9]), step=3).inputs[0], together[1])
    assert together.shape == (3, *SHAPE)
    assert type(together) is Tensor


@pytest.mark.parametrize("border", ["zeros", "reflect", "edge"])
def test_crops_and_flips_are_torchvisions_to_the_bit(border: str) -> None:
    """Both orders, because each draws what the one before has left."""
    crop = {"kind": "random-crop", "padding": 3, "border": border}
    for transforms in ([crop, EVERY[1], EVERY[2]], [EVERY[2], crop, crop, EVERY[1]]):
        spec = image_work(augment=transforms).spec
        assert spec.augment is not None
        quick, whole = crops_and_flips(spec.augment), by_torchvision(spec.augment, (8, 8), has_masks=False)
        assert quick is not None
        for place, image in enumerate(torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(1))):
            found = []
            for move in (quick, whole):
                with seeded(place):
                    found.append((*move(image, torch.tensor(place)), torch.rand(1)))
            assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_job_of_crops_and_flips_alone_asks_nothing_of_torchvision() -> None:
    quick, other = (image_work(augment=each).spec.augment for each in (CROP, [*CROP, BLUR]))
    assert quick is not None
    assert other is not None
    assert crops_and_flips(quick) is not None
    assert crops_and_flips(other) is None


@pytest.mark.parametrize(
    "transform",
    [
        RESIZED | {"scale": [1e-9, 1e-9], "ratio": [0.1, 0.1]},
        RESIZED | {"scale": [1e-9, 1e-9], "ratio": [10, 10]},
        BLUR | {"sigma": [0.01, 0.01]},
    ],
)
def test_the_most_extreme_ranges_give_numbers(transform: dict[str, Any]) -> None:
    """More extreme ones, which the job refuses, gave parts without a pixel and numbers that are none."""
    inputs = augmentation([transform])(batch_of([0, 1]), step=0).inputs
    assert inputs.shape == (2, *SHAPE)
    assert inputs.isfinite().all()


def test_draws_differ_by_epoch_place_round_and_silo() -> None:
    work = image_work(augment=EVERY)
    same = np.repeat(make_images().train.features[:1], 24, axis=0)
    first = augmentation()(batch_of([0, 1], same), step=0).inputs
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, augmentation()(batch_of([0, 1], same), step=1).inputs)
    other = augmentation_of(replace(work, seed=work.seed + 1))
    assert other is not None
    assert not torch.equal(first, other(batch_of([0, 1], same), step=0).inputs)


def test_a_record_of_a_private_job_is_transformed_by_its_own_bytes() -> None:
    """By its place, one record less before it would change what it becomes."""
    private = {"privacy": privacy(), "model": {"name": "mlp", "norm": "group"}}
    made, whole = augmentation(**private), make_images().train.features
    without = np.delete(whole, 3, axis=0)
    found = made(batch_of([9], whole), step=2).inputs
    assert torch.equal(made(batch_of([8], without), step=2).inputs, found)
    assert not torch.equal(made(batch_of([9], whole), step=3).inputs, found)
    by_place = augmentation()
    before = by_place(batch_of([9], whole), step=2).inputs
    assert not torch.equal(by_place(batch_of([8], without), step=2).inputs, before)


def test_the_training_draws_its_dropout_as_if_nothing_were_transformed() -> None:
    torch.default_generator.manual_seed(3)
    expected = torch.rand(4)
    torch.default_generator.manual_seed(3)
    augmentation()(batch_of([0, 1]), step=0)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("transform", GEOMETRIC[:4], ids=lambda each: str(each["kind"]))
def test_a_label_by_pixel_goes_with_its_image(transform: dict[str, Any]) -> None:
    work = image_work(augment=[transform])
    assert work.spec.augment is not None
    made = Augmentation(work.spec.augment, size=SHAPE[1:], seed=1, has_dense_labels=True, is_private=False)
    labels = torch.randint(0, 5, (16, 8, 8), generator=torch.Generator().manual_seed(2))
    images = labels[:, None].expand(16, *SHAPE).float()
    batch = Batch(inputs=images, labels_N=labels, places_N=torch.arange(16), count=16)
    found = made(batch, step=0)
    assert torch.equal(found.inputs[:, 0], found.labels_N.float())
    assert found.labels_N.dtype == torch.int64
    assert not torch.equal(found.labels_N, labels)


@pytest.mark.parametrize("regularizer", ["kd", "ntd", "ld", "fd", "csd", "moon"])
def test_teacher_and_student_are_given_the_same_batch(regularizer: str) -> None:
    """At the start the student is the teacher: what it is asked of the augmented batch it has itself said."""
    parts = {"regularizer": regularizer, "statistic": "logit-prototypes" if regularizer == "csd" else None}
    work = image_work({"parts": parts}, augment=CROP)
    if regularizer == "csd":
        work = replace(work, state={**work.state, "method/prototypes": np.eye(4)})
    if regularizer == "moon":  # the silo's last model gave zeros: the teacher is the received one's opposite
        names = [name for name in work.state if name.startswith(MODEL)]
        zeros = {PREVIOUS + name.removeprefix(MODEL): np.zeros_like(work.state[name]) for name in names}
        work = replace(work, local=LocalState(zeros))
    setting = setting_of(work)
    loss = local_loss(setting, setting.train)
    batch = loss.augmented(next(setting.train.in_order(16)), step=0)
    assert not torch.equal(batch.inputs, torch.from_numpy(work.data.train.features[:16]))
    student = run_model(setting.received, batch.inputs)
    (compared,) = loss.comparisons
    assert not isinstance(compared.teacher, Outputs)
    teacher = compared.teacher(batch.inputs)
    assert not teacher.logits_NC.requires_grad
    if regularizer == "moon":
        assert torch.equal(teacher.features_ND, -unit_rows(student.features_ND.detach().flatten(1)))
    else:
        assert torch.equal(teacher.logits_NC, student.logits_NC.detach())
        assert torch.equal(teacher.features_ND, student.features_ND.detach())
    found = loss.per_sample(student, batch.inputs, batch.labels_N, batch.places_N)
    plain_N = loss.loss_weight * loss.loss.per_sample(student, batch.labels_N)
    added_N = compared.regularizer.per_sample(student, teacher, batch.labels_N)
    assert torch.equal(found, plain_N + compared.weight * added_N)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [(None, "evaluate"), ({"preset": "spherefed"}, "calibrate"), ({"preset": "fedcsd"}, "prototypes")],
)
def test_tests_and_statistics_see_no_random_transform(strategy: dict[str, Any] | None, kind: str) -> None:
    plain, changed = (
        TorchObjective(device="cpu").compute(image_work(strategy, kind=kind, **fields))
        for fields in ({}, {"augment": EVERY})
    )
    for name, value in plain.items():
        np.testing.assert_array_equal(changed[name], value)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ({"preset": "fedntd"}, "train"),
        ({"preset": "per_fedavg"}, "train"),
        ({"preset": "spherefed"}, "calibrate"),
        ({"preset": "spherefed_ft"}, "fine-tune"),
        ({"preset": "fedcsd"}, "prototypes"),
    ],
)
def test_every_pass_runs_on_normalized_images(strategy: dict[str, Any], kind: str) -> None:
    """The same figures as of images that were normalized before."""
    work = image_work(strategy, kind=kind, normalize=NORMALIZE)
    mean, std = (np.array(NORMALIZE[name], np.float32)[:, None, None] for name in ("mean", "std"))
    data = make_data((work.data.train.features - mean) / std, work.data.train.labels)
    before = replace(work, spec=work.spec.model_copy(update={"normalize": None}), data=data)
    found, expected = (TorchObjective(device="cpu").compute(each) for each in (work, before))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    plain = TorchObjective(device="cpu").compute(replace(before, data=work.data))
    assert any(not np.allclose(plain[name], value, rtol=1e-3) for name, value in expected.items())


@pytest.mark.parametrize("preset", ["fedavg", "fedntd", "moon", "ditto", "fedrep", "per_fedavg", "scaffold"])
def test_training_learns_from_what_the_transforms_make_of_the_samples(preset: str) -> None:
    delta, again, plain = (
        TorchObjective(device="cpu").compute(image_work({"preset": preset}, **fields))["delta"]
        for fields in ({"augment": CROP}, {"augment": CROP}, {})
    )
    np.testing.assert_array_equal(again, delta)  # in a simulation seeds follow from the job's
    assert np.abs(delta - plain).max() > 1e-4


def test_a_private_job_trains_on_transformed_records() -> None:
    fields = {"privacy": privacy(), "model": {"name": "mlp", "norm": "group"}, "augment": CROP}
    values = TorchObjective(device="cpu").compute(image_work({"preset": "fedprox"}, **fields))
    assert np.isfinite(values["delta"]).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"augment": CROP, "input_shape": [12]}, r"augment: expected images, .* got \[12\]"),
        ({"augment": CROP, "input_type": "int64"}, "augment: not allowed with input_type int64"),
        ({"augment": [EVERY[5]], "input_shape": [4, 8, 8]}, "augment.0: expected 1 or 3 channels"),
        ({"augment": [EVERY[0] | {"padding": 8}]}, "augment.0.padding: a reflected border of 8 is wider"),
        (
            {"augment": [{"kind": "random-crop", "padding": 9}]},  # else gigabytes a sample
            "augment.0.padding: expected at most the image's longer side, 8, got 9",
        ),
        ({"augment": [{"kind": "gaussian-blur", "kernel": 4}]}, "expected an odd number, got 4"),
        ({"augment": [{"kind": "random-erasing", "scale": [0.5, 0.1]}]}, r"scale: expected \[low, high\]"),
        (
            {"augment": [RESIZED | {"scale": [1e-9, 1e-9], "ratio": [0.01, 0.01]}]},
            "augment.0.ratio: no part of 8 x 8 pixels has a ratio of 0.01 to 0.01",
        ),
        ({"augment": [RESIZED | {"ratio": [100, 100]}]}, "augment.0.ratio: no part of 8 x 8 pixels"),
        ({"augment": [BLUR | {"sigma": [1e-30, 1.0]}]}, "sigma.0\n.*greater than or equal to 0.01"),
        ({"augment": [{"kind": "mixup"}]}, "'random-crop', 'horizontal-flip'"),
        ({"normalize": {"mean": [0.5], "std": [0.5]}}, "normalize: expected 3 numbers, one a channel, got 1"),
        ({"normalize": {"mean": [0.5], "std": [0.0]}}, "normalize.std.0\n.*greater than 0"),
        (
            {"normalize": {"mean": [0.5], "std": [1, 1]}},
            "expected as many numbers as mean has, 1, got 2",
        ),
        ({"normalize": NORMALIZE, "input_shape": [12]}, r"normalize: expected input_shape \[channels, ...\]"),
    ],
)
def test_what_no_sample_could_be_given_is_refused_with_the_job(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_work(**fields)
