from __future__ import annotations

import dataclasses
import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Layout
from strategies.base import BLOCK_VALUES, Array, Phase, PhaseContext
from strategies.methods import strategy_for
from strategies.presets import PRESETS

FEDAVG = strategy_for("fedavg", {})
SUMS = {"correct": 30, "tested": 40, "loss_sum": 20.0, "clipped": 0}


def context(**changes: Any) -> PhaseContext:
    state: dict[str, Array] = {
        "model/a": np.array([1.0, 2.0], dtype=np.float32),
        "model/b": np.array([[3.0], [4.0]], dtype=np.float32),
        "model/frozen": np.array([9.0], dtype=np.float32),
        "model/n.running_mean": np.array([5.0], dtype=np.float32),
        "model/n.running_var": np.array([6.0], dtype=np.float32),
        "model/n.num_batches_tracked": np.array(7, dtype=np.int64),
        "method/total": np.array(400, dtype=np.int64),
    }
    plain = PhaseContext(
        round=1,
        members=4,
        classes=10,
        state=state,
        trained=("a", "b"),
        buffers=("n.running_mean", "n.running_var"),
    )
    return dataclasses.replace(plain, **changes)


def train_sums(**changes: Any) -> dict[str, Array]:
    """Three silos with p = 0.5, 0.25, 0.25, of which the last is not in the sum."""
    deltas = [np.array([1.0, 0.0, 2.0, -1.0]), np.array([3.0, 0.0, 0.0, 1.0])]
    buffers = [np.array([1.0, 2.0]), np.array([4.0, 8.0])]
    weights = [0.5, 0.25]
    sums = {
        "delta": sum(p * delta for p, delta in zip(weights, deltas, strict=True)),
        "buffers": sum(p * buffer for p, buffer in zip(weights, buffers, strict=True)),
        "weight": sum(weights),
    }
    return {name: np.asarray(value) for name, value in (sums | SUMS | changes).items()}


def names(phase: Phase, of: PhaseContext) -> list[str]:
    return [quantity.name for quantity in phase.quantities(of)]


def test_fedavg_is_enrollment_then_train_then_evaluate() -> None:
    assert (FEDAVG.opening, FEDAVG.round_phases, FEDAVG.closing) == (
        ("enrollment",),
        ("train",),
        ("evaluate",),
    )
    assert {kind: FEDAVG.phase(kind).kind for kind in FEDAVG.phases} == {
        "enrollment": "enrollment",
        "train": "train",
        "evaluate": "evaluate",
    }


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_has_a_phase_for_each_of_its_kinds(preset: str) -> None:
    strategy = strategy_for(preset, {})
    for kind in (*strategy.opening, *strategy.round_phases, *strategy.closing):
        assert strategy.phase(kind).kind == kind


def test_unknown_names_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="strategy.preset: expected one of .*fedavg.*, got best"):
        strategy_for("best", {})
    with pytest.raises(ConfigError, match="strategy.options.mu: unknown option, fedavg has none"):
        strategy_for("fedavg", {"mu": 0.1})
    with pytest.raises(ConfigError, match="phase: expected one of enrollment, evaluate, train for fedavg"):
        FEDAVG.phase("class-presence")


def test_enrollment_sums_ones_and_samples_and_nothing_else() -> None:
    phase = FEDAVG.phase("enrollment")
    quantities = phase.quantities(context())
    assert [(one.name, one.shape, one.bound, one.is_count) for one in quantities] == [
        ("silos", (), 1.0, True),
        ("samples", (), float(1 << 32), True),
    ]


def test_enrollment_writes_the_total() -> None:
    before = context()
    phase = FEDAVG.phase("enrollment")
    result = phase.next_state(before, {"samples": np.array(500)})
    assert result.state is not None
    total = result.state["method/total"]
    assert (total.dtype, total.shape, int(total)) == (np.int64, (), 500)
    assert before.state["method/total"] == 400
    assert result.figures == {"samples": 500.0}
    assert phase.figures(before, {"silos": np.array(4), "samples": np.array(500)}) == {"silos": 4.0}


