"""Presets as their papers print them and as their authors' code computes them, against references in numpy.

N = samples, C = classes, D = feature width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from chorale.spec.job_spec import JobSpec
from silo_agent.training.base.passes import run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.local_loss import local_loss
from silo_agent.training.models.registry import job_model
from silo_agent.training.models.state import load_arrays
from silo_agent.training.parts.closing.fine_tuning import tuning_spec
from silo_agent.training.parts.computed_parts import computed_regularizers
from silo_agent.training.parts.losses.softmax import client_adapted
from strategies.base import TOTAL, Array, PhaseContext
from strategies.parts.closing.ffc import CALIBRATE, packed
from strategies.parts.heads import HEAD
from strategies.parts.statistics.soft_labels import SOFT_LABELS
from strategies.presets import PRESETS
from strategies.published import PUBLISHED
from tests.support.objectives import CPU, make_data, make_job, make_model, make_setting, make_work
from tests.support.simulation import Simulated, simulate
from tests.support.small_methods import logits_alone

Floats = NDArray[np.float64]
CLASSES, WIDTH, SAMPLES = 4, 3, 12
DRAW = np.random.default_rng(11)
STUDENT_NC, TEACHER_NC = DRAW.normal(size=(SAMPLES, CLASSES)), DRAW.normal(size=(SAMPLES, CLASSES))
LABELS_N = np.arange(SAMPLES) % CLASSES


def job_as(kind: str | None, preset: str, **fields: Any) -> JobSpec:
    strategy = {"preset": preset, "as_published": kind, "options": fields.pop("options", {})}
    return make_job(strategy, classes=CLASSES, input_shape=(WIDTH,), **fields)


def softmax(scores_NC: Floats) -> Floats:
    raised_NC = np.exp(scores_NC - scores_NC.max(axis=-1, keepdims=True))
    return raised_NC / raised_NC.sum(axis=-1, keepdims=True)


def slope(value: Callable[[Floats], float], at: Floats) -> Floats:
    """By central differences: no autograd in a reference."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = 1e-6
        found[place] = (value(at + step) - value(at - step)) / 2e-6
    return found


# FedNTD


@pytest.mark.parametrize(("kind", "factor"), [(None, 1.0), ("paper", 1.0), ("code", 9.0)])
def test_fedntd_weighs_its_divergence_by_tau_squared_as_its_code_does(
    kind: str | None, factor: float
) -> None:
    """Eq. 3 over the classes but the true one; criterion.py, line 42: (tau ** 2) * KLDiv."""
    job, tau = job_as(kind, "fedntd"), 3.0
    (made,) = computed_regularizers(job)
    part = made.make(make_setting(job, linear(job), make_data(DRAW.normal(size=(4, WIDTH)), LABELS_N[:4])))
    student_NC = torch.tensor(STUDENT_NC, requires_grad=True)
    loss_N = part.per_sample(
        logits_alone(student_NC), logits_alone(torch.tensor(TEACHER_NC)), torch.tensor(LABELS_N)
    )  # type: ignore[union-attr]
    torch.autograd.backward(loss_N.sum())
    for each in range(SAMPLES):
        others = [c for c in range(CLASSES) if c != LABELS_N[each]]
        p, q = softmax(TEACHER_NC[each, others] / tau), softmax(STUDENT_NC[each, others] / tau)
        expected_C = np.zeros(CLASSES)
        expected_C[others] = factor * (q - p) / tau
        assert float(loss_N[each].detach()) == pytest.approx(factor * np.sum(p * np.log(p / q)), abs=1e-12)
        assert student_NC.grad is not None
        np.testing.assert_allclose(student_NC.grad[each].numpy(), expected_C, rtol=0, atol=1e-12)


# FedDW


def linear(job: JobSpec) -> Any:
    """A head on the inputs as they are, in float64."""
    draw = np.random.default_rng(3)
    return make_model(job, nn.Identity(), width=WIDTH, head_CD=draw.normal(size=(CLASSES, WIDTH)))


def relation_gradient(weight_CD: Floats, omega_CC: Floats) -> Floats:
    """Of the mean of (Omega - softmax of the rows of W W^T)^2, without autograd."""
    relations_CC = softmax(weight_CD @ weight_CD.T)
    pull_CC = 2 * (relations_CC - omega_CC) / omega_CC.size
    pull_CC = relations_CC * (pull_CC - (pull_CC * relations_CC).sum(axis=1, keepdims=True))
    return (pull_CC + pull_CC.T) @ weight_CD


