"""Which round's model is the best, and when rounds stop bringing anything."""

from __future__ import annotations

import math
from typing import Any

import pytest

from chorale.spec.job_spec import JobSpec
from chorale.spec.selection import Measurements
from crypto.errors import ConfigError

NAN = math.nan


def spec(**fields: Any) -> JobSpec:
    values = {
        "name": "ends",
        "federation": "test",
        "not_after": "2100-01-01T00:00:00Z",
        "silos": ("a", "b", "c"),
        "rounds": 9,
        "model": {"name": "mlp"},
        "training": {"learning_rate": 0.1},
        "classes": 2,
        "input_shape": (4,),
    }
    return JobSpec.model_validate(values | fields)


def measured(*losses: float | None) -> Measurements:
    """By round 1, 2, ...: the loss of the model before it; None: the round was used up."""
    found = Measurements()
    for round, loss in enumerate(losses, start=1):
        if loss is not None:
            found = found.after_round(round, {"loss": loss})
    return found


LOWEST = {"metric": "loss", "best": "lowest"}


@pytest.mark.parametrize(
    ("losses", "closing", "best"),
    [
        ((3.0, 2.0, 4.0), None, (1, 2.0)),
        ((3.0, 2.0, 4.0), 1.0, (3, 1.0)),
        ((1.0, 2.0, 4.0), 1.0, (0, 1.0)),  # the given model, and of equal ones the first
        ((3.0, None, 2.0, 4.0), None, (1, 2.0)),  # round 3 tests the model after round 1
        ((NAN, 5.0, NAN), NAN, (1, 5.0)),
        ((NAN, NAN), NAN, None),
        ((), None, None),
    ],
)
def test_the_best_round_is_that_of_the_model_that_was_tested(
    losses: tuple[float | None, ...], closing: float | None, best: tuple[int, float] | None
) -> None:
    found = measured(*losses)
    if closing is not None:
        found = found.after_closing({"loss": closing})
    rule = spec(keep=LOWEST).keep
    assert rule is not None
    assert found.best(rule) == best


@pytest.mark.parametrize(
    ("losses", "rule", "stalled_at"),
    [
        ((5.0, 4.0, 4.0, 4.5, 3.0), {"rounds": 2}, 4),
        ((5.0, 4.0, 4.0, 4.5, 3.0), {"rounds": 3}, None),
        ((5.0, 4.9, 4.8, 4.7), {"rounds": 2, "improvement": 0.25}, 3),
        ((5.0, 4.9, 4.8, 4.7), {"rounds": 3, "improvement": 0.25}, None),  # 4.7 is better than 5 by more
        ((5.0, None, 6.0, 7.0), {"rounds": 2}, 4),
        ((NAN, NAN, 5.0), {"rounds": 2}, 2),
        ((0.5, 0.6, 0.6, 0.7), {"rounds": 2, "best": "highest"}, None),
    ],
)
def test_rounds_end_once_so_many_models_in_a_row_are_no_better(
    losses: tuple[float | None, ...], rule: dict[str, Any], stalled_at: int | None
) -> None:
    job = spec(stop={**LOWEST, **rule})
    said = [bool(measured(*losses[:count]).stalled(job)) for count in range(1, len(losses) + 1)]
    assert (said.index(True) + 1 if True in said else None) == stalled_at


def test_a_job_that_ran_all_its_rounds_was_not_stopped() -> None:
    job = spec(stop={**LOWEST, "rounds": 1}, rounds=3)
    assert measured(1.0, 2.0).stalled(job) == "stopped after round 2 of 3: loss no lower for 1 rounds"
    assert measured(1.0, 2.0, 3.0).stalled(job) == ""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"keep": {"metric": "dice", "best": "highest"}}, "keep.metric: .* accuracy, loss, got dice"),
        ({"stop": {**LOWEST, "metric": "tested", "rounds": 2}}, "stop.metric: .* accuracy, loss, got tested"),
        ({"keep": LOWEST, "rounds": 0}, "keep: not allowed with rounds: 0, where there is one model"),
        (
            {"keep": LOWEST, "strategy": {"preset": "spherefed"}},
            "keep: not allowed with closing ffc, which changes the last model",
        ),
        (
            {"keep": LOWEST, "task": {"metrics": ["temperature"]}},
            "keep: not allowed with metric temperature, which is of the last model",
        ),
        ({"rounds": 0, "strategy": {"preset": "feddw"}}, "rounds: 0 rounds .* has class-presence besides"),
        ({"rounds": 0, "strategy": {"preset": "fedavg_ft"}}, "rounds: 0 rounds .* has fine-tune besides"),
        ({"rounds": 0, "strategy": {"preset": "ditto"}}, "rounds: 0 rounds .* has personalization "),
    ],
)
def test_a_job_whose_ends_do_not_suit_it_is_refused_as_it_is_read(fields: dict[str, Any], why: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=why):
        spec(**fields)
