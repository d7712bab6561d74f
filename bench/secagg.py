"""What one secure sum costs: a whole session in this process, of the code that silos and coordinator run.

`--drop` silos are lost after SHARE, so that masks must be recovered. Every step takes turns with the
key streams that it cannot do without, so that a busy machine slows both. The revealed sum is compared
with the sum of the encoded inputs, bit for bit. Tags are those of the whole vector, and what they read of
it is encoded once more.

With `--noise` every silo clips its whole vector to half its norm, rounds it within that norm and adds noise,
and the errors are those of the noise.
"""

# L = words of one vector

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.clock import Clock
from bench.federation import make_federation
from bench.masking import keystreams, masks, memory
from bench.options import Parser, whole
from bench.rows import Row, table
from bench.session import NOW, Session, update_layout
from chorale.runtime.background_io import keep_chunks
from coordinator.process import return_large_blocks
from crypto.errors import LocalProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import RING_BITS, TAG_WORDS
from crypto.masking import tags
from crypto.masking.masks import Masker, UnmaskPlan, vectors_from_stream
from crypto.masking.tags import Tagger
from crypto.noise.sensitivity import Noise
from crypto.session.cohort import SMALLEST_FEDERATION, CohortRule

TURNS = 7  # of every timed step at every silo
UNMASK_TURNS = 25  # there is one coordinator: seven turns are over in a fifth of a second
MAX_SILOS = 200
MAX_VALUES = 1 << 27
_SUM_KEY = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Medians per silo, but for what the coordinator does; bytes are those of one silo that stayed.

    Ratios are of CPU seconds of all threads, unless they say wall. There are as many threads as cores, unless
    the name says one. A key stream has the bytes of the vector and is drawn in one thread; a silo needs one
    per silo, the coordinator one per survivor and one per pair of survivor and lost silo.
    noise_cpu_seconds: what clip and noise add to encoding. tag_cpu_seconds: of a silo's own tags.
    check_cpu_seconds: of one revealed sum.
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
    noise_to_mask: float
    one_thread_mask_to_keystream: float
    one_thread_unmask_to_keystream: float
    tag_cpu_seconds: float
    check_cpu_seconds: float
    tags_and_check_to_mask: float

    def rows(self) -> list[Row]:
        """The figures that have a target."""
        word = f"w = {self.word}"
        if self.noise_cpu_seconds:
            return [Row(name=f"noise / silo masking, {word}", target=0.6, value=self.noise_to_mask)]
        return [
            Row(
                name=f"silo masking / its key streams, one thread, {word}",
                target=1.5,
                value=self.one_thread_mask_to_keystream,
            ),
            Row(name=f"silo masking / its key streams, {word}", target=2.0, value=self.mask_to_keystream),
            Row(name=f"silo masking, wall / CPU, {word}", target=0.75, value=self.mask_wall_to_cpu),
            Row(name=f"encode / one key stream, {word}", target=4.0, value=self.encode_to_keystream_pass),
            Row(
                name=f"coordinator unmasking / its key streams, one thread, {word}",
                target=1.5,
                value=self.one_thread_unmask_to_keystream,
            ),
            Row(
                name=f"coordinator unmasking / its key streams, {word}",
                target=2.0,
                value=self.unmask_to_keystream,
            ),
            Row(
                name=f"tags and check / silo masking, {word}",
                target=1.5 * max(1, 32 // self.word),  # the factors have 64 bits, whatever a word has
                value=self.tags_and_check_to_mask,
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
    """Take the turns and print the figures."""
    options = _options(arguments)
    report = measure(
        silos=options.silos,
        length=options.length,
        drop=options.drop,
        word=options.word,
        with_noise=options.noise,
    )
    if options.json:
        print(json.dumps({**asdict(report), "rows": [row.to_json() for row in report.rows()]}))
        return 0
    for name, value in asdict(report).items():
        print(f"{name:<32}{value:>14.6g}" if isinstance(value, float) else f"{name:<32}{value:>14}")
    print(f"\n{table(report.rows())}")
    return 0


def measure(*, silos: int, length: int, drop: int, word: int, with_noise: bool = False) -> Report:
    """Run one session and take its times. Raises LocalProtocolError if its sum is not exact."""
    keep_chunks()  # as an agent's process does
    noise = _noise(length, word=word) if with_noise else None
    federation = make_federation(silos, now=NOW)
    layout = update_layout(federation, length=length, word=word, noise=noise)
    session = Session(federation, layout=layout)
    run = _Run(session, length=length)
    session.share()
    run.mask(session.terms.names[: silos - drop])
    run.unmask(session.reveal(partial(run.clock.step, "rebuild")))
    return run.report(word=word, drop=drop)


class _Run:
    """Vectors of a session; steps: pass, encode, encode alone, keystream, mask, rebuild, unmask ...."""

    def __init__(self, session: Session, *, length: int) -> None:
        self.clock = Clock()
        self._session = session
        self._layout = session.terms.layout
        bare = tuple(replace(quantity, noise=None) for quantity in self._layout.quantities)
        self._bare_layout = replace(self._layout, quantities=bare)
        tagged = tuple(replace(quantity, is_tagged=True) for quantity in self._layout.quantities)
        self._tagged_layout = replace(self._layout, quantities=tagged)
        self._masked = ring.zeros(self._layout)  # what the coordinator holds
        self._encoded = ring.zeros(self._layout)  # the sum that only this bench knows
        self._exact_L: NDArray[np.float64] = np.zeros(length)
        self._max_abs_error = 0.0

    def mask(self, staying: Sequence[str]) -> None:
        """MASKED_INPUT of those who stay; each upload is added to the coordinator's sum when it is there."""
        for index, name in enumerate(staying):
            values_L = masks.values(self._exact_L.size, seed=index)
            masker = self._session.masker(name)
            encoded = self._encode(values_L)
            self._mask(masker, encoded, Encoder({masks.QUANTITY: values_L}, layout=self._tagged_layout))
            upload = b"".join(masker.stream(encoded))
            ring.add_into(self._masked, vectors_from_stream(self._layout, upload))
            ring.add_into(self._encoded, encoded.vectors)
            self._exact_L += values_L

    def unmask(self, plan: UnmaskPlan) -> None:
        """Unmask the sum. Raises LocalProtocolError if it is not exact."""
        return_large_blocks()  # as a coordinator's process does
        masked = {word: sum_L.copy() for word, sum_L in self._masked.items()}
        for turn in range(UNMASK_TURNS):
            self._draw("unmask keystream", len(plan.seeds))
            with self.clock.step("unmask"):
                plan.unmask(masked if turn else self._masked)
            with self.clock.step("unmask in one thread"):
                plan.unmask(masked, workers=1)
        if any(not np.array_equal(sum_L, self._encoded[word]) for word, sum_L in self._masked.items()):
            raise LocalProtocolError("bench: the revealed sum is not the sum of the inputs")
        decoded_L = ring.decode(self._masked, layout=self._layout)[masks.QUANTITY]
        self._max_abs_error = float(np.max(np.abs(decoded_L - self._exact_L)))

    def report(self, *, word: int, drop: int) -> Report:
        """What was measured, once all stages are over."""
        silos, length = len(self._session.terms.names), self._exact_L.size
        upload_bytes = self._session.message_bytes + self._layout.total_bytes
        mask, keystream = self.clock.median("mask"), self.clock.median("keystream")
        encode, unmask = self.clock.median("encode"), self.clock.median("unmask")
        one_thread_mask = self.clock.median("mask in one thread")
        one_thread_unmask = self.clock.median("unmask in one thread")
        tag, check = self.clock.median("tags"), self.clock.median("check")
        unmask_keystream = self.clock.median("unmask keystream")
        setup = self._session.setup_cpu_seconds(self._session.terms.names)
        noise = encode.cpu_seconds - self.clock.median("encode alone").cpu_seconds if self._is_noised else 0.0
        return Report(
            silos=silos,
            length=length,
            word=word,
            dropped=drop,
            silo_mask_cpu_seconds=mask.cpu_seconds,
            silo_mask_wall_seconds=mask.wall_seconds,
            encode_cpu_seconds=encode.cpu_seconds,
            setup_cpu_seconds=float(np.median(setup)),
            noise_cpu_seconds=noise,
            keystream_cpu_seconds=keystream.cpu_seconds,
            mask_to_keystream=mask.cpu_seconds / keystream.cpu_seconds,
            coordinator_unmask_seconds=self.clock.total("rebuild").wall_seconds + unmask.wall_seconds,
            upload_bytes=upload_bytes,
            float32_bytes=4 * length,
            max_abs_error=self._max_abs_error,
            peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            mask_wall_to_cpu=mask.wall_seconds / mask.cpu_seconds,
            encode_to_keystream_pass=encode.cpu_seconds / self.clock.median("pass").cpu_seconds,
            coordinator_unmask_cpu_seconds=unmask.cpu_seconds,
            unmask_to_keystream=unmask.cpu_seconds / unmask_keystream.cpu_seconds,
            unmask_wall_to_cpu=unmask.wall_seconds / unmask.cpu_seconds,
            upload_to_float32=upload_bytes / (4 * length),
            silo_peak_to_vector=memory.silo_peak_to_vector(length, word=word, silos=silos),
            coordinator_peak_to_vector=_coordinator_peak(length, word=word, silos=silos, lost=drop),
            noise_to_mask=noise / mask.cpu_seconds,
            one_thread_mask_to_keystream=one_thread_mask.cpu_seconds / keystream.cpu_seconds,
            one_thread_unmask_to_keystream=one_thread_unmask.cpu_seconds / unmask_keystream.cpu_seconds,
            tag_cpu_seconds=tag.cpu_seconds,
            check_cpu_seconds=check.cpu_seconds,
            tags_and_check_to_mask=(tag.cpu_seconds + check.cpu_seconds) / mask.cpu_seconds,
        )

    @property
    def _is_noised(self) -> bool:
        return self._layout != self._bare_layout

    def _encode(self, values_L: NDArray[np.float32]) -> ring.Encoded:
        values = {masks.QUANTITY: values_L}
        Encoder(values, layout=self._layout).encode()  # loads what is compiled
        for _ in range(TURNS):
            self._draw("pass", 1)
            with self.clock.step("encode"):
                encoded = Encoder(values, layout=self._layout).encode()
            if self._is_noised:
                with self.clock.step("encode alone"):
                    Encoder(values, layout=self._bare_layout).encode()
        return encoded

    def _mask(self, masker: Masker, encoded: ring.Encoded, tagged: Encoder) -> None:
        survivors = self._session.terms.names
        sums = tagged.encode().vectors  # of all silos, of which all but one put in zeros
        for turn in range(TURNS):
            self._draw("keystream", len(survivors))
            with self.clock.step("mask"):
                masks.exhaust(masker, encoded)
            tagger = Tagger(layout=self._tagged_layout, sum_key=_SUM_KEY, name=survivors[0])
            with self.clock.step("tags"):
                own = tagger.tags(tagged)
            if not turn:
                others = np.array([tags.offsets(_SUM_KEY, name) for name in survivors[1:]], np.uint64)
                sums[64][-TAG_WORDS:] = own + others.sum(axis=0, dtype=np.uint64)
            with self.clock.step("check"):
                tags.check(sums, layout=self._tagged_layout, sum_key=_SUM_KEY, survivors=survivors)
            with self.clock.step("mask in one thread"):
                masks.exhaust(masker, encoded, workers=1)

    def _draw(self, step: str, streams: int) -> None:
        with self.clock.step(step):
            keystreams.draw(streams, stream_bytes=self._layout.total_bytes)


def _noise(length: int, *, word: int) -> Noise:
    """About what a million parameters take, in 16 bits the most that ten silos' sums have room for."""
    deviation = 2.0 ** (8 if word == 16 else 12)
    clip_l2 = masks.DEVIATION * math.sqrt(length) / 2
    return Noise(variance=deviation**2, scale=deviation, clip_l2=clip_l2)


def _coordinator_peak(length: int, *, word: int, silos: int, lost: int) -> float:
    with tempfile.TemporaryDirectory(prefix="chorale-bench-") as folder:
        return memory.coordinator_peak_to_vector(
            length, word=word, silos=silos, lost=lost, folder=Path(folder)
        )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("secagg", __doc__)
    silos = whole(SMALLEST_FEDERATION, MAX_SILOS)
    parser.add_argument("--silos", type=silos, default=10, help="silos that advert")
    parser.add_argument("--length", type=whole(1, MAX_VALUES), default=1_000_000, help="values of each")
    parser.add_argument("--drop", type=whole(0, MAX_SILOS), default=2, help="silos lost after SHARE")
    parser.add_argument("--word", type=int, choices=RING_BITS, default=32, help="bits of a summed value")
    parser.add_argument("--noise", action="store_true", help="clip the vectors and add noise")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args(arguments)
    most = options.silos - CohortRule.for_members(options.silos).min_survivors
    if options.drop > most:
        parser.error(f"argument --drop: {options.silos} silos bear the loss of {most}, got {options.drop}")
    return options


if __name__ == "__main__":
    sys.exit(main())
