"""A silo without a single record takes part in a private job: a refusal would tell the last one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agents import Hub

RECORDS = {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1}


async def test_a_silo_without_records_is_counted_under_noise(tmp_path: Path) -> None:
    hub = Hub(tmp_path, privacy={"records": RECORDS, "statistics_noise_multiplier": 5.0})
    for name in hub.names:
        hub.add(name, samples=0, privacy={"epsilon": 30.0})
    exchange = hub.begin(0, "enrollment.0")
    await hub.until_signed(exchange)
    sums = await hub.unmask(exchange)  # not applied: half of all draws of noise end a job without data
    assert float(sums["samples"]) == pytest.approx(0, abs=200)
    await hub.close()
