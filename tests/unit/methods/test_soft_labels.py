"""FedDW's soft labels: the card's examples, and the ways to get them wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from chorale.spec.state import state_from_bytes, state_to_bytes
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.setting import Setting
from silo_agent.training.parts.statistics.soft_labels import probability_sums, soft_labels
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import MODEL, PRESENCE, Array, PhaseContext
from strategies.methods import strategy_for
from strategies.parts.statistics.soft_labels import KNOWN_ROWS, SOFT_LABELS, SoftLabels
from tests.support.objectives import CPU, make_data, make_job, make_model, make_work
from tests.support.simulation import simulate
from tests.support.small_methods import built_model, make_context, sum_of

# the card's example 1 and, as the third silo, its example 4: logits and labels
SILOS: list[tuple[list[list[float]], list[int]]] = [
    ([[2, 1, 0], [1, 0, -1], [0, 2, 0], [0, 1, 1], [1, 3, 0]], [0, 0, 1, 1, 1]),
    ([[3, 0, 0], [0, 0, 1], [1, 0, 2], [0, 0, 3]], [0, 2, 2, 2]),
    ([[0, 1, 0], [0, 0, 0]], [1, 2]),
]
SUMS_1 = [[1.33048191, 0.48945694, 0.18006115], [0.37606458, 2.05309957, 0.57083584], [0, 0, 0]]
SUMS_2 = [[0.90944300, 0.04527850, 0.04527850], [0, 0, 0], [0.50194853, 0.34725063, 2.15080084]]
OMEGA_OF_TWO = [
    [0.74664164, 0.17824515, 0.07511322],
    [0.12535486, 0.68436652, 0.19027861],
    [0.16731618, 0.11575021, 0.71693361],
]
OMEGA_OF_THREE = [
    [0.74664164, 0.17824515, 0.07511322],
    [0.14700153, 0.65730411, 0.19569435],
    [0.20882047, 0.17014599, 0.62103354],
]
PRINTED = 1e-8  # the card's digits
STATISTIC = SoftLabels()


def feddw(**options: Any) -> Any:
    """Three classes whose logits are the features: the head of make_setting is the identity."""
    return make_job({"preset": "feddw", "options": options}, classes=3, input_shape=(3,))


def values_of(
    logits: Any, labels: Any, *, class_rows: Sequence[bool] | None = (True, True, True), body: Any = None
) -> dict[str, Array]:
    job, data = feddw(), make_data(logits, labels)
    work = make_work(job, data, state={})
    rows = None if class_rows is None else np.array(class_rows)
    model = make_model(job, nn.Identity() if body is None else body, width=3, head_CD=np.eye(3)).float()
    setting = Setting(work=dataclasses.replace(work, class_rows=rows), received=model.train(), device=CPU)
    return dict(soft_labels(setting, Tensors.of(data.train, CPU)))


def context(state: dict[str, Array] | None = None, **options: Any) -> PhaseContext:
    return make_context(state, options=feddw(**options).method.options)


def omega(
    values: Sequence[dict[str, Array]], state: dict[str, Array] | None = None, **options: Any
) -> tuple[Array, list[int]]:
    arrays = STATISTIC.arrays(context(state, **options), sum_of(values))
    return arrays[SOFT_LABELS], arrays[KNOWN_ROWS].tolist()


@pytest.mark.parametrize("silo, sums, counts", [(0, SUMS_1, [2, 3, 0]), (1, SUMS_2, [1, 0, 3])])
def test_sums_of_a_silo_are_the_cards(silo: int, sums: Any, counts: list[int]) -> None:
    logits, labels = SILOS[silo]
    exact = sums_of(torch.tensor(logits).double(), torch.tensor(labels))
    np.testing.assert_allclose(exact.numpy(), sums, rtol=0, atol=PRINTED)
    values = values_of(logits, labels)
    np.testing.assert_allclose(values["soft_labels"], sums, rtol=0, atol=1e-7)
    assert values["soft_labels"].dtype == np.float64
    assert values["class_counts"].tolist() == counts


@pytest.mark.parametrize("silos, expected", [(2, OMEGA_OF_TWO), (3, OMEGA_OF_THREE)])
def test_matrix_of_several_silos_is_the_cards(silos: int, expected: Any) -> None:
    """Other digits for a plain mean of the silos' matrices (0.787), weights by silo instead of by class
    (0.774), temperature 2 (0.568), softmax of mean logits (0.778): all in the first entry."""
    rows_CC, known = omega([values_of(*silo) for silo in SILOS[:silos]])
    np.testing.assert_allclose(rows_CC, expected, rtol=0, atol=PRINTED)
    assert known == [1, 1, 1]


def test_matrix_through_ring_and_masks_is_exact_to_the_rounding() -> None:
    """The card's masks, on 64-bit words; rounding is stochastic: each silo errs by less than a unit."""
    layout = Layout(quantities=STATISTIC.quantities(context()), members=3)
    masks = {(0, 1): 4_000_000_000, (0, 2): 123_456_789, (1, 2): 987_654_321}
    total = ring.zeros(layout)
    for place, silo in enumerate(SILOS):
        vector = Encoder(values_of(*silo), layout=layout).encode().vectors[64]
        for (low, high), mask in masks.items():
            if place == low:
                vector += np.uint64(mask)
            elif place == high:
                vector -= np.uint64(mask)
        assert np.all(vector != 0)
        ring.add_into(total, {64: vector})
    sums = ring.decode(total, layout=layout)
    unit = 1.0 / layout.quantities[0].scale(3)
    error_C = np.abs(sums["soft_labels"].sum(axis=1) - sums["class_counts"])
    assert sums["class_counts"].tolist() == [3, 4, 4]
    assert np.all(error_C <= 3 * 3 * unit)
    assert STATISTIC.figures(context(), sums)["soft_label_row_error"] == error_C.max()
    rows_CC = STATISTIC.arrays(context(), sums)[SOFT_LABELS]
    np.testing.assert_allclose(rows_CC, OMEGA_OF_THREE, rtol=0, atol=PRINTED + 3 * unit / 3)


