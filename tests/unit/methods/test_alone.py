"""Silos that train alone, and LG-FedAvg: what is a silo's own is trained there and leaves in no sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.data.base import SiloData
from silo_agent.training.loop.local_training import train_locally
from silo_agent.training.machine.seeding import shuffler, training_seed
from silo_agent.training.machine.settings import MemoryFormat, Precision
from silo_agent.training.models.forms import Forms
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import model_arrays
from silo_agent.training.objective import PersonalModel
from silo_agent.training.parts.personalization.own_part import KEPT
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import MODEL
from tests.support.objectives import CPU, make_job, make_work, task_loss
from tests.support.simulation import Simulated, simulate
from tests.support.small_methods import built_model, clustered

CLASSES, WIDTH = 3, 4
NORMED = {"name": "mlp", "hidden": (8,), "norm": "batch", "seed": 2}
FIELDS: dict[str, Any] = {"classes": CLASSES, "input_shape": (WIDTH,), "model": NORMED}


def data_of(place: int) -> SiloData:
    """The silos do not agree on which cluster is which class, so no one head serves them all."""
    clusters = np.resize(np.arange(CLASSES), 60)
    named = (clusters + place) % CLASSES
    return clustered(np.random.default_rng(place), clusters, apart=2.0, named=named)


def job_of(preset: str, *, rounds: int = 3, **fields: Any) -> Any:
    return make_job({"preset": preset}, rounds=rounds, **{**FIELDS, **fields})


def run(preset: str, *, rounds: int = 3) -> list[Simulated]:
    return list(simulate(job_of(preset, rounds=rounds), [data_of(place) for place in range(4)]))


def test_silo_alone_ends_with_the_model_that_it_trains_without_a_federation() -> None:
    """As many rounds of the same batches, one after the other, to the last bit."""
    spec, samples = job_of("local_only"), Tensors.of(data_of(0).train, CPU)
    model = built_model(spec, initial_state(spec))
    for round in range(1, spec.rounds + 1):
        seed = training_seed(job_seed=spec.seed, silo="silo-0", round=round)
        train_locally(
            model,
            samples,
            spec=spec,
            round=round,
            loss=LocalLoss(loss=task_loss(CLASSES)),
            generator=shuffler(seed),
            is_cancelled=lambda: False,
        )
    kept = [step for step in run("local_only") if step.phase == "train"][-1].local[0]
    expected = model_arrays(model)
    assert sorted(kept) == sorted(KEPT + name.removeprefix(MODEL) for name in expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(kept[KEPT + name.removeprefix(MODEL)], array)


@pytest.mark.parametrize("preset", ["local_only", "fedproto"])
def test_agent_that_tries_number_types_first_trains_a_model_of_which_nothing_is_summed(preset: str) -> None:
    """The trial takes gradients of the received model: one of which nothing was trained failed, so every
    silo refused the first round."""
    forms = Forms(precision=Precision.AUTO, memory_format=MemoryFormat.AUTO)
    work = make_work(job_of(preset), data_of(0))
    TorchObjective(device="cpu", forms=forms).compute(work)
    assert work.local.proposed is not None


@pytest.mark.parametrize(("preset", "tells"), [("local_only", False), ("fedavg", True)])
def test_rounds_of_silos_alone_tell_nothing_of_the_data(preset: str, tells: bool) -> None:
    """An operator may take the same sum over other silos as often as it likes: it learns how many samples."""
    spec = job_of(preset)
    one, other = (TorchObjective(device="cpu").compute(make_work(spec, data_of(place))) for place in (0, 1))
    assert sorted(one) == sorted(other)
    assert any(not np.array_equal(one[name], other[name]) for name in one) == tells
    assert spec.method.reads_state("train") == tells
    assert spec.method.reads_state("evaluate")
    if not tells:
        assert list(one) == ["weight"]


def test_model_of_the_global_state_never_moves_where_silos_train_alone() -> None:
    steps, start = run("local_only"), initial_state(job_of("local_only"))
    for step in steps[1:]:
        assert all(np.array_equal(step.state[name], array) for name, array in start.items())
    assert steps[-1].figures["personal_accuracy"] > 0.95
    own = [kept[KEPT + "head.weight"] for kept in steps[-1].local]
    assert all(not np.array_equal(own[0], other) for other in own[1:])


def test_lg_fedavg_sums_the_head_alone_and_keeps_body_and_running_means_at_home() -> None:
    steps = [step for step in run("lg_fedavg", rounds=8) if step.phase in ("train", "evaluate")]
    start = initial_state(job_of("lg_fedavg"))
    head = sum(array.size for name, array in start.items() if name.startswith("model/head."))
    for step in steps[:-1]:
        assert {values["delta"].size for values in step.values} == {head}
        assert not any("buffers" in values for values in step.values)
        for name, array in start.items():
            assert np.array_equal(step.state[name], array) != name.startswith("model/head."), name
        running = [kept[KEPT + "body.2.running_mean"] for kept in step.local]
        assert not np.array_equal(running[0], running[1])
    assert steps[-1].figures["personal_accuracy"] > 0.9 > 0.7 > steps[-1].figures["accuracy"]


def test_lg_fedavg_with_the_received_body_is_a_round_of_fedavg() -> None:
    """The first round: body and head move as they would together; only the head is sent."""
    plain = {"model": {"name": "mlp", "hidden": (8,), "seed": 2}}
    own, together = (make_work(job_of(preset, **plain), data_of(0)) for preset in ("lg_fedavg", "fedavg"))
    head_P = TorchObjective(device="cpu").compute(own)["delta"]
    assert np.array_equal(head_P, TorchObjective(device="cpu").compute(together)["delta"][-head_P.size :])


@pytest.mark.parametrize(
    ("preset", "has_figures"), [("local_only", False), ("fedproto", False), ("lg_fedavg", True)]
)
def test_model_that_nobody_trains_is_not_tested_at_the_end(preset: str, has_figures: bool) -> None:
    """Its accuracy would stand in reports as the method's; a silo keeps none beside its own model's."""
    kept: list[PersonalModel] = []
    work = replace(make_work(job_of(preset), data_of(0), kind="evaluate"), keep_personal=kept.append)
    sums = TorchObjective(device="cpu").compute(work)
    assert ({"correct", "tested", "loss_sum"} <= sums.keys()) == has_figures
    assert {"personal_accuracy", "personal_accuracy_square", "personal_silos"} <= sums.keys()
    assert (kept[0].score_before is not None) == has_figures
    figures = run(preset)[-1].figures
    assert ("accuracy" in figures) == has_figures
    assert figures["personal_silos"] == 4


def test_metrics_of_a_model_that_nobody_trains_are_refused() -> None:
    task = {"name": "classification", "metrics": ["confusion"]}
    with pytest.raises(ValueError, match=r"task\.metrics: with personalization alone the whole model is"):
        job_of("local_only", task=task)
    job_of("lg_fedavg", task=task)


@pytest.mark.parametrize("preset", ["local_only", "fedproto"])
def test_model_that_never_moves_is_not_tested_between_rounds(preset: str) -> None:
    """Every test of one model by other silos would tell more of single silos' answers."""
    with pytest.raises(ValueError, match="evaluate_all_every: with personalization alone"):
        job_of(preset, evaluate_all_every=1)
    job_of("lg_fedavg", evaluate_all_every=1)