@pytest.mark.parametrize(
    ("kind", "round", "mu"),
    [("code", 1, 0.1), ("code", 8, 0.1), ("code", 9, 0.01), ("code", 18, 0.001), ("paper", 9, 1.0)],
)
def test_feddw_pulls_by_a_tenth_after_each_nine_rounds_as_its_code_does(
    kind: str, round: int, mu: float
) -> None:
    """main.py, lines 474 and 475. Before its first sum the code's Omega is the identity."""
    job = job_as(kind, "feddw", rounds=20)
    model = linear(job)
    setting = make_setting(job, model, make_data(DRAW.normal(size=(4, WIDTH)), LABELS_N[:4]))
    given = {} if kind == "code" else {SOFT_LABELS: np.eye(CLASSES), f"{SOFT_LABELS}_valid": np.ones(CLASSES)}
    setting = replace(setting, work=replace(setting.work, round=round, state=given))
    (made,) = computed_regularizers(job)
    _, weight = job.method.recipe.mix.weights(job.method.options)
    made.make(setting).add_gradient(model, weight=weight)  # type: ignore[union-attr]
    weight_CD = model.head.weight.detach().numpy()
    expected_CD = mu * relation_gradient(weight_CD, np.eye(CLASSES))
    np.testing.assert_allclose(model.head.weight.grad.numpy(), expected_CD, rtol=1e-6, atol=1e-9)
    assert (model.head.bias is not None) == (kind == "code")


def feddw_rounds(kind: str) -> list[Simulated]:
    """Three rounds of four silos; the last class is nobody's."""
    job = job_as(kind, "feddw", rounds=3, model={"name": "mlp", "hidden": (5,)})
    draw = np.random.default_rng(4)
    data = [make_data(draw.normal(size=(30, WIDTH)), draw.integers(0, CLASSES - 1, 30)) for _ in job.silos]
    return [step for step in simulate(job, data) if step.phase == "train"]


def test_feddw_mixes_halves_over_all_rounds_as_its_code_does() -> None:
    """main.py, lines 513 to 529: its lists of matrices and counts are never emptied."""
    omega_CC, sums_CC, counts_C = np.eye(CLASSES), np.zeros((CLASSES, CLASSES)), np.zeros(CLASSES)
    for step in feddw_rounds("code"):
        sums_CC = sums_CC + sum(values["soft_labels"] for values in step.values)
        counts_C = counts_C + sum(values["class_counts"] for values in step.values)
        for c in range(CLASSES):
            mean_C = sums_CC[c] / counts_C[c] if counts_C[c] else np.eye(CLASSES)[c]
            omega_CC[c] = 0.5 * mean_C + 0.5 * omega_CC[c]
        np.testing.assert_allclose(step.state[SOFT_LABELS], omega_CC, rtol=0, atol=1e-12)
    assert step.state[SOFT_LABELS][-1].tolist() == [0, 0, 0, 1]


def test_feddw_of_the_paper_has_the_last_rounds_means_and_keeps_no_sums() -> None:
    *_, step = feddw_rounds("paper")
    sums_CC = sum(values["soft_labels"] for values in step.values)
    counts_C = sum(values["class_counts"] for values in step.values)
    found_CC, known = step.state[SOFT_LABELS], slice(CLASSES - 1)
    np.testing.assert_allclose(found_CC[known], sums_CC[known] / counts_C[known, None], rtol=0, atol=1e-12)
    assert not [name for name in step.state if name.endswith(("_sums", "_counts"))]


# FedCSD


