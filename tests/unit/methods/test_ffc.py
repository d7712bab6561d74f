"""Fast Federated Calibration: the card's worked example, its invariants, and what it may never do.

Z = features (N, D) at unit length, Y = one-hot labels (N, C), V = Z^T Z, U = Z^T Y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.errors import ConfigError, PolicyRefusal
from crypto.fixed_point.layout import Layout
from silo_agent.disclosure.policy.policy import Policy
from strategies.base import TOTAL, Array, PhaseContext
from strategies.methods import strategy_for
from strategies.parts.closing.ffc import CalibratePhase, least_squares, packed, squared_error, unpacked
from strategies.parts.heads import HEAD, orthonormal_head
from tests.support.numbers import numbers
from tests.support.small_methods import make_context

Floats = NDArray[np.float64]

SILO_1 = (np.array([[3 / 5, 4 / 5], [1, 0]]), np.array([0, 1]))
SILO_2 = (np.array([[4 / 5, 3 / 5], [0, 1], [5 / 13, 12 / 13]]), np.array([1, 0, 0]))
SOLUTION = [[-40810 / 232203, 76485 / 77401], [160345 / 154802, -37965 / 154802]]  # features x classes


def sums_of(unit_ND: Array, labels_N: Array, classes: int) -> tuple[Floats, Floats]:
    return unit_ND.T @ unit_ND, unit_ND.T @ np.eye(classes)[labels_N]


def worked_example() -> tuple[Floats, Floats]:
    parts = [sums_of(*silo, 2) for silo in (SILO_1, SILO_2)]
    return sum(gram for gram, _ in parts), sum(moment for _, moment in parts)


def random_samples(samples: int, width: int, classes: int, *, seed: int = 0) -> tuple[Floats, Array]:
    """Like a ReLU's: no negative entries, unit length."""
    generator = np.random.default_rng(seed)
    raw_ND = np.maximum(generator.standard_normal((samples, width)), 0.0)
    unit_ND = raw_ND / np.maximum(np.linalg.norm(raw_ND, axis=1, keepdims=True), 1e-12)
    return unit_ND, generator.integers(0, classes, samples)


def context(head_CD: Array, *, total: int = 100, members: int = 3) -> PhaseContext:
    state: dict[str, Array] = {
        HEAD: np.asarray(head_CD, dtype=np.float32),
        "model/body.weight": np.ones((2, 3), dtype=np.float32),
        TOTAL: np.array(total, dtype=np.int64),
    }
    return PhaseContext(round=1, members=members, classes=len(head_CD), state=state, trained=("body.weight",))


def apply(head_CD: Array, gram_DD: Floats, moment_DC: Floats, *, ridge: float = 0.0) -> Any:
    sums = {"gram": packed(gram_DD), "moment": moment_DC}
    return CalibratePhase(ridge=ridge).next_state(context(head_CD), sums)


# --- the worked example (card, 10.3)


def test_sums_of_the_worked_example_are_those_of_the_card() -> None:
    (gram_1, moment_1), (gram_2, moment_2) = (sums_of(*silo, 2) for silo in (SILO_1, SILO_2))
    np.testing.assert_allclose(gram_1, [[34 / 25, 12 / 25], [12 / 25, 16 / 25]])
    np.testing.assert_allclose(moment_1, [[3 / 5, 1], [4 / 5, 0]])
    np.testing.assert_allclose(gram_2, np.array([[3329, 3528], [3528, 9346]]) / 4225)
    np.testing.assert_allclose(moment_2, [[5 / 13, 4 / 5], [25 / 13, 3 / 5]])


def test_solution_of_the_worked_example_is_installed_transposed() -> None:
    gram_DD, moment_DC = worked_example()
    np.testing.assert_allclose(least_squares(gram_DD, moment_DC, ridge=0.0), SOLUTION, atol=1e-12)
    result = apply(np.eye(2), gram_DD, moment_DC)
    installed_CD = result.state[HEAD]
    np.testing.assert_allclose(installed_CD, np.transpose(SOLUTION), rtol=1e-6)
    assert (installed_CD.dtype, installed_CD.flags.c_contiguous) == (np.float32, True)
    assert result.figures["squared_error_before"] == pytest.approx(6.8307692308 / 5, abs=1e-9)
    assert result.figures["squared_error_after"] == pytest.approx(0.7209166118 / 5, abs=1e-9)


