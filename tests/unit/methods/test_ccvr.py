"""CCVR: moments of pooled features from sums, features drawn by them, and a head that learns from these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from crypto.errors import ConfigError
from silo_agent.training.data.base import SiloData
from silo_agent.training.parts.closing.ccvr import class_moments
from silo_agent.training.torch_objective import presence
from strategies import exact
from strategies.base import Array, PhaseContext
from strategies.number_stream import NumberStream
from strategies.parts.closing.ccvr import (
    BATCH,
    LEAST_CLASS_SAMPLES,
    MOMENTUM,
    CcvrOptions,
    Moments,
    VirtualFeaturesPhase,
    cross_entropy_gradient,
    draw,
    moments_of,
    trained,
)
from strategies.parts.heads import HEAD, HEAD_BIAS
from tests.support.objectives import make_data, make_job, make_model, make_setting
from tests.support.simulation import simulate
from tests.support.small_methods import sum_of

CLASSES, WIDTH = 4, 5
JOB = make_job({"preset": "ccvr"}, classes=CLASSES, input_shape=(WIDTH,), rounds=1)
NOTHING = CcvrOptions()
Floats = NDArray[np.float64]


def numbers(seed: int = 0) -> NumberStream:
    return NumberStream(bytes([seed]) * 32)


def silo(seed: int, counts: tuple[int, ...]) -> SiloData:
    """Correlated features, of class c around another center."""
    generator = np.random.default_rng(seed)
    labels_N = np.repeat(np.arange(CLASSES), counts)
    mixing_DD = np.random.default_rng(99).normal(size=(WIDTH, WIDTH))
    centers_CD = 3 * np.random.default_rng(98).normal(size=(CLASSES, WIDTH))
    return make_data(
        centers_CD[labels_N] + generator.normal(size=(len(labels_N), WIDTH)) @ mixing_DD, labels_N
    )


def values_of(data: SiloData, rows: tuple[bool, ...] = (True,) * CLASSES) -> Mapping[str, Array]:
    """Of a model whose features are its inputs."""
    setting = make_setting(JOB, make_model(JOB, nn.Identity(), width=WIDTH).float(), data)
    return class_moments(replace(setting, work=replace(setting.work, class_rows=np.array(rows))))


def sums_of(*parts: SiloData, rows: tuple[bool, ...] = (True,) * CLASSES) -> dict[str, Array]:
    return sum_of(values_of(data, rows) for data in parts)


def context(bias: bool = True) -> PhaseContext:
    generator = np.random.default_rng(3)
    state: dict[str, Array] = {HEAD: generator.normal(size=(CLASSES, WIDTH)).astype(np.float32)}
    if bias:
        state[HEAD_BIAS] = generator.normal(size=CLASSES).astype(np.float32)
    return PhaseContext(round=1, members=3, classes=CLASSES, state=state, trained=("head.weight",))


PARTS = [silo(0, (9, 20, 8, 0)), silo(1, (30, 8, 11, 3)), silo(2, (8, 40, 2, 7))]


def test_moments_are_mean_and_covariance_of_all_sent_samples_together() -> None:
    """Against numpy's over the pooled samples; a silo with fewer than 8 of a class sends none of them."""
    found = {each.label: each for each in moments_of(sums_of(*PARTS))}
    assert sorted(found) == [0, 1, 2]
    for label, each in found.items():
        parts = [data.train.features[data.train.labels == label] for data in PARTS]
        pooled_ND = np.concatenate([part for part in parts if len(part) >= LEAST_CLASS_SAMPLES]).astype(float)
        assert each.samples == len(pooled_ND)
        np.testing.assert_allclose(each.mean_D, pooled_ND.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(each.covariance_DD, np.cov(pooled_ND, rowvar=False), atol=1e-5)


def test_moments_are_those_that_the_papers_equations_make_of_the_silos_own() -> None:
    """Eqs. 3 and 4, from each silo's mean and covariance."""
    (found,) = (each for each in moments_of(sums_of(*PARTS)) if each.label == 1)
    parts = [data.train.features[data.train.labels == 1].astype(float) for data in PARTS]
    n = sum(map(len, parts))
    mean_D = sum(len(part) * part.mean(axis=0) for part in parts) / n
    spread_DD = sum((len(part) - 1) * np.cov(part, rowvar=False) for part in parts) / (n - 1)
    spread_DD = spread_DD + sum(
        len(part) * np.outer(part.mean(axis=0), part.mean(axis=0)) for part in parts
    ) / (n - 1)
    np.testing.assert_allclose(found.mean_D, mean_D, atol=1e-6)
    np.testing.assert_allclose(
        found.covariance_DD, spread_DD - n / (n - 1) * np.outer(mean_D, mean_D), atol=1e-5
    )


def test_two_samples_of_a_class_could_be_told_from_its_sums_so_few_are_never_sent() -> None:
    """The attack: of two samples x and y sum and products give both, by one eigenvector of their covariance.
    The control: 16 samples of two silos have one direction of 15 that no two points explain."""
    pair_ND = np.random.default_rng(5).normal(size=(2, WIDTH))

    def recovered(features_ND: Floats) -> Floats:
        count, mean_D = len(features_ND), features_ND.mean(axis=0)
        spread_DD = features_ND.T @ features_ND / count - np.outer(mean_D, mean_D)
        values_D, vectors_DD = np.linalg.eigh(spread_DD)
        return np.stack([mean_D - s * math.sqrt(values_D[-1]) * vectors_DD[:, -1] for s in (1.0, -1.0)])

    def nearest(found_ND: Floats, features_ND: Floats) -> float:
        gaps = np.linalg.norm(found_ND[:, None] - features_ND[None], axis=2)
        return float(gaps.min(axis=1).max())

    assert nearest(recovered(pair_ND), pair_ND) < 1e-9
    many_ND = np.random.default_rng(6).normal(size=(16, WIDTH))
    assert nearest(recovered(many_ND), many_ND) > 0.2
    few = values_of(silo(0, (2, 9, 9, 9)))
    assert all(not few[name][0].any() for name in few)
    assert few["class_counts"][1] == 9


def test_a_class_counts_as_held_from_eight_samples_on() -> None:
    """So who counts as holder is who sends: no sum of rows is one silo's own."""
    setting = make_setting(JOB, make_model(JOB, nn.Identity(), width=WIDTH), silo(0, (8, 7, 0, 30)))
    assert list(presence(setting)["class_presence"]) == [1, 0, 0, 1]
    plain = make_job({"preset": "feddw"}, classes=CLASSES, input_shape=(WIDTH,))
    control = replace(setting, work=replace(setting.work, spec=plain))
    assert list(presence(control)["class_presence"]) == [1, 1, 0, 1]
    assert "class-presence" in JOB.method.opening


def test_rows_of_classes_with_few_holders_are_zero() -> None:
    sums = sums_of(*PARTS, rows=(True, False, True, True))
    assert sums["class_counts"][1] == 0
    assert not sums["class_feature_sums"][1].any()
    assert not sums["class_feature_products"][1].any()


def test_virtual_features_have_the_classs_mean_and_covariance() -> None:
    """Of 40,000 draws, each moment within six of its standard errors: false alarm below 1e-6."""
    (moments, *_) = moments_of(sums_of(*PARTS))
    count = 40_000
    drawn_VD = draw(moments, count, resolution=0.0, numbers=numbers())
    variance_D = np.diagonal(moments.covariance_DD)
    gap_D = np.abs(drawn_VD.mean(axis=0) - moments.mean_D)
    assert (gap_D < 6 * np.sqrt(variance_D / count)).all()
    error_DD = np.sqrt((np.outer(variance_D, variance_D) + moments.covariance_DD**2) / count)
    assert (np.abs(np.cov(drawn_VD, rowvar=False) - moments.covariance_DD) < 6 * error_DD).all()


def test_virtual_features_stay_where_the_samples_are() -> None:
    """Three samples span a plane: nothing is drawn beside it, though rounding gives it some width."""
    points_ND = np.random.default_rng(2).normal(size=(3, WIDTH))
    moments = Moments(
        label=0,
        samples=3,
        mean_D=points_ND.mean(axis=0),
        covariance_DD=np.cov(points_ND, rowvar=False) + 1e-6 * np.eye(WIDTH),
    )
    drawn_VD = draw(moments, 50, resolution=1e-4, numbers=numbers()) - moments.mean_D
    assert np.linalg.matrix_rank(drawn_VD, tol=1e-3) == 2
    control_VD = draw(moments, 50, resolution=0.0, numbers=numbers()) - moments.mean_D
    assert np.linalg.matrix_rank(control_VD, tol=1e-3) == WIDTH


def test_gradient_is_that_of_cross_entropy() -> None:
    generator = np.random.default_rng(1)
    weight_KL, inputs_BL = generator.normal(size=(3, WIDTH)), 30 * generator.normal(size=(11, WIDTH))
    places_B = np.resize(np.arange(3), 11)
    leaf = torch.tensor(weight_KL, requires_grad=True)
    cross_entropy(torch.tensor(inputs_BL) @ leaf.T, torch.tensor(places_B)).backward()
    assert leaf.grad is not None
    found_KL = cross_entropy_gradient(weight_KL, inputs_BL, places_B)
    np.testing.assert_allclose(found_KL, leaf.grad.numpy(), rtol=1e-10, atol=1e-13)


def test_head_learns_as_by_gradients_of_torch_with_momentum() -> None:
    options = CcvrOptions(virtual_epochs=3, virtual_learning_rate=0.05)
    generator = np.random.default_rng(1)
    inputs_NL, places_N = generator.normal(size=(150, WIDTH)), np.resize(np.arange(3), 150)
    start_KL = generator.normal(size=(3, WIDTH))
    found_KL = trained(start_KL, inputs_NL, places_N, options=options, numbers=numbers(7))
    weight, order = torch.tensor(start_KL, requires_grad=True), numbers(7)
    velocity = torch.zeros_like(weight)
    for _ in range(3):
        shuffled_N = np.argsort(order.uniform(150, bound=1.0), kind="stable")
        for chosen_B in np.split(shuffled_N, range(BATCH, 150, BATCH)):
            scores = torch.tensor(inputs_NL[chosen_B]) @ weight.T
            (step,) = torch.autograd.grad(cross_entropy(scores, torch.tensor(places_N[chosen_B])), weight)
            velocity = MOMENTUM * velocity + step
            weight = (weight - 0.05 * velocity).detach().requires_grad_()
    np.testing.assert_allclose(found_KL, weight.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert sum(map(len, np.split(shuffled_N, range(BATCH, 150, BATCH)))) == 150


def test_exponential_is_right_to_the_last_places_and_exact_at_zero() -> None:
    value_N = np.linspace(-690.0, 20.0, 5_001)
    expected_N = np.array([math.exp(value) for value in value_N])
    np.testing.assert_allclose(exact.exponential(value_N), expected_N, rtol=5e-16)
    assert exact.exponential(np.zeros(1))[0] == 1.0
    assert 0.0 < exact.exponential(np.array([-1e300]))[0] < 1e-300


@pytest.mark.parametrize("bias", [True, False])
def test_known_rows_learn_and_the_others_stay(bias: bool) -> None:
    phase, before = VirtualFeaturesPhase(options=NOTHING), context(bias)
    result = phase.next_state(before, sums_of(*PARTS))
    assert result.state is not None
    for name in (HEAD, HEAD_BIAS) if bias else (HEAD,):
        same_C = (result.state[name] == before.state[name]).reshape(CLASSES, -1).all(axis=1)
        assert list(same_C) == [False, False, False, True]
        assert result.state[name].dtype == np.float32
    assert result.figures["calibrated_classes"] == 3.0
    assert result.figures["virtual_accuracy_after"] > 0.9 > result.figures["virtual_accuracy_before"]


def test_one_known_class_moves_nothing() -> None:
    before = context()
    sums = sums_of(*PARTS, rows=(True, False, False, False))
    result = VirtualFeaturesPhase(options=NOTHING).next_state(before, sums)
    assert result.state is before.state
    assert result.figures == {"calibrated_classes": 1.0}


def test_classes_have_virtual_features_by_their_share() -> None:
    phase = VirtualFeaturesPhase(options=CcvrOptions(virtual_features=50))
    moments = list(moments_of(sums_of(*PARTS)))
    _, places_N = phase._drawn(context(), moments, numbers())
    samples_K = np.array([each.samples for each in moments])
    expected_K = 150 * samples_K / samples_K.sum()
    assert (np.abs(np.bincount(places_N) - expected_K) <= 0.5).all()


@pytest.mark.filterwarnings("error")
def test_sums_that_no_samples_give_neither_fail_nor_make_numbers_that_are_none() -> None:
    """A silo that lies may sum anything within the bound."""
    sums = sums_of(*PARTS)
    sums["class_feature_products"] = -sums["class_feature_products"]  # covariances below zero
    sums["class_feature_sums"][0] = 2.0**29
    result = VirtualFeaturesPhase(options=NOTHING).next_state(context(), sums)
    assert result.state is not None
    assert np.isfinite(result.state[HEAD]).all()


def test_a_head_that_takes_every_silo_hours_is_refused() -> None:
    options = CcvrOptions(virtual_features=10_000, virtual_epochs=1_000)
    state = {HEAD: np.zeros((100, 512), np.float32)}
    with pytest.raises(ConfigError, match=r"strategy\.options\.virtual_features: 1000000 of width 512 take"):
        VirtualFeaturesPhase(options=options).quantities(replace(context(), state=state))


@pytest.mark.parametrize(
    ("classes", "width", "options", "what"),
    [
        # features of two numbers, but gigabytes of scores, and 80 of them for 1,000 classes
        (1_000, 2, CcvrOptions(virtual_features=10_000, virtual_epochs=1), "products in 1 epochs"),
        (100, 2, CcvrOptions(virtual_features=10_000, virtual_epochs=1), "numbers, more than"),
        # the softmax of 100 scores takes longer than the product of 2 numbers: an hour and a half
        (100, 2, CcvrOptions(virtual_features=2_000, virtual_epochs=800), "products in 800 epochs"),
        (100, 512, CcvrOptions(), None),
        (10, 512, CcvrOptions(virtual_features=1_000, virtual_epochs=100), None),
    ],
)
def test_virtual_features_that_take_a_silos_memory_or_hours_are_refused(
    classes: int, width: int, options: CcvrOptions, what: str | None
) -> None:
    """What an operator asks of every silo. The controls: as many as CCVR has in its paper."""
    phase = VirtualFeaturesPhase(options=options)
    asked = replace(context(), classes=classes, state={HEAD: np.zeros((classes, width), np.float32)})
    if what is None:
        assert len(phase.quantities(asked)) == 4
        return
    with pytest.raises(ConfigError, match=what):
        phase.quantities(asked)


@pytest.mark.parametrize("way", ["records", "sums"])
def test_private_job_refuses_sums_of_features_without_a_bound(way: str) -> None:
    protected: dict[str, Any] = {"clip_norm": 1.0} | ({"sample_rate": 0.1} if way == "records" else {})
    for preset, part in (("ccvr", "closing: ccvr"), ("fedproto", "regularizer: feature-prototypes")):
        with pytest.raises(ValueError, match=rf"strategy\.{part} sums features, which have no bound .*{way}"):
            make_job({"preset": preset}, privacy={"epsilon": 8.0, way: protected})


def test_calibrated_head_is_right_where_rounds_of_one_class_a_silo_left_it_wrong() -> None:
    """Through the ring; the control is the same job without the closing."""
    fields: dict[str, Any] = {
        "classes": CLASSES,
        "input_shape": (WIDTH,),
        "rounds": 3,
        "model": {"name": "mlp", "hidden": (8,), "seed": 1},
        "training": {"local_epochs": 6, "learning_rate": 0.1, "batch_size": 16},
    }
    data = [
        silo(place, tuple(40 if c in (place, (place + 1) % CLASSES) else 0 for c in range(CLASSES)))
        for place in range(CLASSES)
    ]
    everything = silo(77, (50,) * CLASSES)
    data = [
        make_data(
            each.train.features,
            each.train.labels,
            holdout=(everything.train.features, everything.train.labels),
        )
        for each in data
    ]

    def accuracy(preset: str) -> float:
        steps = simulate(make_job({"preset": preset}, **fields), data, min_class_holders=2, in_ring=True)
        return next(step.figures["accuracy"] for step in steps if step.phase == "evaluate")

    assert accuracy("ccvr") > accuracy("fedavg") + 0.02