def csd_of_code(weight_CD: Floats, bias_C: Floats, teacher: tuple[Floats, Floats], samples: Any) -> float:
    """train_ours.py: get_teacher_prototype, cal_cosine_similarity and lines 139 to 163; mu 0.5, T 4."""
    features_ND, labels_N, T, mu = samples[0], samples[1], 4.0, 0.5
    z_NC, given_NC = features_ND @ weight_CD.T + bias_C, features_ND @ teacher[0].T + teacher[1]
    prototypes_CC = np.zeros((CLASSES, CLASSES))
    for c in set(labels_N.tolist()):
        prototypes_CC[c] = given_NC[labels_N == c].mean(axis=0)

    def unit(rows: Floats) -> Floats:
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    refined_NC = given_NC * softmax(unit(z_NC) @ unit(prototypes_CC).T)
    own_N = np.arange(len(labels_N))
    taught_N = softmax(refined_NC)[own_N, labels_N] > 1 / CLASSES
    p_NC, q_NC = softmax(refined_NC / T), softmax(z_NC / T)
    kd_N = T * T * np.sum(p_NC * (np.log(p_NC) - np.log(q_NC)), axis=1)
    ce_N = -np.log(softmax(z_NC)[own_N, labels_N])
    assert 0 < taught_N.sum() < len(labels_N)
    return float((1 - mu) * ce_N.mean() + mu * (kd_N * taught_N).mean())


def test_fedcsd_trains_on_its_own_prototypes_and_refined_masks_as_its_code_does() -> None:
    job = job_as("code", "fedcsd", model={"name": "mlp", "hidden": ()})
    draw = np.random.default_rng(6)
    features_ND, labels_N = draw.normal(size=(SAMPLES, WIDTH)), np.arange(SAMPLES) % (CLASSES - 1)
    teacher = draw.normal(size=(CLASSES, WIDTH)), draw.normal(size=CLASSES)
    state: dict[str, Array] = {
        "model/head.weight": teacher[0].astype(np.float32),
        "model/head.bias": teacher[1].astype(np.float32),
    }
    model = job_model(job)
    load_arrays(model, state)
    work = make_work(job, make_data(features_ND, labels_N), state=state)
    setting = Setting(work=work, received=model, device=CPU)
    loss = local_loss(setting, setting.train)
    bias_C, weight_CD = teacher[1], teacher[0] + 0.5 * draw.normal(size=(CLASSES, WIDTH))
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor(weight_CD))

    def reference(weight_CD: Floats) -> float:
        return csd_of_code(weight_CD, bias_C, teacher, (features_ND, labels_N))

    inputs = setting.train.features  # type: ignore[attr-defined]
    per_sample_N = loss.per_sample(
        run_model(model, inputs), inputs, torch.tensor(labels_N), torch.arange(SAMPLES)
    )
    torch.autograd.backward(per_sample_N.mean())
    assert float(per_sample_N.mean().detach()) == pytest.approx(reference(weight_CD), abs=3e-6)
    np.testing.assert_allclose(model.head.weight.grad, slope(reference, weight_CD), rtol=0, atol=3e-6)


def test_fedcsd_of_its_code_sums_nothing_by_class() -> None:
    code, paper = (job_as(kind, "fedcsd").method for kind in ("code", "paper"))
    assert (code.opening, code.round_phases) == (("enrollment",), ("train",))
    assert (paper.opening, paper.round_phases) == (("enrollment", "class-presence"), ("prototypes", "train"))
    assert job_as("code", "fedcsd").quantity_names == job_as(None, "fedavg").quantity_names


def test_private_job_compares_with_no_silos_own_prototypes() -> None:
    """One record would move the means that every other record's gradient follows from."""
    private = {
        "delta": 1e-5,
        "statistics_noise_multiplier": 1.0,
        "records": {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.1},
    }
    with pytest.raises(ValueError, match="strategy.options.own_prototypes: .* a private job needs false"):
        job_as("code", "fedcsd", privacy=private)


def test_own_prototypes_and_those_of_all_silos_exclude_each_other() -> None:
    with pytest.raises(
        ValueError, match="strategy.options.own_prototypes: .*expected false, or no statistic"
    ):
        job_as(None, "fedcsd", options={"own_prototypes": True})


# FedGELA


