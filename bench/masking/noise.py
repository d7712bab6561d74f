"""How many numbers of noise a second: one table and two, compiled and in numpy, alone and added to words.

    python -m bench.masking.noise

Prints the table of docs/privacy-proofs.md, "Speed". CPU time of one thread, medians of so many runs.
"""

# N = numbers

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from bench.clock import Clock
from bench.options import Parser, whole
from crypto.noise.gaussian import MAX_VARIANCE, GaussianStream, gaussian_tables
from crypto.noise.table_stream import compiled_pick, numpy_pick
from crypto.prg import KEY_BYTES

VARIANCES = (2.0**6, 2.0**16, 2.0**24, 2.0**36, MAX_VARIANCE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints. Returns 0; a wrong option ends with 2."""
    parser = Parser("masking.noise", __doc__)
    parser.add_argument("--numbers", type=whole(1, 1 << 31), default=10_000_000, help="numbers of a run")
    parser.add_argument("--runs", type=whole(1, 1000), default=7, help="of which the median counts")
    options = parser.parse_args(arguments)
    clock = Clock()
    for variance in VARIANCES:
        with clock.step(_column("tables", variance)):
            gaussian_tables(variance)
    loops = {"numpy": numpy_pick, "numba": compiled_pick()}
    sample_N, word_N = np.empty(options.numbers, np.int32), np.zeros(options.numbers, np.uint32)
    for loop, pick in loops.items():
        for variance in VARIANCES if pick is not None else ():
            stream = GaussianStream(variance, bytes(KEY_BYTES), quantity=0, pick=pick)
            stream.sample_into(0, sample_N)  # numba compiles here
            for _ in range(options.runs):
                with clock.step(_column(loop, variance)):
                    stream.sample_into(0, sample_N)
                with clock.step(_column(f"{loop}, added to 32-bit words", variance)):
                    stream.add_into(0, word_N)
    _print(clock, options.numbers)
    return 0


def _print(clock: Clock, numbers: int) -> None:
    heads = [f"variance 2^{np.log2(variance):g}" for variance in VARIANCES]
    print(f"| numbers a second | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for name in dict.fromkeys(name.rsplit(" at ", 1)[0] for name in clock.names):
        times = [clock.median(_column(name, variance)).cpu_seconds for variance in VARIANCES]
        shown = [
            f"{1000 * one:.0f} ms" if name == "tables" else f"{numbers / one / 1e6:.0f} M" for one in times
        ]
        print(f"| {'to build the tables' if name == 'tables' else name} | {' | '.join(shown)} |")


def _column(name: str, variance: float) -> str:
    return f"{name} at {variance}"


if __name__ == "__main__":
    sys.exit(main())
