"""Local SGD behind `TorchObjective.compute`: what it returns, that it learns, that it repeats itself."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from chorale.spec.job_spec import JobSpec
from chorale.spec.state import trained_names
from crypto.errors import ConfigError, QuantizationError, RemoteProtocolError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.machine.seeding import derive_seed, seeded, shuffler
from silo_agent.training.models.registry import build_model
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import model_arrays
from silo_agent.training.objective import Cancelled, Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import MODEL, Array
from strategies.methods import strategy_for
from tests.support import objectives
from tests.support.objectives import figures_of

SHAPE = (1, 8, 8)


def make_job(model: str = "mlp", *, norm: str = "none", **training: Any) -> JobSpec:
    named = {"name": model, "norm": norm, "hidden": (32,), "seed": 1}
    return objectives.make_job(model=named, training={"learning_rate": 0.05, **training})


def make_data(samples: int | None = 120) -> SiloData:
    data = load_data(DataSettings.model_validate({"format": "digits", "name": "digits"}), make_job())
    return SiloData(train=data.train.first(samples or len(data.train)), holdout=data.holdout, name=data.name)


def make_work(job: JobSpec, *, data: SiloData | None = None, **fields: Any) -> Work:
    return objectives.make_work(job, data or make_data(), **fields)


def compute(work: Work) -> dict[str, Array]:
    return dict(TorchObjective(device="cpu").compute(work))


def moved(work: Work, values: dict[str, Array]) -> dict[str, Array]:
    """The state after a round in which this silo alone took part."""
    state, start = dict(work.state), 0
    for name in work.context.trained:
        before = work.state[MODEL + name]
        step = values["delta"][start : start + before.size] / work.weight
        state[MODEL + name] = (before + step.reshape(before.shape)).astype(np.float32)
        start += before.size
    start = 0
    for name in work.context.buffers:
        before = work.state[MODEL + name]
        mean = values["buffers"][start : start + before.size] / work.weight
        state[MODEL + name] = mean.reshape(before.shape).astype(np.float32)
        start += before.size
    return state


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_values_are_those_that_the_strategy_sums(kind: str, norm: str) -> None:
    work = make_work(make_job("cnn", norm=norm), kind=kind)
    quantities = strategy_for("fedavg", {}).phase(kind).quantities(work.context)
    expected = {quantity.name: quantity.shape for quantity in quantities if quantity.name != "clipped"}
    values = compute(work)
    assert {name: value.shape for name, value in values.items()} == expected
    assert ("buffers" in values) == (kind == "train" and norm == "batch")
    assert values["correct"].dtype.kind == values["tested"].dtype.kind == "i"


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18", "vgg11", "mobilenet_v2"])
def test_every_model_trains_and_reports_finite_values(model: str) -> None:
    work = make_work(make_job(model, norm="batch", local_epochs=1), data=make_data(20))
    values = compute(work)
    assert all(np.isfinite(value).all() for value in values.values())
    assert np.abs(values["delta"]).max() > 0


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
def test_rounds_of_training_lower_the_loss_on_the_holdout(norm: str) -> None:
    job, data = make_job(norm=norm), make_data(None)
    state = initial_state(job)
    losses = []
    for round in range(1, 5):
        work = make_work(job, data=data, state=state, round=round)
        values = compute(work)
        losses.append(float(values["loss_sum"]) / int(values["tested"]))
        state = moved(work, values)
    assert losses[-1] < losses[0] / 4
    final = compute(make_work(job, kind="evaluate", data=data, state=state))
    assert int(final["correct"]) / int(final["tested"]) > 0.9


def test_one_full_batch_step_is_weight_times_learning_rate_times_gradient() -> None:
    job = make_job(local_epochs=1, batch_size=1000, learning_rate=0.3, weight_decay=0.1)
    work = make_work(job, weight=0.4, trained=("head.bias", "head.weight"))
    features, labels = work.data.train.features.reshape(-1, 64), work.data.train.labels
    arrays = {name: np.asarray(array, dtype=np.float64) for name, array in work.state.items()}
    hidden = features @ arrays["model/body.1.weight"].T + arrays["model/body.1.bias"]
    hidden = np.maximum(hidden, 0)
    logits = hidden @ arrays["model/head.weight"].T + arrays["model/head.bias"]
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    error = (softmax - np.eye(10)[labels]) / len(labels)
    gradients = [
        error.sum(axis=0) + 0.1 * arrays["model/head.bias"],
        (error.T @ hidden + 0.1 * arrays["model/head.weight"]).ravel(),
    ]
    expected = -0.4 * 0.3 * np.concatenate(gradients)
    np.testing.assert_allclose(compute(work)["delta"], expected, rtol=2e-4, atol=1e-7)


def test_weight_travels_as_it_is_and_scales_delta_and_buffers() -> None:
    job = make_job("cnn", norm="batch")
    small, large = (compute(make_work(job, weight=weight)) for weight in (0.125, 0.5))
    assert (float(small["weight"]), float(large["weight"])) == (0.125, 0.5)
    np.testing.assert_array_equal(small["delta"] * 4, large["delta"])
    np.testing.assert_array_equal(small["buffers"] * 4, large["buffers"])


def test_only_trained_parameters_move_and_fill_the_delta() -> None:
    work = make_work(make_job(), trained=("head.weight",))
    assert compute(work)["delta"].shape == (10 * 32,)


def test_delta_follows_the_order_of_the_context() -> None:
    job = make_job()
    names = trained_names(initial_state(job))
    forward, backward = (
        make_work(job, trained=names),
        make_work(job, trained=names[::-1]),
    )
    first, second = (moved(work, compute(work)) for work in (forward, backward))
    for name in names:
        np.testing.assert_array_equal(first[MODEL + name], second[MODEL + name])


def test_same_seed_gives_the_same_bytes_and_every_other_name_other_shuffles() -> None:
    job = make_job()
    works = [
        make_work(job),
        make_work(job),
        make_work(job, silo="b"),
        make_work(job, round=2),
        make_work(job.model_copy(update={"seed": 8})),
    ]
    deltas = [compute(work)["delta"] for work in works]
    assert np.array_equal(deltas[0], deltas[1])
    for first, second in itertools.combinations(deltas[1:], 2):
        assert not np.array_equal(first, second)


def test_training_leaves_state_data_and_global_generator_alone() -> None:
    work = make_work(make_job("cnn", norm="batch"))
    state = {name: array.copy() for name, array in work.state.items()}
    features, generator = work.data.train.features.copy(), torch.random.get_rng_state()
    compute(work)
    assert all(np.array_equal(work.state[name], state[name]) for name in state)
    assert np.array_equal(work.data.train.features, features)
    assert torch.equal(torch.random.get_rng_state(), generator)


def test_read_only_arrays_are_enough() -> None:
    data = make_data()
    for array in (data.train.features, data.train.labels, data.holdout.features, data.holdout.labels):
        array.setflags(write=False)
    state = initial_state(make_job())
    for array in state.values():
        array.setflags(write=False)
    work = make_work(make_job(), data=data, state=state)
    assert np.abs(compute(work)["delta"]).max() > 0


def test_learning_rate_is_the_one_of_the_round() -> None:
    job = make_job(schedule={"kind": "step", "step_rounds": 1, "gamma": 0.5}, batch_size=1000, local_epochs=1)
    first, second = (compute(make_work(job, round=round))["delta"] for round in (1, 2))
    np.testing.assert_allclose(second, first / 2, rtol=1e-3, atol=1e-7)


def test_momentum_carries_steps_within_a_round_and_not_between_rounds() -> None:
    plain, heavy = (
        compute(make_work(make_job(momentum=momentum, learning_rate=1e-4, batch_size=1000)))["delta"]
        for momentum in (0.0, 0.9)
    )
    # two nearly equal steps g: g + g without momentum, g + (g + 0.9 g) with it
    np.testing.assert_allclose(heavy, plain * 1.45, rtol=0.05, atol=1e-6)


def test_training_moves_batch_statistics() -> None:
    work = make_work(make_job("cnn", norm="batch"))
    before = np.concatenate([work.state[MODEL + name].ravel() for name in work.context.buffers])
    assert not np.allclose(compute(work)["buffers"] / work.weight, before)


def test_evaluation_is_of_the_received_model() -> None:
    job = make_job()
    trained, tested = compute(make_work(job)), compute(make_work(job, kind="evaluate"))
    for name in ("correct", "tested", "loss_sum"):
        assert trained[name] == tested[name]


def test_evaluation_sums_are_exact_whatever_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    work = make_work(make_job(), kind="evaluate")
    whole = compute(work)
    monkeypatch.setattr("silo_agent.training.base.batches.PASS_BATCH", 7)
    pieces = compute(work)
    assert int(whole["tested"]) == int(pieces["tested"]) == 359
    assert int(whole["correct"]) == int(pieces["correct"])
    assert float(whole["loss_sum"]) == pytest.approx(float(pieces["loss_sum"]), rel=1e-6)


def test_evaluation_does_not_move_batch_statistics() -> None:
    job = make_job("cnn", norm="batch")
    with seeded(0):
        model = build_model(job.model, classes=10, input_shape=SHAPE).train()
    before = model_arrays(model)
    holdout = Tensors.of(make_data().holdout, torch.device("cpu"))
    figures_of(model, holdout)
    after = model_arrays(model)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_silo_without_holdout_still_trains() -> None:
    data = make_data()
    empty = SiloData(train=data.train, holdout=data.holdout.first(0), name=data.name)
    values = compute(make_work(make_job(), data=empty))
    assert (int(values["correct"]), int(values["tested"]), float(values["loss_sum"])) == (0, 0, 0.0)
    assert np.abs(values["delta"]).max() > 0


@pytest.mark.parametrize("kind, looks", [("evaluate", 0), ("train", 0), ("train", 5)])
def test_work_that_is_no_longer_wanted_ends_between_batches(kind: str, looks: int) -> None:
    seen = itertools.count()
    with pytest.raises(Cancelled, match="no longer wanted"):
        compute(make_work(make_job(), kind=kind, is_cancelled=lambda: next(seen) >= looks))
    assert next(seen) == looks + 1


def test_batch_norm_leaves_out_a_last_batch_of_one() -> None:
    values = compute(make_work(make_job(norm="batch"), data=make_data(33)))
    assert np.isfinite(values["delta"]).all()


def test_batch_norm_of_a_single_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch normalization needs at least 2 training samples"):
        compute(make_work(make_job(norm="batch"), data=make_data(1)))


def test_without_batch_norm_a_single_sample_trains() -> None:
    assert np.abs(compute(make_work(make_job(), data=make_data(1)))["delta"]).max() > 0


def test_divergence_is_said_after_its_epoch() -> None:
    data = make_data(16)
    huge = Samples(features=data.train.features * np.float32(1e38), labels=data.train.labels)
    work = make_work(make_job(), data=SiloData(train=huge, holdout=data.holdout, name=data.name))
    with pytest.raises(QuantizationError, match="training: the loss is not finite after 2 steps; look at"):
        compute(work)


def test_unknown_phase_is_refused() -> None:
    with pytest.raises(ConfigError, match="the built-in training has no phase rehearsal"):
        compute(make_work(make_job(), kind="rehearsal"))


def test_trained_name_outside_the_model_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=r"trained parameter head\.scale is not in the job's model"):
        compute(make_work(make_job(), trained=("head.scale",)))


def test_gpu_is_refused_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="cuda is set but torch finds no GPU"):
        TorchObjective(device="cuda")


def test_one_epoch_visits_every_sample_once_in_another_order() -> None:
    samples = Tensors(features=torch.arange(23.0), labels=torch.arange(23))
    generator = shuffler(3)
    epochs = [torch.cat(list(samples.shuffled(5, generator=generator))).tolist() for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(23))
    assert epochs[0] != epochs[1]


def test_features_and_labels_stay_together() -> None:
    samples = Samples(features=np.arange(9, dtype=np.float32), labels=np.arange(9))
    tensors = Tensors.of(samples, torch.device("cpu"))
    for batch in tensors.at(tensors.shuffled(4, generator=shuffler(0))):
        assert torch.equal(batch.inputs, batch.labels_N.float())
        assert torch.equal(batch.places_N, batch.labels_N)


def test_seeds_are_fixed_numbers_that_differ_by_every_part() -> None:
    seeds = {
        derive_seed("a", 1, "b"),
        derive_seed("a", "1", "b"),
        derive_seed("a", 1),
        derive_seed("c", 1, "b"),
    }
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeding_comes_undone() -> None:
    before = torch.random.get_rng_state()
    with seeded(4):
        first = torch.rand(3)
    with seeded(4):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seeding_touches_no_gpu_that_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each GPU of the machine it took some 500 MB, in every process, of a silo with device: cpu too."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_rng_state", lambda *_: pytest.fail("looked at a GPU"))
    with seeded(4):
        torch.rand(3)


def test_initial_state_is_the_same_on_every_machine_for_one_seed() -> None:
    job = make_job("cnn", norm="batch")
    first, second = initial_state(job), initial_state(job)
    assert all(array.dtype == np.float32 for array in first.values())
    assert all(np.array_equal(first[name], second[name]) for name in first)
    other = job.model_copy(update={"model": job.model.model_copy(update={"seed": 2})})
    assert not np.array_equal(initial_state(other)["model/head.weight"], first["model/head.weight"])


def test_custom_model_brings_its_own_state() -> None:
    job = make_job()
    custom = job.model_copy(update={"model": job.model.model_copy(update={"name": "custom"})})
    with pytest.raises(ConfigError, match=r"model\.name: the built-in training has .* got custom"):
        initial_state(custom)
