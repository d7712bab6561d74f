"""MOON: towards the received model's features, away from those of the silo's own last model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from crypto.errors import ConfigError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.passes import Outputs
from silo_agent.training.base.setting import Setting, kept_model
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import LocalState, Work
from silo_agent.training.parts.regularizers.moon import PREVIOUS, ModelContrast, both_models
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import MODEL
from tests.support.objectives import CPU, make_job, make_work
from tests.support.simulation import Simulated, simulate
from tests.support.small_methods import built_model, clustered

CLASSES, WIDTH = 3, 4
FIELDS = {"classes": CLASSES, "input_shape": (WIDTH,), "model": {"name": "mlp", "hidden": (5,), "seed": 2}}
MOON = {"preset": "moon", "options": {"mu": 5.0}}


def data_of(place: int) -> SiloData:
    return clustered(np.random.default_rng(place), np.resize([place % CLASSES, (place + 1) % CLASSES], 40))


def outputs(features: list[list[float]]) -> Outputs:
    tensor = torch.tensor(features, dtype=torch.float64)
    return Outputs(features_ND=tensor, logits_NC=tensor.new_empty((len(tensor), 0)))


def test_term_is_the_papers_on_numbers_by_hand() -> None:
    """cos(z, z_g) = 0.6 and cos(z, z_p) = 0.8, whatever the lengths; tau = 0.5."""
    teacher = outputs([[0.8 - 0.6, 0.6 - 0.8]])
    found = ModelContrast(tau=0.5).per_sample(outputs([[2.0, 0.0]]), teacher, torch.tensor([0]))
    near, like = math.exp(0.6 / 0.5), math.exp(0.8 / 0.5)
    assert float(found) == pytest.approx(-math.log(near / (near + like)), abs=1e-12)


def test_without_a_model_of_its_own_a_silo_trains_as_fedavg() -> None:
    plain = TorchObjective(device="cpu").compute(make_work(make_job(**FIELDS), data_of(0)))
    moon = TorchObjective(device="cpu").compute(make_work(make_job(MOON, **FIELDS), data_of(0)))
    np.testing.assert_allclose(moon["delta"], plain["delta"], atol=1e-7)


def trained(rounds: int) -> list[Simulated]:
    job = make_job(MOON, rounds=rounds, **FIELDS)
    steps = simulate(job, [data_of(place) for place in range(4)])
    return [step for step in steps if step.phase == "train"]


def test_silo_keeps_the_model_that_it_sent() -> None:
    first, second = trained(2)
    for place in range(4):
        sent_P = second.values[place]["delta"] / np.float32(0.25)
        before = first.state
        names = sorted(name.removeprefix(MODEL) for name in before if name.startswith(MODEL))
        kept_P = np.concatenate([second.local[place][PREVIOUS + name].ravel() for name in names])
        came_P = np.concatenate([before[MODEL + name].ravel() for name in names])
        np.testing.assert_allclose(kept_P, came_P + sent_P, atol=1e-5)


def with_previous(work: Work, seed: int) -> Work:
    other = initial_state(
        make_job(MOON, **{**FIELDS, "model": {"name": "mlp", "hidden": (5,), "seed": seed}})
    )
    kept = {PREVIOUS + name.removeprefix(MODEL): array for name, array in other.items()}
    return replace(work, local=LocalState(kept))


def setting_of(work: Work) -> Setting:
    spec = work.spec
    model = built_model(spec, work.state)
    return Setting(work=work, received=model, device=CPU)


def test_own_last_model_changes_what_a_silo_trains() -> None:
    work = make_work(make_job(MOON, **FIELDS), data_of(0))
    without = TorchObjective(device="cpu").compute(work)["delta"]
    with_own = TorchObjective(device="cpu").compute(with_previous(work, 9))["delta"]
    assert np.abs(with_own - without).max() > 1e-3


def test_teacher_points_from_the_received_models_features_to_the_own_last_ones() -> None:
    work = with_previous(make_work(make_job(MOON, **FIELDS), data_of(0)), 9)
    setting = setting_of(work)
    samples = Tensors.of(work.data.train, CPU)
    with torch.no_grad():
        teacher = both_models(setting)(samples.features)
        last = kept_model(setting, PREVIOUS)
        assert last is not None
        own_ND, received_ND = (
            normalize(each.features(samples.features), dim=1) for each in (last, setting.received)
        )
    assert not teacher.features_ND.requires_grad
    torch.testing.assert_close(teacher.features_ND, own_ND - received_ND)
    assert teacher.features_ND.abs().max() > 0.1


def test_kept_model_of_another_shape_is_refused() -> None:
    work = make_work(make_job(MOON, **FIELDS), data_of(0))
    odd = replace(work, local=LocalState({PREVIOUS + "head.weight": np.zeros((2, 2), np.float32)}))
    with pytest.raises(ConfigError, match="local state: method/previous/ is not of this job's model"):
        both_models(setting_of(odd))


def test_nothing_is_summed_that_fedavg_does_not_sum() -> None:
    assert make_job(MOON).quantity_names == make_job().quantity_names
