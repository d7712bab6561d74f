"""What the coordinator verifies of a silo's signed messages before it relays or counts them.

None of it protects a silo, which checks all of it again; it keeps one bad silo from failing the
others. Source: docs/protocol.md 5.3, 5.5 and 5.8.
"""

from __future__ import annotations

from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.messages import Consistency, Shares
from crypto.session.session_record import Dealing, SessionRecord


def open_dealing(record: SessionRecord, sender: str, shares: Shares) -> Dealing:
    """One envelope to every other member of U1, in their order, and the hash of the share kept."""
    certificate = record.adverts[sender].certificate
    receivers = [name for name in record.cohort if name != sender]
    if len(shares.envelopes) != len(receivers):
        message = f"shares of {sender}: expected {len(receivers)} envelopes, got {len(shares.envelopes)}"
        raise RemoteProtocolError(message, code=Refusal.ENVELOPE)
    relayed = dict(zip(receivers, shares.envelopes, strict=True))
    envelopes = {
        receiver: bodies.open_envelope(
            signed,
            certificate=certificate,
            cohort_digest=record.cohort_digest,
            sender=sender,
            receiver=receiver,
        )
        for receiver, signed in relayed.items()
    }
    own = bodies.open_own_share(
        shares.own_share, certificate=certificate, cohort_digest=record.cohort_digest, sender=sender
    )
    return Dealing(
        shares=shares, relayed=relayed, envelopes=envelopes, own_share_hash=own.self_mask_share_hash
    )


def open_accusation(record: SessionRecord, sender: str, signed: SignedBody) -> str:
    """Whom the sender accuses: another silo that dealt to it."""
    complaint = bodies.open_complaint(
        signed,
        certificate=record.adverts[sender].certificate,
        cohort_digest=record.cohort_digest,
        sender=sender,
    )
    if complaint.accused == sender or complaint.accused not in record.sharers:
        raise RemoteProtocolError(f"complaint of {sender}: it accuses nobody who dealt to it")
    return complaint.accused


def check_signature(record: SessionRecord, sender: str, signed: SignedBody) -> None:
    """The sender signed this cohort, U2 and U3."""
    said = Consistency(
        cohort_digest=record.cohort_digest,
        sender=sender,
        sharers=record.sharers,
        survivors=record.survivors,
    )
    bodies.check_consistency(
        signed,
        certificate=record.adverts[sender].certificate,
        sender=sender,
        body=bodies.consistency_body(said),
    )
