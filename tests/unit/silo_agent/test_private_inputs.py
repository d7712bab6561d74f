"""Counts and weights of a private job: exact under noise, and declared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.agents import Hub

RECORDS = {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1}
GRANULARITY, SAMPLES, HOLDOUT = 1000, 1999, 25


async def hub_of(folder: Path, **privacy: Any) -> Hub:
    """After enrollment and a round of training."""
    # noise of about 7 records in the sum leaves counts that can be told from rounded ones
    private = {"records": RECORDS, "statistics_noise_multiplier": 5.0, **privacy}
    hub = Hub(folder, privacy=private)
    policy = {"epsilon": 30.0}
    for name in hub.names:
        hub.add(name, samples=SAMPLES, count_granularity=GRANULARITY, privacy=policy)
    return hub


@pytest_asyncio.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = await hub_of(tmp_path)
    yield made
    await made.close()


async def test_enrollment_sums_exact_counts_under_noise(hub: Hub) -> None:
    """One record would move a rounded count by the whole granularity, which no noise is scaled for."""
    sums = await hub.run(0, "enrollment.0")
    assert float(sums["samples"]) == pytest.approx(4 * SAMPLES, abs=200)


async def test_hold_out_is_whole_and_weight_is_declared(hub: Hub) -> None:
    """n / total would tell n; a hold-out cut to a multiple would lose a whole multiple with a record."""
    await hub.run(0, "enrollment.0")
    await hub.run(1, "train")
    works = [work for agent in hub.agents.values() for work in agent.objective.works]
    assert {work.weight for work in works} == {0.25}
    assert {len(work.data.holdout) for work in works} == {HOLDOUT}


async def test_weight_is_the_jobs_where_it_declares_one(tmp_path: Path) -> None:
    hub = await hub_of(tmp_path, weight=0.125)
    await hub.run(0, "enrollment.0")
    await hub.run(1, "train")
    assert {work.weight for agent in hub.agents.values() for work in agent.objective.works} == {0.125}
    await hub.close()