def test_enrollment_of_silos_without_data_is_not_applied() -> None:
    result = FEDAVG.phase("enrollment").next_state(context(), {"samples": np.array(0)})
    assert (result.state, result.reason) == (None, "no-data")


def test_train_sums_delta_buffers_weight_evaluation_and_clipped() -> None:
    quantities = FEDAVG.phase("train").quantities(context(update_bound=2.0, update_bits=64))
    assert [(one.name, one.shape, one.bound, one.ring_bits, one.is_count) for one in quantities] == [
        ("delta", (4,), 2.0, 64, False),
        ("buffers", (2,), 1e3, 64, False),
        ("weight", (), 1.0, 64, False),
        ("correct", (), float(1 << 40), 64, True),
        ("tested", (), float(1 << 40), 64, True),
        ("loss_sum", (), float(1 << 30), 64, False),
        ("clipped", (), float(1 << 31), 64, True),
    ]


def test_train_without_batch_norm_sums_no_buffers() -> None:
    assert names(FEDAVG.phase("train"), context(buffers=())) == [
        "delta",
        "weight",
        "correct",
        "tested",
        "loss_sum",
        "clipped",
    ]


@pytest.mark.parametrize("members", [3, 200])
@pytest.mark.parametrize("kind", ["enrollment", "train", "evaluate"])
def test_quantities_fit_their_words_for_few_and_for_many_silos(kind: str, members: int) -> None:
    of = context(members=members)
    assert Layout(quantities=FEDAVG.phase(kind).quantities(of), members=members).total_bytes > 0


def test_train_moves_by_the_mean_over_those_who_took_part() -> None:
    before = context()
    result = FEDAVG.phase("train").next_state(before, train_sums())
    assert result.state is not None
    # (0.5 * delta_1 + 0.25 * delta_2) / 0.75
    np.testing.assert_allclose(result.state["model/a"], [1.0 + 5 / 3, 2.0], rtol=1e-6)
    np.testing.assert_allclose(result.state["model/b"], [[3.0 + 4 / 3], [4.0 - 1 / 3]], rtol=1e-6)
    np.testing.assert_allclose(result.state["model/n.running_mean"], [2.0])
    np.testing.assert_allclose(result.state["model/n.running_var"], [4.0])
    assert result.data_share == 0.75


def test_train_leaves_everything_else_as_it_was() -> None:
    before = context()
    copies = {name: array.copy() for name, array in before.state.items()}
    result = FEDAVG.phase("train").next_state(before, train_sums())
    assert result.state is not None
    for name in ("model/frozen", "model/n.num_batches_tracked", "method/total"):
        np.testing.assert_array_equal(result.state[name], before.state[name])
    for name, array in before.state.items():
        np.testing.assert_array_equal(array, copies[name])
        assert (result.state[name].dtype, result.state[name].shape) == (array.dtype, array.shape)
    assert result.state.keys() == before.state.keys()


def test_identical_silos_average_to_themselves() -> None:
    delta = np.array([0.5, -0.25, 0.0, 1.0])
    before = context(buffers=())
    result = FEDAVG.phase("train").next_state(before, train_sums(delta=0.6 * delta, weight=0.6))
    assert result.state is not None
    np.testing.assert_allclose(result.state["model/a"], [1.5, 1.75], rtol=1e-6)


def test_a_variance_rounded_below_zero_becomes_zero() -> None:
    result = FEDAVG.phase("train").next_state(context(), train_sums(buffers=np.array([-1e-12, -1e-12])))
    assert result.state is not None
    assert result.state["model/n.running_var"] == 0.0
    assert result.state["model/n.running_mean"] < 0.0


