"""Targets: protobuf messages as coordinator, silo and command line take them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from google.protobuf.message import DecodeError

from chorale.job import SignedJob, open_job, sign_job
from chorale.spec.job_spec import JobSpec
from chorale.transport import wire
from chorale.transport.chunks import (
    Chunk,
    check_chunk,
    chunk_from_wire,
    chunk_to_wire,
    upload_from_wire,
    upload_to_wire,
)
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import ConfigError, RemoteProtocolError, SiloStage
from crypto.identity.certificates import SignedBody, certificate_from_der
from crypto.session.messages import RevealedSum
from crypto.session.statements import AbandonedProof, CohortProof, Signer, StateProof
from tests.fuzz import mutate, world
from tests.fuzz.files import job_seeds
from tests.fuzz.target import Target
from tests.support.sessions import NOW

KEY = PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
FROM_SILO = ("advert", "shares", "complaint", "consistency", "unmask_shares", "recovered_seeds", "next_state")
TO_SILO = ("cohort", "envelopes", "survivors", "signatures", "recover", "revealed_sum")


def _outcome(read: Callable[[bytes], object], data: bytes) -> object:
    try:
        return read(data)
    except DecodeError:
        return DecodeError


def _chunk(data: bytes) -> None:
    """Our own reader against protobuf's."""
    parsed = _outcome(pb.Chunk.FromString, data)
    chunk = _outcome(chunk_from_wire, data)
    if isinstance(parsed, pb.Chunk) and isinstance(chunk, Chunk):
        assert (chunk.offset, bytes(chunk.data)) == (parsed.offset, parsed.data)
        assert pb.Chunk.FromString(chunk_to_wire(chunk)) == pb.Chunk(offset=parsed.offset, data=parsed.data)
        check_chunk(chunk)
    else:
        assert parsed is chunk, "one reader refuses what the other takes"


def _upload(data: bytes) -> None:
    parsed = _outcome(pb.UploadMessage.FromString, data)
    message = _outcome(upload_from_wire, data)
    if not isinstance(parsed, pb.UploadMessage):
        assert parsed is message, "one reader refuses what the other takes"
        return
    if isinstance(message, Chunk):
        assert parsed.WhichOneof("kind") == "chunk"
        assert (message.offset, bytes(message.data)) == (parsed.chunk.offset, parsed.chunk.data)
        assert pb.UploadMessage.FromString(upload_to_wire(message)).chunk.data == parsed.chunk.data
        check_chunk(message)
    else:
        assert message == parsed
        if parsed.WhichOneof("kind") == "header":
            wire.key_from_wire(parsed.header.key)


def _from_silo(data: bytes) -> None:
    message = pb.SiloMessage.FromString(data)
    kind = message.WhichOneof("kind")
    if kind == "heartbeat":
        for key in message.heartbeat.preparing:
            wire.key_from_wire(key)
    elif kind == "refused":
        refused = wire.refused_from_wire(message.refused)
        assert wire.refused_from_wire(wire.refused_to_wire(refused, KEY)) == refused
    elif kind == "stage":
        stage = wire.stage_from_wire(message.stage)
        assert wire.stage_to_wire(stage).stage == message.stage
    elif kind == "abandoned":
        wire.signed_body_from_wire(message.abandoned.statement)
        certificate_from_der(message.abandoned.certificate)
    elif kind in FROM_SILO:
        key = wire.key_from_wire(getattr(message, kind).key)
        value = wire.from_silo(message)
        assert wire.from_silo(wire.to_coordinator(kind, value, key)) == value


def _from_coordinator(data: bytes) -> None:
    message = pb.CoordinatorMessage.FromString(data)
    kind = message.WhichOneof("kind")
    if kind in ("welcome", "roster"):
        wire.signed_body_from_wire(getattr(message, kind).roster, max_bytes=wire.MAX_ROSTER_BYTES)
    elif kind == "job":
        _ = SignedJob.from_wire(message.job.job).base
    elif kind == "task":
        _task(message.task)
    elif kind in TO_SILO:
        key = wire.key_from_wire(getattr(message, kind).key)
        value = wire.from_coordinator(message)
        assert wire.from_coordinator(wire.to_silo(value, key)) == value
        if isinstance(value, RevealedSum):
            check = world.exchange().checks[world.SILOS[0]]
            check.check_survivors(value.survivors, value.signatures)
            check.check_self_mask_seeds(value.self_mask_seeds, value.survivors)


