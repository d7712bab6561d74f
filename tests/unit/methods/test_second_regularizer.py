"""Two regularizers in one job: each joins the loss with its own weight, and is asked about.

N = samples, I = inputs, D = feature width, C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from chorale.spec.job_spec import JobSpec
from crypto.errors import PolicyRefusal
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.base.passes import frozen_copy
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.starting import initial_state
from silo_agent.training.parts.regularizers import csd, moon
from silo_agent.training.parts.regularizers.moon import PREVIOUS
from strategies.base import METHOD, Array
from strategies.parts.statistics.soft_labels import KNOWN_ROWS, SOFT_LABELS
from tests.support.objectives import LocalRound, make_data, make_job, make_model, make_setting
from tests.support.simulation import simulate
from tests.support.small_methods import clustered

CLASSES, INPUTS, WIDTH, SAMPLES = 3, 5, 4, 12
RATE, MU, SECOND_MU, TAU = 0.3, 2.0, 5.0, 0.5
DRAW = np.random.default_rng(8)
FEATURES_NI = DRAW.normal(size=(SAMPLES, INPUTS)).astype(np.float32).astype(np.float64)
LABELS_N = np.resize(np.arange(CLASSES), SAMPLES)
BODY_DI, HEAD_CD = DRAW.normal(size=(WIDTH, INPUTS)), DRAW.normal(size=(CLASSES, WIDTH))
PREVIOUS_DI = DRAW.normal(size=(WIDTH, INPUTS))
OMEGA_CC = np.array([[6, 1, 1], [2, 5, 1], [1, 3, 4]]) / 8  # exact in float32
Floats = np.ndarray[Any, np.dtype[np.float64]]
UNBIASED = {"head": "trained-unbiased"}
MOON_DW = {
    "parts": {
        **UNBIASED,
        "regularizer": "moon",
        "second_regularizer": "soft-labels",
        "statistic": "soft-labels",
    },
    "options": {"mu": MU, "contrast_tau": TAU, "second_mu": SECOND_MU},
}


def softmax(rows_NC: Floats) -> Floats:
    powers_NC = np.exp(rows_NC)
    return np.asarray(powers_NC / powers_NC.sum(axis=1, keepdims=True))


def unit(rows_ND: Floats) -> Floats:
    return np.asarray(rows_ND / np.linalg.norm(rows_ND, axis=1, keepdims=True))


def relation_gradient(weight_CD: Floats) -> Floats:
    """Of FedDW's mean of (Omega - softmax of the rows of W W^T)^2."""
    relations_CC = softmax(weight_CD @ weight_CD.T)
    pull_CC = 2 * (relations_CC - OMEGA_CC) / OMEGA_CC.size
    pull_CC = relations_CC * (pull_CC - (pull_CC * relations_CC).sum(axis=1, keepdims=True))
    return np.asarray((pull_CC + pull_CC.T) @ weight_CD)


def reference(steps: int) -> tuple[Floats, Floats]:
    """Body and head after full-batch steps on CE + mu l_con + second_mu R, in numpy."""
    body_DI, head_CD = BODY_DI.copy(), HEAD_CD.copy()
    target_NC = np.eye(CLASSES)[LABELS_N]
    apart_ND = (unit(FEATURES_NI @ PREVIOUS_DI.T) - unit(FEATURES_NI @ BODY_DI.T)) / TAU
    for _ in range(steps):
        features_ND = FEATURES_NI @ body_DI.T
        error_NC = (softmax(features_ND @ head_CD.T) - target_NC) / SAMPLES
        own_ND = unit(features_ND)
        gap_N1 = (own_ND * apart_ND).sum(axis=1, keepdims=True)
        contrast_ND = (apart_ND - gap_N1 * own_ND) / np.linalg.norm(features_ND, axis=1, keepdims=True)
        contrast_ND = contrast_ND / (1 + np.exp(-gap_N1)) / SAMPLES
        into_body_ND = error_NC @ head_CD + MU * contrast_ND
        head_CD = head_CD - RATE * (error_NC.T @ features_ND + SECOND_MU * relation_gradient(head_CD))
        body_DI = body_DI - RATE * (into_body_ND.T @ FEATURES_NI)
    return body_DI, head_CD


