"""What a silo spends on one session apart from its vectors: keys, sharing, envelopes, checks, signatures.

A whole session of n silos runs in this process, no silo is lost, and the CPU seconds of every silo are
taken apart. All that the protocol asks of a silo is there; only the ledger's disk is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from bench.federation import make_federation
from bench.options import Parser, whole
from bench.report.series import Series
from bench.rows import Row, table
from bench.session import NOW, Session, update_layout
from crypto.session.cohort import SMALLEST_FEDERATION

TARGET_SILOS, TARGET_SECONDS = 100, 0.3
STEPS = (10, 25, 50, 100)  # as far as --silos goes
MAX_SILOS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """CPU seconds of one silo, medians over all of them. by_silos: [n, seconds] for every n;
    by_stage: in the largest session."""

    silos: int
    setup_cpu_seconds: float
    setup_cpu_seconds_of_worst_silo: float
    message_bytes: int
    by_silos: tuple[tuple[int, float], ...]
    by_stage: dict[str, float]

    def rows(self) -> list[Row]:
        """The target holds for a hundred silos; for another number it is proportional."""
        target = TARGET_SECONDS * self.silos / TARGET_SILOS
        name = f"set-up CPU per silo, n = {self.silos}"
        return [Row(name=name, target=target, value=self.setup_cpu_seconds, unit="s")]

    def series(self) -> Series:
        """CPU per silo over the number of silos."""
        sizes, values = zip(*self.by_silos, strict=True)
        return Series(
            name="set-up",
            plot="setup",
            x_label="silos n",
            y_label="CPU seconds of one silo",
            sizes=sizes,
            values=values,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    report = measure(silos=options.silos)
    if options.json:
        rows = [row.to_json() for row in report.rows()]
        print(json.dumps({**asdict(report), "rows": rows, "series": [report.series().to_json()]}))
        return 0
    for silos, seconds in report.by_silos:
        print(f"{silos:>4} silos  {1000 * seconds:8.1f} ms of CPU per silo")
    for stage, seconds in report.by_stage.items():
        print(f"{stage:>14}  {1000 * seconds:8.1f} ms of them with {report.silos} silos")
    print(f"\n{table(report.rows())}")
    return 0


def measure(*, silos: int) -> Report:
    """One session for each number of silos up to that one."""
    by_silos = []
    for size in [*(step for step in STEPS if step < silos), silos]:
        print(f"setup: a session of {size} silos", file=sys.stderr, flush=True)
        session = _session(size)
        spent = session.setup_cpu_seconds(session.terms.names)
        by_silos.append((size, median(spent)))
    return Report(
        silos=silos,
        setup_cpu_seconds=median(spent),
        setup_cpu_seconds_of_worst_silo=max(spent),
        message_bytes=session.message_bytes,
        by_silos=tuple(by_silos),
        by_stage={stage: session.stages.median(stage).cpu_seconds for stage in session.stages.names},
    )


def _session(silos: int) -> Session:
    federation = make_federation(silos, now=NOW)
    session = Session(federation, layout=update_layout(federation, length=1, word=32))
    session.share()
    for name in session.terms.names:
        session.masker(name)
    session.reveal()
    return session


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("setup", __doc__)
    silos = whole(SMALLEST_FEDERATION, MAX_SILOS)
    parser.add_argument("--silos", type=silos, default=TARGET_SILOS, help="silos of the largest session")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