def _task(task: pb.PhaseTask) -> None:
    wire.key_from_wire(task.key)
    federation, rule = world.federation(), world.terms().rule
    known = {"roster": federation.roster, "names": world.SILOS, "rule": rule}
    for state in task.proofs:
        digest, proof = wire.proof_from_wire(state)
        again = wire.proof_from_wire(wire.proof_to_wire(proof, digest))
        assert again == (digest, proof)
        proof.check(job_digest=digest, **known)
    for given in task.cohorts:
        key, cohort = wire.cohort_proof_from_wire(given)
        assert wire.cohort_proof_from_wire(wire.cohort_proof_to_wire(key, cohort)) == (key, cohort)
    for given_up in task.abandoned:
        key, abandoned = wire.abandoned_proof_from_wire(given_up)
        abandoned.check(job_digest=key.job_digest, **known)


def _signed_job(data: bytes) -> None:
    """What the operator of the roster signs: any bytes at all, and what they say in the form of a job."""
    spec_bytes = SignedJob.from_wire(pb.SignedJob.FromString(data)).spec_bytes
    with suppress(ConfigError):
        spec_bytes = JobSpec.from_yaml(spec_bytes, source="job").to_yaml()
    signed = sign_job(spec_bytes, world.operator())
    job = open_job(signed, roster=world.federation().roster, authority=world.federation().authority, now=NOW)
    assert job.spec.to_yaml()
    assert job.opening


def _chunks() -> Iterator[bytes]:
    for chunk in (Chunk(0, b"data"), Chunk(1 << 20, b"d" * 300), Chunk((1 << 64) - 1, b"d")):
        yield chunk_to_wire(chunk)
    yield b"\x08\x80\x00\x12\x01d"  # an offset of 0 in two bytes
    yield b"\x08" + b"\xff" * 9 + b"\x7f\x12\x01d"  # one beyond 64 bits, of which protobuf cuts the top


def _uploads() -> Iterator[bytes]:
    yield upload_to_wire(pb.UploadMessage(header=pb.UploadHeader(key=wire.key_to_wire(KEY), total_bytes=7)))
    yield upload_to_wire(pb.UploadMessage(end=pb.UploadEnd(sha256=b"s" * 32)))
    for chunk in (Chunk(0, b"data"), Chunk(1 << 20, b"d" * 300)):
        yield upload_to_wire(chunk)


def _silo_messages() -> Iterator[bytes]:
    exchange, name = world.exchange(), world.SILOS[0]
    record = exchange.coordinator.record
    body = SignedBody(body=b"body", signature=b"signature")
    secrets = {"silo-000": b"s" * 32, "silo-001": b"t" * 32}
    shares = wire.UnmaskShares(
        self_mask_shares={"silo-000": b"s" * 33}, recovery_shares={"silo-001": b"t" * 33}
    )
    for kind, value in (
        ("advert", record.adverts[name].signed),
        ("shares", world.shares()),
        *((kind, body) for kind in ("complaint", "next_state")),
        ("consistency", b"signature"),
        ("unmask_shares", shares),
        ("recovered_seeds", wire.RecoveredSeeds(pair_seeds=secrets)),
    ):
        yield wire.to_coordinator(kind, value, KEY).SerializeToString()
    heartbeat = pb.Heartbeat(unix_seconds=1.0, preparing=[wire.key_to_wire(KEY)])
    refused = session_pb2.Refused(key=wire.key_to_wire(KEY), code="stage")
    abandoned = session_pb2.Abandoned(
        key=wire.key_to_wire(KEY),
        certificate=world.federation().silos[name].certificate_der,
        statement=wire.signed_body_to_wire(body),
    )
    of_rule = session_pb2.Refused(key=wire.key_to_wire(KEY), code="policy", rule="max_rounds")
    of_person = session_pb2.Refused(key=wire.key_to_wire(KEY), code="rejected", text="not before May")
    for message in (
        pb.SiloMessage(heartbeat=heartbeat),
        pb.SiloMessage(refused=refused),
        pb.SiloMessage(refused=of_rule),
        pb.SiloMessage(refused=of_person),
        wire.stage_to_wire(SiloStage.LOADING_TORCH),
        pb.SiloMessage(abandoned=abandoned),
    ):
        yield message.SerializeToString()