def test_calibrated_head_of_the_worked_example_is_right_about_every_sample() -> None:
    gram_DD, moment_DC = worked_example()
    unit_ND = np.concatenate([SILO_1[0], SILO_2[0]])
    labels_N = np.concatenate([SILO_1[1], SILO_2[1]])
    scores_NC = unit_ND @ least_squares(gram_DD, moment_DC, ridge=0.0)
    expected_NC = [
        [0.7231947908, 0.3967003010],
        [-0.1757513899, 0.9881655276],
        [0.4808831066, 0.6433831604],
        [1.0358070309, -0.2452487694],
        [0.8885328786, 0.1536801850],
    ]
    np.testing.assert_allclose(scores_NC, expected_NC, atol=5e-11)
    assert (scores_NC.argmax(axis=1) == labels_N).all()
    assert (unit_ND.argmax(axis=1) != labels_N).all()  # the frozen head is wrong about every one


def test_ridge_is_added_to_the_summed_gram_matrix() -> None:
    expected = [[-0.0392382975, 0.7338601536], [0.8277499016, -0.1089021722]]
    np.testing.assert_allclose(least_squares(*worked_example(), ridge=0.5), expected, atol=5e-11)
    result = apply(np.eye(2), *worked_example(), ridge=0.5)
    np.testing.assert_allclose(result.state[HEAD], np.transpose(expected), rtol=1e-6)


def test_solution_is_no_mean_of_the_silos_own() -> None:
    own = [least_squares(*sums_of(*silo, 2), ridge=0.0) for silo in (SILO_1, SILO_2)]
    np.testing.assert_allclose(own[0], [[0, 1], [1.25, -0.75]], atol=1e-12)
    np.testing.assert_allclose(
        own[1], [[-0.7220461747, 1.2132186510], [1.1419194206, -0.1867360797]], atol=5e-11
    )
    plain = (own[0] + own[1]) / 2
    np.testing.assert_allclose(
        plain, [[-0.3610230874, 1.1066093255], [1.1959597103, -0.4683680398]], atol=1e-10
    )
    assert np.abs(plain - SOLUTION).max() > 0.1
    assert np.abs((2 * own[0] + 3 * own[1]) / 5 - SOLUTION).max() > 0.1


def test_worked_example_in_16_bit_fixed_point_gives_the_cards_digits() -> None:
    summed = np.array([140767, 86181, 186913, 64528, 117965, 178460, 39322]) / 2**16
    gram_DD, moment_DC = unpacked(summed[:3], 2), summed[3:].reshape(2, 2)
    expected = [[-0.1757432810, 0.9881574592], [1.0358066678, -0.2452392182]]
    np.testing.assert_allclose(least_squares(gram_DD, moment_DC, ridge=0.0), expected, atol=5e-11)


# --- properties of the solution (card, 10.4)


def test_solution_is_the_pooled_least_squares_head_and_fulfills_the_normal_equations() -> None:
    unit_ND, labels_N = random_samples(400, 12, 5)
    gram_DD, moment_DC = sums_of(unit_ND, labels_N, 5)
    solution_DC = least_squares(gram_DD, moment_DC, ridge=0.0)
    pooled_DC = np.linalg.lstsq(unit_ND, np.eye(5)[labels_N])[0]
    assert np.abs(solution_DC - pooled_DC).max() < 1e-10
    assert np.abs(gram_DD @ solution_DC - moment_DC).max() < 1e-8 * 400
    ridge_DC = least_squares(gram_DD, moment_DC, ridge=0.3)
    assert np.abs((gram_DD + 0.3 * np.eye(12)) @ ridge_DC - moment_DC).max() < 1e-8 * 400


