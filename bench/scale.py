"""How a round's cost grows with the silos: a real coordinator, and light silos over mutual TLS.

    python -m bench.scale --silos 10,50,100,200 --length 100000 --json

The coordinator is `chorale coordinator run`. A light silo is the agent itself with an objective that makes
its delta at once; many of them share a process (`agents_per_process`) and nothing else. Figures are of a
steady round, the mean of `--rounds` after a first one. Memory is as in bench.round.

Written bytes are the kernel's `write_bytes`: pages of files that become dirty on the way to storage, whether
or not a file is removed before they get there. A file system in memory counts none, so the folder lies on a
disk, by default in /var/tmp. `handed_bytes` is what the process gives to write calls.

`beyond_messages`: coordinator CPU without what n^2 messages cost. These are stage SHARE, in which the adverts
go out and the envelopes come, and the relay of the envelopes: stage MASKED of the opening phase, a round of
the same silos whose vector is a few words. All other work on pairs, such as storing the session and opening
the shares, stays in. `beyond_vectors`: bytes that the opening phase writes. There is one opening phase a run.

A flush is a call that waits for the storage. strace counts them in a run of its own, of two rounds: in the
second one, and between the first advert and the last share. What the coordinator does between two rounds
counts for the later one.

`exponents` are slopes on logarithmic axes (bench/report/series.py), of all sizes up to three and of the upper
half of more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.options import Parser, end_with_sigterm, whole
from bench.parties import flushes, job_costs, strace
from bench.parties.flushes import Flushes
from bench.parties.job_costs import JobCosts
from bench.report.series import MAX_SLOPE, Series, log_slope
from bench.rows import Row, table
from chorale.transport.wire import MAX_SILOS

WORD_BYTES = 4
FOLDER = Path("/var/tmp")  # /tmp is often in memory
MAX_VECTORS, MAX_PAIR_BYTES = 3, 3_000  # written in a round: so many vectors, and so much a pair
MAX_COORDINATOR_FLUSHES, MAX_SILO_FLUSHES = 4, 3  # between the first advert and the last share
MAX_CPU_SLOPE = 1.3
MIN_SILOS = 3
NO_STRACE = "strace is not installed: flushes are not counted"
IN_MEMORY = "the folder lies in memory, where the kernel counts no bytes towards storage: name one on a disk"
NO_COUNT = "not counted: this run was told to leave strace out"

OF_ROUND = (
    "round_wall_seconds",
    "coordinator_cpu_seconds",
    "coordinator_cpu_beyond_messages_seconds",
    "silo_cpu_seconds",
    "all_cpu_seconds",
    "coordinator_written_bytes",
    "coordinator_written_beyond_vectors_bytes",
    "coordinator_handed_bytes",
)
FLUSHES = (
    "coordinator_flushes",
    "coordinator_flushes_to_last_share",
    "silo_flushes",
    "silo_flushes_to_last_share",
)
# what an exponent has a target for
SLOPES = {
    "coordinator_cpu_seconds": MAX_CPU_SLOPE,
    "coordinator_cpu_beyond_messages_seconds": MAX_SLOPE,
    "coordinator_peak_mb": MAX_SLOPE,
    "silo_cpu_seconds": MAX_SLOPE,
}
PLOTS = {
    "scale-cpu": ("CPU seconds of a round", ("coordinator_cpu_seconds", "silo_cpu_seconds")),
    "scale-bytes": ("bytes written in a round", ("coordinator_written_bytes",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One number of silos. flushes: None where they were not counted."""

    silos: int
    length: int
    rounds: int
    costs: JobCosts
    flushes: Flushes | None = None

    @property
    def bound_bytes(self) -> int:
        """What a round may write."""
        return MAX_VECTORS * WORD_BYTES * self.length + MAX_PAIR_BYTES * self.silos**2

    def figures(self) -> dict[str, float | None]:
        """Those of a round are None where no round followed another; bytes towards storage, where none go."""
        costs, used = self.costs, self.costs.round
        of_round: dict[str, float | None] = dict.fromkeys(OF_ROUND)
        if used is not None:
            beyond_vectors = sum(each.written_bytes for each in costs.opening.values())
            values = (
                used.wall_seconds,
                used.cpu_seconds,
                used.cpu_seconds - costs.message_cpu_seconds,
                used.silos_cpu_seconds / self.silos,
                used.cpu_seconds + used.silos_cpu_seconds,
                used.written_bytes or None,
                beyond_vectors or None,
                used.handed_bytes,
            )
            of_round = dict(zip(OF_ROUND, values, strict=True))
        return {
            **of_round,
            "coordinator_idle_mb": costs.idle_bytes / 1e6,
            "coordinator_peak_mb": costs.peak_bytes / 1e6,
            "coordinator_peak_beyond_idle_mb": (costs.peak_bytes - costs.idle_bytes) / 1e6,
            "database_bytes": costs.database_bytes,
        }

    def rows(self) -> list[Row]:
        written, which = self.figures()["coordinator_written_bytes"], f"{self.silos} silos"
        found = [
            Row(
                name=f"rounds applied, {which}",
                target=self.rounds + 1,
                value=self.costs.rounds_applied,
                unit="rounds",
                is_at_most=False,
            ),
            Row(name=f"failed attempts, {which}", target=0, value=self.costs.failed_attempts, unit=""),
        ]
        if written is not None:
            name = f"written in a round / (3 vectors + 3 kB a pair), {which}"
            found.append(Row(name=name, target=1.0, value=written / self.bound_bytes))
        if self.flushes is not None:
            counts = (
                ("coordinator", MAX_COORDINATOR_FLUSHES, self.flushes.coordinator_flushes_to_last_share),
                ("silo", MAX_SILO_FLUSHES, self.flushes.silo_flushes_to_last_share),
            )
            for party, target, count in counts:
                name = f"flushes of the {party} from first advert to last share, {which}"
                found.append(Row(name=name, target=target, value=count, unit=""))
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "silos": self.silos,
            **self.figures(),
            "bound_written_bytes": self.bound_bytes,
            **asdict(self.costs),
            "flushes": None if self.flushes is None else asdict(self.flushes),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one size after the other; print a table, or with --json all figures."""
    options = _options(arguments)
    is_traced = not options.no_flushes and strace.is_installed()
    runs = []
    for silos in options.silos:
        _say(f"scale: {silos} silos, {options.rounds} rounds after the first")
        run = measure(
            options.folder,
            silos=silos,
            length=options.length,
            rounds=options.rounds,
            processes=options.processes,
            is_traced=is_traced,
        )
        _say(f"scale: {silos} silos: {json.dumps(run.figures())}")
        runs.append(run)
    why_not = None if is_traced else NO_COUNT if options.no_flushes else NO_STRACE
    found = document(runs, flushes_not_counted=why_not)
    print(json.dumps(found) if options.json else table(map(Row.from_json, found["rows"])))
    return 0


def measure(folder: Path, *, silos: int, length: int, rounds: int, processes: int, is_traced: bool) -> Run:
    """A job, and with strace a second one in a federation of its own; nothing of them stays in the folder."""
    with _emptied(folder) as own:
        costs = job_costs.measure(own, silos=silos, length=length, rounds=rounds, processes=processes)
    counted = None
    if is_traced and costs.stages:
        _say(f"scale: {silos} silos, under strace")
        with _emptied(folder) as own:
            counted = flushes.trace(own, silos=silos, length=length, processes=processes)
    return Run(silos=silos, length=length, rounds=rounds, costs=costs, flushes=counted)


def document(runs: Sequence[Run], *, flushes_not_counted: str | None = None) -> dict[str, Any]:
    """Lists have one figure for each number of silos. flushes_not_counted: why not, for all of them."""
    names = runs[0].figures()
    figures = {name: [run.figures()[name] for run in runs] for name in names}
    series = [
        Series(
            name=f"{name} by n",
            plot=plot,
            x_label="silos n",
            y_label=f"{label}, L = {runs[0].length:,}",
            sizes=tuple(float(run.silos) for run in runs),
            values=tuple(values),
        )
        for plot, (label, shown) in PLOTS.items()
        for name in shown
        if (values := _positive(figures[name]))
    ]
    exponents = {name: _exponent(runs, values) for name, values in figures.items()}
    stages = {
        stage: _exponent(runs, [_stage_cpu(run, stage) for run in runs]) for stage in runs[-1].costs.stages
    }
    slopes = [
        Row(name=f"{name} by n: slope", target=target, value=slope, unit="")
        for name, target in SLOPES.items()
        if (slope := exponents[name]) is not None
    ]
    return {
        "silos": [run.silos for run in runs],
        "length": runs[0].length,
        "rounds": runs[0].rounds,
        "agents_per_process": [run.costs.agents_per_process for run in runs],
        "rounds_applied": [run.costs.rounds_applied for run in runs],
        "failed_attempts": [run.costs.failed_attempts for run in runs],
        **figures,
        **{
            name: [None if run.flushes is None else getattr(run.flushes, name) for run in runs]
            for name in FLUSHES
        },
        "bytes_not_counted": IN_MEMORY if any(map(_is_in_memory, runs)) else None,
        "flushes_not_counted": flushes_not_counted,
        "exponents": exponents,
        "stage_cpu_exponents": stages,
        "runs": [run.to_json() for run in runs],
        "rows": [row.to_json() for row in (*(row for run in runs for row in run.rows()), *slopes)],
        "series": [each.to_json() for each in series],
    }


def _exponent(runs: Sequence[Run], values: Sequence[float | None]) -> float | None:
    """None where there is no line to draw."""
    positive = _positive(values)
    return log_slope([run.silos for run in runs], positive) if positive else None


def _positive(values: Sequence[float | None]) -> list[float]:
    """All of them, or none: a logarithm needs each to be above zero, and a line at least two."""
    found = [value for value in values if value is not None and value > 0]
    return found if len(found) == len(values) > 1 else []


def _is_in_memory(run: Run) -> bool:
    return run.costs.round is not None and run.costs.round.written_bytes == 0


def _stage_cpu(run: Run, stage: str) -> float | None:
    used = run.costs.stages.get(stage)
    return None if used is None else used.cpu_seconds


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """A folder of its own in that one, while the block runs."""
    with tempfile.TemporaryDirectory(prefix="chorale-scale-", dir=folder) as own:
        yield Path(own)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _sizes(text: str) -> list[int]:
    """The type of an option such as 10,50,100."""
    sizes = [whole(MIN_SILOS, MAX_SILOS)(part) for part in text.split(",")]
    if sizes != sorted(set(sizes)):
        raise argparse.ArgumentTypeError(f"expected rising numbers, got {text}")
    return sizes


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("scale", __doc__)
    parser.add_argument("--silos", type=_sizes, default=[10, 50, 100], help="such as 10,50,100,200")
    parser.add_argument("--length", type=whole(1, 10**9), default=100_000, help="values of a vector")
    parser.add_argument(
        "--rounds", type=whole(1, 100), default=3, help="steady rounds, after one that warms up"
    )
    parser.add_argument(
        "--processes", type=whole(1, 64), default=os.cpu_count() or 1, help="that the silos share"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="on a disk; nothing stays in it")
    parser.add_argument("--no-flushes", action="store_true", help="leave out the run under strace")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"argument --folder: there is no folder {options.folder}")
    return options


if __name__ == "__main__":
    end_with_sigterm()
    sys.exit(main())
