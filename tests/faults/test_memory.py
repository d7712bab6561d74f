"""The coordinator stays thin: ten silos, a million parameters, no torch. Guarantee G6."""

from __future__ import annotations

from pathlib import Path

from tests.faults.conftest import MakeFederation
from tests.support.federation import COORDINATOR
from tests.support.history import check_finished

MODULES_OF_TORCH = ("libtorch", "libc10", "torch/_C")
MAX_MEGABYTES = 200
VALUES = 1_000_000


def test_coordinator_holds_under_200_mb_and_no_torch_with_ten_silos_and_a_million_parameters(
    make_federation: MakeFederation,
) -> None:
    federation = make_federation(silos=10, executed=[COORDINATOR])
    federation.start()
    job_id = federation.submit(values=VALUES, rounds=1)

    history = check_finished(federation, job_id, rounds=1)

    assert history.cohorts() == [federation.names]
    process = Path("/proc") / str(federation.hub.process.pid)
    assert peak_megabytes(process) < MAX_MEGABYTES
    loaded = (process / "maps").read_text()
    assert "cygrpc" in loaded, "the libraries of the running process are not seen"
    assert [name for name in MODULES_OF_TORCH if name in loaded] == []


def peak_megabytes(process: Path) -> float:
    """The most memory that was ever resident at once, as the kernel counts it."""
    lines = (process / "status").read_text().splitlines()
    (peak,) = [line.split() for line in lines if line.startswith("VmHWM:")]
    return int(peak[1]) / 1024
