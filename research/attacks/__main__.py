"""Every attack with its protection and without, on scikit-learn's digits: `python -m research.attacks`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from bench.options import Parser, whole
from bench.rows import table
from research.attacks import differences, gradients, membership, moments

MAX_SEEDS = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them all; progress on stderr, the table or the object on stdout."""
    options = _options(arguments)
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {line}", file=sys.stderr, flush=True)

    say("moments: a class with one sample at one silo")
    of_moments = moments.measure()
    say("differences: two cohorts that differ by one silo")
    of_differences = differences.measure()
    say(f"gradients: images from the updates of {options.attacked} silos")
    of_gradients = gradients.measure(attacked=options.attacked)
    of_membership = membership.measure(seeds=range(1, options.seeds + 1), say=say)
    say("done")
    rows = [*of_moments.rows(), *of_gradients.rows(), *of_membership.rows(), *of_differences.rows()]
    if options.json:
        details = {
            "moments": asdict(of_moments),
            "gradients": asdict(of_gradients),
            "membership": asdict(of_membership),
            "differences": asdict(of_differences),
        }
        print(json.dumps({**details, "rows": [row.to_json() for row in rows]}))
    else:
        print(table(rows))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("attacks", __doc__)
    parser.add_argument("--seeds", type=whole(2, MAX_SEEDS), default=5, help="of the membership attack")
    parser.add_argument("--attacked", type=whole(1, 200), default=20, help="silos whose update is attacked")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
