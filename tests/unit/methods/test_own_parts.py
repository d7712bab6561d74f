"""FedPer, FedRep, Ditto, Per-FedAvg: what is each silo's own stays there, and how good it is is summed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from silo_agent.training.base.batches import Batch, Tensors
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import SiloData
from silo_agent.training.loop.local_training import train_locally
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import LocalState, PersonalModel, Work
from silo_agent.training.parts.personalization.adapted_model import adapted_model, write_gradient
from silo_agent.training.parts.personalization.own_model import OWN_MODEL
from silo_agent.training.parts.personalization.own_part import KEPT
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import MODEL
from tests.support.objectives import CPU, make_job, make_work, task_loss
from tests.support.simulation import Simulated, simulate
from tests.support.small_methods import built_model, clustered

CLASSES, WIDTH = 3, 4
FIELDS = {"classes": CLASSES, "input_shape": (WIDTH,), "model": {"name": "mlp", "hidden": (8,), "seed": 2}}
OWN = ("fedper", "fedrep", "ditto", "per_fedavg")


def data_of(place: int) -> SiloData:
    """The silos do not agree on which cluster is which class, so no one head serves them all."""
    clusters = np.resize(np.arange(CLASSES), 60)
    named = (clusters + place) % CLASSES
    return clustered(np.random.default_rng(place), clusters, apart=2.0, named=named)


def job_of(preset: str, *, rounds: int = 4, **options: float) -> Any:
    return make_job({"preset": preset, "options": options}, rounds=rounds, **FIELDS)


def run(preset: str, **fields: Any) -> list[Simulated]:
    return list(simulate(job_of(preset, **fields), [data_of(place) for place in range(4)]))


def work_of(preset: str, **options: float) -> Work:
    return make_work(job_of(preset, **options), data_of(0))


@pytest.mark.parametrize("preset", OWN[:3])
def test_own_models_serve_silos_that_disagree_where_the_global_one_cannot(preset: str) -> None:
    last = run(preset, rounds=6)[-1]
    assert last.phase == "evaluate"
    assert last.figures["personal_accuracy"] > 0.9 > 0.7 > last.figures["accuracy"]


@pytest.mark.parametrize("preset", ["fedper", "fedrep"])
def test_own_head_is_in_no_sum_and_in_no_next_state(preset: str) -> None:
    steps = [step for step in run(preset, rounds=2) if step.phase == "train"]
    start = initial_state(job_of(preset))
    heads = [name for name in start if name.startswith("model/head.")]
    body = sum(start[name].size for name in start if name.startswith(MODEL) and name not in heads)
    for step in steps:
        assert all(np.array_equal(step.state[name], start[name]) for name in heads)
        assert [values["delta"].size for values in step.values] == [body] * 4
        assert all(sorted(kept) == [KEPT + "head.bias", KEPT + "head.weight"] for kept in step.local)
    own = [kept[KEPT + "head.weight"] for kept in steps[-1].local]
    assert all(not np.array_equal(own[0], other) for other in own[1:])


def test_fedper_with_the_received_head_is_a_round_of_fedavg() -> None:
    """The first round: body and head move as they would together; only the body is sent."""
    fedper, fedavg = work_of("fedper"), make_work(make_job(rounds=4, **FIELDS), data_of(0))
    body_P = TorchObjective(device="cpu").compute(fedper)["delta"]
    together_P = TorchObjective(device="cpu").compute(fedavg)["delta"]
    assert np.array_equal(body_P, together_P[: body_P.size])
    assert fedper.local.proposed is not None
    head = fedper.local.proposed[KEPT + "head.bias"] - fedper.state["model/head.bias"]
    np.testing.assert_allclose(0.25 * head, together_P[body_P.size :][: head.size], atol=1e-7)


def test_fedrep_trains_the_head_on_the_received_body_and_then_the_body_alone() -> None:
    short, long = work_of("fedrep", head_epochs=1), work_of("fedrep", head_epochs=20)
    deltas = [TorchObjective(device="cpu").compute(work)["delta"] for work in (short, long)]
    assert not np.array_equal(*deltas)  # the body is trained under the head that was trained before it
    heads = []
    for work in (short, long):
        no_body = replace(
            work,
            spec=make_job(
                {"preset": "fedrep", "options": dict(work.spec.method.options)},
                training={"learning_rate": 0.1, "local_epochs": 1},
                **FIELDS,
            ),
            local=LocalState(),
        )
        TorchObjective(device="cpu").compute(no_body)
        assert no_body.local.proposed is not None
        assert work.local.proposed is not None
        heads.append(work.local.proposed[KEPT + "head.weight"])
        # how long the body is trained does not move the head
        assert np.array_equal(no_body.local.proposed[KEPT + "head.weight"], heads[-1])
    assert not np.array_equal(*heads)


def test_fedrep_trains_one_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[int, set[str]]] = []

    def watched(model: FederatedModel, *arguments: Any, **named: Any) -> int:
        parts = {name.split(".")[0] for name, each in model.named_parameters() if each.requires_grad}
        trained.append((named["spec"].training.local_epochs, parts))
        return train_locally(model, *arguments, **named)

    monkeypatch.setattr("silo_agent.training.loop.local_training.train_locally", watched)
    TorchObjective(device="cpu").compute(work_of("fedrep", head_epochs=7))
    assert trained == [(7, {"head"}), (2, {"body"})]


def test_dittos_global_track_is_fedavg_to_the_last_bit() -> None:
    ditto = [step for step in run("ditto", rounds=3) if step.phase == "train"]
    plain = simulate(make_job(rounds=3, **FIELDS), [data_of(place) for place in range(4)])
    fedavg = [step for step in plain if step.phase == "train"]
    for ours, theirs in zip(ditto, fedavg, strict=True):
        assert all(np.array_equal(ours.state[name], array) for name, array in theirs.state.items())


def test_dittos_own_model_is_held_nearer_the_more_it_is_pulled() -> None:
    distances = []
    for pull in (0.0, 1.0, 8.0):
        work = work_of("ditto", personal_pull=pull)
        TorchObjective(device="cpu").compute(work)
        assert work.local.proposed is not None
        kept = work.local.proposed
        distances.append(
            sum(
                float(np.square(kept[OWN_MODEL + name.removeprefix(MODEL)] - array).sum())
                for name, array in work.state.items()
                if name.startswith(MODEL)
            )
        )
    assert distances[0] > 1.2 * distances[1] > 1.2 * distances[2] > 0


def test_dittos_own_model_goes_on_from_where_it_was() -> None:
    first = work_of("ditto")
    TorchObjective(device="cpu").compute(first)
    again = replace(first, local=LocalState(first.local.proposed))
    TorchObjective(device="cpu").compute(again)
    name = OWN_MODEL + "head.weight"
    assert first.local.proposed is not None
    assert again.local.proposed is not None
    assert not np.array_equal(first.local.proposed[name], again.local.proposed[name])


def test_gradient_of_per_fedavg_is_that_of_the_outer_batch_after_the_inner_step() -> None:
    rate, work = 0.5, work_of("per_fedavg")
    model = built_model(work.spec, work.state).double()
    generator = torch.Generator().manual_seed(1)
    places_N = torch.arange(6)
    inner, outer = (
        Batch(
            inputs=torch.randn(6, WIDTH, generator=generator, dtype=torch.float64),
            labels_N=places_N % CLASSES,
            places_N=places_N,
            count=6,
        )
        for _ in range(2)
    )
    start = {name: value.detach().clone() for name, value in model.named_parameters()}

    def gradient_at(values: dict[str, torch.Tensor], batch: Batch) -> Any:
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        scores = torch.func.functional_call(model, leaves, (batch.inputs,))
        loss = torch.nn.functional.cross_entropy(scores, batch.labels_N)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    at_start = gradient_at(start, inner)
    stepped = {name: value - rate * at_start[name] for name, value in start.items()}
    expected = gradient_at(stepped, outer)
    write_gradient(model, task_loss(), inner, outer, rate=rate)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-12, atol=1e-14)
        assert torch.equal(parameter, start[name])


def test_adapted_model_is_one_step_of_the_whole_gradient() -> None:
    rate = 0.3
    work = work_of("per_fedavg", inner_rate=rate)
    setting = Setting(work=work, received=built_model(work.spec, work.state), device=CPU)
    samples = Tensors.of(work.data.train, CPU)
    loss = torch.nn.functional.cross_entropy(setting.received(samples.features), samples.labels)
    parameters = dict(setting.received.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    adapted = dict(adapted_model(setting, samples, task_loss()).named_parameters())
    for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
        torch.testing.assert_close(adapted[name], value - rate * gradient)


@pytest.mark.parametrize("preset", OWN)
def test_own_model_of_the_last_evaluation_stays_with_the_institution(preset: str) -> None:
    train = work_of(preset)
    TorchObjective(device="cpu").compute(train)
    kept: list[PersonalModel] = []
    last = make_work(train.spec, data_of(0), state=dict(train.state), kind="evaluate", round=4)
    last = replace(last, local=LocalState(train.local.proposed), keep_personal=kept.append)
    values = TorchObjective(device="cpu").compute(last)
    (model,) = kept
    assert float(values["personal_accuracy"]) == round(model.score, 2)
    assert sorted(model.arrays) == sorted(name for name in train.state if name.startswith(MODEL))
    assert any(not np.array_equal(array, train.state[name]) for name, array in model.arrays.items())


@pytest.mark.parametrize("preset", [*OWN, "scaffold"])
@pytest.mark.parametrize("way", ["records", "sums"])
def test_private_job_refuses_it_by_name(preset: str, way: str) -> None:
    protected = {"records": {"clip_norm": 1.0, "sample_rate": 0.1}, "sums": {"clip_norm": 1.0}}[way]
    with pytest.raises(
        ValueError, match=rf"strategy\.(personalization|server_update): .* \(privacy\.{way}\)"
    ):
        make_job({"preset": preset}, privacy={"epsilon": 8.0, way: protected}, **FIELDS)
