"""Every benchmark in a process of its own, compared with its targets and the last committed ratios.

Leaves one JSON per benchmark, a table and plots in build/bench/. Exit code 1 says that a target was
missed, a ratio got worse by more than 30 % or a benchmark failed; one that cannot run here is shown
as skipped, with its reason. `--update` commits to what was measured: bench/figures.json and the tables
in docs/performance.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.options import Parser
from bench.report import figures, plots, side_by_side
from bench.report.results import Benchmark, Result, judged, markdown

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "bench"
FIGURES = ROOT / "bench" / "figures.json"
PAGE = ROOT / "docs" / "performance.md"
MAX_SECONDS = 900  # of one benchmark: it hangs

BENCHMARKS = (
    Benchmark("secagg-16", "bench.secagg", ("--word", "16")),
    Benchmark("secagg-32", "bench.secagg", ("--word", "32")),
    Benchmark("secagg-64", "bench.secagg", ("--word", "64")),
    Benchmark("secagg-noise", "bench.secagg", ("--noise",)),
    Benchmark("setup", "bench.setup", ("--silos", "100")),
    Benchmark("growth", "bench.growth"),
    Benchmark("stream", "bench.stream"),
    Benchmark("reconnect", "bench.reconnect", ("--silos", "20")),
    Benchmark("round-4", "bench.round", ("--silos", "4")),
    Benchmark("round-10", "bench.round", ("--silos", "10")),
    Benchmark("native-floor", "bench.native_floor", ("--silos", "10")),
    Benchmark("scale", "bench.scale", ("--silos", "10,50,100")),
    Benchmark("compression", "bench.compression"),
    Benchmark("training", "bench.training"),
    Benchmark("training-gpu", "bench.training", ("--device", "cuda", "--turns", "3")),
    Benchmark("commands", "bench.commands"),
    Benchmark("analysis", "bench.analysis"),
    Benchmark("peers", "bench.peers"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    chosen = [one for one in BENCHMARKS if not options.names or one.name in options.names]
    OUT.mkdir(parents=True, exist_ok=True)
    results = []
    for place, benchmark in enumerate(chosen, start=1):
        _say(f"[{place}/{len(chosen)}] {benchmark.name}: {benchmark.command}")
        result = run(benchmark)
        (OUT / f"{benchmark.name}.json").write_text(json.dumps(result.to_json(), indent=1) + "\n")
        results.append(result)
    return _report(results, update=options.update)


def run(benchmark: Benchmark, *, max_seconds: float = MAX_SECONDS) -> Result:
    """Run one benchmark; whatever goes wrong with it is in the result."""
    started = datetime.now(UTC)
    if importlib.util.find_spec(benchmark.module) is None:
        return Result(benchmark, started=started, skipped=f"there is no {benchmark.module}")
    command = [sys.executable, "-m", benchmark.module, *benchmark.options, "--json"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=max_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(benchmark, started=started, failed=f"no result after {max_seconds:g} seconds")
    if done.returncode != 0:
        return Result(benchmark, started=started, failed=f"exit code {done.returncode}")
    return Result.from_output(benchmark, done.stdout, started=started)


def _report(results: Sequence[Result], *, update: bool) -> int:
    plots.draw([one for result in results for one in result.series], folder=OUT)
    committed = figures.read(FIGURES)
    text = "\n\n".join(part for part in (markdown(results), side_by_side.table(results)) if part)
    (OUT / "table.md").write_text(text + "\n")
    print(text)
    if update:
        figures.write(FIGURES, {**committed, **figures.of(results)})
        figures.write_page(PAGE, results)
    complaints = judged(results, committed={} if update else figures.ratios(committed))
    for complaint in complaints:
        _say(f"bench: {complaint}")
    return 1 if complaints else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("suite", __doc__)
    names = [one.name for one in BENCHMARKS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--update", action="store_true", help="commit to the figures measured")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}, expected some of {', '.join(names)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
