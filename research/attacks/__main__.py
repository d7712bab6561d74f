"""Every attack with its protection and without, on scikit-learn's digits: `python -m research.attacks`.

With an attack's name it runs that one: crafted-state, repeated-state, drift, ground-draw or forged-evidence.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.options import Parser, whole
from bench.rows import table
from crypto.errors import ConfigError
from research.attacks import differences, gradients, ground_draw, membership, moments
from research.attacks.digits import NAMES
from research.attacks.forged import archives
from research.attacks.states import crafted, drift, repeated
from research.attacks.states.digit_silos import Training

MAX_SEEDS = 50
MOST_SILOS = 20  # of the digits: each still holds 70 records


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the one that is named, or all others; the figures go to stdout."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in ATTACKS:
        return _run_one(given[0], given[1:])
    return _run_others(_options(given))


def _run_one(name: str, arguments: Sequence[str]) -> int:
    parser = Parser(f"attacks {name}", __doc__, package="research")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    measure = ATTACKS[name](parser)
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    try:
        found = asdict(measure(**options))
    except ConfigError as error:
        parser.error(str(error))
    if as_json:
        print(json.dumps(found))
    else:
        print("\n".join(_lines(found)))
    return 0


def _crafted_state(parser: Parser) -> Callable[..., Any]:
    _add_silos(parser, default=4)
    _add_training(parser, default=Training.FULL)
    parser.add_argument("--noise", action="store_true", help="record-level noise at epsilon 8")
    parser.add_argument("--width", type=whole(1, 8_192), default=crafted.WIDTH, help="of the first layer")
    return crafted.measure


def _repeated_state(parser: Parser) -> Callable[..., Any]:
    _add_silos(parser, default=5)
    return repeated.measure


def _drift(parser: Parser) -> Callable[..., Any]:
    _add_silos(parser, default=4)
    _add_training(parser, default=Training.EXAMPLE)
    parser.add_argument("--rounds", type=whole(1, 1_000), default=20)
    return drift.measure


def _ground_draw(parser: Parser) -> Callable[..., Any]:
    parser.add_argument("--silos", type=whole(4, len(NAMES)), default=30, help="of the job")
    parser.add_argument("--fraction", type=float, default=0.1, help="of them that a round names")
    parser.add_argument("--colluders", type=whole(1, len(NAMES)), help="default: what a silo assumes")
    parser.add_argument("--rounds", type=whole(1, 1_000), default=1)
    parser.add_argument("--nonces", type=whole(1, 10_000_000), default=ground_draw.NONCES)
    return ground_draw.measure


def _forged_evidence(_: Parser) -> Callable[..., Any]:
    return archives.measure


ATTACKS: Mapping[str, Callable[[Parser], Callable[..., Any]]] = {
    "crafted-state": _crafted_state,
    "repeated-state": _repeated_state,
    "drift": _drift,
    "ground-draw": _ground_draw,
    "forged-evidence": _forged_evidence,
}


def _add_silos(parser: Parser, *, default: int) -> None:
    parser.add_argument("--silos", type=whole(3, MOST_SILOS), default=default)


def _add_training(parser: Parser, *, default: Training) -> None:
    parser.add_argument(
        "--training",
        type=Training,
        choices=list(Training),
        default=default,
        help="full: one step over all records; example: the block of docs/examples/job.yaml",
    )


def _lines(found: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in found.items():
        if isinstance(value, tuple) and value and isinstance(value[0], dict):
            for each in value:
                lines += [f"{indent}{name}:", *_lines(each, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines


def _run_others(options: argparse.Namespace) -> int:
    """Progress on stderr, the table or the object on stdout."""
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


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("attacks", __doc__, package="research")
    parser.epilog = f"one attack by itself: {', '.join(ATTACKS)}"
    parser.add_argument("--seeds", type=whole(2, MAX_SEEDS), default=5, help="of the membership attack")
    parser.add_argument("--attacked", type=whole(1, 200), default=20, help="silos whose update is attacked")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