def test_solution_does_not_depend_on_who_holds_which_sample_nor_on_copies_of_them_all() -> None:
    unit_ND, labels_N = random_samples(300, 8, 4)
    pooled_DC = least_squares(*sums_of(unit_ND, labels_N, 4), ridge=0.0)
    order = np.random.default_rng(1).permutation(300)
    parts = [sums_of(unit_ND[part], labels_N[part], 4) for part in np.array_split(order, 7)]
    split_DC = least_squares(sum(p[0] for p in parts), sum(p[1] for p in parts), ridge=0.0)
    np.testing.assert_allclose(split_DC, pooled_DC, atol=1e-12)
    twice = sums_of(np.tile(unit_ND, (2, 1)), np.tile(labels_N, 2), 4)
    np.testing.assert_allclose(least_squares(*twice, ridge=0.0), pooled_DC, atol=1e-12)


def test_turned_features_turn_the_solution_and_leave_the_scores() -> None:
    unit_ND, labels_N = random_samples(300, 8, 4)
    turn_DD = np.linalg.qr(np.random.default_rng(2).standard_normal((8, 8)))[0]
    plain_DC = least_squares(*sums_of(unit_ND, labels_N, 4), ridge=0.0)
    turned_DC = least_squares(*sums_of(unit_ND @ turn_DD, labels_N, 4), ridge=0.0)
    np.testing.assert_allclose(turned_DC, turn_DD.T @ plain_DC, atol=1e-10)
    np.testing.assert_allclose((unit_ND @ turn_DD) @ turned_DC, unit_ND @ plain_DC, atol=1e-10)


def test_a_class_that_no_silo_holds_gets_a_zero_row_in_the_head() -> None:
    unit_ND, labels_N = random_samples(200, 6, 3)
    gram_DD, moment_DC = sums_of(unit_ND, labels_N, 4)  # class 3 is no silo's
    head_CD = apply(orthonormal_head(4, 6, numbers(0)), gram_DD, moment_DC).state[HEAD]
    assert not head_CD[3].any()
    assert head_CD[:3].any(axis=1).all()


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_dead_features_get_zero_rows_and_spoil_nothing(ridge: float) -> None:
    unit_ND, labels_N = random_samples(200, 6, 3)
    alive_DC = least_squares(*sums_of(unit_ND, labels_N, 3), ridge=ridge)
    padded_ND = np.zeros((200, 9))
    padded_ND[:, [0, 2, 3, 5, 6, 8]] = unit_ND
    padded_DC = least_squares(*sums_of(padded_ND, labels_N, 3), ridge=ridge)
    assert not padded_DC[[1, 4, 7]].any()
    np.testing.assert_allclose(padded_DC[[0, 2, 3, 5, 6, 8]], alive_DC, atol=1e-12)


def test_features_that_are_all_dead_leave_the_head_as_it_was() -> None:
    head_CD = orthonormal_head(3, 5, numbers(0)).astype(np.float32)
    result = apply(head_CD, np.zeros((5, 5)), np.zeros((5, 3)))
    assert result.state[HEAD].tobytes() == head_CD.tobytes()
    assert result.figures == {"squared_error_before": 0.0, "squared_error_after": 0.0}


def test_fewer_samples_than_features_give_the_solution_of_least_norm() -> None:
    """A plain solve of this singular system gave weights of 240 where 1.07 is enough."""
    unit_ND, labels_N = random_samples(40, 64, 10, seed=3)
    solution_DC = least_squares(*sums_of(unit_ND, labels_N, 10), ridge=0.0)
    least_DC = np.linalg.pinv(unit_ND, rcond=1e-6) @ np.eye(10)[labels_N]
    np.testing.assert_allclose(solution_DC, least_DC, atol=1e-9)
    assert np.abs(solution_DC).max() < 5


def test_ridge_shrinks_the_solution_and_vanishing_ridge_leads_to_the_least_norm() -> None:
    sums = sums_of(*random_samples(40, 64, 10, seed=3), 10)
    least_DC = least_squares(*sums, ridge=0.0)
    ridges = [0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0]
    norms = [np.linalg.norm(least_squares(*sums, ridge=ridge)) for ridge in ridges]
    assert norms == sorted(norms, reverse=True)
    gaps = [np.abs(least_squares(*sums, ridge=ridge) - least_DC).max() for ridge in (1e-3, 1e-4)]
    assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.1)


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_directions_that_the_samples_hardly_have_are_solved_for(factor: float) -> None:
    """Condition numbers of 10^6 and 10^8."""
    turn_DD = np.linalg.qr(np.random.default_rng(4).standard_normal((3, 3)))[0]
    gram_DD = turn_DD @ np.diag([1.0, 0.5, 1e-6 / factor]) @ turn_DD.T
    wanted_DC = np.array([[1.0, 0.0], [0.5, 2.0], [-1.0, 3.0]])
    solution_DC = least_squares(gram_DD, gram_DD @ wanted_DC, ridge=0.0)
    np.testing.assert_allclose(solution_DC, wanted_DC, rtol=1e-8, atol=1e-8)


