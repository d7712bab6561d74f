"""Sixteen bits and a share of the words, round after round through the ring: no training, known updates."""

# P = trained parameters

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from crypto.errors import ConfigError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from strategies.base import Array, PhaseContext, PhaseResult
from strategies.declared_parts import PARTS
from strategies.methods import strategy_for
from strategies.parts.server_updates.mean import FEDNOVA
from strategies.parts.server_updates.scaffold import SCAFFOLD
from strategies.presets import PRESETS
from strategies.update_scale import HEADROOM, MEAN_SQUARE, RMS, with_mean_square

SIZE, SILOS = 20_000, 10
BESIDE: dict[str, Array] = {"correct": np.array(3), "tested": np.array(4), "loss_sum": np.array(1.0)}


def context(**changes: Any) -> PhaseContext:
    state: dict[str, Array] = {"model/body.weight": np.zeros((SIZE // 10, 10), np.float32)}
    plain = PhaseContext(
        round=1, members=SILOS, classes=10, state=state, trained=("body.weight",), update_bits=16
    )
    return dataclasses.replace(plain, **changes)


def knowing(rms: Any, **changes: Any) -> PhaseContext:
    """A context in whose state a round has left that size of updates."""
    return context(state={**context().state, RMS: np.asarray(rms)}, **changes)


def delta_of(of: PhaseContext) -> Quantity:
    return strategy_for("fedavg", {}).phase("train").quantities(of)[0]


def updates(rms: float, *, number: int = 0, silos: int = SILOS) -> list[Array]:
    """Silos that agree by half: a common direction and one of their own."""
    generator = np.random.default_rng(number)
    common_P = generator.normal(size=SIZE)
    own = [generator.normal(size=SIZE) for _ in range(silos)]
    return [(rms * (common_P + each_P) / math.sqrt(2.0)).astype(np.float32) for each_P in own]


def run(of: PhaseContext, deltas: Sequence[Array], preset: str = "fedavg") -> PhaseResult:
    """One train phase through the ring, with all its figures; every silo weighs the same."""
    phase = strategy_for(preset, {}).phase("train")
    layout = Layout(quantities=phase.quantities(of), members=of.members)
    total = ring.zeros(layout)
    for place, delta_P in enumerate(deltas):
        values: Mapping[str, Array] = {"delta": delta_P, "weight": np.array(1.0 / len(deltas)), **BESIDE}
        values = with_mean_square(of, values)
        bits = hashlib.sha256(f"dice {of.round} {place}".encode()).digest()
        ring.add_into(total, Encoder(values, layout=layout, random=lambda size: bits[:size]).encode().vectors)  # noqa: B023
    sums = ring.decode(total, layout=layout)
    figures = phase.figures(of, sums)
    result = phase.next_state(of, sums)
    return dataclasses.replace(result, figures={**figures, **result.figures})


def after(of: PhaseContext, result: PhaseResult) -> PhaseContext:
    assert result.state is not None
    seed = hashlib.sha256(f"round {of.round + 1}".encode()).digest()
    return dataclasses.replace(of, round=of.round + 1, state=result.state, public_seed=seed)


def moved(of: PhaseContext, result: PhaseResult) -> Array:
    assert result.state is not None
    return (result.state["model/body.weight"] - of.state["model/body.weight"]).reshape(-1)


def relative_error(found_P: Array, deltas: Sequence[Array]) -> float:
    true_P = np.sum(deltas, axis=0, dtype=np.float64)
    return float(np.linalg.norm(found_P - true_P) / np.linalg.norm(true_P))


def test_the_first_round_takes_32_bits_and_says_how_large_updates_are() -> None:
    start, deltas = context(), updates(0.02)
    delta = delta_of(start)
    assert (delta.ring_bits, delta.bound, delta.projection) == (32, 8.0, None)
    result = run(start, deltas)
    expected = math.sqrt(sum(float(np.mean(np.float64(each_P) ** 2)) for each_P in deltas))
    assert result.figures["update_rms"] == pytest.approx(expected, rel=1e-6)
    assert result.state is not None
    assert result.state[RMS].dtype == np.float64
    assert float(result.state[RMS]) == result.figures["update_rms"]


def test_later_rounds_take_16_bits_and_end_near_the_true_sum() -> None:
    """Rounding: sqrt(10 / 6) steps of at most 10 * 32 * 10^(1/4) / 2^14 of a silo's root mean square."""
    of = context()
    for number in range(4):
        deltas = updates(0.02 * 0.8**number, number=number)
        result = run(of, deltas)
        assert result.figures["clipped"] == 0
        assert relative_error(moved(of, result), deltas) < (1e-4 if number == 0 else 0.01)
        of = after(of, result)
        delta = delta_of(of)
        assert delta.ring_bits == 16
        assert delta.bound == pytest.approx(HEADROOM * float(of.state[RMS]) / SILOS**0.25, rel=1e-12)
        assert delta.projection is not None
        assert delta.projection.seed == of.public_seed


def test_updates_that_grow_tenfold_are_not_clipped() -> None:
    of = after(context(), run(context(), updates(0.02)))
    assert run(of, updates(0.2, number=1)).figures["clipped"] == 0


def test_updates_that_grow_a_hundredfold_clip_one_round_and_recover() -> None:
    of = after(context(), run(context(), updates(0.001)))
    deltas = updates(0.1, number=1)
    clipped = run(of, deltas)
    assert clipped.figures["clipped_too_often"] == 1.0
    of = after(of, clipped)
    recovered = run(of, deltas)
    assert recovered.figures["clipped"] == 0
    assert relative_error(moved(of, recovered), deltas) < 0.015


def test_a_silo_that_holds_nearly_all_data_is_not_clipped() -> None:
    deltas = updates(0.001)
    deltas[3] = 100 * deltas[3]
    of = after(context(), run(context(), deltas))
    assert run(of, deltas).figures["clipped"] == 0


def test_one_heavy_silo_may_sit_a_round_out() -> None:
    deltas = updates(0.001)
    deltas[3] = 20 * deltas[3]
    of = after(context(), run(context(), deltas))
    of = after(of, run(of, deltas[:3] + deltas[4:]))
    assert run(of, deltas).figures["clipped"] == 0


def test_an_update_of_a_single_parameter_is_not_clipped() -> None:
    one_P = np.zeros(SIZE, np.float32)
    one_P[1234] = 0.5
    deltas = [one_P, *[np.zeros(SIZE, np.float32)] * 9]
    of = after(context(), run(context(), deltas))
    result = run(of, deltas)
    assert result.figures["clipped"] == 0
    assert moved(of, result)[1234] == pytest.approx(0.5, rel=0.02)


def test_updates_of_zero_fall_back_to_32_bits() -> None:
    zeros = [np.zeros(SIZE, np.float32)] * SILOS
    of = after(context(), run(context(), zeros))
    assert float(of.state[RMS]) == 0.0
    assert (delta_of(of).ring_bits, delta_of(of).bound) == (32, 8.0)
    assert relative_error(moved(of, run(of, updates(0.02))), updates(0.02)) < 1e-4


def test_training_that_pauses_starts_again() -> None:
    of = after(context(), run(context(), updates(0.02)))
    for _ in range(8):
        of = after(of, run(of, [np.zeros(SIZE, np.float32)] * SILOS))
    for _ in range(3):
        result = run(of, updates(0.02))
        of = after(of, result)
    assert result.figures["clipped"] == 0


def test_a_lying_silo_cannot_bring_the_size_below_half_of_what_it_was() -> None:
    before = knowing(0.1)
    sums = {
        "delta": np.zeros(SIZE),
        "weight": np.array(1.0),
        "clipped": np.array(0),
        **BESIDE,
        MEAN_SQUARE: np.array(-64.0),
    }
    assert strategy_for("fedavg", {}).phase("train").figures(before, sums)["update_rms"] == 0.05


@pytest.mark.parametrize(
    ("rms", "ring_bits", "bound"),
    [
        (0.0, 32, 8.0),
        (5e-324, 32, 8.0),
        (1e-32, 32, 8.0),
        (1e-31, 16, 3.2e-30 / SILOS**0.25),
        (0.01, 16, 0.32 / SILOS**0.25),
        (0.45, 16, 8.0),
        (1e3, 16, 8.0),
        (1.7e308, 16, 8.0),
    ],
)
def test_every_number_in_the_state_gives_a_layout(rms: float, ring_bits: int, bound: float) -> None:
    quantities = strategy_for("fedavg", {}).phase("train").quantities(knowing(rms))
    delta = Layout(quantities=quantities, members=SILOS).quantities[0]
    assert delta.ring_bits == ring_bits
    assert delta.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    ("rms", "message"),
    [
        (math.nan, "expected a finite number of at least 0, got nan"),
        (math.inf, "expected a finite number of at least 0, got inf"),
        (-1e-9, "expected a finite number of at least 0, got -1e-09"),
        ([0.1], "expected one float64, got float64 of shape"),
        (np.float32(0.1), "expected one float64, got float32 of shape"),
        (1, "expected one float64, got int64 of shape"),
    ],
)
def test_an_odd_state_is_refused(rms: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"state: method/update_rms: {message}"):
        delta_of(knowing(rms))


@pytest.mark.parametrize("ring_bits", [32, 64])
def test_other_words_neither_rotate_nor_sum_a_size(ring_bits: int) -> None:
    of = context(update_bits=ring_bits)
    quantities = strategy_for("fedavg", {}).phase("train").quantities(of)
    assert (quantities[0].ring_bits, quantities[0].projection) == (ring_bits, None)
    assert MEAN_SQUARE not in {quantity.name for quantity in quantities}
    result = run(of, updates(0.02))
    assert result.state is not None
    assert RMS not in result.state
    assert "update_rms" not in result.figures


@pytest.mark.parametrize("preset", ["fedavg", "fedexp", "fedopt"])
def test_server_updates_take_the_same_step_in_16_bits(preset: str) -> None:
    with_sums_of_their_own = {FEDNOVA, SCAFFOLD}
    presets = ("fedavg", "fedexp", "fedopt")
    assert {PRESETS[name].server_update for name in presets} == set(
        PARTS["server_update"]
    ) - with_sums_of_their_own
    deltas = updates(0.02)
    steps = []
    for ring_bits in (16, 64):
        of = knowing(0.1, update_bits=ring_bits)
        phase = strategy_for(preset, {}).phase("train")
        layout = Layout(quantities=phase.quantities(of), members=of.members)
        total = ring.zeros(layout)
        for delta_P in deltas:
            values: Mapping[str, Array] = {"delta": delta_P, "weight": np.array(0.1), **BESIDE}
            values = with_mean_square(of, values)
            if preset == "fedexp":
                values = {**values, "update_sq_norm": np.asarray(10.0 * np.dot(delta_P, delta_P))}
            ring.add_into(total, Encoder(values, layout=layout).encode().vectors)
        steps.append(moved(of, phase.next_state(of, ring.decode(total, layout=layout))))
    assert np.linalg.norm(steps[0] - steps[1]) < 0.05 * np.linalg.norm(steps[1])


def test_values_that_the_ring_refuses_stay_for_it() -> None:
    values = with_mean_square(context(), {"delta": np.array([1.0, np.nan])})
    assert math.isnan(float(values[MEAN_SQUARE]))
    assert with_mean_square(context(), {"silos": np.array(1)}) == {"silos": np.array(1)}
    huge = with_mean_square(context(), {"delta": np.full(4, 1e38, np.float32)})
    assert float(huge[MEAN_SQUARE]) == pytest.approx(1e76)
