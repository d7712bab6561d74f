"""The server's step over a stored sum: taken piece by piece, so that the next model is the only whole vector,
and the same numbers as over whole vectors.

P = trained parameters.
"""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout
from crypto.masking.stored_sum import StoredSum
from strategies.base import BLOCK_VALUES, MODEL, Arrays, Phase, PhaseContext, PhaseResult
from strategies.methods import strategy_for
from strategies.parts.server_updates.fedopt import MOMENT, SQUARES
from strategies.parts.server_updates.scaffold import CONTROL
from strategies.phases.training import TRAIN

MEMBERS = 3
# arrays begin and end within a piece, and one has several
SHAPES = {"first": (7,), "second": (11, BLOCK_VALUES // 4), "third": (30 * BLOCK_VALUES + 5,), "last": (2, 3)}
VALUES = sum(int(np.prod(shape)) for shape in SHAPES.values())
# what each method keeps beside the model, in vectors of its length
METHODS = {
    "fedavg": ("fedavg", {}, ()),
    "fednova": ("fednova", {}, ()),
    "scaffold": ("scaffold", {}, (CONTROL,)),
    "sgd": ("fedopt", {}, (MOMENT,)),
    "adam": ("fedopt", {"server_optimizer": "adam"}, (MOMENT, SQUARES)),
}


def floats(name: str, size: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def made(preset: str, options: dict[str, float | str], kept: tuple[str, ...]) -> tuple[Phase, PhaseContext]:
    state: dict[str, np.ndarray] = {
        MODEL + name: floats(name, int(np.prod(shape))).reshape(shape) for name, shape in SHAPES.items()
    }
    state |= {name: np.abs(floats(name, VALUES)) for name in kept}
    strategy = strategy_for(preset, options)
    context = PhaseContext(
        round=2,
        members=MEMBERS,
        classes=2,
        state=state,
        trained=tuple(SHAPES),
        options=strategy.options,
    )
    return strategy.phase(TRAIN), context


def stored(path: Path, phase: Phase, context: PhaseContext) -> StoredSum:
    layout = Layout(
        members=MEMBERS, quantities=tuple(each for each in phase.quantities(context) if each.is_tagged)
    )
    rng = np.random.default_rng(7)
    vectors = {
        bits: rng.integers(1 << 12, 1 << 14, layout.length(bits)).astype(ring.WORD_TYPES[bits])
        for bits in layout.ring_sizes
    }
    weight = layout.slices(64)["weight"]
    vectors[64][weight] = int(0.75 * next(q for q in layout.quantities if q.name == "weight").scale(MEMBERS))
    path.write_bytes(b"".join(vectors[bits].tobytes() for bits in sorted(vectors)))
    return StoredSum(path, layout=layout)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_holds_what_it_leads_to_and_no_other_vector(tmp_path: Path, method: str) -> None:
    preset, options, kept = METHODS[method]
    phase, context = made(preset, options, kept)
    sums = stored(tmp_path / "sum", phase, context)
    tracemalloc.start()
    result = phase.next_state(context, sums)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.state is not None
    pieces_bytes = 12 * 8 * BLOCK_VALUES  # float64 pieces at once: less than one whole vector
    assert peak_bytes < 4 * VALUES * (1 + len(kept)) + pieces_bytes


@pytest.mark.parametrize("method", METHODS)
def test_pieces_and_whole_vectors_lead_to_the_same_state(tmp_path: Path, method: str) -> None:
    phase, context = made(*METHODS[method])
    sums = stored(tmp_path / "sum", phase, context)
    by_pieces, by_whole = phase.next_state(context, sums), phase.next_state(context, dict(sums))
    assert_same(by_pieces, by_whole)


def assert_same(one: PhaseResult, other: PhaseResult) -> None:
    states: list[Arrays] = [result.state for result in (one, other) if result.state is not None]
    assert len(states) == 2
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert array.dtype == states[1][name].dtype
        np.testing.assert_array_equal(array, states[1][name])
