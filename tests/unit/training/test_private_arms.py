"""Arms of a private search at one silo: they share nothing random, and none takes the others with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from chorale.transport.wire import PhaseKey
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.arm_values import computed_or_nothing
from silo_agent.training.dp_sgd.micro_batches import Draws
from silo_agent.training.objective import Work
from silo_agent.training.phase_input import PhaseRequest, encoded, phase_values
from silo_agent.training.torch_objective import TorchObjective
from simulation.engine import unsigned_job
from strategies.base import TOTAL, Array
from tests.support.objectives import initial_state, make_data, make_job, make_work
from tests.unit.training.dp_sgd import fixed_random

RATES = (0.125, 0.25)  # a step of twice the rate is twice as long, to the last bit
SEARCH = {"values": {"training.learning_rate": RATES}, "rounds": 2}
STATISTICS = {"statistics_noise_multiplier": 20.0}


def request_of(privacy: dict[str, Any], **fields: Any) -> PhaseRequest:
    """A first round of two arms."""
    spec = make_job(
        rounds=3,
        search=SEARCH,
        privacy={**STATISTICS, **privacy},
        training={"learning_rate": RATES[0], "local_epochs": None, "local_steps": 1},
        **fields,
    )
    state = {**initial_state(spec), TOTAL: np.array(400)}
    job = unsigned_job(spec, state)
    key = PhaseKey(job_digest=job.digest, round=1, phase="train", attempt=1)
    return PhaseRequest.of(job, key, state, members=4)


def values_of(request: PhaseRequest) -> Mapping[str, Array]:
    chance = np.random.default_rng(4)
    data = make_data(chance.normal(size=(200, 1, 8, 8)), chance.integers(0, 10, 200))
    return phase_values(
        request,
        silo="a",
        rules=Policy(federation="test"),
        load_data=lambda: data,
        objective=TorchObjective(device="cpu"),
        is_cancelled=lambda: False,
        seed=1,
    )


def steps_of_arms(request: PhaseRequest) -> list[Array]:
    """Of each arm its update by its rate: the gradient that it trained with."""
    values = values_of(request)
    return [values[name] / rate for name, rate in zip(("delta", "delta@1"), RATES, strict=True)]


@pytest.mark.parametrize("update_bits", [16, 32, 64])
def test_arms_are_trained_whatever_the_words_of_their_updates_are(update_bits: int) -> None:
    """Of 16 bits the scale follows from a sum of its own, which is made of the update at last."""
    records = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5}
    values = values_of(request_of({"records": records}, update_bits=update_bits))
    assert {"delta", "delta@1"} <= set(values)
    assert ("delta_mean_square@1" in values) is (update_bits == 16)


def correlation(one_P: Array, other_P: Array) -> float:
    return float(np.corrcoef(one_P, other_P)[0, 1])


@pytest.mark.parametrize(
    ("sample_rate", "noise_multiplier"),
    [pytest.param(1.0, 100.0, id="noise alone"), pytest.param(0.2, 1e-3, id="draws alone")],
)
def test_arms_draw_their_own_records_and_their_own_noise(
    monkeypatch: pytest.MonkeyPatch, sample_rate: float, noise_multiplier: float
) -> None:
    """Both arms begin with one model: of the same records under the same noise they take the same step, and
    one release is left where two are paid for as independent ones."""
    records = {"clip_norm": 1.0, "noise_multiplier": noise_multiplier, "sample_rate": sample_rate}
    request = request_of({"records": records})
    one_P, other_P = steps_of_arms(request)
    if sample_rate == 1.0:
        assert abs(correlation(one_P, other_P)) < 7 / np.sqrt(one_P.size)  # false alarm: below 1e-11
    assert np.linalg.norm(one_P - other_P) > 0.1 * np.linalg.norm(one_P)
    made = Draws.__init__
    monkeypatch.setattr(Draws, "__init__", lambda draws, random: made(draws, fixed_random(7)))
    one_P, other_P = steps_of_arms(request)
    np.testing.assert_allclose(one_P, other_P, rtol=0, atol=1e-4)  # the control: under one key they are one


def test_arms_have_their_own_noise_in_the_sum() -> None:
    request = request_of({"sums": {"clip_norm": 1.0, "noise_multiplier": 4.0}})
    zeros = {each.name: np.zeros(each.shape, np.float32) for each in request.layout.quantities}
    words = encoded(request, zeros).encode().vectors[32].view(np.int32)
    places = request.layout.slices(32)
    one_P, other_P = (words[places[name]].astype(np.float64) for name in ("delta", "delta@1"))
    assert min(one_P.std(), other_P.std()) > 0
    assert abs(correlation(one_P, other_P)) < 7 / np.sqrt(one_P.size)


def test_an_update_that_came_to_no_number_is_zero_and_its_test_stays() -> None:
    """The largest loss in place of the silo's own would be up to a single record, past every clip."""
    tested = {"correct": np.array(3), "tested": np.array(7), "loss_sum": np.array(55.5)}

    class Diverged:
        def compute(self, work: Work) -> dict[str, Array]:
            size = sum(work.state[f"model/{name}"].size for name in work.context.trained)
            return {"delta": np.full(size, np.nan, np.float32), "weight": np.array(0.25), **tested}

    records = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5}
    arm = request_of({"records": records}).job.spec.arms[0]
    values = computed_or_nothing(Diverged(), make_work(arm, make_data(np.zeros((4, 1, 8, 8)), np.zeros(4))))
    assert not np.any(values["delta"])
    assert {name: values[name] for name in tested} == tested
