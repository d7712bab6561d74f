"""Personal models: what is tuned and how, by hand; what leaves of it; which jobs may not have them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from torch import nn

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import SiloData
from silo_agent.training.local_loss import local_loss
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import model_arrays
from silo_agent.training.objective import Cancelled, PersonalModel, Work
from silo_agent.training.parts.closing.fine_tuning import fine_tune, tune, tuning_spec
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array, Arrays, PhaseContext
from strategies.checks import check_private
from strategies.methods import strategy_for
from strategies.parts.closing.fine_tuning import FINE_TUNE_PHASE
from strategies.presets import PRESETS
from strategies.tasks.classification import CLASSIFICATION
from tests.support.objectives import (
    make_data,
    make_job,
    make_model,
    make_setting,
    make_work,
    summed,
    task_loss,
)
from tests.support.simulation import simulate
from tests.support.small_methods import clustered

FINE_TUNED = [preset for preset, recipe in PRESETS.items() if recipe.closing.after_evaluation]
CONTEXT = PhaseContext(round=3, members=4, classes=2, state={"model/w": np.ones(2)}, trained=("w",))
X, RATE = 2.0, 0.1
P_FALSE = 1.0 / (1.0 + math.exp(-2.0))  # of class 0, where its logit is 2 and the other's 0
STEP = RATE * P_FALSE * X  # on each coordinate that the sample's gradient reaches


# --- the sums


def revealed(accuracies: Sequence[float | None]) -> Mapping[str, float]:
    """The phase's figures where silos have these accuracies; None: no hold-out."""
    tested = 20
    figures = [
        summed(0, 0) if accuracy is None else summed(round(accuracy * tested), tested)
        for accuracy in accuracies
    ]
    layout = Layout(quantities=FINE_TUNE_PHASE.quantities(CONTEXT), members=len(accuracies))
    total = ring.zeros(layout)
    for each in figures:
        encoded = Encoder(each.personal_quantities(CLASSIFICATION.score), layout=layout).encode()
        assert encoded.clipped_total == 0
        ring.add_into(total, encoded.vectors)
    return FINE_TUNE_PHASE.figures(CONTEXT, ring.decode(total, layout=layout))


def test_mean_and_deviation_over_silos_are_those_of_the_accuracies() -> None:
    """0.5, 0.75 and 1: mean 3/4, variance (1/16 + 0 + 1/16) / 3 = 1/24."""
    figures = revealed([0.5, 0.75, 1.0])
    assert figures["personal_accuracy"] == pytest.approx(0.75, abs=1e-12)
    assert figures["personal_accuracy_deviation"] == pytest.approx(math.sqrt(1 / 24), abs=1e-9)
    assert figures["personal_silos"] == 3.0


def test_a_silo_without_a_holdout_enters_neither_mean_nor_deviation_nor_number() -> None:
    with_it, without = revealed([0.5, 1.0, None, None]), revealed([0.5, 1.0])
    assert with_it == pytest.approx(without, abs=1e-9)
    assert with_it == pytest.approx(
        {"personal_accuracy": 0.75, "personal_accuracy_deviation": 0.25, "personal_silos": 2.0}, abs=1e-9
    )


def test_without_any_holdout_there_is_a_number_and_no_accuracy() -> None:
    assert revealed([None, None, None]) == {"personal_silos": 0.0}


