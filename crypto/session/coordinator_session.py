"""The coordinator's side of one session: it relays, checks what it can, and rebuilds seeds at the end.

One transition table. What a silo sends wrongly keeps that silo out and the session going; a stage
that too few finish aborts it. Nothing here is trusted with the silos' confidentiality: every check
that protects a silo is made by the silo itself. Source: docs/protocol.md 5.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias, TypeVar

from cryptography import x509

from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.identity.roster import Roster
from crypto.masking.masks import UnmaskPlan
from crypto.session import bodies, coordinator_checks, unmasking
from crypto.session.coordinator_table import (
    AWAITED,
    TRANSITIONS,
    AbortReason,
    CoordinatorState,
    Event,
    SessionAborted,
)
from crypto.session.messages import (
    Cohort,
    Envelopes,
    RecoveredSeeds,
    RecoverRequest,
    SessionTerms,
    Shares,
    Signatures,
    Survivors,
    UnmaskShares,
)
from crypto.session.session_record import SessionRecord
from crypto.session.unmasking import Rebuilt

__all__ = ["AbortReason", "CoordinatorSession", "CoordinatorState", "SessionAborted"]

M = TypeVar("M", SignedBody, Shares, UnmaskShares, RecoveredSeeds, None)
Payload: TypeAlias = SignedBody | Shares | UnmaskShares | RecoveredSeeds | None


class CoordinatorSession:
    """One session. on_*: a silo's message. close_*: the driver says that a stage is over.

    on_* raises RemoteProtocolError for bad input, and for any further message of that silo; a
    byte-identical repeat is ignored. close_* raises SessionAborted if too few silos are left.
    liars: silos proven to have signed something false, with what. complaints: (sender, accused).
    """

    def __init__(
        self, *, terms: SessionTerms, roster: Roster, authority: x509.Certificate, now: datetime
    ) -> None:
        self.state = CoordinatorState.ADVERTISE
        self.liars: dict[str, str] = {}
        self._record = SessionRecord(terms=terms)
        self._session_digest = terms.digest()
        self._roster = roster
        self._authority = authority
        self._now = now
        self._seen: dict[tuple[str, Event], Payload] = {}
        self._kept_out: set[str] = set()  # their last message was bad
        self._answers: dict[str, UnmaskShares] = {}
        self._rebuilt = Rebuilt()

    @classmethod
    def resume(
        cls, data: bytes, *, roster: Roster, authority: x509.Certificate, now: datetime
    ) -> CoordinatorSession:
        """The session of a snapshot, in UNMASK: every survivor is asked again and answers the same.

        Raises RemoteProtocolError if the bytes are damaged.
        """
        record = SessionRecord.from_bytes(data)
        session = cls(terms=record.terms, roster=roster, authority=authority, now=now)
        session._record = record
        session.state = CoordinatorState.UNMASK
        session._seen = _accepted(record)  # so that repeats are still known
        return session

    def snapshot(self) -> bytes:
        """All that UNMASK needs, without a single share: stored before the shares are asked for."""
        if self.state is not CoordinatorState.UNMASK:
            raise LocalProtocolError(f"session: no snapshot in state {self.state.value}, expected unmask")
        return self._record.to_bytes()

    @property
    def terms(self) -> SessionTerms:
        return self._record.terms

    @property
    def cohort(self) -> tuple[str, ...]:
        """U1, once ADVERTISE is closed."""
        return self._record.cohort

    @property
    def cohort_digest(self) -> bytes:
        """What everything after ADVERTISE is bound to, once ADVERTISE is closed."""
        return self._record.cohort_digest

    @property
    def sharers(self) -> tuple[str, ...]:
        """U2, once SHARE is closed."""
        return self._record.sharers

    @property
    def survivors(self) -> tuple[str, ...]:
        """U3, once MASKED is closed."""
        return self._record.survivors

    @property
    def complaints(self) -> list[tuple[str, str]]:
        return self._record.complaints

    @property
    def awaited(self) -> frozenset[str]:
        """Who has not yet answered in this stage and still may."""
        event = AWAITED.get(self.state)
        if event is None:
            return frozenset()
        return frozenset(
            name for name in self._expected(event) - self._kept_out if (name, event) not in self._seen
        )

    @property
    def has_signatures(self) -> bool:
        """Whether t survivors have signed the sets, which entitles to the shares."""
        is_asking = self.state is CoordinatorState.CONSISTENCY
        return is_asking and len(self._record.signatures) >= self.terms.rule.threshold

    @property
    def can_unmask(self) -> bool:
        """Whether t survivors have given shares that are true."""
        is_asking = self.state is CoordinatorState.UNMASK
        return is_asking and len(self._answers) >= self.terms.rule.threshold

    def on_advert(self, sender: str, advert: SignedBody) -> None:
        """Source: docs/protocol.md 5.2."""
        self._receive(sender, Event.ADVERT, advert, self._take_advert)

    def on_shares(self, sender: str, shares: Shares) -> None:
        """Source: docs/protocol.md 5.3."""
        self._receive(sender, Event.SHARES, shares, self._take_shares)

    def on_complaint(self, sender: str, complaint: SignedBody) -> None:
        """The sender cannot mask, so it is out of U3. Source: docs/protocol.md 5.8."""
        self._receive(sender, Event.COMPLAINT, complaint, self._take_complaint)

    def on_masked(self, sender: str) -> None:
        """The sender's masked vector is here, whole. Source: docs/protocol.md 5.4."""
        self._receive(sender, Event.MASKED_VECTOR, None, self._take_masked)

    def on_consistency(self, sender: str, signature: SignedBody) -> None:
        """Source: docs/protocol.md 5.5."""
        self._receive(sender, Event.CONSISTENCY, signature, self._take_consistency)

    def on_unmask(self, sender: str, answer: UnmaskShares) -> None:
        """False shares make a liar, and its answer is left out. Source: docs/protocol.md 5.6."""
        self._receive(sender, Event.UNMASK_SHARES, answer, self._take_unmask)

    def on_recovered(self, sender: str, answer: RecoveredSeeds) -> None:
        """A false seed makes a liar. Source: docs/protocol.md 5.7."""
        self._receive(sender, Event.RECOVERED_SEEDS, answer, self._take_recovered)

    def close_advertise(self) -> Cohort:
        """U1 is who adverted."""
        target = self._closing(CoordinatorState.ADVERTISE)
        self._check_enough(len(self._record.adverts))
        self._record.fix_cohort()
        self.state = target
        adverts = self._record.adverts
        return Cohort(adverts=tuple(adverts[name].signed for name in self.cohort))

    def close_share(self) -> dict[str, Envelopes]:
        """U2 is who dealt; each member gets what the others dealt to it."""
        target = self._closing(CoordinatorState.SHARE)
        self._check_enough(len(self._record.dealings))
        self._record.sharers = tuple(sorted(self._record.dealings))
        self.state = target
        return {name: self.envelopes_for(name) for name in self.sharers}

    def close_masked(self) -> Survivors:
        """U3 is whose masked vector is here and who did not complain."""
        target = self._closing(CoordinatorState.MASKED)
        complainers = {sender for sender, _ in self.complaints}
        survivors = [
            name
            for name in self.sharers
            if (name, Event.MASKED_VECTOR) in self._seen and name not in complainers
        ]
        self._check_enough(len(survivors))
        self._record.survivors = tuple(survivors)
        self.state = target
        return Survivors(survivors=self.survivors)

    def close_consistency(self) -> Signatures:
        """At least t survivors signed the same sets."""
        target = self._closing(CoordinatorState.CONSISTENCY)
        self._check_enough(len(self._record.signatures), least=self.terms.rule.threshold)
        self.state = target
        return self.unmask_request()

    def close_unmask(self) -> UnmaskPlan | dict[str, RecoverRequest]:
        """What unmasks the sum, or whom to ask for seeds that a liar made impossible to rebuild."""
        target = self._closing(CoordinatorState.UNMASK)
        self._check_enough(len(self._answers), least=self.terms.rule.threshold)
        self._rebuilt = unmasking.rebuild(self._record, self._answers)
        self.liars |= self._rebuilt.liars
        if len(self._rebuilt.self_mask_seeds) < len(self.survivors):
            raise self._aborted("unmask: a self-mask cannot be rebuilt")
        if self._rebuilt.missing:
            self.state = TRANSITIONS[self.state, Event.ASK_RECOVERY]
            return {
                name: self.recover_request(name) for name in sorted(self._expected(Event.RECOVERED_SEEDS))
            }
        return self._finish(target)

    def close_recover(self) -> UnmaskPlan:
        """What unmasks the sum, if every seed that was asked for came and is true."""
        target = self._closing(CoordinatorState.RECOVER)
        if any(pair not in self._rebuilt.pair_seeds for pair in self._rebuilt.missing):
            raise self._aborted("recover: a pair seed is missing")
        return self._finish(target)

    def envelopes_for(self, name: str) -> Envelopes:
        """What the other members of U2 dealt to one of them, in the order of U2."""
        dealings = self._record.dealings
        return Envelopes(
            sharers=self.sharers,
            envelopes=tuple(dealings[peer].relayed[name] for peer in self.sharers if peer != name),
        )

    def unmask_request(self) -> Signatures:
        """The signatures that entitle the coordinator to the shares; may be sent again."""
        signatures = self._record.signatures
        return Signatures(signatures=tuple(signatures[name] for name in sorted(signatures)))

    def recover_request(self, name: str) -> RecoverRequest:
        """The lost silos whose seeds this survivor is asked for; may be sent again."""
        lost = [lost for survivor, lost in self._rebuilt.missing if survivor == name]
        return RecoverRequest(names=tuple(sorted(lost)))

    def _receive(self, sender: str, event: Event, payload: M, take: Callable[[str, M], None]) -> None:
        scope = f"{event.value} of {sender}"
        if (sender, event) in self._seen:
            if self._seen[sender, event] == payload:
                return
            raise RemoteProtocolError(f"{scope}: a second one that differs", code=Refusal.STAGE)
        if (self.state, event) not in TRANSITIONS:
            message = f"{scope}: not expected in state {self.state.value}"
            raise RemoteProtocolError(message, code=Refusal.STAGE)
        if sender not in self._expected(event) - self._kept_out:
            raise RemoteProtocolError(f"{scope}: it is not in this stage", code=Refusal.STAGE)
        try:
            take(sender, payload)
        except RemoteProtocolError:
            self._kept_out.add(sender)
            raise
        self._seen[sender, event] = payload

    def _expected(self, event: Event) -> frozenset[str]:
        """Who may send this in its stage."""
        match event:
            case Event.ADVERT:
                return frozenset(self.terms.names)
            case Event.SHARES:
                return frozenset(self.cohort)
            case Event.COMPLAINT:
                return frozenset(self.sharers)
            case Event.MASKED_VECTOR:
                return frozenset(self.sharers) - {sender for sender, _ in self.complaints}
            case Event.CONSISTENCY | Event.UNMASK_SHARES:
                return frozenset(self.survivors)
            case _:
                return frozenset(survivor for survivor, _ in self._rebuilt.missing)

    def _take_advert(self, sender: str, signed: SignedBody) -> None:
        verified = bodies.open_advert(
            signed,
            terms=self.terms,
            session_digest=self._session_digest,
            roster=self._roster,
            authority=self._authority,
            now=self._now,
        )
        if verified.advert.name != sender:
            raise RemoteProtocolError(f"advert of {sender}: it names another silo", code=Refusal.ADVERT)
        bodies.check_keys(verified.advert)
        self._record.adverts[sender] = verified

    def _take_shares(self, sender: str, shares: Shares) -> None:
        self._record.dealings[sender] = coordinator_checks.open_dealing(self._record, sender, shares)

    def _take_complaint(self, sender: str, signed: SignedBody) -> None:
        accused = coordinator_checks.open_accusation(self._record, sender, signed)
        self.complaints.append((sender, accused))

    def _take_masked(self, sender: str, _: None) -> None:
        """The vector itself is spooled and summed elsewhere."""

    def _take_consistency(self, sender: str, signed: SignedBody) -> None:
        coordinator_checks.check_signature(self._record, sender, signed)
        self._record.signatures[sender] = signed

    def _take_unmask(self, sender: str, answer: UnmaskShares) -> None:
        if unmasking.check_shares(self._record, sender, answer):
            self._answers[sender] = answer
        else:
            self.liars[sender] = "gave a share that is not the one it was dealt"

    def _take_recovered(self, sender: str, answer: RecoveredSeeds) -> None:
        if set(answer.pair_seeds) != set(self.recover_request(sender).names):
            raise RemoteProtocolError(f"recovered seeds of {sender}: expected one for each name asked for")
        for lost, seed in answer.pair_seeds.items():
            if unmasking.is_pair_seed(self._record, sender, lost, seed):
                self._rebuilt.pair_seeds[sender, lost] = seed
            else:
                self.liars[sender] = "gave a pair seed that is not the one it was dealt"

    def _closing(self, state: CoordinatorState) -> CoordinatorState:
        if self.state is not state:
            message = f"session: cannot close {state.value} in state {self.state.value}"
            raise LocalProtocolError(message)
        return TRANSITIONS[state, Event.CLOSE]

    def _check_enough(self, silos: int, *, least: int | None = None) -> None:
        expected = self.terms.rule.min_survivors if least is None else least
        if silos < expected:
            raise self._aborted(f"{self.state.value}: expected at least {expected} silos, got {silos}")

    def _aborted(self, message: str) -> SessionAborted:
        self._drop(CoordinatorState.FAILED)
        reason = AbortReason.PROVEN_LIAR if self.liars else AbortReason.TOO_FEW_SILOS
        return SessionAborted(message, reason=reason)

    def _finish(self, target: CoordinatorState) -> UnmaskPlan:
        plan = unmasking.unmask_plan(self._record, self._rebuilt)
        self._drop(target)
        return plan

    def _drop(self, state: CoordinatorState) -> None:
        """Shares and seeds are not kept past the session."""
        self.state = state
        self._seen = {}
        self._answers = {}
        self._rebuilt = Rebuilt()


def _accepted(record: SessionRecord) -> dict[tuple[str, Event], Payload]:
    seen: dict[tuple[str, Event], Payload] = {}
    seen |= {(name, Event.ADVERT): verified.signed for name, verified in record.adverts.items()}
    seen |= {(name, Event.SHARES): dealing.shares for name, dealing in record.dealings.items()}
    seen |= {(name, Event.MASKED_VECTOR): None for name in record.survivors}
    seen |= {(name, Event.CONSISTENCY): signed for name, signed in record.signatures.items()}
    return seen