@pytest.mark.parametrize(("kind", "tau"), [(None, 1.0), ("paper", 1.0), ("code", 0.2)])
def test_fedgela_divides_its_scaled_scores_by_a_temperature_as_its_code_does(
    kind: str | None, tau: float
) -> None:
    """FedGELA.py, lines 205 to 209: log-softmax of z_c C n_c / n over the temperature, here with shares that
    float32 holds."""
    job, labels_N = job_as(kind, "fedgela"), np.array([0] * 6 + [1] * 3 + [2] * 3)
    setting = make_setting(job, linear(job), make_data(DRAW.normal(size=(SAMPLES, WIDTH)), labels_N))
    scores_NC = torch.tensor(STUDENT_NC, requires_grad=True)
    loss_N = client_adapted(setting).per_sample(logits_alone(scores_NC), torch.tensor(labels_N))
    torch.autograd.backward(loss_N.sum())
    factors_C = CLASSES * np.bincount(labels_N, minlength=CLASSES) / SAMPLES / tau
    p_NC, own_N = softmax(STUDENT_NC * factors_C), np.arange(SAMPLES)
    np.testing.assert_allclose(loss_N.detach().numpy(), -np.log(p_NC[own_N, labels_N]), rtol=0, atol=1e-12)
    expected_NC = (p_NC - np.eye(CLASSES)[labels_N]) * factors_C
    np.testing.assert_allclose(scores_NC.grad, expected_NC, rtol=0, atol=1e-12)


# SphereFed


@pytest.mark.parametrize(("kind", "ridge"), [(None, 0.1), ("paper", 0.0)])
@pytest.mark.parametrize("preset", [name for name in PUBLISHED if name.startswith("spherefed")])
def test_spherefed_of_the_paper_solves_without_a_ridge(preset: str, kind: str | None, ridge: float) -> None:
    """Eq. 10: (Z^T Z)^-1 Z^T Y of all silos' features, by numpy's own solver."""
    job, draw = job_as(kind, preset, model={"name": "mlp", "hidden": (CLASSES,)}), np.random.default_rng(8)
    features_ND = draw.normal(size=(40, CLASSES))
    features_ND /= np.linalg.norm(features_ND, axis=1, keepdims=True)
    targets_NC = np.eye(CLASSES)[draw.integers(0, CLASSES, 40)]
    gram_DD, moment_DC = features_ND.T @ features_ND, features_ND.T @ targets_NC
    state: dict[str, Array] = {HEAD: np.zeros((CLASSES, CLASSES), np.float32), TOTAL: np.array(40)}
    context = PhaseContext(round=1, members=3, classes=CLASSES, state=state, trained=())
    found = (
        job.method.phase(CALIBRATE).next_state(context, {"gram": packed(gram_DD), "moment": moment_DC}).state
    )
    assert found is not None
    expected_DC = np.linalg.solve(gram_DD + ridge * np.eye(CLASSES), moment_DC)
    np.testing.assert_array_max_ulp(found[HEAD], expected_DC.T.astype(np.float32), maxulp=1)


# FedDr+ FT


@pytest.mark.parametrize(
    ("kind", "training", "expected"),
    [
        ("paper", {"local_epochs": 3}, (3, None)),
        ("paper", {"local_epochs": None, "local_steps": 40}, (None, 40)),
        ("code", {"local_epochs": 3}, (5, None)),
        (None, {"local_epochs": 3}, (5, None)),
    ],
)
def test_feddr_plus_fine_tunes_for_as_long_as_a_round_as_its_paper_does(
    kind: str | None, training: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    tuned = tuning_spec(job_as(kind, "feddr_plus_ft", training=training)).training
    assert (tuned.local_epochs, tuned.local_steps) == expected


# the word itself


def test_word_is_refused_where_paper_and_code_do_not_differ() -> None:
    message = (
        "strategy.as_published: expected with fedcsd, feddr_plus_ft, feddw, fedgela, fedntd, spherefed, .*"
        "got it with fedavg"
    )
    with pytest.raises(ValueError, match=message):
        job_as("code", "fedavg")
    with pytest.raises(ValueError, match="expected paper with spherefed, whose authors' code is not known"):
        job_as("code", "spherefed")
    with pytest.raises(ValueError, match="as_published: not allowed with parts"):
        make_job({"as_published": "paper", "parts": {}})
    with pytest.raises(ValueError, match="as_published"):
        job_as("talk", "feddw")


@pytest.mark.parametrize("preset", PUBLISHED)
def test_paper_and_code_differ_and_one_of_them_is_the_preset(preset: str) -> None:
    both = PUBLISHED[preset]
    assert (PRESETS[preset] in (both.paper, both.code)) == (both.code is not None)
    assert both.paper not in (both.code, None if both.code else PRESETS[preset])
    assert all((both.of_paper, both.differs))
    assert bool(both.of_code) == (both.code is not None)