@pytest.mark.parametrize("accuracy", [0.0, 0.35, 1.0])
def test_rounding_takes_neither_figure_out_of_its_range(accuracy: float) -> None:
    """Sums as a ring could round them: the variance of equal accuracies would be just below zero."""
    off = 1e-12
    sums: dict[str, Array] = {
        "personal_accuracy": np.array(4 * accuracy + off),
        "personal_accuracy_square": np.array(4 * accuracy**2 - off),
        "personal_silos": np.array(4),
    }
    figures = FINE_TUNE_PHASE.figures(CONTEXT, sums)
    assert figures["personal_accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert 0.0 <= figures["personal_accuracy"] <= 1.0
    assert figures["personal_accuracy_deviation"] == 0.0


def test_the_phase_leaves_the_state_as_it_is() -> None:
    assert not any(quantity.is_tagged for quantity in FINE_TUNE_PHASE.quantities(CONTEXT))
    assert FINE_TUNE_PHASE.next_state(CONTEXT, {}).state is CONTEXT.state


# --- one step by hand
# x = 2, body w = 1, head rows (1) and (0), the sample is of class 1: logits (2, 0), and with p = softmax the
# gradient is (p0, -p0) at the logits, 2 (p0, -p0) at the head, x (1 p0 - 0 p0) = 2 p0 at the body.


def by_hand(**options: Any) -> Setting:
    job = make_job(
        {"parts": {"head": "trained-unbiased", "closing": "fine-tuning"}, "options": options},
        classes=2,
        input_shape=(1,),
        training={"learning_rate": RATE, "batch_size": 1, "momentum": 0.0},
    )
    body = nn.Linear(1, 1, bias=False)
    nn.init.ones_(body.weight)
    model = make_model(job, body, width=1, head_CD=[[1.0], [0.0]]).float()
    return make_setting(job, model, make_data([[X]], [1]))


def body_weight(model: FederatedModel) -> float:
    return float(model_arrays(model)["model/body.weight"].item())


@pytest.mark.parametrize(
    ("tuned", "body", "head"),
    [
        ("full", 1.0 - STEP, [1.0 - STEP, STEP]),
        ("body", 1.0 - STEP, [1.0, 0.0]),
        ("head", 1.0, [1.0 - STEP, STEP]),
    ],
)
def test_one_step_moves_what_is_tuned_and_nothing_else(tuned: str, body: float, head: list[float]) -> None:
    setting = by_hand(fine_tune_scope=tuned, fine_tune_epochs=1)
    tune(setting, local_loss)
    model = setting.received
    assert body_weight(model) == pytest.approx(body, abs=1e-6)
    np.testing.assert_allclose(model.head.weight.detach()[:, 0], head, atol=1e-6)


def test_the_rate_is_the_jobs_last_or_the_options() -> None:
    training = {"learning_rate": 0.1, "schedule": {"kind": "milestones", "milestones": [4, 9]}}
    job = make_job({"preset": "fedavg_ft"}, training=training)
    assert tuning_spec(job).learning_rate_at(1) == pytest.approx(0.001)  # of round 10
    assert tuning_spec(job).learning_rate_at(11) == pytest.approx(0.001)
    options = {"fine_tune_learning_rate": 0.3, "fine_tune_epochs": 7}
    own = tuning_spec(make_job({"preset": "fedavg_ft", "options": options}, training=training))
    assert (own.learning_rate_at(11), own.training.local_epochs) == (0.3, 7)


def test_no_epochs_leave_the_final_model_as_it_is() -> None:
    setting = by_hand(fine_tune_epochs=0)
    tune(setting, local_loss)
    assert body_weight(setting.received) == 1.0


# --- the solved head: the card's personalized example of SphereFed (10.3), ridge 0


@pytest.mark.parametrize(
    ("features", "labels", "solution"),
    [
        ([[3 / 5, 4 / 5], [1, 0]], [0, 1], [[0, 1], [1.25, -0.75]]),
        (
            [[4 / 5, 3 / 5], [0, 1], [5 / 13, 12 / 13]],
            [1, 0, 0],
            [[-0.7220461747, 1.2132186510], [1.1419194206, -0.1867360797]],
        ),
    ],
)
def test_a_solved_head_is_the_cards_of_each_silo_alone(features: Any, labels: Any, solution: Any) -> None:
    options = {"fine_tune_scope": "solved-head", "ridge": 0.0}
    job = make_job({"preset": "spherefed_ft", "options": options}, classes=2, input_shape=(2,))
    model = make_model(job, nn.Identity(), width=2, head_CD=np.eye(2)).float()
    setting = make_setting(job, model, make_data(features, labels))
    tune(setting, local_loss)
    np.testing.assert_allclose(model.head.weight.detach().T, solution, atol=1e-5)


# --- a whole phase of the built-in objective


def small_job(preset: str = "fedavg_ft", **options: Any) -> JobSpec:
    return job_of({"preset": preset, "options": options})


def job_of(strategy: dict[str, Any], **fields: Any) -> JobSpec:
    model = {"name": "mlp", "hidden": [8], "norm": "batch", "seed": 1}
    training = {"learning_rate": 0.1, "batch_size": 20}
    values = {"rounds": 2, "model": model, "classes": 3, "input_shape": (4,), "training": training}
    return make_job(strategy, **{**values, **fields})


def skewed(place: int = 0, *, tested: int = 20) -> SiloData:
    """Two of three classes, which differ in their means."""
    labels = np.resize([place % 3, (place + 1) % 3], 60)
    return clustered(np.random.default_rng(place), labels, spread=0.2, tested=tested)


def phase_of(spec: JobSpec, data: SiloData) -> tuple[dict[str, Array], PersonalModel, Work]:
    """What leaves, what is kept, and the work of it."""
    kept: list[PersonalModel] = []
    work = make_work(spec, data, kind="fine-tune", round=spec.rounds)
    work = dataclasses.replace(work, keep_personal=kept.append)
    values = TorchObjective(device="cpu").compute(work)
    (model,) = kept
    return dict(values), model, work


@pytest.mark.parametrize("preset", FINE_TUNED)
def test_only_accuracy_its_square_and_one_leave_and_the_model_is_kept(preset: str) -> None:
    values, model, work = phase_of(small_job(preset), skewed())
    assert sorted(values) == ["personal_accuracy", "personal_accuracy_square", "personal_silos"]
    assert {array.shape for array in values.values()} == {()}
    accuracy = model.score
    assert values["personal_accuracy"] == accuracy
    assert values["personal_accuracy_square"] == pytest.approx(accuracy**2)
    assert (int(values["personal_silos"]), model.tested) == (1, 20)
    assert sorted(model.arrays) == sorted(name for name in work.state if name.startswith("model/"))


def test_facts_of_the_kept_model_tell_the_global_ones_accuracy_beside_its_own() -> None:
    _, model, work = phase_of(small_job(fine_tune_learning_rate=0.2), skewed())
    _, untouched, _ = phase_of(small_job(fine_tune_epochs=0), skewed())
    assert model.score_before == untouched.score == untouched.score_before
    assert model.score > model.score_before
    assert (model.tuned, model.epochs, model.learning_rate) == ("full", 5, 0.2)
    for name, array in untouched.arrays.items():
        np.testing.assert_array_equal(array, work.state[name])


def test_a_silo_without_a_holdout_fine_tunes_and_keeps_its_model_and_adds_nothing() -> None:
    values, model, work = phase_of(small_job(), skewed(tested=0))
    assert {name: float(value) for name, value in values.items()} == dict.fromkeys(values, 0.0)
    assert model.tested == 0
    _, with_holdout, _ = phase_of(small_job(), skewed())
    for name, array in with_holdout.arrays.items():
        np.testing.assert_array_equal(model.arrays[name], array)
    assert not np.array_equal(model.arrays["model/head.weight"], work.state["model/head.weight"])


def moved(preset: str, **options: Any) -> set[str]:
    """Arrays of the model that fine-tuning moved, by what they belong to."""
    _, model, work = phase_of(small_job(preset, **options), skewed())
    names = (name for name, array in model.arrays.items() if not np.array_equal(array, work.state[name]))
    return {
        "buffers" if "running" in name else name.removeprefix("model/").partition(".")[0] for name in names
    }


@pytest.mark.parametrize(
    ("preset", "tuned"),
    [
        ("fedavg_ft", {"body", "buffers", "head"}),
        ("fedbabu_ft", {"body", "buffers", "head"}),  # its head is frozen while silos train together
        ("feddr_plus_ft", {"body", "buffers"}),
        ("spherefed_ft", {"head"}),  # neither the body nor its running means
    ],
)
def test_each_preset_tunes_what_its_paper_says(preset: str, tuned: set[str]) -> None:
    assert moved(preset) == tuned


def test_of_a_method_with_a_frozen_head_head_or_body_alone_can_be_tuned() -> None:
    assert moved("fedbabu_ft", fine_tune_scope="head") == {"head"}
    assert moved("fedbabu_ft", fine_tune_scope="body") == {"body", "buffers"}
    assert moved("spherefed_ft", fine_tune_scope="solved-head") == {"head"}


def kept_by(spec: JobSpec) -> Arrays:
    return phase_of(spec, skewed())[1].arrays


def differ(one: Arrays, other: Arrays) -> bool:
    return any(not np.array_equal(one[name], other[name]) for name in one)


def test_feddr_plus_fine_tunes_by_its_whole_loss_or_by_dot_regression_alone() -> None:
    """The paper's two rows, FT with L_Dr+ and with L_DR."""
    whole, alone = (
        kept_by(small_job("feddr_plus_ft")),
        kept_by(small_job("feddr_plus_ft", fine_tune_regularizer=False)),
    )
    parts = {"head": "frozen-etf", "features": "unit", "loss": "dot-regression", "closing": "fine-tuning"}
    plain = kept_by(job_of({"parts": parts, "options": {"fine_tune_scope": "body"}}))
    assert differ(whole, alone)
    assert not differ(alone, plain)


def test_the_teacher_is_the_final_global_model() -> None:
    """With beta 0 there is nothing but the pull to the teacher, and a model that starts there stays: without
    batch statistics, in which student and teacher differ from the first step."""
    strategy = {"preset": "feddr_plus_ft", "options": {"beta": 0.0}}
    spec = job_of(strategy, model={"name": "mlp", "hidden": [8], "seed": 1})
    start = initial_state(spec)
    for name, array in kept_by(spec).items():
        np.testing.assert_allclose(array, start[name], atol=1e-6, err_msg=name)


def test_fine_tuning_is_the_same_for_one_seed_and_another_for_another() -> None:
    """By the work's seed."""
    spec = small_job()
    assert not differ(kept_by(spec), kept_by(spec))
    kept: list[PersonalModel] = []
    work = make_work(spec, skewed(), kind="fine-tune", round=spec.rounds)
    work = dataclasses.replace(work, seed=work.seed + 1, keep_personal=kept.append)
    TorchObjective(device="cpu").compute(work)
    assert differ(kept[0].arrays, kept_by(spec))


def test_fine_tuning_that_is_no_longer_wanted_stops_and_keeps_nothing() -> None:
    kept: list[PersonalModel] = []
    setting = by_hand(fine_tune_epochs=1)
    work = dataclasses.replace(setting.work, is_cancelled=lambda: True, keep_personal=kept.append)
    with pytest.raises(Cancelled):
        fine_tune(dataclasses.replace(setting, work=work), local_loss, tested_by=task_loss())
    assert kept == []


def test_a_diverged_personal_model_is_told_in_the_silos_own_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refusal would be an answer about one silo's data to the party that chose the state."""
    spoiled = skewed()
    spoiled.train.features[0, 0] = np.nan
    spec = job_of({"preset": "fedavg_ft"}, model={"name": "mlp", "hidden": [8], "seed": 1})
    values, model, _ = phase_of(spec, spoiled)
    assert not all(np.isfinite(array).all() for array in model.arrays.values())
    assert all(np.isfinite(value) for value in values.values())
    assert "personal model is not finite" in caplog.text
    caplog.clear()
    phase_of(small_job(), skewed())
    assert "not finite" not in caplog.text


def test_a_teacher_that_is_kept_between_rounds_teaches_here_too() -> None:
    """FedCSD's is a mean of global models in the state: fine-tuning asks that one, not the model received."""
    strategy = {
        "parts": {"regularizer": "csd", "statistic": "logit-prototypes", "closing": "fine-tuning"},
        "options": {"mu": 1.0, "mask": "none"},
    }
    spec = job_of(strategy)
    *_, last = simulate(spec, [skewed(place) for place in range(4)])
    state = dict(last.state)
    other = {name: -array if name.startswith("method/teacher/") else array for name, array in state.items()}
    assert any(name.startswith("method/teacher/") for name in state)
    models = []
    for each in (state, other):
        kept: list[PersonalModel] = []
        work = make_work(spec, skewed(), state=each, kind="fine-tune", round=spec.rounds)
        TorchObjective(device="cpu").compute(dataclasses.replace(work, keep_personal=kept.append))
        models.append(kept[0].arrays)
    assert differ(*models)


# --- whole jobs


@pytest.mark.parametrize("preset", FINE_TUNED)
def test_personal_models_of_skewed_silos_beat_the_global_one(preset: str) -> None:
    """Each silo has two of three classes: its own model need not tell the third."""
    spec = small_job(preset, fine_tune_learning_rate=2.0 if preset == "feddr_plus_ft" else 0.1)
    # a start from which every method's global model leaves room
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"seed": 6})})
    steps = list(simulate(spec, [skewed(place) for place in range(4)], in_ring=True))
    closing, evaluated = steps[-1], steps[-2]
    assert (closing.phase, evaluated.phase) == ("fine-tune", "evaluate")
    accuracies = [float(silo["personal_accuracy"]) for silo in closing.values]
    assert closing.figures["personal_accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-3)
    assert closing.figures["personal_accuracy_deviation"] == pytest.approx(np.std(accuracies), abs=1e-2)
    # equal hold-outs, so that the mean over silos is the mean over samples
    assert closing.figures["personal_accuracy"] > evaluated.figures["accuracy"]
    assert closing.state is not evaluated.state
    assert not differ(closing.state, evaluated.state)


def test_spherefed_calibrates_before_silos_fine_tune() -> None:
    assert strategy_for("spherefed_ft", {}).closing == ("calibrate", "evaluate", "fine-tune")
    assert strategy_for("fedavg_ft", {}).closing == ("evaluate", "fine-tune")


@pytest.mark.parametrize(
    ("preset", "tuned", "why"),
    [
        ("feddr_plus_ft", "full", "expected body, because dot-regression"),
        ("feddr_plus_ft", "head", "expected body, because dot-regression"),
        ("feddr_plus_ft", "solved-head", "expected body, because dot-regression"),
        ("fedavg_ft", "solved-head", "solved-head needs features unit and a head without a bias"),
        ("fedbabu_ft", "solved-head", "solved-head needs features unit"),
        ("fedavg_ft", "legs", "expected 'full', 'body', 'head' or 'solved-head', got 'legs'"),
    ],
)
def test_a_part_that_cannot_be_tuned_by_the_methods_loss_is_refused(
    preset: str, tuned: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=f"strategy.options.fine_tune_scope: {why}"):
        strategy_for(preset, {"fine_tune_scope": tuned})


def test_a_method_without_personal_models_has_none_of_their_options() -> None:
    with pytest.raises(ConfigError, match=r"fine_tune_epochs: unknown option, fedavg has none"):
        strategy_for("fedavg", {"fine_tune_epochs": 3})


@pytest.mark.parametrize("preset", FINE_TUNED)
@pytest.mark.parametrize(("records", "sums"), [(True, False), (False, True)])
def test_private_jobs_refuse_personal_models_by_name(preset: str, records: bool, sums: bool) -> None:
    with pytest.raises(
        ConfigError, match=r"strategy.closing: (ffc-)?fine-tuning fine-tunes a model .* without any noise"
    ):
        check_private(
            PRESETS[preset],
            {},
            CLASSIFICATION,
            has_records=records,
            has_sums=sums,
            has_shared_noise=False,
        )
