"""The coordinator's side of one session: it relays, checks what it can, and rebuilds seeds at the end.

One transition table. What a silo sends wrongly keeps that silo out and the session going; a stage
that too few finish aborts it. Nothing here is trusted with the silos' confidentiality: every check
that protects a silo is made by the silo itself, and the checks here keep one bad silo from failing
the others. Source: docs/protocol.md 5; the table stands there as it stands here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from crypto import envelope_tree
from crypto.errors import LocalProtocolError, ProtocolError, Refusal, RemoteProtocolError
from crypto.identity.certificates import Anchors, SignedBody
from crypto.identity.roster import Roster
from crypto.masking.masks import UnmaskPlan
from crypto.session import bodies, session_record, unmasking
from crypto.session.envelope import seal
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
from crypto.session.session_record import HeldDealing, SessionRecord
from crypto.session.unmasking import Rebuilt

# what a repeat is compared with; bytes: of Shares a digest, of CONSISTENCY the signature
Payload: TypeAlias = SignedBody | bytes | UnmaskShares | RecoveredSeeds | None


class CoordinatorState(StrEnum):
    ADVERTISE = "advertise"
    SHARE = "share"
    MASKED = "masked"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    RECOVER = "recover"
    DONE = "done"
    FAILED = "failed"


class Event(StrEnum):
    """A silo's message, or what its caller asks for when a stage is over."""

    ADVERT = "Advert"
    SHARES = "Shares"
    COMPLAINT = "Complaint"
    MASKED_VECTOR = "masked vector"
    CONSISTENCY = "Consistency"
    UNMASK_SHARES = "UnmaskShares"
    RECOVERED_SEEDS = "RecoveredSeeds"
    CLOSE = "close"
    ASK_RECOVERY = "ask recovery"


_S, _E = CoordinatorState, Event
TRANSITIONS: Mapping[tuple[CoordinatorState, Event], CoordinatorState] = {
    (_S.ADVERTISE, _E.ADVERT): _S.ADVERTISE,
    (_S.ADVERTISE, _E.CLOSE): _S.SHARE,
    (_S.SHARE, _E.SHARES): _S.SHARE,
    (_S.SHARE, _E.CLOSE): _S.MASKED,
    (_S.MASKED, _E.MASKED_VECTOR): _S.MASKED,
    (_S.MASKED, _E.COMPLAINT): _S.MASKED,
    (_S.MASKED, _E.CLOSE): _S.CONSISTENCY,
    (_S.CONSISTENCY, _E.CONSISTENCY): _S.CONSISTENCY,
    (_S.CONSISTENCY, _E.CLOSE): _S.UNMASK,
    (_S.UNMASK, _E.UNMASK_SHARES): _S.UNMASK,
    (_S.UNMASK, _E.CLOSE): _S.DONE,
    (_S.UNMASK, _E.ASK_RECOVERY): _S.RECOVER,
    (_S.RECOVER, _E.RECOVERED_SEEDS): _S.RECOVER,
    (_S.RECOVER, _E.CLOSE): _S.DONE,
}
AWAITED: Mapping[CoordinatorState, Event] = {
    _S.ADVERTISE: _E.ADVERT,
    _S.SHARE: _E.SHARES,
    _S.MASKED: _E.MASKED_VECTOR,
    _S.CONSISTENCY: _E.CONSISTENCY,
    _S.UNMASK: _E.UNMASK_SHARES,
    _S.RECOVER: _E.RECOVERED_SEEDS,
}


class AbortReason(StrEnum):
    """Why an attempt ended without a sum. Closed: docs/protocol.md 9."""

    TOO_FEW_SILOS = "too-few-silos"
    PROVEN_LIAR = "proven-liar"


class SessionAborted(ProtocolError):
    """The attempt is over; the next starts with fresh keys."""

    def __init__(self, message: str, *, reason: AbortReason) -> None:
        super().__init__(message)
        self.reason = reason


