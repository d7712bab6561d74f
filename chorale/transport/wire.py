"""Protobuf messages to the session's own values and back.

All that a peer sent is checked here for size and form before any other code sees it.
Source: docs/protocol.md 8.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import LocalProtocolError, PolicyRefusal, Refusal, RemoteProtocolError, Rule, SiloStage
from crypto.identity.certificates import NAME_PATTERN, SignedBody
from crypto.session.bodies import MAX_SIGNATURE_BYTES
from crypto.session.messages import (
    Cohort,
    Envelopes,
    RecoveredSeeds,
    RecoverRequest,
    RelayedEnvelope,
    RevealedSum,
    Shares,
    Signatures,
    Survivors,
    UnmaskShares,
)
from crypto.session.statements import AbandonedProof, CohortProof, Signer, StateProof

AGENT_BYTES = 16
PROTOCOL_VERSION = 1
CHUNK_BYTES = 1 << 20  # fastest and cheapest of 64 KiB .. 4 MiB over mutual TLS
CHUNK_FRAME_BYTES = 16  # at most, around the bytes of one: tags, lengths, an offset below 2^35
MAX_MESSAGE_BYTES = 4 << 20
DIGEST_BYTES = 32
SECRET_BYTES = 32
SHARE_BYTES = 33  # a number below the prime 2^256 + 297
MAX_SILOS = 200  # of one job; what they are sent of one another then stays below MAX_MESSAGE_BYTES
# of one advert or envelope: keys and ciphertexts of about 1,200 bytes each; a statement with 200 names of 63
MAX_BODY_BYTES = 16 << 10
MAX_ROSTER_BYTES = 1 << 20  # of a signed roster: the largest body there is
MAX_PATH_BYTES = 8 * DIGEST_BYTES  # to the root over the envelopes of 200 silos
MAX_REJECTION_CHARACTERS = 200  # that a person who rejects a job may type for its operator
MAX_ROUND = 1 << 20
PHASE_PATTERN = re.compile(
    r"[a-z-]{1,32}(\.(0|[1-9][0-9]{0,5}))?"
)  # one name for one phase: no enrollment.00


# bytes: the CONSISTENCY signature
FromSilo: TypeAlias = SignedBody | Shares | bytes | UnmaskShares | RecoveredSeeds
FromCoordinator: TypeAlias = Cohort | Envelopes | Survivors | Signatures | RecoverRequest | RevealedSum


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PhaseKey:
    """One attempt at one phase of one job."""

    job_digest: bytes
    round: int
    phase: str
    attempt: int

    @property
    def kind(self) -> str:
        """train, enrollment ...: the phase name without its repeat counter."""
        return phase_kind(self.phase)


def phase_kind(phase: str) -> str:
    return phase.partition(".")[0]


def phase_number(phase: str) -> int:
    """Repeat counter of a phase outside rounds; 0 where there is none."""
    return int(phase.partition(".")[2] or 0)


def key_to_wire(key: PhaseKey) -> session_pb2.SessionKey:
    return session_pb2.SessionKey(
        job_digest=key.job_digest, round=key.round, phase=key.phase, attempt=key.attempt
    )


def key_from_wire(wire: session_pb2.SessionKey) -> PhaseKey:
    digest = checked_digest(wire.job_digest, what="job digest")
    if not PHASE_PATTERN.fullmatch(wire.phase):
        raise RemoteProtocolError("session key: expected a phase name such as train or enrollment.0")
    if wire.round > MAX_ROUND or wire.attempt > MAX_ROUND:
        raise RemoteProtocolError("session key: round or attempt is out of range")
    return PhaseKey(job_digest=digest, round=wire.round, phase=wire.phase, attempt=wire.attempt)


def signed_body_to_wire(signed: SignedBody) -> session_pb2.SignedBody:
    return session_pb2.SignedBody(body=signed.body, signature=signed.signature)


def signed_body_from_wire(wire: session_pb2.SignedBody, *, max_bytes: int = MAX_BODY_BYTES) -> SignedBody:
    if not 0 < len(wire.body) <= max_bytes:
        raise RemoteProtocolError(f"signed body: expected 1 to {max_bytes} bytes, got {len(wire.body)}")
    return SignedBody(body=wire.body, signature=_checked_signature(wire.signature))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A silo's refusal, as it travels. rule: with the code policy alone. text: with rejected alone."""

    code: Refusal
    rule: Rule | None = None
    text: str = ""

    def __post_init__(self) -> None:
        """Raises RemoteProtocolError for what a refusal does not carry."""
        if self.rule is not None and self.code is not Refusal.POLICY:
            raise RemoteProtocolError(f"refusal: {self.code.value} comes without a rule")
        if bool(self.text) is not (self.code is Refusal.REJECTED):
            raise RemoteProtocolError("refusal: a text comes with rejected, and with no other code")
        if len(self.text) > MAX_REJECTION_CHARACTERS or not self.text.isprintable():
            raise RemoteProtocolError(
                f"refusal: expected a text of at most {MAX_REJECTION_CHARACTERS} printable characters"
            )


