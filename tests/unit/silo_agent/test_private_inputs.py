"""Counts and weights of a private job: exact under noise, and declared."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from tests.support.agents import Hub
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

RECORDS = {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1}
GRANULARITY, SAMPLES, HOLDOUT = 1000, 1999, 25


def hub_of(make_hub: MakeHub, **privacy: Any) -> Awaitable[Hub]:
    """After enrollment."""
    # noise of about 7 records in the sum leaves counts that can be told from rounded ones
    private = {"records": RECORDS, "statistics_noise_multiplier": 5.0, **privacy}
    own = {"samples": SAMPLES, "count_granularity": GRANULARITY, "privacy": {"epsilon": 30.0}}
    return enrolled(make_hub, privacy=private, each=lambda name: own)


async def test_enrollment_sums_exact_counts_under_noise(make_hub: MakeHub) -> None:
    """One record would move a rounded count by the whole granularity, which no noise is scaled for."""
    hub = await hub_of(make_hub)
    assert int(hub.state["method/total"]) == pytest.approx(4 * SAMPLES, abs=200)


async def test_a_silo_without_records_is_counted_under_noise(make_hub: MakeHub) -> None:
    """A refusal would tell the last one."""
    hub = make_hub(privacy={"records": RECORDS, "statistics_noise_multiplier": 5.0})
    hub.add_all(samples=0, privacy={"epsilon": 30.0})
    exchange = hub.begin(0, "enrollment.0")
    await hub.until_signed(exchange)
    sums = await hub.unmask(exchange)  # not applied: half of all draws of noise end a job without data
    assert float(sums["samples"]) == pytest.approx(0, abs=200)


@pytest.mark.parametrize(("declared", "weight"), [({}, 0.25), ({"weight": 0.125}, 0.125)])
async def test_hold_out_is_whole_and_weight_is_declared(
    make_hub: MakeHub, declared: dict[str, float], weight: float
) -> None:
    """n / total would tell n; a hold-out cut to a multiple would lose a whole multiple with a record."""
    hub = await hub_of(make_hub, **declared)
    await hub.run(1, "train")
    works = [work for agent in hub.agents.values() for work in agent.objective.works]
    assert {work.weight for work in works} == {weight}
    assert {len(work.data.holdout) for work in works} == {HOLDOUT}
