"""The end of a phase at the coordinator: t silos sign the state that it led to, or that it led to none.

The coordinator computes the same state, to lay out the phases that follow, and cannot put another one in its
place: a silo goes on from what it computed or what t silos signed. Source: docs/protocol.md 5.10, 6.10, 7.11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from coordinator.jobs.attempt_runner import AttemptFailed
from coordinator.jobs.deadlines import limits_of
from coordinator.jobs.outcome import Outcome
from coordinator.jobs.statements import Statements
from coordinator.reasons import FailureReason
from coordinator.resources import Resources
from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import Role, SignedBody, certificate_from_der, fingerprint
from crypto.identity.roster import Roster
from crypto.session import bodies
from crypto.session.messages import RevealedSum, SessionTerms, Signatures
from crypto.session.session_record import SessionRecord
from crypto.session.statements import AbandonedProof, CohortProof, Signer, StateProof


class Agreement:
    """On the state that a revealed sum leads to. record: of the session whose sum it is."""

    def __init__(
        self,
        *,
        resources: Resources,
        key: PhaseKey,
        record: SessionRecord,
        roster: Roster,
        outcome: Outcome,
        self_mask_seeds: dict[str, bytes],
        away_since: Mapping[str, float],
        on_progress: Callable[[str, Mapping[str, str]], None],
    ) -> None:
        self._record = record
        terms, tagged = record.terms, record.terms.layout.tagged
        assert outcome.revealed is not None  # else there is nothing to agree on
        assert tagged is not None
        self._unsigned = StateProof(
            roster=roster.signed,
            round=terms.round,
            phase=terms.phase,
            attempt=terms.attempt,
            layout_digest=terms.layout.digest,
            cohort_digest=record.cohort_digest,
            survivors=record.survivors,
            parent_digest=terms.state_digest,
            sum_digest=outcome.revealed.digest,
            next_digest=outcome.digest,
            draw_seed=outcome.draw_seed,
            signers={},
        )
        self._session_digest = terms.digest()
        # no other silo has the key of this sum, so since when one is away or silent does not matter
        cap, floor = resources.settings.unmask_hard_cap_seconds, limits_of(resources.settings)
        revealed = RevealedSum(
            survivors=record.survivors,
            signatures=Signatures(signatures=record.signatures),
            sum_digest=outcome.revealed.digest,
            self_mask_seeds=self_mask_seeds,
        )
        self.statements = Statements(
            resources=resources,
            key=key,
            question=wire.to_silo(revealed, key),
            silos=record.sharers,
            threshold=terms.rule.threshold,
            floor=replace(floor, deadline=math.inf, hard_cap=cap, grace=math.inf),
            downloaded_bytes=tagged.total_bytes,
            away_since=away_since,
            open_statement=self._open,
            on_progress=on_progress,
        )

    async def run(self) -> StateProof:
        """The proof, once t silos signed. Raises AttemptFailed where too few do."""
        if not await self.statements.collect():
            is_skipped = self.statements.is_given_up
            reason = FailureReason.SKIPPED if is_skipped else FailureReason.TOO_FEW_STATEMENTS
            raise AttemptFailed(reason, is_final=True)
        return replace(self._unsigned, signers=dict(self.statements.signers))

    def _open(self, silo: str, message: pb.SiloMessage) -> Signer:
        signed = wire.from_silo(message)
        assert isinstance(signed, SignedBody)
        advert = self._record.adverts[silo]
        federation = self._record.terms.federation
        expected = self._unsigned.statement(silo, federation=federation, session_digest=self._session_digest)
        bodies.check_statement(signed, certificate=advert.certificate, expected=expected)
        return Signer(certificate=advert.advert.certificate, signature=signed.signature)


class Abandonment:
    """Of a phase that has no sum, though inputs may have left: t silos that never reveal it.

    Without it silos give no input over the same model again, because a sum may yet be revealed.
    """

    def __init__(
        self,
        *,
        resources: Resources,
        key: PhaseKey,
        roster: Roster,
        terms: SessionTerms,
        away_since: Mapping[str, float],
        on_progress: Callable[[str, Mapping[str, str]], None],
    ) -> None:
        self._job_digest = key.job_digest
        self._roster = roster
        self._unsigned = AbandonedProof(roster=roster.signed, round=key.round, phase=key.phase, signers={})
        self.statements = Statements(
            resources=resources,
            key=key,
            question=pb.CoordinatorMessage(abandon=session_pb2.Abandon(key=wire.key_to_wire(key))),
            silos=terms.names,
            threshold=terms.rule.threshold,
            floor=limits_of(resources.settings),
            away_since=away_since,
            open_statement=self._open,
            on_progress=on_progress,
        )

    async def run(self) -> AbandonedProof | None:
        """The proof, or None where too few silos are there to sign."""
        if not await self.statements.collect():
            return None
        return replace(self._unsigned, signers=dict(self.statements.signers))

    def _open(self, silo: str, message: pb.SiloMessage) -> Signer:
        abandoned = message.abandoned
        signed = wire.signed_body_from_wire(abandoned.statement)
        certificate = certificate_from_der(abandoned.certificate)
        if not self._roster.holds(Role.SILO, silo, fingerprint(certificate)):
            raise RemoteProtocolError(
                f"statement of {silo}: not the certificate of the roster", code=Refusal.ROSTER
            )
        expected = self._unsigned.statement(
            silo, federation=self._roster.federation, job_digest=self._job_digest
        )
        bodies.check_statement(signed, certificate=certificate, expected=expected)
        return Signer(certificate=abandoned.certificate, signature=signed.signature)


def cohort_proof(key: PhaseKey, record: SessionRecord) -> session_pb2.CohortProof:
    """Who is in the session's sum, or would be: what further phases over the same model need."""
    proof = CohortProof(survivors=record.survivors, signatures=Signatures(signatures=record.signatures))
    return wire.cohort_proof_to_wire(key, proof)