def test_directions_below_the_cut_off_are_left_out() -> None:
    gram_DD, moment_DC = np.diag([1.0, 1e-11, 1e-13]), np.array([[1.0], [1e-11], [1e-11]])
    np.testing.assert_allclose(least_squares(gram_DD, moment_DC, ridge=0.0), [[1.0], [1.0], [0.0]], rtol=1e-9)


def test_no_ridge_is_taken_for_less_than_a_sixteenth_of_it() -> None:
    """A false Gram matrix whose smallest eigenvalue nearly undoes the ridge made weights of 10^9."""
    unit_ND, labels_N = random_samples(200, 6, 3)
    gram_DD, moment_DC = sums_of(unit_ND, labels_N, 3)
    honest_DC = least_squares(gram_DD, moment_DC, ridge=0.1)
    values_D, vectors_DD = np.linalg.eigh(gram_DD)
    values_D[0] = -0.1 + 1e-9
    false_DD = (vectors_DD * values_D) @ vectors_DD.T
    assert np.abs(np.linalg.solve(false_DD + 0.1 * np.eye(6), moment_DC)).max() > 1e6
    false_DC = least_squares(false_DD, moment_DC, ridge=0.1)
    assert np.abs(false_DC).max() < 3 * np.abs(honest_DC).max()


def test_a_false_moment_that_no_samples_could_give_is_not_installed() -> None:
    """Along a direction that the samples lack, the ridge alone divides it: by 0.1, of a sum of 10^3."""
    unit_ND, labels_N = random_samples(1000, 6, 3)
    flat_ND = np.concatenate([unit_ND, np.zeros((1000, 1))], axis=1)
    flat_ND[:2, 6] = 0.01  # all but dead
    gram_DD, moment_DC = sums_of(flat_ND, labels_N, 3)
    head_CD = orthonormal_head(3, 7, numbers(0)).astype(np.float32)
    honest = apply(head_CD, gram_DD, moment_DC, ridge=0.1).state[HEAD]
    assert np.abs(honest).max() < 5
    moment_DC[6, 0] += 500.0  # half of what the bound of one silo allows
    result = apply(head_CD, gram_DD, moment_DC, ridge=0.1)
    assert np.abs(least_squares(gram_DD, moment_DC, ridge=0.1)).max() > 1000
    assert result.state[HEAD].tobytes() == head_CD.tobytes()
    assert result.figures["squared_error_after"] == result.figures["squared_error_before"]


def test_what_the_silos_rounding_leaves_counts_as_no_direction() -> None:
    """A feature that is another one: the sum of 47 bits leaves a pivot of rounding, not of data."""
    unit_ND, labels_N = random_samples(60, 6, 3)
    twice_ND = np.concatenate([unit_ND, unit_ND[:, :1]], axis=1)
    twice_ND /= np.maximum(np.linalg.norm(twice_ND, axis=1, keepdims=True), 1e-12)
    gram_DD, moment_DC = sums_of(twice_ND, labels_N, 3)
    least_DC = np.linalg.pinv(twice_ND, rcond=1e-6) @ np.eye(3)[labels_N]
    step = 200 * 100 / 2**47  # 200 silos and 100 samples
    rounded_DD = gram_DD + 14 * step * np.diag(np.arange(7) == 6)
    found_DC = least_squares(rounded_DD, moment_DC, ridge=0.0, resolution=7 * 200 * step)
    np.testing.assert_allclose(found_DC, least_DC, atol=1e-6)
    taken_for_data_DC = least_squares(rounded_DD, moment_DC, ridge=0.0)
    assert np.abs(taken_for_data_DC - least_DC).max() > 0.1


