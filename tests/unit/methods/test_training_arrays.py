"""Which arrays of the global state make it another one, and which silos compare with their own steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import METHOD, MODEL, PRESENCE, TOTAL, Array
from strategies.presets import PRESETS
from strategies.update_scale import RMS
from tests.support import simulation
from tests.support.objectives import make_data, make_job

WRITTEN = {
    "feddw": {"method/soft_labels", "method/soft_labels_valid"},
    "fedcsd": {"method/teacher/head.weight", "method/prototypes"},
    "scaffold": {"method/control"},
    "fedopt": {"method/server_moment"},
}
# phases to which a state is another one where that array of it moved alone
ANOTHER = {
    ("fedcsd", "method/teacher"): {"prototypes"},
    ("fedproto", "method/feature_prototypes"): {"train", "evaluate"},
    ("fedproto", "method/feature_prototypes_valid"): {"train", "evaluate"},
}


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_an_array_is_declared_exactly_where_inputs_follow_from_it(preset: str) -> None:
    """A part that reads what it does not declare is found. And none of what a method keeps beside the model
    makes a state a new one when it moves alone, but what own models or a phase before the training go by."""
    spec = make_job({"preset": preset}, rounds=2)
    draw = np.random.default_rng(5)
    data = [
        make_data(draw.normal(size=(30, 1, 8, 8)), np.arange(30) % 10, holdout=(np.zeros((0, 1, 8, 8)), []))
        for _ in spec.silos
    ]
    *_, ended = (step for step in simulation.simulate(spec, data) if step.phase == "train")
    state, method = dict(ended.state), spec.method
    kept = {name for name in state if name.startswith(METHOD)}
    assert WRITTEN.get(preset, set()) <= kept

    def values(arrays: Mapping[str, Array]) -> dict[str, Array]:
        """All that a silo sums in the next round, but how well it does: that the model alone decides."""
        found = {}
        for phase in method.round_phases:
            context = simulation._context(spec, 2, phase, arrays, members=4)
            work = Work(
                spec=spec,
                phase_kind=phase,
                round=2,
                silo="silo-0",
                state=arrays,
                context=context,
                data=data[0],
                weight=0.25,
                is_cancelled=lambda: False,
                class_rows=np.ones(10, np.bool_),
                seed=1,
            )
            found |= TorchObjective(device="cpu").compute(work)
        return found

    before, declared = values(state), method.training_arrays(state)
    digests = {phase: method.use_digest(phase, state) for phase in (*method.round_phases, *method.closing)}
    for name in kept:
        moved = {**state, name: _moved(state[name])}
        is_read = any(not np.array_equal(before[each], value) for each, value in values(moved).items())
        is_declared = name in declared
        assert is_declared == is_read or (is_declared and name.startswith("method/soft_labels")), name
        assert not (is_declared and name in (TOTAL, PRESENCE, RMS))
        another = {phase for phase, digest in digests.items() if method.use_digest(phase, moved) != digest}
        kept_as = "method/teacher" if name.startswith("method/teacher/") else name
        assert another == ANOTHER.get((preset, kept_as), set()), name


def test_the_model_decides_and_so_do_shape_and_type() -> None:
    method = make_job().method
    state = {MODEL + "a": np.ones((2, 3), np.float32), TOTAL: np.array(5)}
    digest = method.use_digest("train", state)
    assert method.use_digest("evaluate", state) == digest
    assert method.use_digest("train", dict(reversed(state.items()))) == digest
    assert method.use_digest("train", {**state, TOTAL: np.array(6)}) == digest
    for other in (np.zeros((2, 3), np.float32), np.ones((3, 2), np.float32), np.ones((2, 3), np.float64)):
        assert method.use_digest("train", {**state, MODEL + "a": other}) != digest


def test_prototypes_are_asked_again_where_the_teacher_stands_still() -> None:
    """Silos answer with the teacher, whatever became of the model: to them it is one state."""
    method = make_job({"preset": "fedcsd"}).method
    model, teacher = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    first = {MODEL + "head.weight": model}
    state = {**first, "method/teacher/head.weight": teacher}
    digest = method.use_digest("prototypes", state)
    assert method.use_digest("prototypes", {**state, MODEL + "head.weight": model + 1}) == digest
    assert method.use_digest("train", {**state, MODEL + "head.weight": model + 1}) != (
        method.use_digest("train", state)
    )
    assert method.use_digest("prototypes", {**state, "method/teacher/head.weight": teacher + 1}) != digest
    # until there is a teacher the model is it, and no sum of another kind is compared with this one
    assert method.use_digest("prototypes", {MODEL + "head.weight": model + 1}) != (
        method.use_digest("prototypes", first)
    )
    assert method.use_digest("prototypes", first) != method.use_digest("train", first)


def test_the_opening_reads_no_state() -> None:
    method = make_job({"preset": "feddw"}).method
    assert [kind for kind in method.phases if not method.reads_state(kind)] == [
        "enrollment",
        "class-presence",
    ]


def _moved(array: Array) -> Array:
    if array.dtype == np.uint8:
        return np.asarray(1 - np.minimum(array, 1), np.uint8)
    return np.asarray(array + np.arange(array.size).reshape(array.shape) % 3 + 1, array.dtype)
