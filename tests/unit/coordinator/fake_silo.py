"""Silos without an agent: real sessions over real gRPC, one-hot inputs, and ways to go away.

A silo does what an honest one does until told otherwise: `vanish_on` names the message at which
it drops its connection, `refuse_with` what it answers to a task, from round `refuse_from` on.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from chorale.job import Job, SignedJob, open_job
from chorale.spec.state import state_from_bytes, state_to_bytes
from chorale.transport import tls, wire
from chorale.transport.tls import IdentityFiles
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import federation_pb2_grpc, session_pb2
from crypto.errors import Refusal
from crypto.fixed_point.encoder import Encoder
from crypto.identity.certificates import Identity, Role
from crypto.identity.roster import Roster, open_roster
from crypto.masking.masks import Masker
from crypto.masking.stored_sum import StoredSum
from crypto.session import bodies
from crypto.session.messages import Abandoned, Complaint, LedgerMark, NextState, RevealedSum, SessionTerms
from crypto.session.silo_session import SiloSession
from crypto.session.sum_check import SumCheck
from strategies.phases.enrollment import draw_seed_in
from tests.support.ceremony import Ceremony
from tests.support.sessions import MemoryLedger

SAMPLES = 100
TOLD = ("outcome", "job_ended", "session_ended", "welcome", "roster")


class RoundLedger(MemoryLedger):
    """As a silo's own: the roster is bound to a phase outside rounds by itself."""

    def begin_attempt(self, terms: SessionTerms) -> LedgerMark:
        if "." in terms.phase:
            self.rosters.pop((terms.job_digest, terms.round), None)
        return super().begin_attempt(terms)


