"""FedBN: batch normalization is each silo's own and in no sum; all else is averaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from chorale.spec.state import buffer_names, trained_names
from crypto.errors import ConfigError
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import LocalState
from silo_agent.training.parts.personalization.own_part import KEPT
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import MODEL
from tests.support.objectives import LocalRound, make_data, make_job, make_model, make_setting, make_work
from tests.support.simulation import Simulated, simulate
from tests.support.small_methods import built_model, clustered

SILOS, SAMPLES, WIDTH, HIDDEN, CLASSES = 4, 24, 4, 8, 3
RATE, EPS, MOMENTUM = 0.1, 1e-5, 0.1  # of the training; of torch's BatchNorm
FIELDS: dict[str, Any] = {
    "classes": CLASSES,
    "input_shape": (WIDTH,),
    "model": {"name": "mlp", "hidden": (HIDDEN,), "seed": 2},
    "training": {"learning_rate": RATE, "local_epochs": 1, "batch_size": SAMPLES, "momentum": 0.0},
}
Arrays = dict[str, NDArray[np.float64]]


def data_of(place: int) -> SiloData:
    """Each silo's features have a scale and a shift of their own."""
    rng, labels_N = np.random.default_rng(place), np.resize(np.arange(CLASSES), SAMPLES)
    plain_NW = 3.0 * np.eye(CLASSES, WIDTH)[labels_N] + rng.normal(size=(SAMPLES, WIDTH))
    return make_data((1.0 + 2.0 * place) * plain_NW + 5.0 * place, labels_N)


def job_of(**fields: Any) -> JobSpec:
    return make_job({"preset": "fedbn"}, **{"rounds": 2, **FIELDS, **fields})


def rounds_of(spec: JobSpec) -> list[Simulated]:
    steps = simulate(spec, [data_of(place) for place in range(SILOS)])
    return [step for step in steps if step.phase == "train"]


def one_step(model: Arrays, x_NW: Any, labels_N: Any) -> tuple[Arrays, Arrays]:
    """A step of gradient descent on cross-entropy over all samples: Linear, BatchNorm, ReLU, Linear. Returns
    what moved of the parameters, and the running means after it."""
    n = len(x_NW)
    a_NH = x_NW @ model["body.1.weight"].T + model["body.1.bias"]
    mean_H, var_H = a_NH.mean(0), a_NH.var(0)
    unit_NH = (a_NH - mean_H) / np.sqrt(var_H + EPS)
    b_NH = model["body.2.weight"] * unit_NH + model["body.2.bias"]
    h_NH = np.maximum(b_NH, 0.0)
    z_NC = h_NH @ model["head.weight"].T + model["head.bias"]
    p_NC = np.exp(z_NC - z_NC.max(1, keepdims=True))
    p_NC /= p_NC.sum(1, keepdims=True)
    dz_NC = (p_NC - np.eye(CLASSES)[labels_N]) / n
    db_NH = (dz_NC @ model["head.weight"]) * (b_NH > 0)
    du_NH = db_NH * model["body.2.weight"]
    da_NH = (du_NH - du_NH.mean(0) - unit_NH * (du_NH * unit_NH).mean(0)) / np.sqrt(var_H + EPS)
    gradients = {
        "body.1.weight": da_NH.T @ x_NW,
        "body.1.bias": da_NH.sum(0),
        "body.2.weight": (db_NH * unit_NH).sum(0),
        "body.2.bias": db_NH.sum(0),
        "head.weight": dz_NC.T @ h_NH,
        "head.bias": dz_NC.sum(0),
    }
    running = {
        "body.2.running_mean": (1 - MOMENTUM) * model["body.2.running_mean"] + MOMENTUM * mean_H,
        "body.2.running_var": (1 - MOMENTUM) * model["body.2.running_var"] + MOMENTUM * var_H * n / (n - 1),
    }
    return {name: -RATE * gradient for name, gradient in gradients.items()}, running


def test_a_silos_step_is_that_of_numpy_within_rounding() -> None:
    spec = job_of()
    body = built_model(spec, initial_state(spec)).body
    plain = make_job(**FIELDS)  # of one silo alone it is a step of FedAvg
    model = make_model(plain, body, width=HIDDEN)
    before = {name: array.double().numpy().copy() for name, array in model.state_dict().items()}
    samples = data_of(1).train
    LocalRound(make_setting(plain, model, data_of(1))).train()
    change, running = one_step(before, np.asarray(samples.features, np.float64), samples.labels)
    after = {name: array.double().numpy() for name, array in model.state_dict().items()}
    for name, step in change.items():
        np.testing.assert_allclose(after[name] - before[name], step, rtol=0, atol=1e-12)
    for name, array in running.items():
        np.testing.assert_allclose(after[name], array, rtol=0, atol=1e-12 * np.abs(array).max())


