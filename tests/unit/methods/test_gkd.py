"""FedGKD: the teacher is the mean of the last global models, and teaches by the divergence from its answers.

N = samples, C = classes.
"""

from __future__ import annotations

import numpy as np
import pytest

from strategies.base import Array
from strategies.parts.csd import teacher_state
from strategies.parts.gkd import RecentTeacher
from tests.support.small_methods import make_context

torch = pytest.importorskip("torch", reason="needs the extra silo")

from silo_agent.training.base.passes import Outputs  # noqa: E402
from silo_agent.training.parts.regularizers.distillation import KnowledgeDistillation  # noqa: E402


def state_of(value: float) -> dict[str, Array]:
    return {
        "model/a": np.full(2, value, np.float32),
        "model/n.running_var": np.full(1, 2 * value, np.float32),
        "model/head.weight": np.full(1, 7.0, np.float32),  # frozen
    }


def teachers_of(values: list[float], recent_models: int) -> list[dict[str, Array]]:
    """The state after each round, when the global model takes these values in turn."""
    state, states = state_of(values[0]), []
    for value in values[1:]:
        context = make_context(
            state, trained=("a",), buffers=("n.running_var",), options={"recent_models": recent_models}
        )
        state = {**state, **RecentTeacher().arrays(context, state_of(value)), **state_of(value)}
        states.append(state)
    return states


@pytest.mark.parametrize("recent_models", [1, 2, 3, 5])
def test_the_teacher_is_the_mean_of_the_last_models_of_as_many_as_there_were(recent_models: int) -> None:
    values = np.random.default_rng(2).standard_normal(9).astype(np.float32).tolist()
    for place, state in enumerate(teachers_of(values, recent_models), start=1):
        expected = np.mean(values[max(place + 1 - recent_models, 0) : place + 1])
        taught = teacher_state(state)
        assert taught["model/a"] == pytest.approx([expected] * 2, abs=1e-6)
        assert taught["model/n.running_var"] == pytest.approx([2 * expected], abs=1e-6)
        assert taught["model/head.weight"] == [7.0]
        kept = {name for name in state if name.startswith("method/recent/")}
        assert len(kept) == 2 * min(recent_models - 1, place)


def test_the_penalty_is_the_divergence_from_the_teachers_answers() -> None:
    rng = np.random.default_rng(3)
    student_NC, teacher_NC = rng.standard_normal((2, 6, 4))

    def chances(logits_NC: Array) -> Array:
        powers_NC = np.exp(logits_NC)
        return np.asarray(powers_NC / powers_NC.sum(axis=1, keepdims=True))

    p_NC, q_NC = chances(teacher_NC), chances(student_NC)
    expected_N = (p_NC * (np.log(p_NC) - np.log(q_NC))).sum(axis=1)
    student, teacher = (
        Outputs(features_ND=torch.zeros(6, 0), logits_NC=torch.tensor(each))
        for each in (student_NC, teacher_NC)
    )
    found_N = KnowledgeDistillation(tau=1.0).per_sample(student, teacher, torch.zeros(6, dtype=torch.int64))
    np.testing.assert_allclose(found_N.numpy(), expected_N, rtol=1e-12)
