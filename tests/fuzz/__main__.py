"""Fuzzes each target for a while: `python -m tests.fuzz [--seconds 60] [TARGET ...]`. Needs atheris.

New inputs are collected in build/fuzz/NAME/corpus. What breaks goes to build/fuzz/NAME/found: exit status 1.
`python -m tests.fuzz.keep` commits what is worth keeping.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

from bench.options import whole
from tests.fuzz.keep import WORK, input_name
from tests.fuzz.target import CORPUS
from tests.fuzz.targets import TARGETS

RUNS = re.compile(r"stat::number_of_executed_units: (\d+)")
COVERED = re.compile(r"(?:INITED|NEW|REDUCE|DONE|pulse)\s+cov: (\d+) ft: (\d+)")
SLOW_SECONDS = 10  # an input of a few kilobytes that takes as long is a finding


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz parsers of foreign bytes."
    )
    seconds = whole(1, 86_400)  # to libFuzzer 0 is for ever
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=seconds, default=60, help="for each target")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.targets) - set(TARGETS)):
        parser.error(f"no target {unknown[0]}; there are {', '.join(TARGETS)}")
    print(f"{'target':20} {'runs':>10} {'edges':>13} {'features':>15}  found")
    found = sum(fuzz(name, seconds=chosen.seconds) for name in chosen.targets or TARGETS)
    return 1 if found else 0


def fuzz(name: str, *, seconds: int) -> int:
    """Prints a row; how many inputs were found that the target should have refused or read."""
    grown, artifacts = WORK / name / "corpus", WORK / name / "found"
    for folder in (grown, artifacts):
        folder.mkdir(parents=True, exist_ok=True)
    for seed in TARGETS[name].seeds():
        (grown / input_name(seed)).write_bytes(seed)
    before = set(artifacts.iterdir())
    flags = (
        f"-max_total_time={seconds}",
        f"-timeout={SLOW_SECONDS}",
        f"-max_len={TARGETS[name].max_bytes}",
        f"-artifact_prefix={artifacts}/",
        "-print_final_stats=1",
        "-rss_limit_mb=2048",
    )
    committed = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    log = WORK / name / "log"
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.explore", name, *flags, str(grown), *committed],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )
    said = log.read_text(errors="replace")
    found = sorted(set(artifacts.iterdir()) - before)
    runs, covered = RUNS.findall(said), COVERED.findall(said)
    first, last = (covered[0], covered[-1]) if covered else (("-", "-"), ("-", "-"))
    count = runs[-1] if runs else "-"
    row = f"{name:20} {count:>10} {first[0]:>6} {last[0]:>6} {first[1]:>7} {last[1]:>7}"
    print(f"{row}  {', '.join(map(str, found)) or '-'}", flush=True)
    if done.returncode and not found:
        print(said[-2000:], file=sys.stderr)
        return 1
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
