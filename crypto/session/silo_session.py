"""A silo's side of one session: messages in, messages out, at the right moment a Masker.

One transition table; one object per session. An illegal or bad message fails the session for good
and drops its secrets; only what the ledger holds as a PendingReveal can be taken up again.
Source: docs/protocol.md 5; the table stands there as the code has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias, overload

from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError
from crypto.identity.certificates import Anchors, Identity, SignedBody
from crypto.identity.roster import Roster
from crypto.masking.masks import Masker
from crypto.session import bodies, dealing
from crypto.session.cohort import neighbors
from crypto.session.dealing import EnvelopeMismatch, Random, Received
from crypto.session.messages import (
    Cohort,
    Complaint,
    Consistency,
    Envelopes,
    RecoveredSeeds,
    RecoverRequest,
    SessionTerms,
    Shares,
    Signatures,
    Survivors,
    UnmaskShares,
)
from crypto.session.reveal import PendingReveal, RevealLedger, check_signatures, recovered_seeds
from crypto.session.silo_stages import (
    Advertised,
    Held,
    LeftOut,
    Masked,
    Ready,
    SessionContext,
    Shared,
    advertise,
    check_set,
    check_size,
    check_terms,
    make_masker,
    make_pending,
    make_sum_check,
    open_adverts,
)
from crypto.session.sum_check import SumCheck

Message: TypeAlias = Cohort | Envelopes | Survivors | Signatures | RecoverRequest
# bytes: the CONSISTENCY signature, whose body the coordinator knows
Answer: TypeAlias = Shares | Masker | bytes | UnmaskShares | RecoveredSeeds


class SiloState(StrEnum):
    READY = "ready"
    ADVERTISED = "advertised"
    SHARED = "shared"
    MASKED = "masked"
    SIGNED = "signed"
    REVEALED = "revealed"
    ENDED = "ended"
    FAILED = "failed"


TRANSITIONS: Mapping[tuple[SiloState, type[Message]], SiloState] = {
    (SiloState.ADVERTISED, Cohort): SiloState.SHARED,
    (SiloState.SHARED, Envelopes): SiloState.MASKED,
    (SiloState.MASKED, Survivors): SiloState.SIGNED,
    (SiloState.SIGNED, Signatures): SiloState.REVEALED,
    (SiloState.REVEALED, Signatures): SiloState.REVEALED,  # the identical answer again
    (SiloState.REVEALED, RecoverRequest): SiloState.REVEALED,
}
OVER = frozenset({SiloState.ENDED, SiloState.FAILED})


class EnvelopeComplaint(RemoteProtocolError):
    """A silo dealt an envelope that cannot be decrypted; the complaint names it."""

    def __init__(self, message: str, *, complaint: SignedBody) -> None:
        super().__init__(message, code=Refusal.ENVELOPE)
        self.complaint = complaint


class SiloSession:
    """One silo in one session. Every method raises LocalProtocolError once the session is over.

    Raises PolicyRefusal or RemoteProtocolError from the constructor for terms that no honest silo
    computes. Security: `state` and the answers are all that leaves; secrets are dropped with ENDED
    and FAILED.
    """

    state: SiloState
    _held: Held
    _identity: Identity
    _ledger: RevealLedger

    def __init__(
        self,
        *,
        terms: SessionTerms,
        identity: Identity,
        roster: Roster,
        authority: Anchors,
        ledger: RevealLedger,
        now: datetime,
        random: Random = os.urandom,
    ) -> None:
        context = SessionContext(
            terms=terms,
            session_digest=terms.digest(),
            roster=roster,
            authority=authority,
            now=now,
            random=random,
        )
        check_terms(context, identity)
        self._start(SiloState.READY, Ready(context=context), identity, ledger)

    @classmethod
    def resume(
        cls, pending: PendingReveal, *, revealed: bool, identity: Identity, ledger: RevealLedger
    ) -> SiloSession:
        """A session that signed before a restart: it answers as it would have."""
        if pending.name != identity.member.name:
            raise LocalProtocolError(f"pending reveal: written by {pending.name}, not by this silo")
        session = cls.__new__(cls)
        session._start(SiloState.REVEALED if revealed else SiloState.SIGNED, pending, identity, ledger)
        return session

    def advertise(self) -> SignedBody:
        """The signed advert: fresh keys for this session. READY -> ADVERTISED.

        Raises PolicyRefusal if the ledger refuses another attempt. Source: docs/protocol.md 5.2.
        """
        held = self._held
        if self.state is not SiloState.READY or not isinstance(held, Ready):
            raise LocalProtocolError(f"session: cannot advertise in state {self.state.value}")
        try:
            ledger = self._ledger.begin_attempt(held.context.terms)
            others = neighbors(self._identity.member.name, held.context.terms.names)
            echoes = self._ledger.peer_statements(others)
            advertised = advertise(held.context, self._identity, ledger=ledger, echoes=echoes)
        except BaseException:
            self._drop(SiloState.FAILED)
            raise
        self.state, self._held = SiloState.ADVERTISED, advertised
        return advertised.advert

    @overload
    def receive(self, message: Cohort) -> Shares: ...
    @overload
    def receive(self, message: Envelopes) -> Masker: ...
    @overload
    def receive(self, message: Survivors) -> bytes: ...
    @overload
    def receive(self, message: Signatures) -> UnmaskShares: ...
    @overload
    def receive(self, message: RecoverRequest) -> RecoveredSeeds: ...
    def receive(self, message: Message) -> Answer:
        """The answer to one message of the coordinator.

        Raises RemoteProtocolError (LeftOut, EnvelopeComplaint) or PolicyRefusal; the session is then
        over for good.
        """
        if self.state in OVER:
            raise LocalProtocolError(f"session: it is over, {self.state.value}")
        try:
            target = TRANSITIONS.get((self.state, type(message)))
            if target is None:
                got = f"got {type(message).__name__} in state {self.state.value}"
                raise RemoteProtocolError(f"session: wrong or repeated message, {got}", code=Refusal.STAGE)
            answer, held = _HANDLERS[type(message)](self, message)
        except LeftOut:
            self._drop(SiloState.ENDED)
            raise
        except BaseException:
            self._drop(SiloState.FAILED)
            raise
        self.state, self._held = target, held
        return answer

    @property
    def sum_check(self) -> SumCheck | None:
        """What checks U3 and the revealed sum, from the masked vector to the signature; else None.

        The ledger stores it before the vector leaves.
        """
        return self._held.sum_check if isinstance(self._held, Masked) else None

    def end(self) -> None:
        """The coordinator ended the session, or this silo stops: drop the secrets."""
        if self.state not in OVER:
            self._drop(SiloState.ENDED)

    def _start(self, state: SiloState, held: Held, identity: Identity, ledger: RevealLedger) -> None:
        self.state, self._held, self._identity, self._ledger = state, held, identity, ledger

    def _drop(self, state: SiloState) -> None:
        self.state, self._held = state, None

    def _on_cohort(self, message: Cohort) -> tuple[Shares, Shared]:
        held = self._held
        assert isinstance(held, Advertised)
        context, name = held.context, self._identity.member.name
        adverts = open_adverts(message, context)
        if name not in adverts:
            raise LeftOut("cohort: this silo is not in U1")
        if adverts[name].signed.body != held.advert.body:
            raise RemoteProtocolError(
                "cohort: this silo's own advert is not the one it sent", code=Refusal.ADVERT
            )
        check_size("cohort", len(adverts), context.terms.rule)
        echoed = {said for each in adverts.values() for to, said in each.advert.echoes if to == name}
        self._ledger.check_echoes(echoed, is_signed=partial(bodies.is_signed_by, self._identity))
        cohort_digest = bodies.cohort_digest(context.session_digest, adverts.values())
        dealt = dealing.deal(
            context.terms,
            held.secrets,
            adverts,
            cohort_digest=cohort_digest,
            identity=self._identity,
            random=context.random,
        )
        shared = Shared(
            context=context, secrets=held.secrets, dealt=dealt, adverts=adverts, cohort_digest=cohort_digest
        )
        return dealt.shares, shared

    def _on_envelopes(self, message: Envelopes) -> tuple[Masker, Masked]:
        held = self._held
        assert isinstance(held, Shared)
        name = self._identity.member.name
        check_set("sharers", message.sharers, within=held.adverts, name=name, rule=held.context.terms.rule)
        received = self._open_dealt(held, message)
        # they dealt in this very cohort, so they have checked this silo's echoes: what they say is newer
        self._ledger.keep_statements({peer: held.adverts[peer].advert.statement for peer in received})
        pair_seeds = {
            peer: held.dealt.pair_seeds[peer] if given.pair_seed is None else given.pair_seed
            for peer, given in received.items()
        }
        masked = Masked(
            context=held.context,
            own_share=held.dealt.own_share,
            received=received,
            pair_seeds=pair_seeds,
            adverts=held.adverts,
            cohort_digest=held.cohort_digest,
            sharers=message.sharers,
            sum_check=make_sum_check(held, received, name=name, sharers=message.sharers),
        )
        return make_masker(masked, name=name, self_mask_seed=held.secrets.self_mask_seed), masked

    def _open_dealt(self, held: Shared, message: Envelopes) -> dict[str, Received]:
        name = self._identity.member.name
        envelopes = dealing.open_envelopes(
            message.envelopes,
            [peer for peer in message.sharers if peer != name],
            adverts=held.adverts,
            cohort_digest=held.cohort_digest,
            receiver=name,
        )
        received = {}
        for envelope in envelopes:
            try:
                received[envelope.sender] = dealing.open_dealt(
                    envelope,
                    held.secrets,
                    sum_key_commitment=held.adverts[envelope.sender].advert.sum_key_commitment,
                )
            except EnvelopeMismatch:
                accused = envelope.sender
                signed = bodies.sign(
                    self._identity,
                    Complaint(cohort_digest=held.cohort_digest, sender=name, accused=accused),
                )
                message_text = f"envelope of {accused}: it cannot be decrypted or does not match its hashes"
                raise EnvelopeComplaint(message_text, complaint=signed) from None
        return received

    def _on_survivors(self, message: Survivors) -> tuple[bytes, PendingReveal]:
        held = self._held
        assert isinstance(held, Masked)
        name, terms, survivors = self._identity.member.name, held.context.terms, message.survivors
        check_set("survivors", survivors, within=held.sharers, name=name, rule=terms.rule)
        self._ledger.check_reveal(terms, survivors)
        pending = make_pending(held, name=name, survivors=survivors)
        said = Consistency(
            cohort_digest=held.cohort_digest, sender=name, sharers=held.sharers, survivors=survivors
        )
        signature = bodies.sign(self._identity, said).signature
        self._ledger.write_pending(pending)  # before the signature leaves, docs/protocol.md 6
        return signature, pending

    def _on_signatures(self, message: Signatures) -> tuple[UnmaskShares, PendingReveal]:
        pending = self._held
        assert isinstance(pending, PendingReveal)
        check_signatures(pending, pending.survivors, message, scope="unmask")
        if self.state is SiloState.SIGNED:
            self._ledger.mark_revealed(pending)  # before the first share leaves, docs/protocol.md 6
        return pending.answer, pending

    def _on_recover(self, message: RecoverRequest) -> tuple[RecoveredSeeds, PendingReveal]:
        pending = self._held
        assert isinstance(pending, PendingReveal)
        return recovered_seeds(pending, message), pending


_HANDLERS: Mapping[type[Message], Callable[[SiloSession, Any], tuple[Answer, Held]]] = {
    Cohort: SiloSession._on_cohort,
    Envelopes: SiloSession._on_envelopes,
    Survivors: SiloSession._on_survivors,
    Signatures: SiloSession._on_signatures,
    RecoverRequest: SiloSession._on_recover,
}