def refused_of(error: PolicyRefusal | RemoteProtocolError) -> Refused:
    """What leaves of a refusal: never its message."""
    if isinstance(error, PolicyRefusal):
        return Refused(code=error.code, rule=error.rule, text=error.text)
    return Refused(code=error.code)


def refused_to_wire(refused: Refused, key: PhaseKey) -> session_pb2.Refused:
    rule = "" if refused.rule is None else refused.rule.value
    return session_pb2.Refused(key=key_to_wire(key), code=refused.code.value, rule=rule, text=refused.text)


def refused_from_wire(wire: session_pb2.Refused) -> Refused:
    """Words of the closed lists. Raises RemoteProtocolError for any others."""
    try:
        rule = Rule(wire.rule) if wire.rule else None
        return Refused(code=Refusal(wire.code), rule=rule, text=wire.text)
    except ValueError:
        raise RemoteProtocolError("refusal: the code or its rule is not on the closed list") from None


def stage_to_wire(stage: SiloStage | None) -> pb.SiloMessage:
    return pb.SiloMessage(stage=pb.Stage(stage="" if stage is None else stage.value))


def stage_from_wire(wire: pb.Stage) -> SiloStage | None:
    """A word of the closed list, or None for none. Raises RemoteProtocolError for any other."""
    try:
        return SiloStage(wire.stage) if wire.stage else None
    except ValueError:
        raise RemoteProtocolError("stage: the word is not on the closed list") from None


def to_coordinator(kind: str, value: FromSilo, key: PhaseKey) -> pb.SiloMessage:
    """A silo's message of a session. kind: its name in SiloMessage, because three are signed bodies."""
    wire_key = key_to_wire(key)
    match kind, value:
        case "advert", SignedBody():
            advert = session_pb2.Advert(key=wire_key, advert=signed_body_to_wire(value))
            return pb.SiloMessage(advert=advert)
        case "shares", Shares():
            dealing = signed_body_to_wire(value.dealing)
            shares = session_pb2.Shares(key=wire_key, dealing=dealing, envelopes=value.envelopes)
            return pb.SiloMessage(shares=shares)
        case "complaint", SignedBody():
            complaint = session_pb2.Complaint(key=wire_key, complaint=signed_body_to_wire(value))
            return pb.SiloMessage(complaint=complaint)
        case "consistency", bytes():
            return pb.SiloMessage(consistency=session_pb2.Consistency(key=wire_key, signature=value))
        case "unmask_shares", UnmaskShares():
            own, recovery = _secrets_to_wire(value.self_mask_shares), _secrets_to_wire(value.recovery_shares)
            unmask = session_pb2.UnmaskShares(key=wire_key, self_mask_shares=own, recovery_shares=recovery)
            return pb.SiloMessage(unmask_shares=unmask)
        case "recovered_seeds", RecoveredSeeds():
            seeds = session_pb2.RecoveredSeeds(key=wire_key, pair_seeds=_secrets_to_wire(value.pair_seeds))
            return pb.SiloMessage(recovered_seeds=seeds)
        case "next_state", SignedBody():
            statement = session_pb2.NextState(key=wire_key, statement=signed_body_to_wire(value))
            return pb.SiloMessage(next_state=statement)
    raise LocalProtocolError(f"session: {type(value).__name__} is no {kind} of a silo")