def test_squared_error_follows_from_the_sums_alone() -> None:
    unit_ND, labels_N = random_samples(150, 7, 4)
    head_CD = orthonormal_head(4, 7, numbers(5))
    errors_N = np.sum((unit_ND @ head_CD.T - np.eye(4)[labels_N]) ** 2, axis=1)
    is_seen_N = unit_ND.any(axis=1)  # a feature of zeros is wrong by 1 whatever the head
    assert (errors_N[~is_seen_N] == 1.0).all()
    direct = errors_N[is_seen_N].sum()
    assert squared_error(head_CD, *sums_of(unit_ND, labels_N, 4)) == pytest.approx(direct, rel=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 0.1, 10.0, 1e5])
@pytest.mark.parametrize("seed", range(5))
def test_calibration_never_raises_the_squared_error_over_the_training_samples(
    seed: int, ridge: float
) -> None:
    unit_ND, labels_N = random_samples(30 + 40 * seed, 16, 5, seed=seed)
    gram_DD, moment_DC = sums_of(unit_ND, labels_N, 5)
    generator = np.random.default_rng(seed)
    optimum_CD = least_squares(gram_DD, moment_DC, ridge=0.0).T
    for head_CD in (orthonormal_head(5, 16, numbers(seed)), generator.standard_normal((5, 16)), optimum_CD):
        result = apply(head_CD, gram_DD, moment_DC, ridge=ridge)
        installed_CD = result.state[HEAD].astype(np.float64)
        before, after = (
            np.sum((unit_ND @ head.T - np.eye(5)[labels_N]) ** 2)
            for head in (head_CD.astype(np.float32).astype(np.float64), installed_CD)
        )
        assert after <= before * (1 + 1e-9)
        assert result.figures["squared_error_after"] == pytest.approx(after / len(unit_ND), abs=1e-9)


def test_a_head_that_ridge_would_make_worse_is_kept() -> None:
    unit_ND, labels_N = random_samples(200, 6, 3)
    gram_DD, moment_DC = sums_of(unit_ND, labels_N, 3)
    optimum_CD = least_squares(gram_DD, moment_DC, ridge=0.0).T.astype(np.float32)
    assert apply(optimum_CD, gram_DD, moment_DC, ridge=50.0).state[HEAD].tobytes() == optimum_CD.tobytes()


def test_gradient_descent_on_the_pooled_features_ends_at_the_solution() -> None:
    unit_ND, labels_N = random_samples(200, 6, 3)
    gram_DD, moment_DC = sums_of(unit_ND, labels_N, 3)
    weight_DC, rate = np.zeros((6, 3)), 1.0 / np.linalg.eigvalsh(gram_DD)[-1]
    for _ in range(3000):
        weight_DC -= rate * (gram_DD @ weight_DC - moment_DC)
    optimum_DC = least_squares(gram_DD, moment_DC, ridge=0.0)
    descended, calibrated = (squared_error(w.T, gram_DD, moment_DC) for w in (weight_DC, optimum_DC))
    assert descended == pytest.approx(calibrated, rel=1e-6)


def test_calibration_changes_the_head_alone() -> None:
    before = context(np.eye(2))
    gram_DD, moment_DC = worked_example()
    sums = {"gram": packed(gram_DD), "moment": moment_DC}
    after = CalibratePhase().next_state(before, sums).state
    assert after is not None
    changed = {name for name in after if not np.array_equal(after[name], before.state[name])}
    assert changed == {HEAD}
    assert after.keys() == before.state.keys()


# --- what is summed


@pytest.mark.parametrize("width", [1, 2, 5])
def test_upper_triangle_is_packed_row_by_row_and_unpacked_again(width: int) -> None:
    gram_DD = np.arange(width**2, dtype=np.float64).reshape(width, width)
    gram_DD = gram_DD + gram_DD.T
    np.testing.assert_array_equal(unpacked(packed(gram_DD), width), gram_DD)
    expected_T = [gram_DD[row, column] for row in range(width) for column in range(row, width)]
    np.testing.assert_array_equal(packed(gram_DD), expected_T)


