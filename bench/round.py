"""What a whole secure round costs, without training: real processes, and a bare program of the same bytes.

    python -m bench.round --silos 10 --length 1000000 --json

Chorale: `chorale coordinator run` and one `chorale silo run` a silo, fedavg, an objective that makes its
delta at once. Plain: `bench.parties.plain_round` in as many processes. Times are of steady rounds, after a
first one; CPU is that of all processes together. The limit: the plain program's floor, which also moves the
small messages of the stages, and the secure sum of `bench.masking.sum_alone` in CPU.

Memory is the most RssAnon of a process, looked at every 5 ms in jobs over two longer vectors: all that it
holds, but for pages of files, which the system may take back. How far it grows from the one job to the
other is what it takes for each byte of the vector; what is left over idle from before any job, code that was
loaded since and buffers of the transport, is printed as `*_fixed_bytes`. At a silo the model's own array is
taken off, the delta that its objective made. The coordinator is told to hold no upload in memory there: that
memory is its operator's to give (`spool_memory_megabytes`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bench.masking import sum_alone
from bench.options import end_with_sigterm
from bench.parties.files import COORDINATOR, FederationFiles
from bench.parties.processes import Peaks, Process, Processes, Record, environment
from bench.rows import Row, table

WORD_BYTES = 4  # of float32 and of a word of 32 bits
MEMORY_LENGTH = 20_000_000  # and twice as many: vectors that the allocator gives back when they are freed
MEMORY_ROUNDS = 2
EXCHANGES = 4  # adverts, envelopes, signatures, shares: of each silo one message, and one for it
TRANSFERRED = [f'chorale_silo_transferred_bytes_total{{direction="{each}"}}' for each in ("down", "up")]
STAGES = ("waiting", "advertise", "share", "masked", "consistency", "unmask", "revealed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one round, medians. wall_seconds: from one round's end to the next one's; cpu_seconds: the mean."""

    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Memory at most: vectors times the vector's bytes, plus fixed_bytes."""

    vectors: float
    fixed_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """CPU seconds of what a secure round cannot do without: bytes moved, the sum computed and kept."""

    moved_cpu_seconds: float
    sum_cpu_seconds: float

    @property
    def cpu_seconds(self) -> float:
        return self.moved_cpu_seconds + self.sum_cpu_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes of one silo in a whole job, by its rounds; down without the job's first state."""

    down_bytes: float
    up_bytes: float

    @property
    def ratio(self) -> float:
        return self.down_bytes / self.up_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """phase_seconds: from a phase's start to its state being applied, of which stages: by name. moved: of the
    silo that downloads the most for what it uploads."""

    cost: Cost
    phase_seconds: float
    stages: dict[str, float]
    moved: Moved


def measure_chorale(files: FederationFiles, *, length: int, rounds: int) -> Measured:
    """A job of a federation of processes."""
    with Processes(files.folder) as processes:
        hub, address = _start(processes, files, files.coordinator())
        _submit(files, address, length=length, rounds=rounds + 1)
        cost, phase_seconds, stages = _timed(processes, hub, rounds)
        moved = [_moved(files, name, length=length, rounds=rounds + 1) for name in files.silos]
    return Measured(
        cost=cost, phase_seconds=phase_seconds, stages=stages, moved=max(moved, key=lambda one: one.ratio)
    )


def measure_memory(files: FederationFiles, *, length: int) -> tuple[Held, Held]:
    """Of the coordinator, and of the silo that takes most, from two jobs of which one has vectors twice as
    long."""
    with Processes(files.folder) as processes:
        hub, address = _start(processes, files, files.coordinator(spool_memory_megabytes=0))
        idle = [process.memory() for process in processes.all]
        first, second = (_most(files, processes, hub, address, times * length) for times in (1, 2))
    vector_bytes = WORD_BYTES * length
    coordinator, *silos = (
        Held(vectors=(twice - once) / vector_bytes, fixed_bytes=once - (twice - once) - before)
        for once, twice, before in zip(first, second, idle, strict=True)
    )
    return coordinator, max(silos, key=lambda one: one.vectors)


