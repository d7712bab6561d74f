"""FedCSD's teacher: how it follows the global models, and how a silo asks it.

N = samples, C = classes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from chorale.observability import logs
from crypto.errors import RemoteProtocolError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.setting import Setting
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import Work
from silo_agent.training.parts.regularizers.csd import teacher_answers
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array, PhaseContext
from strategies.methods import strategy_for
from strategies.parts.csd import EmaTeacher, teacher_state
from tests.support.objectives import CPU, make_data, make_job, make_work
from tests.support.small_methods import built_model, make_context

ALL = np.ones(10, dtype=np.bool_)


def context(state: dict[str, Array], alpha: float) -> PhaseContext:
    return make_context(state, trained=("a",), buffers=("n.running_var",), options={"alpha": alpha})


def states_of(values: list[float], alpha: float) -> Iterator[dict[str, Array]]:
    """The global state after each round, when the global model takes these values in turn."""
    state = state_of(values[0])
    for value in values[1:]:
        state |= EmaTeacher().arrays(context(state, alpha), state_of(value))
        state |= state_of(value)
        yield dict(state)


def state_of(value: float) -> dict[str, Array]:
    return {
        "model/a": np.full(2, value, dtype=np.float32),
        "model/n.running_var": np.full(1, 2 * value, dtype=np.float32),
        "model/head.weight": np.full(1, 7.0, dtype=np.float32),  # frozen
        "method/total": np.array(400, dtype=np.int64),
    }


def teachers_of(values: list[float], alpha: float) -> list[float]:
    return [float(teacher_state(state)["model/a"][0]) for state in states_of(values, alpha)]


# the server's side


def test_w5_the_teacher_is_the_moving_mean() -> None:
    assert teachers_of([1.0, 2.0, 4.0, -2.0], 0.9) == pytest.approx([1.1, 1.39, 1.051], rel=1e-6)


def test_n14_one_step_from_a_mean_model() -> None:
    assert teachers_of([1.0, 0.2], 0.9) == pytest.approx([0.92], rel=1e-6)


def test_n2_alpha_zero_is_the_global_model_and_alpha_one_the_first() -> None:
    values = [1.0, 2.0, 4.0, -2.0]
    assert teachers_of(values, 0.0) == values[1:]
    assert teachers_of(values, 1.0) == [1.0, 1.0, 1.0]


def test_n3_closed_form_and_how_long_the_initial_weights_last() -> None:
    values = [1.0, *[0.0] * 50]
    teachers = teachers_of(values, 0.9)
    assert teachers[9] == pytest.approx(0.349, abs=5e-4)
    assert teachers[49] == pytest.approx(0.005, abs=5e-4)
    generator = np.random.Generator(np.random.PCG64(3))
    values = list(generator.standard_normal(12))
    got = teachers_of(values, 0.8)
    for t in range(1, 12):
        weights = [0.8**t, *(0.2 * 0.8 ** (t - s) for s in range(1, t + 1))]
        assert got[t - 1] == pytest.approx(np.dot(weights, values[: t + 1]), abs=1e-6)


def test_the_teacher_keeps_trained_parameters_and_float_buffers_and_no_frozen_head() -> None:
    (state,) = states_of([1.0, 2.0], 0.9)
    kept = {name: array for name, array in state.items() if name.startswith("method/teacher/")}
    assert kept.keys() == {"method/teacher/a", "method/teacher/n.running_var"}
    assert {array.dtype for array in kept.values()} == {np.dtype(np.float32)}
    assert kept["method/teacher/n.running_var"] == pytest.approx([2.2], rel=1e-6)
    assert teacher_state(state)["model/head.weight"] == [7.0]


def test_round_0_has_the_global_model_as_its_teacher() -> None:
    state = state_of(1.0)
    assert teacher_state(state) == {name: state[name] for name in state if name.startswith("model/")}


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_the_teacher_moves_with_applied_rounds_alone(weight: float) -> None:
    fedcsd = strategy_for("fedcsd", {})
    state = state_of(1.0)
    of = dataclasses.replace(context(state, 0.9), min_weight=0.5)
    sums: dict[str, Array] = {name: np.zeros(()) for name in ("correct", "tested", "loss_sum", "clipped")}
    sums |= {"delta": np.ones(2), "buffers": np.ones(1), "weight": np.array(weight)}
    assert fedcsd.phase("train").next_state(of, sums).state is None
    applied = fedcsd.phase("train").next_state(of, {**sums, "weight": np.array(1.0)}).state
    assert applied is not None
    np.testing.assert_allclose(applied["model/a"], 2.0)
    np.testing.assert_allclose(applied["method/teacher/a"], 1.1, rtol=1e-6)
    assert "method/teacher/head.weight" not in applied


# the silo's side


def fedcsd_work(*, kind: str = "train", mu: float = 0.5, preset: str = "fedcsd", **fields: Any) -> Work:
    generator = np.random.Generator(np.random.PCG64(5))
    options = {"mu": mu, "tau": 4.0} if preset == "fedcsd" else {}
    job = make_job({"preset": preset, "options": options}, **fields)
    labels = generator.integers(job.classes, size=40)
    data = make_data(generator.standard_normal((40, 1, 8, 8)), labels)
    work = make_work(job, data, kind=kind)
    prototypes = {"method/prototypes": generator.standard_normal((10, 10))}
    return dataclasses.replace(work, state={**work.state, **prototypes}, class_rows=ALL)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_n1_without_weight_fedcsd_is_fedavg_bit_for_bit(norm: str) -> None:
    """The teacher draws no random number and leaves BatchNorm's running means alone."""
    model = {"name": "cnn", "norm": norm, "seed": 1}
    silo = TorchObjective(device="cpu")
    silo.compute(fedcsd_work(mu=0.0, model=model, kind="prototypes"))
    got = silo.compute(fedcsd_work(mu=0.0, model=model))
    expected = TorchObjective(device="cpu").compute(fedcsd_work(preset="fedavg", model=model))
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)
    weighed = silo.compute(fedcsd_work(mu=0.5, model=model))
    assert np.abs(weighed["delta"] - expected["delta"]).max() > 0