def one_round(strategy: Mapping[str, Any], *, steps: int = 1) -> LocalRound:
    """In float64, at a silo that has a model of its own and a global state that has an Omega."""
    plan = {"learning_rate": RATE, "momentum": 0.0, "batch_size": 64, "local_epochs": steps}
    job = make_job(dict(strategy), classes=CLASSES, input_shape=(INPUTS,), training=plan)
    body = nn.Linear(INPUTS, WIDTH, bias=False)
    model = make_model(job, body, width=WIDTH, head_CD=HEAD_CD)
    with torch.no_grad():
        body.weight.copy_(torch.tensor(BODY_DI))
        if model.head.bias is not None:
            model.head.bias.zero_()
    setting = make_setting(job, model, make_data(FEATURES_NI, LABELS_N))
    state: dict[str, Array] = {
        SOFT_LABELS: OMEGA_CC,
        KNOWN_ROWS: np.ones(CLASSES, np.uint8),
        METHOD + "prototypes": np.eye(CLASSES),
    }
    state |= {f"model/{name}": each.detach().numpy().copy() for name, each in model.named_parameters()}
    return LocalRound(replace(setting, work=replace(setting.work, state=state)))


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept models are float32 files: MOON is given its last model, CSD's teacher stays the received one."""

    def previous(setting: Setting, prefix: str) -> FederatedModel:
        model = frozen_copy(setting.received)
        model.body.weight.copy_(torch.tensor(PREVIOUS_DI))
        return model

    monkeypatch.setattr(moon, "kept_model", previous)
    monkeypatch.setattr(csd, "load_arrays", lambda teacher, arrays: None)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("steps", [1, 2])
def test_moon_with_feddws_term_trains_as_the_reference(steps: int) -> None:
    one = one_round(MOON_DW, steps=steps)
    one.train()
    body_DI, head_CD = reference(steps)
    np.testing.assert_allclose(one.model.body.weight.detach().numpy(), body_DI, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.model.head.weight.detach().numpy(), head_CD, rtol=0, atol=1e-12)


def gradients(strategy: Mapping[str, Any]) -> Floats:
    """Of one step, away from the received model: there distances from it have none."""
    one = one_round(strategy)
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.add_(0.1 * torch.sign(parameter))
    before = [parameter.detach().clone() for parameter in one.model.parameters()]
    one.train()
    moved = [old - parameter.detach() for old, parameter in zip(before, one.model.parameters(), strict=True)]
    return np.concatenate([each.flatten().numpy() for each in moved]) / RATE


def alone(regularizer: str, weight: float) -> Floats:
    """What one regularizer by itself adds to FedAvg's gradient."""
    parts = {**UNBIASED, "regularizer": regularizer}
    options = {"mu": weight, **({"init_slm": "identity"} if regularizer == "soft-labels" else {})}
    return gradients({"parts": parts, "options": options}) - gradients({"parts": UNBIASED})


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("prox", "soft-labels"),
        ("prox", "csd"),
        ("csd", "prox"),
        ("moon", "csd"),
        ("kd", "fd"),
        ("moon", "ntd"),
    ],
)
def test_gradient_has_what_each_adds_alone_times_its_weight(first: str, second: str) -> None:
    """Two penalties of the weights, two with teachers of their own, and one of each."""
    parts = {**UNBIASED, "regularizer": first, "second_regularizer": second}
    options = {"mu": MU, "second_mu": SECOND_MU}
    if second == "soft-labels":
        options |= {"init_slm": "identity"}
    both = gradients({"parts": parts, "options": options}) - gradients({"parts": UNBIASED})
    assert min(np.abs(alone(first, MU)).max(), np.abs(alone(second, SECOND_MU)).max()) > 1e-3
    np.testing.assert_allclose(both, alone(first, MU) + alone(second, SECOND_MU), rtol=0, atol=1e-12)


def test_second_weight_is_beside_a_convex_mix() -> None:
    """beta loss + (1 - beta) R + second_mu R', with FedProx's 1/2 in R'."""
    convex = {**UNBIASED, "regularizer": "fd", "mix": "convex"}
    one = gradients({"parts": convex, "options": {"beta": 0.7}})
    both = gradients(
        {"parts": {**convex, "second_regularizer": "prox"}, "options": {"beta": 0.7, "second_mu": MU}}
    )
    np.testing.assert_allclose(both - one, alone("prox", MU), rtol=0, atol=1e-12)