def measure_plain(
    files: FederationFiles, *, length: int, rounds: int, exchanges: int = 0, message_bytes: int = 0
) -> Cost:
    """The bare program in as many processes, with the certificates of the same federation."""
    folder, silos = ["--folder", str(files.folder)], files.silos
    with Processes(files.folder) as processes:
        sizes = ["--silos", str(len(silos)), "--length", str(length)]
        endpoint = files.folder / "plain.json"
        messages = ["--exchanges", str(exchanges), "--message-bytes", str(message_bytes)]
        serve = ["serve", "--name", COORDINATOR, *folder, *sizes, *messages]
        server = processes.start("plain", "bench.parties.plain_round", *serve)
        _wait_for_file(server, endpoint)
        address = json.loads(endpoint.read_text())["grpc"]
        times = ["--rounds", str(rounds + 2), "--address", address]
        times += messages
        for name in silos:
            processes.start(
                f"plain-{name}", "bench.parties.plain_round", "silo", "--name", name, *folder, *times
            )
        ends, cpu_seconds = [], []
        for number in range(rounds + 1):
            record = server.wait_for(lambda record: record["event"] == "ended", what=f"round {number}")
            ends.append(float(record["time"]))
            cpu_seconds.append(processes.cpu_seconds())
    return Cost(wall_seconds=_median_step(ends), cpu_seconds=(cpu_seconds[-1] - cpu_seconds[0]) / rounds)


def measure_limit(files: FederationFiles, *, length: int, rounds: int) -> Limit:
    """The floor of the plain program and the sum alone, one after the other."""
    alone = sum_alone.measure(silos=len(files.silos), length=length)
    message_bytes = alone.message_bytes // EXCHANGES
    moved = measure_plain(
        files, length=length, rounds=rounds, exchanges=EXCHANGES, message_bytes=message_bytes
    )
    return Limit(moved_cpu_seconds=moved.cpu_seconds, sum_cpu_seconds=alone.cpu_seconds)


def _start(processes: Processes, files: FederationFiles, settings: Path) -> tuple[Process, str]:
    """The coordinator and every silo, connected; the coordinator's process and address."""
    hub = processes.start(COORDINATOR, "cli.main", "coordinator", "run", "--config", str(settings))
    hub.wait_for(lambda record: record["event"] == "listening", what="its address")
    address = json.loads(files.endpoint.read_text())["grpc"]
    silos = [_start_silo(processes, files, name, address) for name in files.silos]
    for silo in silos:
        silo.wait_for(lambda record: record["event"] == "connected", what="its connection")
    return hub, address


def _start_silo(processes: Processes, files: FederationFiles, name: str, address: str) -> Process:
    settings = files.silo(name, coordinator=address)
    return processes.start(name, "cli.main", "silo", "run", "--config", str(settings))