def _coordinator_messages() -> Iterator[bytes]:
    record = world.exchange().coordinator.record
    signatures = wire.Signatures(signatures=record.signatures)
    for value in (
        wire.Cohort(adverts=tuple(advert.signed for advert in record.adverts.values())),
        wire.Envelopes(sharers=world.SILOS, envelopes=(world.relayed(),)),
        wire.Survivors(survivors=world.SILOS),
        signatures,
        wire.RecoverRequest(names=world.SILOS[:1]),
        wire.RevealedSum(
            survivors=world.SILOS,
            signatures=signatures,
            sum_digest=b"s" * 32,
            self_mask_seeds=dict.fromkeys(world.SILOS, b"s" * 32),
        ),
    ):
        yield wire.to_silo(value, KEY).SerializeToString()
    roster = wire.signed_body_to_wire(world.federation().roster.signed)
    yield pb.CoordinatorMessage(welcome=pb.Welcome(protocol_version=2, roster=roster)).SerializeToString()
    yield pb.CoordinatorMessage(roster=pb.RosterUpdate(roster=roster)).SerializeToString()
    yield pb.CoordinatorMessage(task=_task_seed()).SerializeToString()


def _task_seed() -> pb.PhaseTask:
    roster = world.federation().roster.signed
    signers = {
        name: Signer(certificate=silo.certificate_der, signature=b"signature")
        for name, silo in world.federation().silos.items()
    }
    state = StateProof(
        roster=roster,
        round=1,
        phase="train",
        attempt=1,
        layout_digest=b"l" * 32,
        cohort_digest=b"c" * 32,
        survivors=world.SILOS,
        parent_digest=b"p" * 32,
        sum_digest=b"s" * 32,
        next_digest=b"n" * 32,
        draw_seed=b"",
        signers=signers,
    )
    signatures = wire.Signatures(signatures={world.SILOS[0]: b"signature"})
    cohort = CohortProof(survivors=world.SILOS, signatures=signatures)
    abandoned = AbandonedProof(roster=roster, round=1, phase="train", signers=signers)
    return pb.PhaseTask(
        key=wire.key_to_wire(KEY),
        state_digest=b"d" * 32,
        state_bytes=7,
        session_digest=b"e" * 32,
        proofs=[wire.proof_to_wire(state, KEY.job_digest)],
        cohorts=[wire.cohort_proof_to_wire(KEY, cohort)],
        abandoned=[wire.abandoned_proof_to_wire(abandoned, KEY.job_digest)],
    )


def _jobs() -> Iterator[bytes]:
    for spec in job_seeds():
        yield sign_job(spec, world.operator()).to_wire().SerializeToString()


REFUSES = (RemoteProtocolError, DecodeError)
TARGETS = (
    Target(
        name="chunk",
        read=_chunk,
        seeds=_chunks,
        refuses=REFUSES,
        mutate=mutate.either(mutate.raw, mutate.message(pb.Chunk)),
    ),
    Target(
        name="upload-message",
        read=_upload,
        seeds=_uploads,
        refuses=REFUSES,
        mutate=mutate.either(mutate.raw, mutate.message(pb.UploadMessage)),
    ),
    Target(
        name="silo-message",
        read=_from_silo,
        seeds=_silo_messages,
        refuses=REFUSES,
        mutate=mutate.message(pb.SiloMessage),
        max_bytes=1 << 15,
    ),
    Target(
        name="coordinator-message",
        read=_from_coordinator,
        seeds=_coordinator_messages,
        refuses=REFUSES,
        mutate=mutate.message(pb.CoordinatorMessage),
        max_bytes=1 << 15,
    ),
    Target(
        name="signed-job",
        read=_signed_job,
        seeds=_jobs,
        refuses=REFUSES,
        mutate=mutate.message(pb.SignedJob),
        max_bytes=1 << 13,
    ),
)