def test_sums_that_do_not_belong_to_their_counts_show_in_the_figures() -> None:
    sums = sum_of([values_of(*silo) for silo in SILOS])
    sums["soft_labels"][1, 2] += 0.25
    figures = STATISTIC.figures(context(), sums)
    assert figures["soft_label_row_error"] == pytest.approx(0.25, abs=1e-7)
    assert figures["soft_label_rows"] == 3.0


def test_a_row_sums_to_the_count_of_its_class() -> None:
    for silo in SILOS:
        values = values_of(*silo)
        np.testing.assert_allclose(values["soft_labels"].sum(axis=1), values["class_counts"], atol=1e-12)


def test_every_sample_counts_once_however_it_is_split_over_silos() -> None:
    """All silos hold the same model, so the matrix is that of the pooled samples."""
    generator = np.random.default_rng(5)
    logits, labels = generator.normal(size=(60, 3)) * 3, generator.integers(0, 3, size=60)
    pooled, _ = omega([values_of(logits, labels)])
    for cuts in ([20, 40], [1, 2], [5, 59]):
        parts = zip(np.split(logits, cuts), np.split(labels, cuts), strict=True)
        split, _ = omega([values_of(*part) for part in parts])
        np.testing.assert_allclose(split, pooled, rtol=0, atol=1e-12)


def test_silos_that_are_not_in_the_sum_do_not_shrink_it() -> None:
    rows_CC, _ = omega([values_of(*SILOS[0]), values_of(*SILOS[1])])
    np.testing.assert_allclose(rows_CC.sum(axis=1), 1.0, atol=1e-12)


def test_means_of_sums_equal_weighted_means_of_silo_matrices() -> None:
    """Eq. 7 as the paper writes it."""
    values = [values_of(*silo) for silo in SILOS]
    counts_KC = np.array([one["class_counts"] for one in values])
    matrices = [one["soft_labels"] / np.maximum(one["class_counts"], 1)[:, None] for one in values]
    shares_KC = counts_KC / counts_KC.sum(axis=0)
    expected = sum(share[:, None] * matrix for share, matrix in zip(shares_KC, matrices, strict=True))
    np.testing.assert_allclose(omega(values)[0], expected, rtol=0, atol=1e-12)


def test_the_pass_is_in_eval_mode_whatever_training_left() -> None:
    values = values_of(*SILOS[0], body=nn.Dropout(0.5))
    np.testing.assert_allclose(values["soft_labels"], SUMS_1, rtol=0, atol=1e-7)


def test_a_class_that_nobody_sent_keeps_its_row() -> None:
    first, known = omega([values_of(*SILOS[0])])
    assert known == [1, 1, 0]
    state = {SOFT_LABELS: first, KNOWN_ROWS: np.array(known, dtype=np.uint8)}
    second, known = omega([values_of(*SILOS[1])], state)
    assert known == [1, 1, 1]
    np.testing.assert_array_equal(second[1], first[1])
    np.testing.assert_allclose(second[[0, 2]], np.array(SUMS_2)[[0, 2]] / [[1], [3]], atol=1e-7)


def test_a_class_that_no_silo_ever_held_is_not_known_and_not_nan() -> None:
    rows_CC, known = omega([values_of(*SILOS[0])])
    assert known[2] == 0
    assert np.isfinite(rows_CC).all()


@pytest.mark.parametrize(
    "initial, row, known", [("skip", [0, 0, 0], 0), ("identity", [0, 0, 1], 1), ("uniform", [1 / 3] * 3, 1)]
)
def test_before_its_first_sum_a_row_is_as_the_job_says(initial: str, row: list[float], known: int) -> None:
    rows_CC, known_rows = omega([values_of(*SILOS[0])], init_slm=initial)
    assert rows_CC[2].tolist() == row
    assert known_rows == [1, 1, known]