def _moved(files: FederationFiles, name: str, *, length: int, rounds: int) -> Moved:
    """Of the silo's first job, as its metrics have it."""
    address = json.loads((files.folder / name / "endpoint.json").read_text())["metrics"]
    with urlopen(f"http://{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = [float(next(line for line in lines if line.startswith(each)).split()[1]) for each in TRANSFERRED]
    down_bytes, up_bytes = found
    first = files.initial_state(length=length).stat().st_size
    return Moved(down_bytes=(down_bytes - first) / rounds, up_bytes=up_bytes / rounds)


def _submit(files: FederationFiles, address: str, *, length: int, rounds: int) -> None:
    job, state = files.job(rounds=rounds, name=f"round-{length}"), files.initial_state(length=length)
    operator = files.operator(coordinator=address)
    command = ["cli.main", "job", "submit", str(job), "--init", str(state), "--config", str(operator)]
    subprocess.run([sys.executable, "-m", *command], check=True, env=environment(), stdout=subprocess.DEVNULL)


def _timed(processes: Processes, hub: Process, rounds: int) -> tuple[Cost, float, dict[str, float]]:
    """Follow a job of one round more to its end; the first round warms up."""
    ends: list[float] = []
    cpu_seconds: list[float] = []
    phases: list[float] = []
    spent: dict[str, list[float]] = {stage: [] for stage in STAGES}
    while len(ends) <= rounds:
        stages = _train_phase(hub)
        ends.append(stages[-1][1])
        cpu_seconds.append(processes.cpu_seconds())
        if len(ends) > 1:
            phases.append(stages[-1][1] - stages[0][1])
            for (stage, began), (_, ended) in pairwise(stages):
                spent[stage].append(ended - began)
    hub.wait_for(lambda record: record["event"] == "job ended", what="the job's end")
    cost = Cost(wall_seconds=_median_step(ends), cpu_seconds=(cpu_seconds[-1] - cpu_seconds[0]) / rounds)
    return cost, statistics.median(phases), {name: statistics.median(each) for name, each in spent.items()}


def _train_phase(hub: Process) -> list[tuple[str, float]]:
    """Stages of the next phase of training, each with the moment it began; the last is `applied`."""
    stages: list[tuple[str, float]] = []

    def is_applied(record: Record) -> bool:
        if record["event"] == "stage" and record["phase"] == "train":
            stages.append((record["state"], datetime.fromisoformat(record["time"]).timestamp()))
        return bool(stages) and stages[-1][0] == "applied"

    hub.wait_for(is_applied, what="an applied round")
    return stages


def _most(files: FederationFiles, processes: Processes, hub: Process, address: str, length: int) -> list[int]:
    with Peaks(processes.all) as peaks:
        _submit(files, address, length=length, rounds=MEMORY_ROUNDS)
        hub.wait_for(lambda record: record["event"] == "job ended", what="the job's end")
    return peaks.most


def _wait_for_file(process: Process, path: Path) -> None:
    process.wait_for(lambda record: record["event"] == "listening", what=f"{path.name}")


def _median_step(moments: Sequence[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(moments))


def rows(silos: int, measured: Measured, plain: Cost, *, coordinator: Held, silo: Held) -> list[Row]:
    """The targets of a round."""
    found = [
        Row(
            name=f"secure round / plain round, {silos} silos, wall",
            target=2.0,
            value=measured.cost.wall_seconds / plain.wall_seconds,
        ),
        Row(
            name=f"secure round / plain round, {silos} silos, CPU",
            target=2.0,
            value=measured.cost.cpu_seconds / plain.cpu_seconds,
        ),
        Row(
            name=f"peak extra memory of a silo / vector, {silos} silos",
            target=1.5,
            value=silo.vectors - 1,  # the delta is the model's own
        ),
        Row(
            name=f"peak extra memory of the coordinator / vector, {silos} silos",
            target=1.5,
            value=coordinator.vectors,
        ),
        Row(
            name=f"memory of the coordinator beyond that, {silos} silos",
            target=60.0,
            value=coordinator.fixed_bytes / 1e6,
            unit="MB",
        ),
        Row(
            name=f"download / upload of a silo in a round, {silos} silos",
            target=1.0,
            value=measured.moved.ratio,
        ),
    ]
    if silos == 4:
        found.append(
            Row(
                name="secure round over processes, 4 silos, wall",
                target=1.0,
                value=measured.cost.wall_seconds,
                unit="s",
            )
        )
    return found


def main() -> None:
    """Measure one after the other in the same folder; print a table, or with --json all figures."""
    parser = argparse.ArgumentParser(description="Cost of a whole round.")
    parser.add_argument("--silos", type=int, default=10)
    parser.add_argument("--length", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15, help="steady rounds, after one that warms up")
    parser.add_argument("--memory-length", type=int, default=MEMORY_LENGTH)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chorale-bench-") as folder:
        files = FederationFiles(Path(folder), silos=given.silos)
        measured = measure_chorale(files, length=given.length, rounds=given.rounds)
        coordinator, silo = measure_memory(files, length=given.memory_length)
        plain = measure_plain(files, length=given.length, rounds=given.rounds)
        limit = measure_limit(files, length=given.length, rounds=given.rounds)
    held = rows(given.silos, measured, plain, coordinator=coordinator, silo=silo)
    if given.json:
        print(
            json.dumps(
                {**_document(given, measured, plain, limit, held), **_memory(coordinator, silo)}, indent=2
            )
        )
    else:
        print(
            f"{table(held)}\n\nlimit, CPU: {limit.cpu_seconds / plain.cpu_seconds:.2f} times the plain round"
        )


def _document(
    given: argparse.Namespace,
    measured: Measured,
    plain: Cost,
    limit: Limit,
    held: Sequence[Row],
) -> dict[str, Any]:
    return {
        "silos": given.silos,
        "length": given.length,
        "rounds": given.rounds,
        "memory_length": given.memory_length,
        "round_wall_seconds": measured.cost.wall_seconds,
        "round_cpu_seconds": measured.cost.cpu_seconds,
        "phase_wall_seconds": measured.phase_seconds,
        "stage_seconds": measured.stages,
        "down_bytes_per_silo_round": measured.moved.down_bytes,
        "up_bytes_per_silo_round": measured.moved.up_bytes,
        "plain_wall_seconds": plain.wall_seconds,
        "plain_cpu_seconds": plain.cpu_seconds,
        "limit_cpu_seconds": limit.cpu_seconds,
        "limit_moved_cpu_seconds": limit.moved_cpu_seconds,
        "limit_sum_cpu_seconds": limit.sum_cpu_seconds,
        "rows": [row.to_json() for row in held],
    }


def _memory(coordinator: Held, silo: Held) -> dict[str, float]:
    return {
        "silo_vectors": silo.vectors,
        "silo_fixed_bytes": silo.fixed_bytes,
        "coordinator_vectors": coordinator.vectors,
        "coordinator_fixed_bytes": coordinator.fixed_bytes,
    }


if __name__ == "__main__":
    end_with_sigterm()
    main()