def from_silo(message: pb.SiloMessage) -> FromSilo:
    """What a silo's message of a session holds. Raises RemoteProtocolError for wrong sizes and forms."""
    match message.WhichOneof("kind"):
        case "advert":
            return signed_body_from_wire(message.advert.advert)
        case "shares":
            return _shares_from_wire(message.shares)
        case "complaint":
            return signed_body_from_wire(message.complaint.complaint)
        case "consistency":
            return _checked_signature(message.consistency.signature)
        case "unmask_shares":
            wire = message.unmask_shares
            return UnmaskShares(
                self_mask_shares=_secrets_from_wire(wire.self_mask_shares, size=SHARE_BYTES),
                recovery_shares=_secrets_from_wire(wire.recovery_shares, size=SHARE_BYTES),
            )
        case "recovered_seeds":
            seeds = message.recovered_seeds.pair_seeds
            return RecoveredSeeds(pair_seeds=_secrets_from_wire(seeds, size=SECRET_BYTES))
        case "next_state":
            return signed_body_from_wire(message.next_state.statement)
        case other:
            raise LocalProtocolError(f"session: {other} is no message of a session")


def to_silo(value: FromCoordinator, key: PhaseKey) -> pb.CoordinatorMessage:
    """The coordinator's message of a session."""
    wire_key = key_to_wire(key)
    match value:
        case Cohort():
            adverts = [signed_body_to_wire(advert) for advert in value.adverts]
            return pb.CoordinatorMessage(cohort=session_pb2.Cohort(key=wire_key, adverts=adverts))
        case Envelopes():
            message = pb.CoordinatorMessage()
            envelopes = message.envelopes
            envelopes.key.CopyFrom(wire_key)
            envelopes.sharers.extend(value.sharers)
            for each in value.envelopes:  # n^2 of them in a session: made in place, which halves the time
                relayed = envelopes.envelopes.add(envelope=each.envelope, path=each.path)
                relayed.dealing.body, relayed.dealing.signature = each.dealing.body, each.dealing.signature
            return message
        case Survivors():
            survivors = session_pb2.Survivors(key=wire_key, survivors=value.survivors)
            return pb.CoordinatorMessage(survivors=survivors)
        case Signatures():
            signatures = session_pb2.Signatures(key=wire_key, signatures=_signatures_to_wire(value))
            return pb.CoordinatorMessage(signatures=signatures)
        case RecoverRequest():
            return pb.CoordinatorMessage(recover=session_pb2.RecoverRequest(key=wire_key, names=value.names))
        case RevealedSum():
            revealed = session_pb2.RevealedSum(
                key=wire_key,
                survivors=value.survivors,
                signatures=_signatures_to_wire(value.signatures),
                sum_digest=value.sum_digest,
                self_mask_seeds=_secrets_to_wire(value.self_mask_seeds),
            )
            return pb.CoordinatorMessage(revealed_sum=revealed)


def from_coordinator(message: pb.CoordinatorMessage) -> FromCoordinator:
    """What the coordinator's message of a session says. Raises RemoteProtocolError as `from_silo`."""
    match message.WhichOneof("kind"):
        case "cohort":
            adverts = message.cohort.adverts
            _check_count("adverts", adverts)
            return Cohort(adverts=tuple(signed_body_from_wire(advert) for advert in adverts))
        case "envelopes":
            return Envelopes(
                sharers=_names_from_wire(message.envelopes.sharers),
                envelopes=_relayed_from_wire(message.envelopes.envelopes),
            )
        case "survivors":
            return Survivors(survivors=_names_from_wire(message.survivors.survivors))
        case "signatures":
            return _signatures_from_wire(message.signatures.signatures)
        case "recover":
            return RecoverRequest(names=_names_from_wire(message.recover.names))
        case "revealed_sum":
            revealed = message.revealed_sum
            return RevealedSum(
                survivors=_names_from_wire(revealed.survivors),
                signatures=_signatures_from_wire(revealed.signatures),
                sum_digest=checked_digest(revealed.sum_digest, what="sum digest"),
                self_mask_seeds=_secrets_from_wire(revealed.self_mask_seeds, size=SECRET_BYTES),
            )
        case other:
            raise LocalProtocolError(f"session: {other} is no message of a session")