def test_a_body_of_its_own_is_refused_where_the_head_is_all_that_is_trained() -> None:
    with pytest.raises(ValueError, match="trains: head is all that is trained, and personalization body"):
        job_of("lg_fedavg", trains="head")


@pytest.mark.parametrize("preset", ["local_only", "fedproto"])
@pytest.mark.parametrize("field", ["keep", "stop"])
def test_rules_by_a_figure_that_no_round_measures_are_refused(preset: str, field: str) -> None:
    rule = {"metric": "loss", "best": "lowest"} | ({"rounds": 1} if field == "stop" else {})
    with pytest.raises(
        ValueError, match=f"{field}: where the whole model is each silo's own no round measures"
    ):
        job_of(preset, **{field: rule})
    job_of("lg_fedavg", **{field: rule})


def test_a_frozen_head_stays_as_it_is_at_a_silo_alone() -> None:
    parts = {"head": "frozen-etf", "loss": "client-adapted", "personalization": "alone"}
    spec = make_job({"parts": parts}, rounds=1, **FIELDS)
    work = make_work(spec, data_of(0))
    TorchObjective(device="cpu").compute(work)
    assert work.local.proposed is not None
    kept = {name.removeprefix(KEPT): array for name, array in work.local.proposed.items()}
    assert "head.weight" not in kept  # it is the global state's
    assert not torch.equal(
        torch.tensor(kept["body.1.weight"]), torch.tensor(work.state["model/body.1.weight"])
    )
