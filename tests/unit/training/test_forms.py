"""Number type, memory order and parts of a batch change rounding, never what is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from silo_agent.training.base.batches import Batch
from silo_agent.training.base.shares import BatchShares
from silo_agent.training.machine.settings import MemoryFormat, Precision
from silo_agent.training.models import forms
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.forms import ON_CPU, ON_GPU, PLAIN, Form, Forms, fastest
from silo_agent.training.models.registry import build_model
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import make_data, make_job, make_work
from tests.unit.training.dp_sgd import privacy

BFLOAT16, CHANNELS_LAST = Form(is_bfloat16=True), Form(is_channels_last=True)


def images(*, job: object = None, **fields: object) -> Work:
    rng = np.random.default_rng(3)
    data = make_data(rng.standard_normal((40, 1, 8, 8)), rng.integers(0, 10, 40))
    values = {"model": {"name": "cnn", "seed": 1}, **fields}
    return make_work(make_job(**values), data)  # type: ignore[arg-type]


def delta(work: Work, **fields: object) -> NDArray[np.float32]:
    values = TorchObjective(device="cpu", **fields).compute(work)  # type: ignore[arg-type]
    return np.asarray(values["delta"])


@pytest.mark.parametrize("preset", ["fedavg", "feddr_plus", "scaffold", "ditto"])
@pytest.mark.parametrize("micro_batch", [1, 5, 16])
def test_parts_of_a_batch_lead_to_what_the_batch_does(preset: str, micro_batch: int) -> None:
    work = images(strategy={"preset": preset})
    parts_P = delta(work, shares=BatchShares(micro_batch=micro_batch))
    np.testing.assert_allclose(parts_P, delta(work), rtol=0, atol=2e-6)
    assert np.abs(parts_P).max() > 1e-3


def test_channels_last_leads_to_the_same_update() -> None:
    work = images()
    forced = Forms(memory_format=MemoryFormat.CHANNELS_LAST)
    np.testing.assert_allclose(delta(work, forms=forced), delta(work), rtol=0, atol=2e-6)


def test_bfloat16_rounds_the_layers_and_keeps_the_rest_float32() -> None:
    work = images()
    model = Form(is_bfloat16=True).give(build_model(work.spec.model, classes=10, input_shape=(1, 8, 8)))
    seen: list[torch.dtype] = []
    model.body[0].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    features_ND = model.features(torch.ones(2, 1, 8, 8))
    assert (seen, features_ND.dtype, model.logits(features_ND).dtype) == (
        [torch.bfloat16],
        torch.float32,
        torch.float32,
    )
    plain_P, rounded_P = delta(work), delta(work, forms=Forms(precision=Precision.BFLOAT16))
    assert rounded_P.dtype == np.float32
    # a ratio of 0.09 to 0.11, by the order in which a processor adds; another first model's is 1.38
    assert 0 < np.linalg.norm(rounded_P - plain_P) < 0.3 * np.linalg.norm(plain_P)


def test_private_jobs_train_in_float32_and_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is exact about DP-SGD was argued for float32 in one process."""
    work = images(
        model={"name": "cnn", "norm": "group", "seed": 1}, privacy=privacy(sample_rate=0.5, clip_norm=1.0)
    )
    spec, model = work.spec, build_model(work.spec.model, classes=10, input_shape=(1, 8, 8))
    asked = Forms(precision=Precision.BFLOAT16, memory_format=MemoryFormat.CHANNELS_LAST)
    assert asked.of(model, spec) == PLAIN
    assert asked.of(model, images().spec) == Form(is_bfloat16=True, is_channels_last=True)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({PLAIN: 1.0, CHANNELS_LAST: 0.5, BFLOAT16: 0.7}, CHANNELS_LAST),
        ({PLAIN: 1.0, CHANNELS_LAST: 0.95}, PLAIN),
        ({PLAIN: 0.5, CHANNELS_LAST: 1.0}, PLAIN),
        ({PLAIN: 0.001}, PLAIN),
    ],
)
def test_a_form_is_taken_where_it_is_a_tenth_faster(seconds: dict[Form, float], expected: Form) -> None:
    assert fastest(seconds) == expected


def test_a_model_is_tried_once_and_the_trial_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "ON_CPU", replace(ON_CPU, shortest_seconds=0.0))
    monkeypatch.setattr(forms, "fastest", lambda seconds: tried.append(tuple(seconds)) or PLAIN)
    tried: list[tuple[Form, ...]] = []
    both = Forms(memory_format=MemoryFormat.AUTO)
    work = images(model={"name": "cnn", "norm": "batch", "seed": 1})
    assert np.array_equal(delta(work, forms=both), delta(work))
    delta(work, forms=both)
    assert tried == [(PLAIN, CHANNELS_LAST)]


def test_a_short_step_is_not_tried_in_other_forms() -> None:
    work = images(model={"name": "mlp", "seed": 1})
    model = build_model(work.spec.model, classes=10, input_shape=(1, 8, 8))
    inputs, both = torch.ones(2, 1, 8, 8), [PLAIN, BFLOAT16]
    assert set(forms.timed(model, inputs, both, replace(ON_CPU, shortest_seconds=1e9))) == {PLAIN}


def test_on_a_gpu_a_short_step_is_tried_in_all_forms() -> None:
    """A step of 16 took less than 20 ms on every GPU, so bfloat16 was never tried."""
    work = images(model={"name": "mlp", "seed": 1})
    model = build_model(work.spec.model, classes=10, input_shape=(1, 8, 8))
    assert set(forms.timed(model, torch.ones(2, 1, 8, 8), [PLAIN, BFLOAT16], ON_GPU)) == {PLAIN, BFLOAT16}


@pytest.mark.parametrize(("fits", "tried"), [(0, {PLAIN}), (1, {PLAIN}), (2, {PLAIN, BFLOAT16})])
def test_a_form_without_room_on_a_gpu_is_not_taken(
    fits: int, tried: set[Form], monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(model: FederatedModel, inputs: torch.Tensor) -> float:
        if int(model.is_bfloat16) >= fits:
            raise torch.OutOfMemoryError
        return 1.0

    monkeypatch.setattr(forms, "_step_seconds", seconds)
    model = build_model(images().spec.model, classes=10, input_shape=(1, 8, 8))
    found = forms.timed(model, torch.ones(2, 1, 8, 8), [PLAIN, BFLOAT16], ON_GPU)
    assert set(found) == tried
    assert fastest(found) == PLAIN


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("least", [1, 2])
def test_every_sample_is_in_one_part_of_one_process(samples: int, least: int) -> None:
    """And no part has fewer than batch normalization needs; a batch that is too small is everyone's."""
    places_N = torch.arange(samples)
    batch = Batch(inputs=places_N.float(), labels_N=places_N, places_N=places_N, count=samples)
    shares = [BatchShares(micro_batch=2, rank=rank, processes=2) for rank in range(2)]
    parts = [part for share in shares for part in share.parts(batch, least=least)]
    found = sorted(int(place) for part in parts for place in part.places_N)
    copies = 1 if samples >= 2 * least else 2
    assert found == sorted(copies * list(range(samples)))
    assert all(part.count == len(part.inputs) >= min(least, samples) for part in parts)
