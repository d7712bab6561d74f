"""A phase's sum under real masks: the session of the simulation's members, in this process.

Nobody drops inside a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from crypto.fixed_point import ring
from crypto.fixed_point.ring import Encoded
from crypto.masking.masks import vectors_from_stream
from crypto.session.messages import SessionTerms
from silo_agent.rounds.phase_input import Asked
from simulation.local_session import LocalSession
from simulation.members import Members
from strategies.base import Array


class SecureSum:
    """Sessions of the members of one simulation. now: when their certificates are looked at."""

    def __init__(self, members: Members, *, now: datetime) -> None:
        self._members = members
        self._now = now

    def sums(
        self, asked: Asked, names: tuple[str, ...], encoded: Mapping[str, Encoded], state_digest: bytes
    ) -> dict[str, Array]:
        """The revealed sum, decoded. names: whom the phase names; encoded: inputs of those who came."""
        terms = self._terms(asked, names, state_digest)
        session = LocalSession(self._members, terms, silos=tuple(encoded), now=self._now)
        session.share()
        total = ring.zeros(asked.layout)
        for name, words in encoded.items():
            stream = b"".join(session.masker(name).stream(words))
            ring.add_into(total, vectors_from_stream(asked.layout, stream))
        session.reveal().unmask(total)
        return ring.decode(total, layout=asked.layout)

    def _terms(self, asked: Asked, names: tuple[str, ...], state_digest: bytes) -> SessionTerms:
        key, roster = asked.key, self._members.roster
        return SessionTerms(
            federation=roster.federation,
            job_digest=key.job_digest,
            roster_version=roster.version,
            roster_digest=roster.digest,
            round=key.round,
            phase=key.phase,
            attempt=key.attempt,
            names=names,
            rule=asked.rule,
            layout=asked.layout,
            state_digest=state_digest,
        )
