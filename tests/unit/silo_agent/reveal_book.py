"""One silo's ledger of reveals on disk, and the sessions that it is asked about."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from crypto.errors import Refusal
from crypto.fixed_point.layout import Layout, Quantity
from crypto.session.cohort import CohortRule
from crypto.session.messages import SessionTerms, UnmaskShares
from crypto.session.reveal import PendingReveal
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Reveals
from silo_agent.disclosure.policy.policy import Policy
from tests.support import refusals
from tests.support.agents import Hub
from tests.support.sessions import NOW

NAMES = tuple(f"silo-{place}" for place in range(6))
FULL = NAMES
FIVE = NAMES[:5]
SECRET = b"share-of-a-mask-seed-33-bytes-long"


class Book:
    """A ledger on disk with one approved job, reopened at will."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "ledger.sqlite"
        self.now = NOW
        self.job = Hub(folder, silos=6, rounds=5).job
        self.other_job = Hub(folder, silos=6, rounds=5, nonce="1" * 32).job
        self.announced: list[PendingReveal] = []
        self.policy = Policy(federation="test")
        self.open()
        for job in (self.job, self.other_job):
            self.ledger.record_job(job, is_approved=True)

    def long_job(self) -> bytes:
        """Digest of a third job, of 40 rounds."""
        job = Hub(self.folder, silos=6, rounds=40, nonce="3" * 32).job
        self.ledger.record_job(job, is_approved=True)
        return job.digest

    def open(self) -> None:
        self.ledger = Ledger(self.path, clock=self.clock)
        self.reveals = self.reveals_of("data")

    def reopen(self) -> None:
        self.ledger.close()
        self.open()

    def reveals_of(self, data_set: str, **policy: Any) -> Reveals:
        return self.ledger.reveals(
            policy=self.policy.model_copy(update=policy), data_set=data_set, tell=self.announced.append
        )

    def clock(self) -> datetime:
        return self.now

    def terms(self, **changes: Any) -> SessionTerms:
        names = changes.pop("names", NAMES)
        values: dict[str, Any] = {
            "federation": "test",
            "job_digest": self.job.digest,
            "roster_version": 7,
            "roster_digest": b"r" * 32,
            "round": 1,
            "phase": "train",
            "attempt": 1,
            "names": names,
            "rule": CohortRule.for_members(len(names)),
            "layout": Layout(members=len(names), quantities=(Quantity(name="weight", bound=1.0),)),
            "state_digest": b"s" * 32,
        }
        return SessionTerms(**(values | changes))

    def spend(self, *, round: int, phase: str = "train", is_private: bool = False) -> None:
        """An input that left, as the budget writes it."""
        with self.ledger._database.transaction() as connection:
            cost = b"c" * 32 if is_private else None
            if is_private:
                connection.execute("INSERT INTO costs VALUES (?, '[]') ON CONFLICT DO NOTHING", (cost,))
            connection.execute(
                "INSERT INTO releases VALUES (?, 'data', ?, ?, ?, ?, 1e-5, 'spent', x'00', 0.0)",
                (secrets.token_bytes(16), self.job.digest, round, phase, cost),
            )

    def sign(
        self, survivors: tuple[str, ...], *, reveals: Reveals | None = None, **changes: Any
    ) -> PendingReveal:
        """Advert, check, signature, as a session does."""
        book, terms = reveals or self.reveals, self.terms(**changes)
        book.begin_attempt(terms)
        book.check_reveal(terms, survivors)
        pending = make_pending(terms, survivors)
        book.write_pending(pending)
        return pending

    def reveal(self, survivors: tuple[str, ...], **changes: Any) -> PendingReveal:
        pending = self.sign(survivors, **changes)
        (changes.get("reveals") or self.reveals).mark_revealed(pending)
        return pending


def make_pending(terms: SessionTerms, survivors: tuple[str, ...]) -> PendingReveal:
    return PendingReveal(
        job_digest=terms.job_digest,
        round=terms.round,
        phase=terms.phase,
        attempt=terms.attempt,
        state_digest=terms.state_digest,
        threshold=terms.rule.threshold,
        min_cohort=terms.rule.min_cohort,
        cohort_digest=bytes([terms.attempt]) * 32,
        name="silo-0",
        certificates=dict.fromkeys(NAMES, b"der"),
        sharers=NAMES,
        survivors=survivors,
        answer=UnmaskShares(self_mask_shares=dict.fromkeys(survivors, SECRET), recovery_shares={}),
        pair_seeds={},
    )


def refused(code: Refusal, words: str, act: Callable[[], object]) -> None:
    refusals.refused(words, act, code)
