"""What one secure sum costs: a whole session in this process, of the code that silos and coordinator run.

`--drop` silos are lost after SHARE, so that masks must be recovered. Every step takes turns with the
key streams that it cannot do without, so that a busy machine slows both. The revealed sum is compared
with the sum of the encoded inputs, bit for bit.
"""

# L = words of one vector

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import keystreams
from bench.clock import Clock
from bench.federation import make_federation
from bench.memory import Peak, peak_of_step
from bench.options import Parser, whole
from bench.rows import Row, table
from bench.session import BOUND, NOW, Session
from coordinator.aggregate import MaskedSum, load_vectors, unmask_stored
from crypto import ring
from crypto.cohort import SMALLEST_FEDERATION, CohortRule
from crypto.errors import LocalProtocolError
from crypto.layout import WORD_BITS
from crypto.masking import Masker, UnmaskPlan

TURNS = 3  # of every timed step at every silo
MOST_SILOS = 200
MOST_VALUES = 1 << 27


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Medians per silo, but for what the coordinator does; bytes are those of one silo that stayed.

    Ratios are of CPU seconds of all threads, unless they say wall. A key stream has the bytes of the
    vector and is drawn in one thread; a silo needs one per silo, the coordinator one per survivor and
    one per pair of survivor and lost silo.
    """

    silos: int
    length: int
    word: int
    dropped: int
    silo_mask_cpu_seconds: float
    silo_mask_wall_seconds: float
    encode_cpu_seconds: float
    setup_cpu_seconds: float
    noise_cpu_seconds: float
    keystream_cpu_seconds: float
    mask_to_keystream: float
    coordinator_unmask_seconds: float
    upload_bytes: int
    float32_bytes: int
    max_abs_error: float
    peak_rss_mb: float
    mask_wall_to_cpu: float
    encode_to_keystream_pass: float
    coordinator_unmask_cpu_seconds: float
    unmask_to_keystream: float
    unmask_wall_to_cpu: float
    upload_to_float32: float
    silo_peak_to_vector: float
    coordinator_peak_to_vector: float

    def rows(self) -> list[Row]:
        """The figures that have a target."""
        word = f"w = {self.word}"
        return [
            Row(name=f"silo masking / its key streams, {word}", target=1.5, value=self.mask_to_keystream),
            Row(name=f"silo masking, wall / CPU, {word}", target=0.75, value=self.mask_wall_to_cpu),
            Row(name=f"encode / one key stream, {word}", target=4.0, value=self.encode_to_keystream_pass),
            Row(
                name=f"coordinator unmasking / its key streams, {word}",
                target=1.5,
                value=self.unmask_to_keystream,
            ),
            Row(name=f"silo peak extra memory / vector, {word}", target=2.0, value=self.silo_peak_to_vector),
            Row(
                name=f"coordinator peak memory / vector, {word}",
                target=3.0,
                value=self.coordinator_peak_to_vector,
            ),
            Row(
                name=f"upload / float32, {word}",
                target=self.word / 32 + 0.01,
                value=self.upload_to_float32,
            ),
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    report = measure(silos=options.silos, length=options.length, drop=options.drop, word=options.word)
    if options.json:
        print(json.dumps({**asdict(report), "rows": [row.to_json() for row in report.rows()]}))
        return 0
    for name, value in asdict(report).items():
        print(f"{name:<32}{value:>14.6g}" if isinstance(value, float) else f"{name:<32}{value:>14}")
    print(f"\n{table(report.rows())}")
    return 0


def measure(*, silos: int, length: int, drop: int, word: int) -> Report:
    """Run one session and take its times. Raises LocalProtocolError if its sum is not exact."""
    session = Session(make_federation(silos, now=NOW), length=length, word=word)
    with tempfile.TemporaryDirectory(prefix="chorale-bench-") as folder:
        run = _Run(session, length=length, folder=Path(folder))
        session.share()
        run.mask(session.terms.names[: silos - drop])
        run.unmask(session.reveal(run.clock))
    return run.report(word=word, drop=drop)


class _Run:
    """Vectors of a session; steps: encode, pass, mask, keystream, rebuild, unmask, unmask keystream."""

    def __init__(self, session: Session, *, length: int, folder: Path) -> None:
        self.clock = Clock()
        self._session = session
        self._layout = session.terms.layout
        self._folder = folder
        self._staying: Sequence[str] = ()
        self._encoded = ring.zeros(self._layout)  # the sum that only this bench knows
        self._exact_L: NDArray[np.float64] = np.zeros(length)
        self._silo_peak = Peak()
        self._coordinator_peak_bytes = 0
        self._max_abs_error = 0.0

    def mask(self, staying: Sequence[str]) -> None:
        """MASKED_INPUT of those who stay; each upload is added to the coordinator's sum when it is there."""
        self._staying = staying
        for index, name in enumerate(staying):
            values_L = _values(index, self._exact_L.size)
            masker = self._session.masker(name)
            encoded = self._encode(values_L)
            self._mask(masker, encoded)
            (self._folder / name).write_bytes(b"".join(masker.stream(encoded)))
            self._exact_L += values_L
            ring.add_into(self._encoded, encoded.vectors)
        with peak_of_step() as self._silo_peak:
            _exhaust(masker, ring.encode({"delta": values_L}, layout=self._layout))

    def unmask(self, plan: UnmaskPlan) -> None:
        """Sum the uploads and take the masks off. Raises LocalProtocolError if the sum is not exact."""
        masked, revealed = self._folder / "masked", self._folder / "revealed"
        with peak_of_step() as peak:
            total = MaskedSum(self._layout)
            for name in self._staying:
                total.add(self._folder / name)
            total.store(masked)
            del total
            unmask_stored(masked, revealed, plan=plan)
        self._coordinator_peak_bytes = peak.bytes
        sums = load_vectors(revealed, layout=self._layout)
        if any(not np.array_equal(sum_L, self._encoded[word]) for word, sum_L in sums.items()):
            raise LocalProtocolError("bench: the revealed sum is not the sum of the inputs")
        decoded_L = ring.decode(sums, layout=self._layout)["delta"]
        self._max_abs_error = float(np.max(np.abs(decoded_L - self._exact_L)))
        for _ in range(TURNS):
            self._draw("unmask keystream", len(plan.seeds))
            with self.clock.step("unmask"):
                plan.unmask(sums)

    def report(self, *, word: int, drop: int) -> Report:
        """What was measured, once all stages are over."""
        vector_bytes, float32_bytes = self._layout.total_bytes, 4 * self._exact_L.size
        upload_bytes = self._session.message_bytes + vector_bytes
        mask, keystream = self.clock.median("mask"), self.clock.median("keystream")
        encode, unmask = self.clock.median("encode"), self.clock.median("unmask")
        setup = self._session.setup_cpu_seconds(self._session.terms.names)
        return Report(
            silos=len(self._session.terms.names),
            length=self._exact_L.size,
            word=word,
            dropped=drop,
            silo_mask_cpu_seconds=mask.cpu_seconds,
            silo_mask_wall_seconds=mask.wall_seconds,
            encode_cpu_seconds=encode.cpu_seconds,
            setup_cpu_seconds=float(np.median(setup)),
            noise_cpu_seconds=0.0,
            keystream_cpu_seconds=keystream.cpu_seconds,
            mask_to_keystream=mask.cpu_seconds / keystream.cpu_seconds,
            coordinator_unmask_seconds=self.clock.total("rebuild").wall_seconds + unmask.wall_seconds,
            upload_bytes=upload_bytes,
            float32_bytes=float32_bytes,
            max_abs_error=self._max_abs_error,
            peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            mask_wall_to_cpu=mask.wall_seconds / mask.cpu_seconds,
            encode_to_keystream_pass=encode.cpu_seconds / self.clock.median("pass").cpu_seconds,
            coordinator_unmask_cpu_seconds=unmask.cpu_seconds,
            unmask_to_keystream=unmask.cpu_seconds / self.clock.median("unmask keystream").cpu_seconds,
            unmask_wall_to_cpu=unmask.wall_seconds / unmask.cpu_seconds,
            upload_to_float32=upload_bytes / float32_bytes,
            silo_peak_to_vector=self._silo_peak.bytes / vector_bytes,
            coordinator_peak_to_vector=self._coordinator_peak_bytes / vector_bytes,
        )

    def _encode(self, values_L: NDArray[np.float32]) -> ring.Encoded:
        for _ in range(TURNS):
            self._draw("pass", 1)
            with self.clock.step("encode"):
                encoded = ring.encode({"delta": values_L}, layout=self._layout)
        return encoded

    def _mask(self, masker: Masker, encoded: ring.Encoded) -> None:
        for _ in range(TURNS):
            self._draw("keystream", len(self._session.terms.names))
            with self.clock.step("mask"):
                _exhaust(masker, encoded)

    def _draw(self, step: str, streams: int) -> None:
        with self.clock.step(step):
            keystreams.draw(streams, stream_bytes=self._layout.total_bytes)


def _exhaust(masker: Masker, encoded: ring.Encoded) -> None:
    """Every chunk is let go when the next one is asked for, as on its way to the wire."""
    deque(masker.stream(encoded), maxlen=0)


def _values(index: int, length: int) -> NDArray[np.float32]:
    """Updates of one silo: few of them near the bound, as in training."""
    return np.random.default_rng(index).normal(0.0, BOUND / 16, length).astype(np.float32)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("secagg", __doc__)
    silos = whole(SMALLEST_FEDERATION, MOST_SILOS)
    parser.add_argument("--silos", type=silos, default=10, help="silos that advert")
    parser.add_argument("--length", type=whole(1, MOST_VALUES), default=1_000_000, help="values of each")
    parser.add_argument("--drop", type=whole(0, MOST_SILOS), default=2, help="silos lost after SHARE")
    parser.add_argument("--word", type=int, choices=WORD_BITS, default=32, help="bits of a summed value")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args(arguments)
    most = options.silos - CohortRule.for_members(options.silos).least_survivors
    if options.drop > most:
        parser.error(f"argument --drop: {options.silos} silos bear the loss of {most}, got {options.drop}")
    return options


if __name__ == "__main__":
    sys.exit(main())
