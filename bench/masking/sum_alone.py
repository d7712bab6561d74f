"""The secure sum of a round and nothing else: what silos and coordinator compute and keep, in one process.

Keys, envelopes, signatures and their checks; encoding, masking, adding, unmasking and decoding of every
vector; and what the protocol wants on the disk: the model at every silo, checked by its digest, the rows of a
silo's ledger that stand before something leaves it, the masked sum and the next model. No wire, no
job, no other row: with the floor of `bench.parties.plain_round` what a secure round cannot do without.
"""

# L = words of one vector

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.clock import Clock
from bench.federation import Federation, make_federation
from bench.masking import masks
from bench.session import NOW, Session, update_layout
from chorale.runtime.background_io import keep_chunks
from chorale.runtime.files import write_hashed
from crypto.errors import LocalProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from crypto.masking.masks import vectors_from_stream

WORD = 32
TURNS = 7  # after one that loads what is compiled
LEDGER_ROWS = ("reserved", "spent", "pending", "revealed")  # docs/protocol.md 6.3 and 6.8
LARGEST_ERROR = 1e-4  # of a sum of a hundred silos; a mask left on is larger in all but one word of a million


@dataclass(frozen=True, slots=True, kw_only=True)
class SumAlone:
    """Of one round: CPU of all silos and the coordinator; what a silo sends besides its vector, in bytes."""

    cpu_seconds: float
    message_bytes: int


def measure(*, silos: int, length: int) -> SumAlone:
    """The median of sessions in which no silo is lost. Raises LocalProtocolError if a sum is wrong."""
    keep_chunks()  # as an agent's process does
    federation = make_federation(silos, now=NOW)
    layout = update_layout(federation, length=length, word=WORD)
    with tempfile.TemporaryDirectory(prefix="chorale-bench-") as folder:
        disk = _Disk(Path(folder), model=bytes(WORD // 8 * length))
        sums = [_sum(federation, layout, length, disk) for _ in range(1 + TURNS)]
        disk.close()
    return SumAlone(
        cpu_seconds=median(one.cpu_seconds for one in sums[1:]), message_bytes=sums[0].message_bytes
    )


def _sum(federation: Federation, layout: Layout, length: int, disk: _Disk) -> SumAlone:
    clock = Clock()
    with clock.step("share"):
        session = Session(federation, layout=layout)
        session.share()
    masked, exact_L = ring.zeros(layout), np.zeros(length)
    for index, name in enumerate(session.terms.names):
        values_L = masks.values(length, seed=index)
        with clock.step("mask"):
            encoder = Encoder({masks.QUANTITY: values_L}, layout=layout)
            chunks = list(session.masker(name).stream(encoder))
        upload = b"".join(chunks)  # which no silo does
        with clock.step("keep"):
            disk.keep_of_silo(name)
        with clock.step("add"):
            ring.add_into(masked, vectors_from_stream(layout, upload))
        exact_L += values_L
    with clock.step("keep"):
        disk.keep(masked[WORD])
    with clock.step("reveal"):
        session.reveal().unmask(masked)
        decoded_L = ring.decode(masked, layout=layout)[masks.QUANTITY]
    with clock.step("keep"):
        disk.keep(decoded_L.astype(np.float32))
    check(decoded_L, exact_L)
    cpu_seconds = sum(clock.total(step).cpu_seconds for step in clock.names)
    return SumAlone(cpu_seconds=cpu_seconds, message_bytes=session.message_bytes)


class _Disk:
    """What has to be kept, as durable as agent and coordinator keep it. model: of the round before."""

    def __init__(self, folder: Path, *, model: bytes) -> None:
        self._folder = folder
        self._model = model
        self._ledger = sqlite3.connect(folder / "ledger.db", isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            self._ledger.execute(f"PRAGMA {pragma}")
        self._ledger.execute("CREATE TABLE row (silo TEXT, state TEXT, digest BLOB)")

    def keep_of_silo(self, name: str) -> None:
        digest = hashlib.sha256(self._model).digest()
        (self._folder / f"{name}.safetensors").write_bytes(self._model)
        for state in LEDGER_ROWS:
            self._ledger.execute("INSERT INTO row VALUES (?, ?, ?)", (name, state, digest))

    def keep(self, vector_L: NDArray[Any]) -> None:
        write_hashed(self._folder, [vector_L.data.cast("B")], suffix=".safetensors")

    def close(self) -> None:
        self._ledger.close()


def check(decoded_L: NDArray[np.float64], exact_L: NDArray[np.float64]) -> None:
    """Raises LocalProtocolError unless the sum that was revealed is that of the inputs."""
    if float(np.max(np.abs(decoded_L - exact_L))) > LARGEST_ERROR:
        raise LocalProtocolError("bench: the revealed sum is not the sum of the inputs")
