"""What a round would cost a program without an interpreter: an estimate of the work on its vectors' bytes.

    python -m bench.native_floor --silos 10 --length 1000000 --json

OpenSSL and numpy work through the bytes of one round in one thread, a mebibyte at a time, so that Python
takes a few calls a mebibyte. Counted are, of vectors of 32-bit words from which no silo is lost:

- TLS: every vector up and every sum down, sealed at one end and opened at the other (AES-256-GCM);
- key streams: n of them at each silo, its own and one a peer, and n at the coordinator (AES-256-CTR);
- adding: each of these to a vector, and each upload to the sum;
- hashing: the sum and the next state, by the coordinator and by every silo (SHA-256);
- copying: what is sent, into the socket and out of it.

Not counted: encoding, decoding and tags, keys and signatures, the disk, system calls. It is an estimate:
these parts do not wait for memory as they would between other work.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bench.clock import Clock
from bench.options import Parser, whole
from bench.rows import Row, table
from crypto import prg

WORD_BYTES = 4
PIECE_BYTES = 1 << 20  # a chunk of a transfer; larger ones leave the cache
TAG_BYTES = 16
NONCE = bytes(12)  # nothing is kept secret here
TARGET_SECONDS = 0.2  # 10 silos and a million words: what the work on bytes was estimated at
TURNS = 5  # after one that warms up


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """CPU seconds of one round, all parties together."""

    tls: float
    keystreams: float
    adding: float
    hashing: float
    copying: float

    @property
    def total(self) -> float:
        return self.tls + self.keystreams + self.adding + self.hashing + self.copying


def measure(*, silos: int, length: int) -> Parts:
    """The median of each part."""
    parts = [_round(silos, length) for _ in range(1 + TURNS)][1:]
    names = asdict(parts[0])
    return Parts(**{name: median(getattr(one, name) for one in parts) for name in names})


def _round(silos: int, length: int) -> Parts:
    vector_bytes = WORD_BYTES * length
    moved, streams = 2 * silos, silos * silos + silos  # vectors on the wire, key streams
    clock, cipher = Clock(), AESGCM(bytes(prg.KEY_BYTES))
    plain, other = (np.frombuffer(os.urandom(PIECE_BYTES), np.uint8).copy() for _ in range(2))
    sealed = np.empty(PIECE_BYTES + TAG_BYTES, np.uint8)
    stream, hashed = prg.Keystream(bytes(prg.KEY_BYTES)), hashlib.sha256()
    with clock.step("tls"):
        for size in _pieces(moved * vector_bytes):
            record = sealed[: size + TAG_BYTES]
            cipher.encrypt_into(NONCE, plain[:size].data, None, record.data)
            cipher.decrypt_into(NONCE, record.data, None, other[:size].data)
    with clock.step("keystreams"):
        for size in _pieces(streams * vector_bytes):
            stream.fill(other[:size])
    words, masks = plain.view(np.uint32), other.view(np.uint32)
    with clock.step("adding"):
        for size in _pieces((streams + silos) * vector_bytes):
            words_B = words[: size // WORD_BYTES]
            np.add(words_B, masks[: words_B.size], out=words_B)
    with clock.step("hashing"):
        for size in _pieces(2 * (silos + 1) * vector_bytes):
            hashed.update(plain[:size].data)
    with clock.step("copying"):
        for size in _pieces(2 * moved * vector_bytes):
            np.copyto(other[:size], plain[:size])
    return Parts(**{name: clock.total(name).cpu_seconds for name in clock.names})


def _pieces(total_bytes: int) -> list[int]:
    whole_pieces, rest = divmod(total_bytes, PIECE_BYTES)
    return [PIECE_BYTES] * whole_pieces + [rest] * (rest > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or with --json all figures."""
    options = _options(arguments)
    parts = measure(silos=options.silos, length=options.length)
    row = Row(
        name=f"native floor of a round, {options.silos} silos, CPU",
        target=TARGET_SECONDS,
        value=parts.total,
        unit="s",
    )
    if options.json:
        sizes = {"silos": options.silos, "length": options.length}
        print(
            json.dumps(
                {
                    **sizes,
                    "native_cpu_seconds": parts.total,
                    "parts": asdict(parts),
                    "rows": [row.to_json()],
                }
            )
        )
        return 0
    for name, seconds in asdict(parts).items():
        print(f"{name:>12}  {1000 * seconds:8.1f} ms of CPU")
    print(f"\n{table([row])}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("native_floor", __doc__)
    parser.add_argument("--silos", type=whole(2, 200), default=10)
    parser.add_argument("--length", type=whole(1, 1 << 30), default=1_000_000, help="words of a vector")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