def test_the_teacher_is_in_eval_mode_and_stays_as_it_is() -> None:
    """A BatchNorm layer in training mode would answer by the batch, and learn from it."""
    work = fedcsd_work(model={"name": "cnn", "norm": "batch", "seed": 1})
    received = built_model(work.spec, work.state).train()
    before = {name: tensor.clone() for name, tensor in received.state_dict().items()}
    samples = Tensors.of(work.data.train, CPU)
    setting = Setting(work=work, received=received, device=CPU)
    got = teacher_answers(setting, samples).logits_NC
    by_batch = received(samples.features).detach()
    in_eval = received.eval()
    in_eval.load_state_dict(before)
    torch.testing.assert_close(got, in_eval(samples.features).detach())
    assert float((got - by_batch).abs().max()) > 1e-3
    assert not got.requires_grad
    for name, tensor in received.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_teacher_is_the_kept_one_not_the_received_model() -> None:
    work = fedcsd_work()
    teacher = {
        name.replace("model/", "method/teacher/"): 0.5 * array
        for name, array in initial_state(work.spec).items()
    }
    with_teacher = dataclasses.replace(work, state={**work.state, **teacher})
    samples = Tensors.of(work.data.train, CPU)
    setting = Setting(work=with_teacher, received=built_model(work.spec, work.state), device=CPU)
    halved = built_model(work.spec, work.state)
    with torch.no_grad():
        for parameter in halved.parameters():
            parameter.mul_(0.5)
    torch.testing.assert_close(teacher_answers(setting, samples).logits_NC, halved(samples.features).detach())


def test_a_teacher_of_another_model_is_refused() -> None:
    work = fedcsd_work()
    odd = {"method/teacher/head.weight": np.zeros((3, 3), dtype=np.float32)}
    setting = Setting(
        work=dataclasses.replace(work, state={**work.state, **odd}),
        received=built_model(work.spec, work.state),
        device=CPU,
    )
    with pytest.raises(RemoteProtocolError, match=r"head\.weight is float32 \(3, 3\)"):
        teacher_answers(setting, Tensors.of(work.data.train, CPU))


def test_n7_a_classifier_of_zeros_teaches_nothing() -> None:
    """Its logits are all equal, so no sample passes the mask, and training is FedAvg's."""
    work, plain = fedcsd_work(mu=5.0), fedcsd_work(preset="fedavg")
    zeros = {name: np.zeros_like(work.state[name]) for name in work.state if "head" in name}
    silo = TorchObjective(device="cpu")
    got, expected = (
        silo.compute(dataclasses.replace(one, state={**one.state, **zeros}))["delta"] for one in (work, plain)
    )
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("changes", [{"classes": 2}, {"training": {"batch_size": 1}}], ids=str)
def test_n15_two_classes_batches_of_one_and_a_single_class_train(changes: dict[str, Any]) -> None:
    work = fedcsd_work(**changes)
    classes = work.spec.classes
    work = dataclasses.replace(
        work,
        data=make_data(work.data.train.features, np.ones(40)),
        state={**work.state, "method/prototypes": np.eye(classes, k=1)},  # the last class has no row
        class_rows=np.ones(classes, dtype=np.bool_),
    )
    silo = TorchObjective(device="cpu")
    prototypes = silo.compute(dataclasses.replace(work, phase_kind="prototypes"))["prototypes"]
    assert np.flatnonzero(prototypes.any(axis=1)).tolist() == [1]
    assert all(np.isfinite(values).all() for values in silo.compute(work).values())


def test_the_log_says_what_share_of_the_round_the_statistics_took(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that ticks once a look: prototypes from 0 to 1, then training and its statistics."""
    ticks = itertools.count()
    monkeypatch.setattr("silo_agent.training.torch_objective.time.monotonic", lambda: float(next(ticks)))
    logs.configure()
    silo = TorchObjective(device="cpu")
    silo.compute(fedcsd_work(kind="prototypes"))
    silo.compute(fedcsd_work())
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    shares = [entry["share_of_round"] for entry in entries if entry["event"] == "statistics computed"]
    # 1 tick before training; of its 2 ticks the second is the statistics'
    assert shares == [pytest.approx(2 / 3, abs=1e-4)]
