"""Chorale's secure sum and Flower's SecAgg+ functions, compared: equal values, silos and losses, one run.

Flower is installed from PyPI into an environment of its own, build/peers/flower, and runs there. Both
sides must give the right sum. README.md in this folder says what is compared and what is not.
Exit code 3, or {"skipped": ...} with --json, says that the peer cannot be installed here.
"""

# n = silos, L = values of each

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.options import Parser, whole
from bench.peers import chorale_side
from bench.peers.environment import PeerUnavailable, python_with
from bench.peers.measured import Measured, middle
from bench.rows import Row, table
from bench.session import BOUND
from crypto.fixed_point.layout import Quantity
from crypto.session.cohort import CohortRule

REQUIREMENT = "flwr==1.41.0"
FOLDER = Path(__file__).resolve().parents[2] / "build" / "peers" / "flower"
SIDE = Path(__file__).with_name("flower_side.py")
NOT_INSTALLABLE = 3  # exit code
LOST = 5  # one silo in five
# how many times less CPU and bytes the silo and the coordinator are to spend
SILO_TARGETS = {32: 5.0, 16: 8.0}  # by word size
COORDINATOR_TARGETS = {10: 20.0, 50: 50.0}  # by number of silos
BYTES_TARGETS = {32: 2.0, 16: 4.0}
_FIGURES = (
    "silo_setup_cpu_seconds",
    "silo_mask_cpu_seconds",
    "silo_cpu_seconds",
    "coordinator_unmask_cpu_seconds",
    "coordinator_decode_cpu_seconds",
    "coordinator_other_cpu_seconds",
    "coordinator_cpu_seconds",
    "vector_bytes",
    "sent_bytes",
)
TURNS = {10: 3, 50: 1}  # medians; a session of 50 takes the peer a minute
SMALLEST = (3, 1000)  # silos and values of the session that warms both sides up


