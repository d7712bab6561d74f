"""Chorale's half of a comparison: one session on given values, in this process and one thread."""

# n = silos, L = values of each

from __future__ import annotations

import time
from collections import deque
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.clock import Clock
from bench.federation import make_federation
from bench.peers.measured import Measured
from bench.session import NOW, Session, update_layout
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.masking import masks


def measure(values_nL: NDArray[np.float32], *, dropped: int, word: int) -> Measured:
    """The last silos are lost after SHARE. Seconds are CPU seconds."""
    silos, length = values_nL.shape
    federation = make_federation(silos, now=NOW)
    start = time.process_time()
    session = Session(federation, layout=update_layout(federation, length=length, word=word))
    run = _Run(session)
    session.share()
    staying = session.terms.names[: silos - dropped]
    for name, values_L in zip(staying, values_nL, strict=False):
        run.mask(name, np.array(values_L))
    sum_L = run.unmask()
    spent = time.process_time() - start
    return run.report(staying, values_nL, sum_L, spent=spent)


class _Run:
    """Steps: mask, join, rebuild, unmask, decode."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layout = session.terms.layout
        self._clock = Clock()
        self._masked = ring.zeros(self._layout)

    def mask(self, name: str, values_L: NDArray[np.float32]) -> None:
        """Encode, mask and send; the coordinator adds what arrives."""
        masker = self._session.masker(name)
        with self._clock.step("mask"):
            encoder = Encoder({"delta": values_L}, layout=self._layout)
            # every chunk is released when the next one is asked for, as on its way to the wire
            deque(masker.stream(encoder, workers=1), maxlen=0)
        with self._clock.step("join"):  # what a network would have kept
            stream = b"".join(masker.stream(encoder, workers=1))
        ring.add_into(self._masked, masks.vectors_from_stream(self._layout, stream))

    def unmask(self) -> NDArray[np.float64]:
        plan = self._session.reveal(partial(self._clock.step, "rebuild"))
        with self._clock.step("unmask"):
            plan.unmask(self._masked, workers=1)
        with self._clock.step("decode"):
            sum_L: NDArray[np.float64] = ring.decode(self._masked, layout=self._layout)["delta"]
        return sum_L

    def report(
        self,
        staying: tuple[str, ...],
        values_nL: NDArray[np.float32],
        sum_L: NDArray[np.float64],
        *,
        spent: float,
    ) -> Measured:
        """spent: CPU seconds of the whole session, of which the coordinator's other part is the rest."""
        cpu = {name: self._clock.total(name).cpu_seconds for name in self._clock.names}
        unmask = cpu["rebuild"] + cpu["unmask"]
        at_silos = sum(self._session.setup_cpu_seconds(self._session.terms.names)) + cpu["mask"]
        exact_L = values_nL[: len(staying)].sum(axis=0, dtype=np.float64)
        return Measured(
            silo_setup_cpu_seconds=sum(self._session.setup_cpu_seconds(staying)) / len(staying),
            silo_mask_cpu_seconds=cpu["mask"] / len(staying),
            coordinator_unmask_cpu_seconds=unmask,
            coordinator_decode_cpu_seconds=cpu["decode"],
            coordinator_other_cpu_seconds=spent - at_silos - unmask - cpu["decode"] - cpu["join"],
            vector_bytes=self._layout.total_bytes,
            sent_bytes=self._session.message_bytes + self._layout.total_bytes,
            max_abs_error=float(np.max(np.abs(sum_L - exact_L))),
        )