def proof_to_wire(proof: StateProof, job_digest: bytes) -> session_pb2.StateProof:
    """The proof as a task carries it."""
    key = PhaseKey(job_digest=job_digest, round=proof.round, phase=proof.phase, attempt=proof.attempt)
    return session_pb2.StateProof(
        key=key_to_wire(key),
        roster=signed_body_to_wire(proof.roster),
        layout_digest=proof.layout_digest,
        cohort_digest=proof.cohort_digest,
        survivors=proof.survivors,
        parent_digest=proof.parent_digest,
        sum_digest=proof.sum_digest,
        next_digest=proof.next_digest,
        draw_seed=proof.draw_seed,
        signers=_signers_to_wire(proof.signers),
    )


def proof_from_wire(wire: session_pb2.StateProof) -> tuple[bytes, StateProof]:
    """The job digest, and the proof that a state was computed. Raises RemoteProtocolError."""
    key = key_from_wire(wire.key)
    if len(wire.draw_seed) not in (0, SECRET_BYTES):
        raise RemoteProtocolError(f"draw seed: expected none or {SECRET_BYTES} bytes")
    proof = StateProof(
        roster=signed_body_from_wire(wire.roster, max_bytes=MAX_ROSTER_BYTES),
        round=key.round,
        phase=key.phase,
        attempt=key.attempt,
        layout_digest=checked_digest(wire.layout_digest, what="layout digest"),
        cohort_digest=checked_digest(wire.cohort_digest, what="cohort digest"),
        survivors=_names_from_wire(wire.survivors),
        parent_digest=checked_digest(wire.parent_digest, what="parent digest"),
        sum_digest=checked_digest(wire.sum_digest, what="sum digest"),
        next_digest=checked_digest(wire.next_digest, what="next digest"),
        draw_seed=wire.draw_seed,
        signers=_signers_from_wire(wire.signers),
    )
    return key.job_digest, proof


def cohort_proof_to_wire(key: PhaseKey, proof: CohortProof) -> session_pb2.CohortProof:
    signatures = _signatures_to_wire(proof.signatures)
    return session_pb2.CohortProof(key=key_to_wire(key), survivors=proof.survivors, signatures=signatures)


def cohort_proof_from_wire(wire: session_pb2.CohortProof) -> tuple[PhaseKey, CohortProof]:
    """The attempt whose U3 it is, and the proof. Raises RemoteProtocolError."""
    survivors, signatures = _names_from_wire(wire.survivors), _signatures_from_wire(wire.signatures)
    return key_from_wire(wire.key), CohortProof(survivors=survivors, signatures=signatures)


def abandoned_proof_to_wire(proof: AbandonedProof, job_digest: bytes) -> session_pb2.AbandonedProof:
    key = PhaseKey(job_digest=job_digest, round=proof.round, phase=proof.phase, attempt=0)
    return session_pb2.AbandonedProof(
        key=key_to_wire(key),
        roster=signed_body_to_wire(proof.roster),
        signers=_signers_to_wire(proof.signers),
    )


def abandoned_proof_from_wire(wire: session_pb2.AbandonedProof) -> tuple[PhaseKey, AbandonedProof]:
    """The phase, and the proof that it is never revealed. Raises RemoteProtocolError."""
    key = key_from_wire(wire.key)
    proof = AbandonedProof(
        roster=signed_body_from_wire(wire.roster, max_bytes=MAX_ROSTER_BYTES),
        round=key.round,
        phase=key.phase,
        signers=_signers_from_wire(wire.signers),
    )
    return key, proof


def checked_digest(data: bytes, *, what: str) -> bytes:
    """The bytes, if they can be a SHA-256 digest. Raises RemoteProtocolError."""
    if len(data) != DIGEST_BYTES:
        raise RemoteProtocolError(f"{what}: expected {DIGEST_BYTES} bytes, got {len(data)}")
    return data