@dataclass(kw_only=True)
class FakeSilo:
    """vanish_on: (phase kind, message kind) at which it is gone. received: what it was told, by kind."""

    ceremony: Ceremony
    name: str
    address: str
    identity: Identity
    vanish_on: tuple[str, str] | None = None
    refuse_with: wire.Refused | None = None
    refuse_from: int = 0
    loses: str | None = None  # the kind of phase whose first task does not get through
    accuses: str = ""  # whom it complains of in each training that they are both in
    lies: tuple[int, dict[str, float]] | None = None  # round in whose training it lies, and what it says
    ledger: MemoryLedger = field(default_factory=RoundLedger)
    received: dict[str, list[Any]] = field(default_factory=dict)
    inputs: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    sessions: dict[bytes, SiloSession] = field(default_factory=dict)
    terms: dict[bytes, SessionTerms] = field(default_factory=dict)
    states: dict[bytes, bytes] = field(default_factory=dict)
    checks: dict[bytes, SumCheck] = field(default_factory=dict)
    error: grpc.aio.AioRpcError | None = None
    is_gone: bool = False
    hello: pb.Hello = field(default_factory=lambda: pb.Hello(protocol_version=wire.PROTOCOL_VERSION))

    def __post_init__(self) -> None:
        self._jobs: dict[bytes, SignedJob] = {}
        self._outgoing: asyncio.Queue[pb.SiloMessage] = asyncio.Queue()
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._uploads: list[asyncio.Task[None]] = []

    @property
    def kept(self) -> dict[str, Any]:
        """What an agent's ledger and disk would hold."""
        kept = ("ledger", "sessions", "terms", "states", "checks")
        return {name: getattr(self, name) for name in kept}

    def start(self) -> None:
        self.is_gone = False
        self._task = asyncio.create_task(self._attend())

    async def stop(self) -> None:
        """Gone as after kill -9: every stream breaks."""
        for task in (self._task, *self._uploads):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def wait_for(self, kind: str, count: int = 1) -> Any:
        """The message of that kind that makes the count full."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.received.get(kind, [])) >= count)
        return self.received[kind][count - 1]

    def say(self, message: pb.SiloMessage) -> None:
        self._outgoing.put_nowait(message)

    def channel(self, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
        files = IdentityFiles(
            certificate=self.ceremony.path_of(Role.SILO, self.name, "crt"),
            key=self.ceremony.path_of(Role.SILO, self.name, "key"),
        )
        return grpc.aio.secure_channel(
            self.address, tls.channel_credentials(tls.load_identity(files), self.ceremony.anchors), options
        )

    async def _attend(self) -> None:
        while True:
            try:
                async with self.channel() as channel:
                    self._stub: Any = federation_pb2_grpc.FederationStub(channel)  # type: ignore[no-untyped-call]
                    self.say(pb.SiloMessage(hello=self.hello))
                    async for message in self._stub.Attend(self._send()):
                        await self._receive(message)
                        if self.is_gone:
                            return
                return
            except grpc.aio.AioRpcError as error:
                # a write after the server ended the call: grpcio keeps this and loses the status
                if error.code() is grpc.StatusCode.INTERNAL and "from Core" in str(error.details()):
                    continue
                self.error = error
                await self._note("error", error)
                return

    async def _send(self) -> Any:
        while True:
            yield await self._outgoing.get()

    async def _receive(self, message: pb.CoordinatorMessage) -> None:
        kind = str(message.WhichOneof("kind"))
        body = getattr(message, kind)
        if self._is_last(kind, body):
            self.is_gone = True
        elif kind == "welcome" or kind == "roster":
            self._roster = self._open_roster(
                wire.signed_body_from_wire(body.roster, max_bytes=wire.MAX_ROSTER_BYTES)
            )
        elif kind == "job":
            self._jobs[SignedJob.from_wire(body.job).digest] = SignedJob.from_wire(body.job)
        elif kind == "task":
            await self._on_task(body)
        elif kind == "revealed_sum":
            await self._on_revealed_sum(body)
        elif kind == "abandon":
            self._on_abandon(wire.key_from_wire(body.key))
        elif kind not in TOLD and kind != "heartbeat":
            self._on_session(kind, body)
        await self._note(kind, body)

    def _is_last(self, kind: str, body: Any) -> bool:
        if self.vanish_on is None or kind != self.vanish_on[1]:
            return False
        return wire.phase_kind(body.key.phase) == self.vanish_on[0]

    async def _note(self, kind: str, body: Any) -> None:
        async with self._news:
            self.received.setdefault(kind, []).append(body)
            self._news.notify_all()

    async def _on_task(self, task: pb.PhaseTask) -> None:
        key = wire.key_from_wire(task.key)
        if self.loses == key.kind:
            self.loses = None
            self.say(pb.SiloMessage(heartbeat=pb.Heartbeat()))  # which lists nothing
            return
        if self.refuse_with is not None and key.round >= self.refuse_from:
            self.say(pb.SiloMessage(refused=wire.refused_to_wire(self.refuse_with, key)))
            return
        data = self.states[task.key.SerializeToString()] = await self._download(key, task.state_digest)
        terms = self._compute_terms(key, task, data)
        session = SiloSession(
            terms=terms,
            identity=self.identity,
            roster=self._roster,
            authority=self.ceremony.anchors,
            ledger=self.ledger,
            now=datetime.now(UTC),
        )
        self.sessions[task.key.SerializeToString()] = session
        self.terms[task.key.SerializeToString()] = terms
        self.say(wire.to_coordinator("advert", session.advertise(), key))

    async def _download(self, key: PhaseKey, digest: bytes) -> bytes:
        chunks = self._stub.Download(pb.DownloadRequest(job_digest=key.job_digest, digest=digest))
        data = b"".join([chunk.data async for chunk in chunks])
        assert hashlib.sha256(data).digest() == digest
        return data

    async def _on_revealed_sum(self, body: Any) -> None:
        """Check the sum, compute the next state and sign it, as an agent does."""
        key, raw = wire.key_from_wire(body.key), body.key.SerializeToString()
        if raw not in self.checks:  # it dealt, and masked nothing
            self.say(pb.SiloMessage(refused=wire.refused_to_wire(wire.Refused(code=Refusal.STAGE), key)))
            return
        revealed = wire.from_coordinator(pb.CoordinatorMessage(revealed_sum=body))
        check, layout = self.checks[raw], self.terms[raw].layout.tagged
        assert isinstance(revealed, RevealedSum)
        assert layout is not None
        try:
            stream = await self._download(key, revealed.sum_digest)
        except grpc.aio.AioRpcError:  # t others were faster, and the sum is gone
            return
        check.check_survivors(revealed.survivors, revealed.signatures)
        check.check_sum(stream, layout, revealed.survivors)
        job, state = self._job(key), state_from_bytes(self.states[raw])
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(stream)
            result = job.next_state(
                key.phase,
                job.context(key, state, check.members),
                StoredSum(Path(file.name), layout=layout),
                survivors=len(revealed.survivors),
                self_mask_seeds=revealed.self_mask_seeds or None,
            )
            following = state if result.state is None else result.state
            digest = hashlib.sha256(state_to_bytes(following)).digest()
        said = NextState(
            federation=check.federation,
            session_digest=check.session_digest,
            cohort_digest=check.cohort_digest,
            sender=self.name,
            survivors=revealed.survivors,
            parent_digest=check.state_digest,
            sum_digest=revealed.sum_digest,
            next_digest=digest,
            draw_seed=draw_seed_in(following),
        )
        self.say(wire.to_coordinator("next_state", bodies.sign(self.identity, said), key))

    def _on_abandon(self, key: PhaseKey) -> None:
        said = Abandoned(
            federation=self.ceremony.federation,
            job_digest=key.job_digest,
            round=key.round,
            phase=key.phase,
            sender=self.name,
        )
        statement = wire.signed_body_to_wire(bodies.sign(self.identity, said))
        certificate = self.identity.certificate_der
        abandoned = session_pb2.Abandoned(
            key=wire.key_to_wire(key), certificate=certificate, statement=statement
        )
        self.say(pb.SiloMessage(abandoned=abandoned))

    def _job(self, key: PhaseKey) -> Job:
        return open_job(
            self._jobs[key.job_digest],
            roster=self._roster,
            authority=self.ceremony.anchors,
            now=datetime.now(UTC),
        )

    def _compute_terms(self, key: PhaseKey, task: pb.PhaseTask, data: bytes) -> SessionTerms:
        job = self._job(key)
        terms = job.terms(
            roster=self._roster,
            round=key.round,
            phase=key.phase,
            attempt=key.attempt,
            state=state_from_bytes(data),
            state_digest=task.state_digest,
        )
        assert terms.digest() == task.session_digest
        place = job.spec.silos.index(self.name)
        values = one_hot(terms, key.kind, place, len(job.spec.silos))
        if self.lies is not None and (key.round, key.kind) == (self.lies[0], "train"):
            values |= self.lies[1]
        self.inputs[key.round, key.phase] = values
        return terms

    def _on_session(self, kind: str, body: Any) -> None:
        key, raw = wire.key_from_wire(body.key), body.key.SerializeToString()
        session = self.sessions[raw]
        if kind == "cohort":
            self._adverts = list(body.adverts)
            shares = session.receive(wire.from_coordinator(pb.CoordinatorMessage(cohort=body)))
            self.say(wire.to_coordinator("shares", shares, key))
        elif kind == "envelopes" and key.kind == "train" and self.accuses in body.sharers:
            self._complain(key, self.terms[raw], self.accuses)
        elif kind == "envelopes":
            masker = session.receive(wire.from_coordinator(pb.CoordinatorMessage(envelopes=body)))
            if session.sum_check is not None:
                self.checks[raw] = session.sum_check
            self._uploads.append(asyncio.create_task(self._upload(body.key, self.terms[raw], masker)))
        elif kind == "survivors":
            signed = session.receive(wire.from_coordinator(pb.CoordinatorMessage(survivors=body)))
            self.say(wire.to_coordinator("consistency", signed, key))
        elif kind == "signatures":
            answer = session.receive(wire.from_coordinator(pb.CoordinatorMessage(signatures=body)))
            self.say(wire.to_coordinator("unmask_shares", answer, key))

    def _complain(self, key: PhaseKey, terms: SessionTerms, accused: str) -> None:
        verified = [bodies.read_advert(wire.signed_body_from_wire(one)) for one in self._adverts]
        complaint = Complaint(
            cohort_digest=bodies.cohort_digest(terms.digest(), verified), sender=self.name, accused=accused
        )
        signed = bodies.sign(self.identity, complaint)
        self.say(wire.to_coordinator("complaint", signed, key))

    async def _upload(self, key: Any, terms: SessionTerms, masker: Masker) -> None:
        encoded = Encoder(self.inputs[key.round, key.phase], layout=terms.layout).encode()
        data = b"".join(masker.stream(encoded))
        call = self._stub.Upload()
        await call.write(pb.UploadMessage(header=pb.UploadHeader(key=key, total_bytes=len(data))))
        receipt = await call.read()
        await call.write(pb.UploadMessage(chunk=pb.Chunk(offset=receipt.received_bytes, data=data)))
        await call.write(pb.UploadMessage(end=pb.UploadEnd(sha256=hashlib.sha256(data).digest())))
        await call.done_writing()
        assert (await call.read()).complete

    def _open_roster(self, signed: Any) -> Roster:
        return open_roster(
            signed,
            authority=self.ceremony.anchors,
            federation=self.ceremony.federation,
            now=datetime.now(UTC),
        )


def one_hot(terms: SessionTerms, kind: str, place: int, silos: int) -> dict[str, Any]:
    """The silo's vector is e_place, weighted 1/silos; its evaluation counts `place` correct answers."""
    if kind == "enrollment":
        return {"silos": 1, "samples": SAMPLES}
    values: dict[str, Any] = {"correct": place, "tested": 10, "loss_sum": float(place)}
    if kind == "train":
        shape = next(quantity.shape for quantity in terms.layout.quantities if quantity.name == "delta")
        size = int(np.prod(shape))
        values |= {"delta": np.eye(size)[place] / silos, "weight": 1 / silos}
    return values
