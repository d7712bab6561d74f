"""The sum of a phase, and what it leads to: of plain numbers, of words, or of words under real masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Self

import numpy as np

from chorale.spec.kinds import AnySpec
from chorale.spec.state import state_digest, state_to_bytes
from crypto.fixed_point import ring
from crypto.fixed_point.layout import CLIPPED, Layout, Quantity
from crypto.fixed_point.ring import Encoded
from crypto.masking.masks import vectors_from_stream
from crypto.session.messages import SessionTerms
from silo_agent.training.phase_input import PhaseRequest
from simulation.local_session import LocalSession
from simulation.members import Members, enroll
from simulation.silos import Answer
from strategies.base import Array, PhaseResult


def needs_words(layout: Layout) -> bool:
    """Whether a quantity is what it is only as words: under noise, or rotated to fewer of them."""
    return any(each.noise is not None or each.projection is not None for each in layout.quantities)


Sums = Callable[[PhaseRequest, Sequence[Answer]], Mapping[str, Array]]


def result_of(
    request: PhaseRequest,
    answers: Sequence[Answer],
    sums_of: Sums,
    *,
    self_mask_seeds: Mapping[str, bytes] | None = None,
) -> PhaseResult:
    """What a phase does to the state, with all figures and tables of its record. answers: of all silos that
    it names. sums_of: gives their sums, where few enough refused."""
    job, phase = request.job, request.key.phase
    here = [answer.silo for answer in answers if not answer.refused]
    if len(here) < request.rule.min_survivors:
        return PhaseResult(state=None, reason="too-few-silos")
    sums = sums_of(request, answers)
    context = replace(request.context, survivors=len(here))
    figures = job.figures(phase, context, sums)
    tagged = {each.name: sums[each.name] for each in request.layout.quantities if each.is_tagged}
    seeds = None if self_mask_seeds is None else {silo: self_mask_seeds[silo] for silo in here}
    result = job.next_state(phase, request.context, tagged, survivors=len(here), self_mask_seeds=seeds)
    tables = job.tables(phase, context, sums)
    return replace(result, figures={**figures, **result.figures}, tables=tables)


def phase_sums(
    request: PhaseRequest, answers: Sequence[Answer], *, secure: SecureSum | None = None
) -> Mapping[str, Array]:
    """Under masks, or plain: of words where answers have them, else of their values."""
    layout, here = request.layout, [answer for answer in answers if not answer.refused]
    words = {answer.silo: answer.encoded for answer in here if answer.encoded is not None}
    if secure is None:
        return word_sums(layout, words.values()) if words else plain_sums(layout, here)
    digest = state_digest(state_to_bytes(request.context.state))
    return secure.sums(request, tuple(answer.silo for answer in answers), words, digest)


def plain_sums(layout: Layout, answers: Sequence[Answer]) -> dict[str, Array]:
    """Float64 sums of the values, each clipped to its bound, in the order of the answers; counts in int64.

    What the ring would give but for its rounding: a number differs by less than one step for each silo.
    """
    sums = {each.name: _sum_of(each, answers) for each in layout.quantities if each.name != CLIPPED}
    if any(each.name == CLIPPED for each in layout.quantities):
        sums[CLIPPED] = np.asarray(sum(answer.clipped for answer in answers), np.int64)
    return sums


def word_sums(layout: Layout, encoded: Iterable[Encoded]) -> dict[str, Array]:
    """The sum in the ring, decoded, without masks."""
    total = ring.zeros(layout)
    for each in encoded:
        ring.add_into(total, each.vectors)
    return ring.decode(total, layout=layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSum:
    """Sums under masks: sessions of a simulation's members, in this process. No silo drops inside a session.

    Every silo checks the tagged part of the sum, as it does outside a simulation.

    now: when their certificates are looked at.
    """

    members: Members = field(repr=False)
    now: datetime

    @classmethod
    def of(cls, spec: AnySpec) -> Self:
        now = datetime.now(UTC)
        return cls(members=enroll(spec.silos, federation=spec.federation, now=now), now=now)

    def sums(
        self,
        request: PhaseRequest,
        names: tuple[str, ...],
        encoded: Mapping[str, Encoded],
        state_digest: bytes,
    ) -> dict[str, Array]:
        """The revealed sum, decoded. names: of the phase; encoded: inputs of the silos that came."""
        key, layout, roster = request.key, request.layout, self.members.roster
        terms = SessionTerms(
            federation=roster.federation,
            job_digest=key.job_digest,
            roster_version=roster.version,
            roster_digest=roster.digest,
            round=key.round,
            phase=key.phase,
            attempt=key.attempt,
            names=names,
            rule=request.rule,
            layout=layout,
            state_digest=state_digest,
        )
        session = LocalSession(self.members, terms, silos=tuple(encoded), now=self.now)
        session.share()
        total = ring.zeros(layout)
        for name, words in encoded.items():
            stream = b"".join(session.masker(name).stream(words))
            ring.add_into(total, vectors_from_stream(layout, stream))
        session.reveal().unmask(total)
        session.check(total)
        return ring.decode(total, layout=layout)


def _sum_of(quantity: Quantity, answers: Sequence[Answer]) -> Array:
    if quantity.is_count:
        counts = np.zeros(quantity.shape, np.int64)
        for answer in answers:
            counts += np.asarray(answer.values[quantity.name]).astype(np.int64)
        return counts
    total = np.zeros(quantity.shape)
    units = 1.0 if quantity.noise is None or not quantity.is_whole_units else quantity.noise.scale
    for answer in answers:
        value = np.asarray(answer.values[quantity.name]) / units
        total += np.clip(value, -quantity.bound, quantity.bound) if answer.clipped else value
    return total
