"""How encoding, masking and unmasking grow with the vector's length L, and masking with the silos n.

Seeds are drawn, not dealt: what a session adds does not depend on L. Sizes take turns, so that a busy
minute slows all of them.
"""

# L = words of one vector

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.clock import Clock
from bench.masking import masks
from bench.options import Parser, whole
from bench.report.series import Series
from bench.rows import Row, table
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder

WORD = 32
LENGTHS = (100_000, 200_000, 400_000, 1_000_000, 2_000_000, 4_000_000)
SILOS = (5, 10, 15, 20, 30, 40, 50)
SILOS_OF_LENGTHS, DROPPED_OF_LENGTHS, LENGTH_OF_SILOS = 10, 2, 1_000_000


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
    _take_lengths(Clock(), max(lengths), word)  # loads what is compiled
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
    vector = masks.layout(length, word=word, silos=SILOS_OF_LENGTHS)
    values_L = masks.values(length, seed=length)
    with clock.step(f"encode {length}"):
        encoded = Encoder({masks.QUANTITY: values_L}, layout=vector).encode()
    masker = masks.masker(vector, silos=SILOS_OF_LENGTHS)
    with clock.step(f"mask {length}"):
        masks.exhaust(masker, encoded)
    staying = SILOS_OF_LENGTHS - DROPPED_OF_LENGTHS
    plan = masks.unmask_plan(vector, survivors=staying, lost=DROPPED_OF_LENGTHS)
    with clock.step(f"unmask {length}"):
        plan.unmask(encoded.vectors)


def _take_silos(clock: Clock, silos: int, word: int) -> None:
    vector = masks.layout(LENGTH_OF_SILOS, word=word, silos=silos)
    masker, encoded = (
        masks.masker(vector, silos=silos),
        ring.Encoded(vectors=ring.zeros(vector), clipped_total=0),
    )
    with clock.step(f"mask by {silos}"):
        masks.exhaust(masker, encoded)


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
