"""A whole session of the secure sum among silos with certificates, and what its coordinator gets to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from bench.federation import Federation, make_federation
from bench.session import NOW, Session
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout
from crypto.fixed_point.ring import Encoded, Words
from crypto.masking import masks
from strategies.base import Array

ENROLLED = 10  # silos that a session may name some of


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the coordinator holds: every silo's masked vectors, and the sum once its masks are off."""

    layout: Layout
    masked: Mapping[str, Mapping[int, Words]]
    sums: Mapping[str, Array]

    def bytes_of(self, name: str) -> bytes:
        return b"".join(self.masked[name][ring_bits].tobytes() for ring_bits in self.layout.ring_sizes)

    def taken_at_face_value(self, name: str) -> dict[str, Array]:
        """A silo's masked vectors, decoded as if there were no masks."""
        return decoded(self.masked[name], self.layout)


def secure_sum(inputs: Mapping[str, Encoded], layout: Layout) -> View:
    """All stages of docs/protocol.md 5 in this process; no silo is lost."""
    session = Session(_federation(), layout=layout, names=tuple(sorted(inputs)))
    session.share()
    masked = {}
    for name in session.terms.names:
        stream = b"".join(session.masker(name).stream(inputs[name]))
        masked[name] = masks.vectors_from_stream(layout, stream)
    plan = session.reveal()
    total = ring.zeros(layout)
    for vectors in masked.values():
        ring.add_into(total, vectors)
    plan.unmask(total)
    return View(layout=layout, masked=masked, sums=decoded(total, layout))


def decoded(vectors: Mapping[int, Words], layout: Layout) -> dict[str, Array]:
    """As a sum is; copies, because what is decoded outlives the vectors."""
    native = {ring_bits: words.astype(ring.WORD_TYPES[ring_bits]) for ring_bits, words in vectors.items()}
    return dict(ring.decode(native, layout=layout))


@cache
def _federation() -> Federation:
    return make_federation(ENROLLED, now=NOW)
