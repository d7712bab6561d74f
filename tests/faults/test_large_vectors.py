"""Vectors that no machine holds often: memory does not grow with the silos, and no cap cuts a round short."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import large

FIXED_BYTES = 100 << 20  # code that is loaded with the first job, buffers of the transport
MAX_VECTORS = 1.5


@pytest.mark.soak  # a minute, 32 GB of disk
def test_four_hundred_million_parameters_pass_a_round_of_real_silos(tmp_path: Path) -> None:
    measured = large.measure(tmp_path, silos=3, length=400_000_000)

    assert (measured["rounds_applied"], measured["failed_attempts"]) == (1, 0)
    most = MAX_VECTORS * measured["vector_bytes"] + FIXED_BYTES
    assert measured["coordinator_peak_beyond_idle_bytes"] < most
    assert measured["silo_peak_beyond_idle_bytes"] < most