def test_rows_of_classes_with_few_holders_stay_at_the_silo() -> None:
    values = values_of(*SILOS[0], class_rows=(True, False, True))
    assert values["soft_labels"][1].tolist() == [0.0, 0.0, 0.0]
    assert values["class_counts"].tolist() == [2, 0, 0]
    np.testing.assert_allclose(values["soft_labels"][0], SUMS_1[0], atol=1e-7)


def test_without_presence_no_row_leaves() -> None:
    values = values_of(*SILOS[0], class_rows=None)
    assert not values["soft_labels"].any()
    assert not values["class_counts"].any()


def test_one_record_moves_a_sum_by_at_most_its_sensitivity() -> None:
    logits, labels = SILOS[0]
    before, after = values_of(logits, labels), values_of(logits[1:], labels[1:])
    for quantity in STATISTIC.quantities(context()):
        change = np.linalg.norm(before[quantity.name] - after[quantity.name])
        assert quantity.sensitivity_l2 is not None
        assert 0 < change <= quantity.sensitivity_l2


def test_a_matrix_of_another_shape_is_refused() -> None:
    state: dict[str, Array] = {SOFT_LABELS: np.zeros((2, 3)), KNOWN_ROWS: np.ones(3, dtype=np.uint8)}
    with pytest.raises(RemoteProtocolError, match=r"method/soft_labels is \(2, 3\), expected \(3, 3\)"):
        omega([values_of(*SILOS[0])], state)


def test_unknown_initial_matrix_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="init_slm: .*'skip', 'identity' or 'uniform', got 'random'"):
        strategy_for("feddw", {"init_slm": "random"})


def test_feddw_counts_presence_before_its_rounds() -> None:
    strategy = strategy_for("feddw", {})
    assert (strategy.opening, strategy.round_phases) == (("enrollment", "class-presence"), ("train",))


def test_training_sends_the_soft_labels_of_the_trained_model() -> None:
    """Not of the one received: the model is rebuilt from the delta and asked again."""
    job = feddw()
    logits, labels = SILOS[0]
    data = make_data(logits, labels)
    work = dataclasses.replace(make_work(job, data), class_rows=np.ones(3, dtype=bool))
    received = dict(work.state)
    values = TorchObjective(device="cpu").compute(work)
    asked = asks(job, moved(work, values["delta"]), data)
    np.testing.assert_allclose(values["soft_labels"], asked, rtol=0, atol=1e-4)
    assert np.abs(values["soft_labels"] - asks(job, received, data)).max() > 0.05
    quantities = job.method.phase("train").quantities(work.context)
    shapes = {quantity.name: quantity.shape for quantity in quantities if quantity.name != "clipped"}
    assert {name: value.shape for name, value in values.items()} == shapes


def test_matrix_survives_the_state_file() -> None:
    arrays = STATISTIC.arrays(context(), sum_of([values_of(*silo) for silo in SILOS]))
    kept = state_from_bytes(state_to_bytes(arrays))
    np.testing.assert_array_equal(kept[SOFT_LABELS], arrays[SOFT_LABELS])
    np.testing.assert_array_equal(kept[KNOWN_ROWS], arrays[KNOWN_ROWS])


def test_rounds_where_a_class_has_no_holder() -> None:
    """Three silos without the third class: nothing is NaN, its row stays unknown and the others are used."""
    generator = np.random.default_rng(2)
    silos = [make_data(generator.normal(size=(20, 3)), generator.integers(0, 2, size=20)) for _ in range(3)]
    phases = list(simulate(feddw().model_copy(update={"rounds": 2}), silos))
    state = phases[-1].state
    assert state[PRESENCE].tolist() == [3, 3, 0]
    assert state[KNOWN_ROWS].tolist() == [1, 1, 0]
    assert all(np.isfinite(array).all() for array in state.values())
    np.testing.assert_allclose(state[SOFT_LABELS].sum(axis=1), [1, 1, 0], atol=1e-9)
    assert [phase.figures["soft_label_rows"] for phase in phases if phase.phase == "train"] == [2.0, 2.0]


def moved(work: Any, delta_P: Array) -> dict[str, Array]:
    """The state after a round in which this silo alone took part."""
    state, start = dict(work.state), 0
    for name in work.context.trained:
        before = state[MODEL + name]
        step_P = delta_P[start : start + before.size] / work.weight
        state[MODEL + name] = (before + step_P.reshape(before.shape)).astype(np.float32)
        start += before.size
    return state


def asks(job: Any, state: dict[str, Array], data: Any) -> Array:
    logits_NC = built_model(job, state).eval()(torch.tensor(data.train.features)).detach()
    return np.asarray(sums_of(logits_NC, torch.tensor(data.train.labels)))


def sums_of(logits_NC: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
    return probability_sums(logits_NC, labels_N, weights_N=torch.ones(len(labels_N)), classes=3)
