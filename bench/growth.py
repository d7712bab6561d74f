"""How encoding, masking and unmasking grow with the vector's length L, and masking with the silos n.

Seeds are drawn, not dealt: what a session adds does not depend on L. Sizes take turns, so that a busy
minute slows all of them.
"""

# L = words of one vector

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bench.clock import Clock
from bench.options import Parser, whole
from bench.rows import Row, table
from bench.series import Series
from bench.session import BOUND
from crypto import ring
from crypto.layout import Layout, Quantity
from crypto.masking import Masker, SignedSeed, UnmaskPlan

WORD = 32
LENGTHS = (100_000, 200_000, 400_000, 1_000_000, 2_000_000, 4_000_000)
SILOS = (5, 10, 15, 20, 30, 40, 50)
SILOS_OF_LENGTHS, DROPPED_OF_LENGTHS, LENGTH_OF_SILOS = 10, 2, 1_000_000
_COHORT_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """CPU seconds: medians of `turns`."""

    word: int
    turns: int
    series: tuple[Series, ...]

    def rows(self) -> list[Row]:
        return [one.row() for one in self.series]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    report = measure(turns=options.turns)
    if options.json:
        rows = [row.to_json() for row in report.rows()]
        print(json.dumps({**asdict(report), "rows": rows, "series": [s.to_json() for s in report.series]}))
        return 0
    for one in report.series:
        print(f"{one.name:<16} slope {one.slope:.3f}")
        for size, value in zip(one.sizes, one.values, strict=True):
            print(f"{one.x_label:>16} {size:>10,}  {1000 * value:8.2f} ms")
    print(f"\n{table(report.rows())}")
    return 0


def measure(
    *, turns: int, lengths: Sequence[int] = LENGTHS, silos: Sequence[int] = SILOS, word: int = WORD
) -> Report:
    """Take turns through all sizes."""
    clock = Clock()
    for turn in range(turns):
        print(f"growth: turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
        for length in lengths:
            _take_lengths(clock, length, word)
        for number in silos:
            _take_silos(clock, number, word)
    medians = {name: clock.median(name).cpu_seconds for name in clock.names}
    return Report(
        word=word,
        turns=turns,
        series=(
            *(_over_lengths(step, lengths, medians) for step in ("encode", "mask", "unmask")),
            _over_silos(silos, medians),
        ),
    )


def _take_lengths(clock: Clock, length: int, word: int) -> None:
    layout = _layout(length, word)
    values_L = np.random.default_rng(length).normal(0.0, BOUND / 16, length).astype(np.float32)
    with clock.step(f"encode {length}"):
        encoded = ring.encode({"delta": values_L}, layout=layout)
    masker = _masker(layout, SILOS_OF_LENGTHS)
    with clock.step(f"mask {length}"):
        deque(masker.stream(encoded), maxlen=0)
    survivors = SILOS_OF_LENGTHS - DROPPED_OF_LENGTHS
    plan = UnmaskPlan(
        layout=layout,
        cohort_digest=_COHORT_DIGEST,
        seeds=_seeds(survivors * (1 + DROPPED_OF_LENGTHS)),
        survivors=(),
    )
    with clock.step(f"unmask {length}"):
        plan.unmask(encoded.vectors)


def _take_silos(clock: Clock, silos: int, word: int) -> None:
    layout = _layout(LENGTH_OF_SILOS, word)
    masker, encoded = _masker(layout, silos), ring.Encoded(vectors=ring.zeros(layout), clipped_total=0)
    with clock.step(f"mask by {silos}"):
        deque(masker.stream(encoded), maxlen=0)


def _layout(length: int, word: int) -> Layout:
    quantity = Quantity(name="delta", shape=(length,), bound=BOUND, word=word)
    return Layout(quantities=(quantity,), members=SILOS_OF_LENGTHS)


def _masker(layout: Layout, silos: int) -> Masker:
    return Masker(layout=layout, cohort_digest=_COHORT_DIGEST, seeds=_seeds(silos))


def _seeds(number: int) -> tuple[SignedSeed, ...]:
    return tuple(
        SignedSeed(seed=index.to_bytes(32, "big"), sign=1 if index % 2 else -1) for index in range(number)
    )


def _over_lengths(step: str, lengths: Sequence[int], medians: Mapping[str, float]) -> Series:
    return Series(
        name=f"{step} by L",
        plot="length",
        x_label="values L",
        y_label=f"CPU seconds, n = {SILOS_OF_LENGTHS}, w = {WORD}",
        sizes=tuple(lengths),
        values=tuple(medians[f"{step} {length}"] for length in lengths),
    )


def _over_silos(silos: Sequence[int], medians: Mapping[str, float]) -> Series:
    return Series(
        name="mask by n",
        plot="silos",
        x_label="silos n",
        y_label=f"CPU seconds, L = {LENGTH_OF_SILOS:,}, w = {WORD}",
        sizes=tuple(silos),
        values=tuple(medians[f"mask by {number}"] for number in silos),
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("growth", __doc__)
    parser.add_argument("--turns", type=whole(1, 100), default=7, help="measurements of every size")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