def _names_from_wire(wire: Iterable[str]) -> tuple[str, ...]:
    """Silo names in the order given. Raises RemoteProtocolError."""
    names = tuple(wire)
    _check_count("names", names)
    for name in names:
        _check_name(name)
    return names


def _check_name(name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise RemoteProtocolError("names: expected 1 to 63 lower-case letters, digits and inner hyphens")


def _signatures_to_wire(value: Signatures) -> list[session_pb2.NamedSignature]:
    return [
        session_pb2.NamedSignature(name=name, signature=signature)
        for name, signature in sorted(value.signatures.items())
    ]


def _signatures_from_wire(wire: Collection[session_pb2.NamedSignature]) -> Signatures:
    _check_count("signatures", wire)
    signatures: dict[str, bytes] = {}
    for each in wire:
        _check_name(each.name)
        if each.name in signatures:
            raise RemoteProtocolError(f"signatures: {each.name} is given twice")
        signatures[each.name] = _checked_signature(each.signature)
    return Signatures(signatures=signatures)


def _checked_signature(signature: bytes) -> bytes:
    if not 0 < len(signature) <= MAX_SIGNATURE_BYTES:
        raise RemoteProtocolError(
            f"signature: expected 1 to {MAX_SIGNATURE_BYTES} bytes, got {len(signature)}"
        )
    return signature


def _shares_from_wire(wire: session_pb2.Shares) -> Shares:
    envelopes = tuple(wire.envelopes)
    _check_envelopes(envelopes)
    return Shares(dealing=signed_body_from_wire(wire.dealing), envelopes=envelopes)


def _relayed_from_wire(wire: Collection[session_pb2.RelayedEnvelope]) -> tuple[RelayedEnvelope, ...]:
    relayed = tuple(
        RelayedEnvelope(dealing=signed_body_from_wire(each.dealing), envelope=each.envelope, path=each.path)
        for each in wire
    )
    _check_envelopes([each.envelope for each in relayed])
    for each in relayed:
        if len(each.path) > MAX_PATH_BYTES or len(each.path) % DIGEST_BYTES:
            raise RemoteProtocolError(f"path: expected at most 8 hashes, got {len(each.path)} bytes")
    return relayed


def _check_envelopes(envelopes: Collection[bytes]) -> None:
    _check_count("envelopes", envelopes)
    for envelope in envelopes:
        if not 0 < len(envelope) <= MAX_BODY_BYTES:
            raise RemoteProtocolError(f"envelope: expected 1 to {MAX_BODY_BYTES} bytes, got {len(envelope)}")


def _signers_to_wire(signers: Mapping[str, Signer]) -> list[session_pb2.Signer]:
    return [
        session_pb2.Signer(name=name, certificate=signer.certificate, signature=signer.signature)
        for name, signer in sorted(signers.items())
    ]


def _signers_from_wire(wire: Collection[session_pb2.Signer]) -> dict[str, Signer]:
    _check_count("signers", wire)
    signers: dict[str, Signer] = {}
    for each in wire:
        _check_name(each.name)
        signed = session_pb2.SignedBody(body=each.certificate, signature=each.signature)
        signed_body_from_wire(signed)  # for the sizes
        signers[each.name] = Signer(certificate=each.certificate, signature=each.signature)
    return signers


def _secrets_to_wire(secrets: Mapping[str, bytes]) -> list[session_pb2.NamedSecret]:
    return [session_pb2.NamedSecret(name=name, secret=secrets[name]) for name in sorted(secrets)]


def _secrets_from_wire(wire: Collection[session_pb2.NamedSecret], *, size: int) -> dict[str, bytes]:
    _check_count("secrets", wire)
    secrets: dict[str, bytes] = {}
    for entry in wire:
        _check_name(entry.name)
        if entry.name in secrets:
            raise RemoteProtocolError(f"secrets: {entry.name} is given twice")
        if len(entry.secret) != size:
            raise RemoteProtocolError(f"secrets: expected {size} bytes, got {len(entry.secret)}")
        secrets[entry.name] = entry.secret
    return secrets


def _check_count(what: str, wire: Collection[object]) -> None:
    if len(wire) > MAX_SILOS:
        raise RemoteProtocolError(f"{what}: expected at most {MAX_SILOS}, got {len(wire)}")