class CoordinatorSession:
    """One session. on_*: a silo's message. close_*: the caller says that a stage is over.

    on_* raises RemoteProtocolError for bad input, and for any further message of that silo; a
    byte-identical repeat is ignored. close_* raises SessionAborted if too few silos are left.
    liars: silos proven to have signed something false, with what. complaints: (sender, accused).
    """

    def __init__(self, *, terms: SessionTerms, roster: Roster, authority: Anchors, now: datetime) -> None:
        self.state = CoordinatorState.ADVERTISE
        self.liars: dict[str, str] = {}
        self.terms = terms
        self._record = SessionRecord(terms=terms)
        self._dealings: dict[str, HeldDealing] = {}  # until U3 is known
        self._session_digest = terms.digest()
        self._roster = roster
        self._authority = authority
        self._now = now
        self._seen: dict[tuple[str, Event], Payload] = {}
        self._excluded: set[str] = set()  # their last message was bad
        self._statements: dict[str, bytes] = {}  # what survivors sign, once U3 is known
        self._answers: dict[str, UnmaskShares] = {}
        self._rebuilt = Rebuilt()
        self._self_mask_seeds: dict[str, bytes] = {}

    @classmethod
    def resume(cls, data: bytes, *, roster: Roster, authority: Anchors, now: datetime) -> CoordinatorSession:
        """The session of a snapshot, in UNMASK: every survivor is asked again and answers the same.

        Raises RemoteProtocolError if the bytes are damaged.
        """
        record = SessionRecord.from_bytes(data)
        session = cls(terms=record.terms, roster=roster, authority=authority, now=now)
        session._record = record
        session.state = CoordinatorState.UNMASK
        seen = session._seen  # so that repeats are still known
        seen |= {(name, Event.ADVERT): verified.signed for name, verified in record.adverts.items()}
        seen |= {(name, Event.SHARES): dealing.message_digest for name, dealing in record.dealings.items()}
        seen |= {(name, Event.MASKED_VECTOR): None for name in record.survivors}
        seen |= {(name, Event.CONSISTENCY): signature for name, signature in record.signatures.items()}
        return session

    def snapshot(self) -> bytes:
        """All that UNMASK needs, without a single share: stored before the shares are asked for."""
        if self.state is not CoordinatorState.UNMASK:
            raise LocalProtocolError(f"session: no snapshot in state {self.state.value}, expected unmask")
        return self._record.to_bytes()

    @property
    def record(self) -> SessionRecord:
        """What is known of the session, as `snapshot` writes it."""
        return self._record

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
    def self_mask_seeds(self) -> Mapping[str, bytes]:
        """b(v) of U3 by name, once the session is done: what silos check against the adverts."""
        return self._self_mask_seeds

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
            name for name in self._expected(event) - self._excluded if (name, event) not in self._seen
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
        with self._receiving(sender, Event.ADVERT, advert) as is_new:
            if not is_new:
                return
            verified = bodies.open_advert(
                advert,
                terms=self.terms,
                session_digest=self._session_digest,
                roster=self._roster,
                authority=self._authority,
                now=self._now,
            )
            if verified.advert.name != sender:
                raise RemoteProtocolError(f"advert of {sender}: it names another silo", code=Refusal.ADVERT)
            for key in (verified.advert.channel_key, verified.advert.mask_key):
                seal(key, b"", info=b"")  # an unusable key would fail every silo that deals to it
            self._record.adverts[sender] = verified

    def on_shares(self, sender: str, shares: Shares) -> None:
        """One envelope to every other member of U1, in their order. Source: docs/protocol.md 5.3."""
        leaves = [envelope_tree.leaf(envelope) for envelope in shares.envelopes]
        message_digest = session_record.message_digest(shares, leaves)
        with self._receiving(sender, Event.SHARES, message_digest) as is_new:
            if not is_new:
                return
            self._dealings[sender] = HeldDealing(
                shares,
                leaves,
                message_digest=message_digest,
                certificate=self._record.adverts[sender].certificate,
                cohort_digest=self.cohort_digest,
                dealer=sender,
                receivers=[name for name in self.cohort if name != sender],
            )

    def on_complaint(self, sender: str, complaint: SignedBody) -> None:
        """The sender cannot mask, so it is out of U3. Source: docs/protocol.md 5.8."""
        with self._receiving(sender, Event.COMPLAINT, complaint) as is_new:
            if not is_new:
                return
            opened = bodies.open_complaint(
                complaint,
                certificate=self._record.adverts[sender].certificate,
                cohort_digest=self.cohort_digest,
                sender=sender,
            )
            if opened.accused == sender or opened.accused not in self.sharers:
                raise RemoteProtocolError(f"complaint of {sender}: the accused did not deal to it")
            self.complaints.append((sender, opened.accused))

    def on_masked(self, sender: str) -> None:
        """The sender's masked vector is here, whole. Source: docs/protocol.md 5.4."""
        with self._receiving(sender, Event.MASKED_VECTOR, None):
            pass  # the vector itself is spooled and summed elsewhere

    def on_consistency(self, sender: str, signature: bytes) -> None:
        """The sender signed this cohort, U2 and U3. Source: docs/protocol.md 5.5."""
        with self._receiving(sender, Event.CONSISTENCY, signature) as is_new:
            if not is_new:
                return
            bodies.check_consistency(
                signature,
                certificate=self._record.adverts[sender].certificate,
                sender=sender,
                body=self._statements[sender],
                scope="consistency",
            )
            self._record.signatures[sender] = signature

    def on_unmask(self, sender: str, answer: UnmaskShares) -> None:
        """False shares make a liar, and its answer is left out. Source: docs/protocol.md 5.6."""
        with self._receiving(sender, Event.UNMASK_SHARES, answer) as is_new:
            if not is_new:
                return
            if unmasking.check_shares(self._record, sender, answer):
                self._answers[sender] = answer
            else:
                self.liars[sender] = "gave a share that is not the one it was dealt"

    def on_recovered(self, sender: str, answer: RecoveredSeeds) -> None:
        """A false seed makes a liar. Source: docs/protocol.md 5.7."""
        with self._receiving(sender, Event.RECOVERED_SEEDS, answer) as is_new:
            if not is_new:
                return
            if set(answer.pair_seeds) != set(self.recover_request(sender).names):
                message = f"recovered seeds of {sender}: expected one for each name asked for"
                raise RemoteProtocolError(message)
            for lost, seed in answer.pair_seeds.items():
                if unmasking.is_pair_seed(self._record, sender, lost, seed):
                    self._rebuilt.pair_seeds[sender, lost] = seed
                else:
                    self.liars[sender] = "gave a pair seed that is not the one it was dealt"

    def close_advertise(self) -> Cohort:
        """U1 is who adverted."""
        silos, rule = len(self._record.adverts), self.terms.rule
        target = self._closing(CoordinatorState.ADVERTISE, silos, at_least=rule.min_survivors)
        self._record.fix_cohort()
        self.state = target
        adverts = self._record.adverts
        return Cohort(adverts=tuple(adverts[name].signed for name in self.cohort))

    def close_share(self) -> dict[str, Envelopes]:
        """U2 is who dealt; each member gets what the others dealt to it, in the order of U2."""
        silos, rule = len(self._dealings), self.terms.rule
        target = self._closing(CoordinatorState.SHARE, silos, at_least=rule.min_survivors)
        self._record.sharers = tuple(sorted(self._dealings))
        self.state = target
        relayed = {name: self._dealings[name].relay(self._dealings.keys()) for name in self.sharers}
        return {
            name: Envelopes(
                sharers=self.sharers,
                envelopes=tuple(relayed[peer][name] for peer in self.sharers if peer != name),
            )
            for name in self.sharers
        }

    def close_masked(self) -> Survivors:
        """U3 is whose masked vector is here and who did not complain."""
        complainers = {sender for sender, _ in self.complaints}
        survivors = [
            name
            for name in self.sharers
            if (name, Event.MASKED_VECTOR) in self._seen and name not in complainers
        ]
        rule = self.terms.rule
        target = self._closing(CoordinatorState.MASKED, len(survivors), at_least=rule.min_survivors)
        self._record.survivors = tuple(survivors)
        lost = self._record.lost
        self._record.dealings = {name: held.kept(survivors, lost) for name, held in self._dealings.items()}
        self._dealings = {}
        self._statements = self._record.statements()
        self.state = target
        return Survivors(survivors=self.survivors)

    def close_consistency(self) -> Signatures:
        """At least t survivors signed the same sets."""
        silos, rule = len(self._record.signatures), self.terms.rule
        target = self._closing(CoordinatorState.CONSISTENCY, silos, at_least=rule.threshold)
        self.state = target
        return self.unmask_request()

    def close_unmask(self) -> UnmaskPlan | dict[str, RecoverRequest]:
        """What unmasks the sum, or whom to ask for seeds that a liar made impossible to rebuild."""
        silos, rule = len(self._answers), self.terms.rule
        target = self._closing(CoordinatorState.UNMASK, silos, at_least=rule.threshold)
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

    def unmask_request(self) -> Signatures:
        """The signatures that entitle the coordinator to the shares; may be sent again."""
        return Signatures(signatures=self._record.signatures)

    def recover_request(self, name: str) -> RecoverRequest:
        """The lost silos whose seeds this survivor is asked for; may be sent again."""
        lost = [lost for survivor, lost in self._rebuilt.missing if survivor == name]
        return RecoverRequest(names=tuple(sorted(lost)))

    @contextmanager
    def _receiving(self, sender: str, event: Event, payload: Payload) -> Iterator[bool]:
        """Whether the message is new and to be taken in: once it is, a repeat is known.

        A sender whose message turns out to be bad is excluded.
        """
        scope = f"{event.value} of {sender}"
        if (sender, event) in self._seen:
            if self._seen[sender, event] != payload:
                raise RemoteProtocolError(f"{scope}: a second one that differs", code=Refusal.STAGE)
            yield False
            return
        if (self.state, event) not in TRANSITIONS:
            message = f"{scope}: not expected in state {self.state.value}"
            raise RemoteProtocolError(message, code=Refusal.STAGE)
        if sender not in self._expected(event) - self._excluded:
            raise RemoteProtocolError(f"{scope}: it is not in this stage", code=Refusal.STAGE)
        try:
            yield True
        except RemoteProtocolError:
            self._excluded.add(sender)
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

    def _closing(self, state: CoordinatorState, silos: int = 0, *, at_least: int = 0) -> CoordinatorState:
        """The next state. Aborts if fewer silos finished this one."""
        if self.state is not state:
            message = f"session: cannot close {state.value} in state {self.state.value}"
            raise LocalProtocolError(message)
        if silos < at_least:
            raise self._aborted(f"{state.value}: expected at least {at_least} silos, got {silos}")
        return TRANSITIONS[state, Event.CLOSE]

    def _aborted(self, message: str) -> SessionAborted:
        self._drop(CoordinatorState.FAILED)
        reason = AbortReason.PROVEN_LIAR if self.liars else AbortReason.TOO_FEW_SILOS
        return SessionAborted(message, reason=reason)

    def _finish(self, target: CoordinatorState) -> UnmaskPlan:
        plan = unmasking.unmask_plan(self._record, self._rebuilt)
        self._self_mask_seeds = dict(self._rebuilt.self_mask_seeds)
        self._drop(target)
        return plan

    def _drop(self, state: CoordinatorState) -> None:
        """Shares and seeds are not kept past the session, but for the self-mask seeds of U3."""
        self.state = state
        self._dealings = {}
        self._seen = {}
        self._answers = {}
        self._rebuilt = Rebuilt()