def test_rounds_are_those_of_the_paper_written_in_numpy() -> None:
    """Algorithm 1: every silo goes on from its own normalization; the rest is the weighted mean."""
    spec = job_of()
    start = initial_state(spec)
    shared = {name.removeprefix(MODEL): array.astype(np.float64) for name, array in start.items()}
    own = {name for name in shared if name.startswith("body.2.")}
    kept: list[Arrays] = [{name: shared[name] for name in own} for _ in range(SILOS)]
    for step in rounds_of(spec):
        moved: list[Arrays] = []
        for place in range(SILOS):
            samples = data_of(place).train
            before = {**shared, **kept[place]}
            change, running = one_step(before, np.asarray(samples.features, np.float64), samples.labels)
            kept[place] = {name: before[name] + change.get(name, 0.0) for name in own} | running
            moved.append(change)
        for name in shared.keys() - own:
            shared[name] = shared[name] + sum(change[name] for change in moved) / SILOS
        for name in own:
            assert np.array_equal(step.state[MODEL + name], start[MODEL + name])
        for place in range(SILOS):
            for name, array in kept[place].items():
                np.testing.assert_allclose(step.local[place][KEPT + name], array, rtol=1e-4, atol=1e-4)
        for name in shared.keys() - own:
            np.testing.assert_allclose(step.state[MODEL + name], shared[name], atol=1e-5)


def test_what_is_summed_is_fedavgs_without_the_normalization() -> None:
    """The first round, in float64: the sum's vector is cut from FedAvg's, to 1e-12."""
    fedbn, fedavg = job_of(), make_job(rounds=2, **{**FIELDS, "model": {**FIELDS["model"], "norm": "batch"}})
    names = trained_names(initial_state(fedbn))
    sizes = [initial_state(fedbn)[MODEL + name].size for name in names]
    for place in range(SILOS):
        values = TorchObjective(device="cpu").compute(make_work(fedbn, data_of(place)))
        whole = TorchObjective(device="cpu").compute(make_work(fedavg, data_of(place)))
        cuts = np.split(np.asarray(whole["delta"], np.float64), np.cumsum(sizes)[:-1])
        rest = [cut for name, cut in zip(names, cuts, strict=True) if not name.startswith("body.2.")]
        np.testing.assert_allclose(values["delta"], np.concatenate(rest), rtol=0, atol=1e-12)
        assert "buffers" in whole
        assert "buffers" not in values


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_no_array_of_a_normalization_is_in_a_sum(name: str) -> None:
    spec = job_of(model={"name": name}, input_shape=(3, 16, 16), rounds=1)
    assert spec.model.norm == "batch"
    state = initial_state(spec)
    data = clustered(np.random.default_rng(1), np.resize([0, 1, 2], 8), width=3 * 256)
    data = make_data(np.resize(data.train.features, (8, 3, 16, 16)), data.train.labels)
    work = make_work(spec, data, state=state)
    own = spec.method.own(trained_names(state), buffer_names(state))
    model = TorchObjective(device="cpu")._built_model(spec)
    norms = {
        f"{layer}.{parameter}"
        for layer, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        for parameter in ("weight", "bias", "running_mean", "running_var")
    }
    assert own == norms
    assert not norms & {*work.context.trained, *work.context.buffers}
    assert {*trained_names(state), *buffer_names(state)} == norms | set(work.context.trained)
    values = TorchObjective(device="cpu").compute(work)
    assert values["delta"].size == sum(state[MODEL + name].size for name in work.context.trained)
    assert work.local.proposed is not None
    assert {name.removeprefix(KEPT) for name in work.local.proposed} == norms


def test_own_models_serve_silos_of_other_scales_where_the_global_one_cannot() -> None:
    last = list(simulate(job_of(rounds=8), [data_of(place) for place in range(SILOS)]))[-1]
    assert last.figures["personal_accuracy"] > last.figures["accuracy"] + 0.1


def test_a_built_in_network_gets_batch_normalization_where_none_is_named() -> None:
    assert "norm: batch\n" in job_of().to_yaml().decode()
    with pytest.raises(ValueError, match=r"model\.norm: expected batch with personalization normalization"):
        job_of(model={**FIELDS["model"], "norm": "group"})


def test_a_model_without_running_means_is_refused_in_one_sentence() -> None:
    spec = job_of()
    state = {name: array for name, array in initial_state(spec).items() if "running" not in name}
    with pytest.raises(ConfigError, match="keeps batch normalization at the silo, and the model has none"):
        make_work(spec, data_of(0), state=state)


def test_a_silo_that_sat_out_goes_on_from_its_own_normalization() -> None:
    spec = job_of()
    first = make_work(spec, data_of(3))
    TorchObjective(device="cpu").compute(first)
    assert first.local.proposed is not None
    later = make_work(spec, data_of(3), round=2)
    object.__setattr__(later, "local", LocalState(first.local.proposed))
    TorchObjective(device="cpu").compute(later)
    assert later.local.proposed is not None
    name = KEPT + "body.2.running_mean"
    twice, once = later.local.proposed[name], first.local.proposed[name]
    assert np.abs(twice).sum() > 1.5 * np.abs(once).sum()  # 1 - 0.9^2 of the batch's means after 1 - 0.9