def test_a_round_with_too_little_data_is_not_applied() -> None:
    below = FEDAVG.phase("train").next_state(context(min_weight=0.76), train_sums())
    assert (below.state, below.reason, below.data_share) == (None, "min-weight", 0.75)
    at = FEDAVG.phase("train").next_state(context(min_weight=0.75), train_sums())
    assert at.state is not None
    declared = FEDAVG.phase("train").next_state(context(min_weight=1.5), train_sums(weight=1.6))
    assert declared.state is not None  # a private job's p may sum to more than 1


@pytest.mark.parametrize("weight", [0.0, -1e-18])
def test_a_round_without_data_is_not_applied(weight: float) -> None:
    result = FEDAVG.phase("train").next_state(context(), train_sums(weight=weight))
    assert (result.state, result.reason, result.data_share) == (None, "no-data", 0.0)


def test_data_share_never_passes_one() -> None:
    assert FEDAVG.phase("train").next_state(context(), train_sums(weight=1.0 + 1e-12)).data_share == 1.0


@pytest.mark.parametrize(("clipped", "is_flagged"), [(0, 0.0), (1, 0.0), (3, 1.0)])
def test_a_round_with_many_clipped_values_is_flagged(clipped: int, is_flagged: float) -> None:
    """4 silos send 600 values each; 0.1% of 2,400 is 2.4."""
    wide = {"model/a": np.zeros(600, dtype=np.float32)}
    of = context(state=wide, trained=("a",), buffers=())
    figures = FEDAVG.phase("train").figures(of, train_sums(delta=np.zeros(600), clipped=clipped))
    assert figures["clipped"] == clipped
    assert figures["clipped_share"] == clipped / 2400
    assert figures["clipped_too_often"] == is_flagged


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_figures_are_those_of_the_tested_samples(kind: str) -> None:
    figures = FEDAVG.phase(kind).figures(context(), train_sums())
    assert {name: figures[name] for name in ("accuracy", "loss", "tested")} == {
        "accuracy": 0.75,
        "loss": 0.5,
        "tested": 40.0,
    }


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_figures_of_no_tested_sample_are_no_number(kind: str) -> None:
    nothing = train_sums(correct=0, tested=0, loss_sum=0.0)
    figures = FEDAVG.phase(kind).figures(context(), nothing)
    assert math.isnan(figures["accuracy"])
    assert math.isnan(figures["loss"])


def test_evaluate_leaves_the_state_as_it_is() -> None:
    before = context()
    sums: Mapping[str, Array] = {name: np.asarray(value) for name, value in SUMS.items()}
    assert FEDAVG.phase("evaluate").next_state(before, sums).state is before.state
    assert names(FEDAVG.phase("evaluate"), before) == ["correct", "tested", "loss_sum"]


def test_the_model_moves_as_in_float64_and_no_vector_but_its_own_is_made() -> None:
    rng = np.random.default_rng(3)
    size = 700_001  # of several blocks, and no multiple of one
    state: dict[str, Array] = {
        "model/a": rng.standard_normal((size - 5,)).astype(np.float32),
        "model/b": rng.standard_normal((5, 1)).astype(np.float32),
    }
    delta_P = rng.standard_normal(size)
    before_P = np.concatenate([state["model/a"], state["model/b"].reshape(-1)])
    expected_P = (before_P + delta_P / 0.75).astype(np.float32)
    of = context(state=state, buffers=())
    sums = {"delta": delta_P, "weight": np.asarray(0.75), **{name: np.asarray(SUMS[name]) for name in SUMS}}

    tracemalloc.start()
    result = FEDAVG.phase("train").next_state(of, sums)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert result.state is not None
    moved_P = np.concatenate([result.state["model/a"], result.state["model/b"].reshape(-1)])
    np.testing.assert_array_equal(moved_P, expected_P)
    assert result.state["model/b"].shape == (5, 1)
    assert peak_bytes < delta_P.nbytes / 2 + 12 * 8 * BLOCK_VALUES  # itself, in float32, and a few blocks