class WrongSum(Exception):
    """A side's sum is not that of its inputs: its times are worth nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One number of silos and one word size."""

    silos: int
    length: int
    dropped: int
    word: int
    chorale: Measured
    flower: Measured

    def rows(self) -> list[Row]:
        """Flower's figure divided by ours."""
        ours, theirs = self.chorale, self.flower
        silo, coordinator = SILO_TARGETS[self.word], COORDINATOR_TARGETS[self.silos]
        return [
            self._row("silo encode and mask", silo, theirs.silo_mask_cpu_seconds, ours.silo_mask_cpu_seconds),
            self._row(
                "coordinator unmask",
                coordinator,
                theirs.coordinator_unmask_cpu_seconds,
                ours.coordinator_unmask_cpu_seconds,
            ),
            self._row("masked vector", BYTES_TARGETS[self.word], theirs.vector_bytes, ours.vector_bytes),
        ]

    def times_less(self) -> dict[str, float]:
        """Flower's figure divided by ours, also where there is no target."""
        pairs = {name: (getattr(self.flower, name), getattr(self.chorale, name)) for name in _FIGURES}
        return {name: theirs / ours for name, (theirs, ours) in pairs.items()}

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "times_less": self.times_less()}

    def _row(self, what: str, target: float, theirs: float, ours: float) -> Row:
        unit = "bytes" if what == "masked vector" else "CPU"
        name = f"Flower / Chorale, {what}, {unit}, n = {self.silos}, w = {self.word}"
        return Row(name=name, target=target, value=theirs / ours, is_at_most=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, warm up, compare, print; the exit code says whether the peer was there."""
    options = _options(arguments)
    try:
        python = python_with(REQUIREMENT, folder=FOLDER)
    except PeerUnavailable as why:
        return _skipped(str(why), as_json=options.json)
    # imports, compilers, caches
    _compare(python, silos=SMALLEST[0], length=SMALLEST[1], words=options.words, turns=1)
    compared = []
    for silos in options.silos:
        print(f"flower: sessions of {silos} silos", file=sys.stderr, flush=True)
        compared += _compare(
            python, silos=silos, length=options.length, words=options.words, turns=TURNS[silos]
        )
    _report(compared, as_json=options.json)
    return 0


def target_range(silos: int, word: int) -> int:
    """The finest quantization that Flower's silos can sum: n of them stay below the modulus.

    For 32 bits its default, 2^22.
    """
    return min(1 << 22, (1 << word) >> (silos - 1).bit_length())


def check_sum(side: str, measured: Measured, *, step: float, survivors: int) -> None:
    """Stochastic rounding is off by less than one step for each survivor.

    Raises WrongSum beyond that and the rounding of a float64 sum.
    """
    if not measured.max_abs_error <= survivors * step * (1 + 1e-6):
        limit = f"at most {survivors * step:.3g}"
        raise WrongSum(f"{side}: expected a sum that is off by {limit}, got {measured.max_abs_error:.3g}")


def _compare(python: Path, *, silos: int, length: int, words: Sequence[int], turns: int) -> list[Comparison]:
    """Both sides in turn on the same file of values."""
    dropped = silos // LOST
    theirs: dict[int, list[Measured]] = {word: [] for word in words}
    ours: dict[int, list[Measured]] = {word: [] for word in words}
    with tempfile.TemporaryDirectory(prefix="chorale-peers-") as folder:
        values_nL = _values(silos, length)
        np.save(Path(folder) / "values.npy", values_nL)
        for _ in range(turns):
            for word, measured in _flower(python, Path(folder), silos, dropped, words).items():
                check_sum("flower", measured, step=_flower_step(silos, word), survivors=silos - dropped)
                theirs[word].append(measured)
            for word in words:
                measured = chorale_side.measure(values_nL, dropped=dropped, word=word)
                check_sum("chorale", measured, step=_chorale_step(silos, word), survivors=silos - dropped)
                ours[word].append(measured)
    return [
        Comparison(
            silos=silos,
            length=length,
            dropped=dropped,
            word=word,
            chorale=middle(ours[word]),
            flower=middle(theirs[word]),
        )
        for word in words
    ]


def _flower(
    python: Path, folder: Path, silos: int, dropped: int, words: Sequence[int]
) -> dict[int, Measured]:
    request = {
        "values": str(folder / "values.npy"),
        "dropped": dropped,
        "threshold": CohortRule.for_members(silos).threshold,
        "bound": BOUND,
        "modes": [{"word": word, "target_range": target_range(silos, word)} for word in words],
    }
    (folder / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        # -P: files next to the script are not for its imports
        [python, "-P", SIDE, folder / "request.json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    modes = json.loads(done.stdout)
    return {mode.pop("word"): Measured(**mode) for mode in modes}


def _flower_step(silos: int, word: int) -> float:
    return 2 * BOUND / target_range(silos, word)


def _chorale_step(silos: int, word: int) -> float:
    return 1 / Quantity(name="delta", shape=(1,), bound=BOUND, ring_bits=word).scale(silos)


def _values(silos: int, length: int) -> NDArray[np.float32]:
    """Updates of all silos: few of them near the bound, as in training."""
    values_nL = np.empty((silos, length), np.float32)
    for index in range(silos):
        values_nL[index] = np.random.default_rng(index).normal(0.0, BOUND / 16, length)
    return values_nL


def _skipped(why: str, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"skipped": why}))
        return 0
    print(f"flower: skipped: {why}", file=sys.stderr)
    return NOT_INSTALLABLE


def _report(compared: Sequence[Comparison], *, as_json: bool) -> None:
    rows = [row for one in compared for row in one.rows()]
    if as_json:
        sides = [one.to_json() for one in compared]
        print(json.dumps({"peer": REQUIREMENT, "rows": [row.to_json() for row in rows], "sessions": sides}))
        return
    for one in compared:
        print(f"\nn = {one.silos}, L = {one.length}, w = {one.word}, {one.dropped} lost")
        print(f"  {'':<32}{'Chorale':>12}{'Flower':>12}{'x less':>8}")
        for name, ratio in one.times_less().items():
            ours, theirs = getattr(one.chorale, name), getattr(one.flower, name)
            print(f"  {name:<32}{ours:>12.5g}{theirs:>12.5g}{ratio:>8.3g}")
    print(f"\n{table(rows)}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("peers.flower", __doc__)
    parser.add_argument("--length", type=whole(1, 10_000_000), default=1_000_000, help="values of each silo")
    parser.add_argument(
        "--silos", type=int, nargs="+", choices=sorted(COORDINATOR_TARGETS), default=[10, 50], help="n"
    )
    parser.add_argument("--words", type=int, nargs="+", choices=sorted(SILO_TARGETS), default=[32, 16])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