@pytest.mark.parametrize(
    ("width", "classes", "numbers"),
    [(1280, 100, 947_840), (512, 100, 182_528), (512, 10, 136_448), (128, 10, 9_536), (64, 10, 2_720)],
)
def test_message_has_the_size_that_the_card_says(width: int, classes: int, numbers: int) -> None:
    of = context(np.zeros((classes, width)), total=50_000, members=200)
    layout = Layout(quantities=CalibratePhase().quantities(of), members=200)
    assert sum(each.size for each in layout.quantities) == numbers
    assert {each.ring_bits for each in layout.quantities} == {64}


def test_bound_of_both_sums_is_the_number_of_samples_that_enrollment_counted() -> None:
    gram, moment = CalibratePhase().quantities(context(np.zeros((3, 5)), total=740))
    assert [(one.name, one.shape, one.bound, one.ring_bits) for one in (gram, moment)] == [
        ("gram", (15,), 740.0, 64),
        ("moment", (5, 3), 740.0, 64),
    ]


def test_one_more_sample_changes_each_sum_by_no_more_than_its_sensitivity() -> None:
    unit_ND, labels_N = random_samples(100, 6, 3)
    gram, moment = CalibratePhase().quantities(context(np.zeros((3, 6))))
    assert gram.sensitivity_l2 is not None
    assert moment.sensitivity_l2 is not None
    for unit_1D, label in zip(unit_ND[:, None], labels_N[:, None], strict=True):
        gram_DD, moment_DC = sums_of(unit_1D, label, 3)
        assert np.linalg.norm(packed(gram_DD)) <= gram.sensitivity_l2
        assert np.linalg.norm(moment_DC) <= moment.sensitivity_l2


@pytest.mark.parametrize(("missing", "why"), [(TOTAL, "enrollment comes first"), (HEAD, "what ffc replaces")])
def test_a_state_without_head_or_total_cannot_be_calibrated(missing: str, why: str) -> None:
    of = context(np.zeros((3, 5)))
    state = {name: array for name, array in of.state.items() if name != missing}
    bare = make_context(state)
    with pytest.raises(ConfigError, match=f"calibrate: expected the array {missing} .*: .*{why}"):
        CalibratePhase().quantities(bare)


@pytest.mark.parametrize(
    ("name", "shape"), [(TOTAL, ()), (TOTAL, (1,)), (TOTAL, (2,)), (HEAD, (3,)), (HEAD, (3, 5, 1))]
)
def test_a_state_whose_head_or_total_has_another_shape_cannot_be_calibrated(
    name: str, shape: tuple[int, ...]
) -> None:
    """TypeError and ValueError left: a silo refused it for a fault of its own, not for the coordinator's."""
    of = context(np.zeros((3, 5)))
    odd = make_context({**of.state, name: np.ones(shape, np.float32)})
    with pytest.raises(ConfigError, match=f"{name}: expected .*, got an array of shape"):
        CalibratePhase().quantities(odd)


def test_moment_is_a_class_statistic_and_the_gram_matrix_is_not() -> None:
    gram, moment = CalibratePhase().quantities(context(np.zeros((3, 5))))
    cautious = Policy.model_validate({"federation": "test"})
    cautious.check_quantities([gram])
    with pytest.raises(PolicyRefusal, match="expected no class statistics .*got quantity moment"):
        cautious.check_quantities([gram, moment])
    Policy.model_validate({"federation": "test", "class_statistics": "allow"}).check_quantities(
        [gram, moment]
    )


def test_ridge_is_an_option_of_methods_that_calibrate_and_of_no_other() -> None:
    phase = strategy_for("spherefed", {"ridge": 0.0}).phase("calibrate")
    assert phase == CalibratePhase(ridge=0.0)
    unsaid = strategy_for("spherefed", {}).phase("calibrate")
    assert unsaid == CalibratePhase(ridge=None)
    sums = {"gram": packed(worked_example()[0]), "moment": worked_example()[1]}
    said = CalibratePhase(ridge=0.1).next_state(context(np.eye(2)), sums)
    assert np.array_equal(unsaid.next_state(context(np.eye(2)), sums).state[HEAD], said.state[HEAD])
    with pytest.raises(ConfigError, match=r"strategy.options.ridge: expected at least 0, got -1"):
        strategy_for("spherefed", {"ridge": -1.0})
    with pytest.raises(ConfigError, match="strategy.options.ridge: unknown option, fedbabu has none"):
        strategy_for("fedbabu", {"ridge": 0.1})