# ---- what is kept, summed and asked of silos for the second


def data_of(place: int) -> SiloData:
    return clustered(np.random.default_rng(place), np.resize([place % 3, (place + 1) % 3], 40))


def small_job(strategy: Mapping[str, Any]) -> JobSpec:
    model = {"name": "mlp", "hidden": (5,), "seed": 2}
    return make_job(dict(strategy), classes=3, input_shape=(4,), model=model, rounds=2)


def with_second(second: str, first: str = "prox", **parts: str) -> dict[str, Any]:
    return {"parts": {"regularizer": first, "second_regularizer": second, **parts}}


def test_local_state_of_the_second_is_kept_and_needs_leave() -> None:
    job = small_job(with_second("moon"))
    (*_, last) = simulate(job, [data_of(place) for place in range(4)])
    assert all(any(name.startswith(PREVIOUS) for name in kept) for kept in last.local)
    with pytest.raises(PolicyRefusal, match="a method without local state"):
        Policy(federation=job.federation, initial_state="given").check_job(job, operator="ops")


def test_teacher_of_the_second_is_kept_in_the_state_and_its_statistic_is_summed() -> None:
    job = small_job(with_second("csd", statistic="logit-prototypes"))
    (*_, last) = simulate(job, [data_of(place) for place in range(4)])
    before = initial_state(job)
    assert {name.removeprefix("method/teacher/") for name in last.state if "teacher" in name} == {
        name.removeprefix("model/") for name in before
    }
    assert last.state["method/prototypes"].any()
    assert job.method.round_phases == ("prototypes", "train")
    assert {"method/teacher/head.weight", "method/prototypes"} <= set(job.method.training_arrays(last.state))


def test_prototypes_of_another_statistic_are_not_looked_for() -> None:
    """CSD beside FedDW has its own, and none of the limits of a job that sums them."""
    parts = {
        "regularizer": "soft-labels",
        "statistic": "soft-labels",
        "second_regularizer": "csd",
        **UNBIASED,
    }
    job = small_job({"parts": parts, "options": {"alpha": 1.0, "own_prototypes": True}})
    (*_, last) = simulate(job, [data_of(place) for place in range(4)])
    assert "method/soft_labels" in last.state


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (with_second("moon", first="none"), "second_regularizer: moon needs another one .*, got none"),
        (with_second("moon", first="moon"), "second_regularizer: moon needs another one .*, got moon"),
        (with_second("ntd", first="kd"), "second_regularizer: kd and ntd share the option tau"),
        (
            {"parts": {"regularizer": "prox"}, "options": {"second_mu": 1.0}},
            "options.second_mu: unknown option, custom has mu",
        ),
        ({**with_second("moon"), "options": {"second_mu": -1}}, "options.second_mu: expected at least 0"),
        (with_second("moon", first="kd", mix="perturbed"), "a perturbed mix .* and no second one"),
        (
            with_second("soft-labels", first="csd", statistic="logit-prototypes", **UNBIASED),
            "options.init_slm: without the statistic soft-labels",
        ),
        (
            with_second(
                "prox", "feature-prototypes", statistic="feature-prototypes", personalization="alone"
            ),
            "personalization alone sums nothing",
        ),
        (with_second("soft-labels", head="frozen-random"), "soft-labels moves the head's rows"),
    ],
)
def test_second_regularizer_is_refused_where_it_would_be_another_thing(
    strategy: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        small_job(strategy)


def test_rules_of_classes_and_of_privacy_name_the_second() -> None:
    with pytest.raises(ValueError, match="strategy.second_regularizer: ntd compares the other classes"):
        make_job(with_second("ntd"), classes=2)
    records = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.1}
    pulled = with_second("feature-prototypes", first="fd", statistic="feature-prototypes")
    with pytest.raises(ValueError, match="strategy.second_regularizer: feature-prototypes sums features, w"):
        make_job(pulled, privacy={"records": records, "statistics_noise_multiplier": 1.0})
