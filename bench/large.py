"""A round of few silos with as many parameters as fit: memory, disk and seconds.

    python -m bench.large --silos 3 --length 400000000

Real processes, a coordinator and one agent a silo, over mutual TLS: an opening phase, a round and the
evaluation that ends a job. The delta of a silo is zeros but for its first values, for which the system gives
no memory: what a silo's process holds is what the agent takes beside it. The coordinator holds no upload in
memory (`spool_memory_megabytes` is 0). Memory is as in bench.round; disk is what all files of the federation
took together at most. It ends with an error unless the model that came out is the mean of the deltas.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import Parser, end_with_sigterm, whole
from bench.parties.files import COORDINATOR
from bench.parties.light_federation import APPLIED, LightFederation, moments
from bench.parties.processes import Peaks, Watch
from bench.parties.untrained_silo import FIRST_VALUES
from chorale.spec.state import state_from_file

WORD_BYTES = 4
FOLDER = Path("/var/tmp")  # /tmp is often in memory
LOOK_SECONDS = 0.5
VECTORS_ON_DISK_A_SILO = 6  # the coordinator's share among them; 15 were measured for three


class DiskPeak(Watch):
    """The most bytes that a folder's files took."""

    def __init__(self, folder: Path) -> None:
        super().__init__(every_seconds=LOOK_SECONDS)
        self.most_bytes = 0
        self._folder = folder

    def look(self) -> None:
        taken = 0
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):  # removed meanwhile
                taken += path.stat().st_blocks * 512
        self.most_bytes = max(self.most_bytes, taken)


def measure(folder: Path, *, silos: int, length: int) -> dict[str, Any]:
    """Raises RuntimeError if the model that came out is another one."""
    with ExitStack() as stack:
        federation = stack.enter_context(
            LightFederation(
                folder,
                groups=[1] * silos,
                objective="objective_without_memory",
                hub_settings={"spool_memory_megabytes": 0},
            )
        )
        processes = [federation.hub, *federation.silos]
        idle = [process.memory() for process in processes]
        peaks, disk = stack.enter_context(Peaks(processes)), stack.enter_context(DiskPeak(folder))
        began = time.monotonic()
        records = federation.run_job(length=length, rounds=1)
        seconds = time.monotonic() - began
        found = moments(records)
        cpu_seconds = [process.cpu_seconds() for process in processes]
    vector_bytes = WORD_BYTES * length
    hub, *agents = (most - before for most, before in zip(peaks.most, idle, strict=True))
    _check(folder, length=length)
    return {
        "silos": silos,
        "length": length,
        "vector_bytes": vector_bytes,
        "rounds_applied": sum(each.is_training and each.stage == APPLIED for each in found),
        "failed_attempts": sum(record["event"] == "attempt failed" for record in records),
        "job_wall_seconds": seconds,
        "round_stage_seconds": {
            one.stage: other.unix_seconds - one.unix_seconds
            for one, other in pairwise(found)
            if one.is_training and one.stage != APPLIED
        },
        "coordinator_cpu_seconds": cpu_seconds[0],
        "silo_cpu_seconds": max(cpu_seconds[1:]),
        "coordinator_peak_beyond_idle_bytes": hub,
        "coordinator_vectors": hub / vector_bytes,
        "silo_peak_beyond_idle_bytes": max(agents),
        "silo_vectors": max(agents) / vector_bytes,
        "disk_peak_bytes": disk.most_bytes,
    }


def _check(folder: Path, *, length: int) -> None:
    states = sorted(
        (folder / COORDINATOR / "checkpoints").rglob("*.safetensors"), key=lambda path: path.stat().st_mtime
    )
    weight_P = state_from_file(states[-1])["model/weight"]
    expected = np.float32(1 / 1024)  # each silo weighs its own: p delta / sum of p
    if weight_P.size != length or not np.allclose(weight_P[:FIRST_VALUES], expected, atol=1e-6):
        raise RuntimeError("large: the model that came out is not the mean of the deltas")
    if weight_P[FIRST_VALUES:].any():
        raise RuntimeError("large: the model moved where no silo moved it")


def main() -> None:
    """Print what it took, as JSON."""
    parser = Parser("large", __doc__)
    parser.add_argument("--silos", type=whole(3, 200), default=3, help="processes (3)")
    parser.add_argument(
        "--length", type=whole(1_000_000, 2_000_000_000), default=400_000_000, help="parameters (400,000,000)"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"on a disk ({FOLDER})")
    given = parser.parse_args()
    needed = VECTORS_ON_DISK_A_SILO * given.silos * WORD_BYTES * given.length
    try:
        free = shutil.disk_usage(given.folder).free
    except OSError as error:
        parser.error(f"--folder: {given.folder}: {(error.strerror or str(error)).lower()}")
    if free < needed:
        parser.error(f"--folder: {given.folder}: expected {needed / 1e9:.0f} GB free, got {free / 1e9:.0f}")
    print(f"large: {given.silos} silos, {given.length:,} parameters; minutes", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="chorale-large-", dir=given.folder) as folder:
        print(json.dumps(measure(Path(folder), silos=given.silos, length=given.length), indent=2))


if __name__ == "__main__":
    end_with_sigterm()
    main()
