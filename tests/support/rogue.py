"""A coordinator over real mutual TLS that says what a test tells it to, and agents that dial it.

It holds the coordinator's identity and drives the product's own session, so it is honest until a
test bends one message. The agents are the product's, in this process, with one-hot inputs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
import yaml

from chorale.observability import logs
from chorale.runtime import audit
from chorale.transport import tls, wire
from chorale.transport.tls import IdentityFiles
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import ChoraleError, Refusal
from crypto.identity.certificates import Identity, MemberId, Role, SignedBody, load_certificate, member_of
from crypto.identity.roster import sign_roster
from crypto.session import bodies
from crypto.session.messages import NextState
from silo_agent.agent import run_agent
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.settings import SiloSettings
from strategies.base import Arrays
from strategies.phases.enrollment import draw_seed_in
from tests.support.agents import PATIENCE_SECONDS, Exchange, Hub, Members
from tests.support.ceremony import Ceremony, issue

Message = pb.CoordinatorMessage | bytes  # bytes travel as they are
SPARE = "spare"  # on the roster, in no job
NOWHERE = PhaseKey(job_digest=bytes(32), round=0, phase="train", attempt=0)
SECRETS = frozenset({"unmask_shares", "recovered_seeds"})
VOTE_ERROR = 1e-6  # below 2^-20, the resolution at bound 8 and word 32 for ten silos

_speaker: ContextVar[str] = ContextVar("speaker", default="")


class Hearing(logging.Handler):
    """Log lines by the agent that wrote them: its tasks inherit who speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    def emit(self, record: logging.LogRecord) -> None:
        line = {"event": record.getMessage(), **getattr(record, "fields", {})}
        self.lines[_speaker.get()].append(line)


class Line:
    """The rogue's end of the line to one silo, and the agent at the other end.

    received: everything that ever came but heartbeats. opened: uploads that were begun.
    """

    def __init__(self, rogue: Rogue, name: str, settings: SiloSettings) -> None:
        self.name = name
        self.received: list[pb.SiloMessage] = []
        self.opened: list[PhaseKey] = []
        self.hellos: list[pb.Hello] = []
        self._rogue = rogue
        self.settings = settings
        self._inbox: asyncio.Queue[pb.SiloMessage] = asyncio.Queue()
        self._vectors: asyncio.Queue[tuple[PhaseKey, bytes]] = asyncio.Queue()
        self._connected = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.outgoing: asyncio.Queue[Message] = asyncio.Queue()

    # the agent

    async def start(self) -> None:
        self.dial()
        await self.connected()

    def dial(self, **changes: Any) -> None:
        """Start the agent, with other settings if any are given, and wait for nothing."""
        self._running = asyncio.create_task(self._run(self.settings.model_copy(update=changes)))

    async def ended(self) -> None:
        """Until the agent ends by itself; raises what ended it."""
        assert self._running is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._running

    async def gives_up_for_now(self, *, times: int = 1) -> str:
        """Why the agent is not connected; polled, because its log is all there is to see."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.failures < times:
                await asyncio.sleep(0.01)
        return str(self.last_logged("not connected")["reason"])

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError, ChoraleError):
                await self._running
        self._connected.clear()

    async def restart(self) -> None:
        """The agent forgets all but its files."""
        await self.stop()
        await self.start()
        self.meet()

    async def _run(self, settings: SiloSettings) -> None:
        _speaker.set(self.name)
        await run_agent(settings)

    @property
    def log(self) -> list[dict[str, Any]]:
        return self._rogue.hearing.lines[self.name]

    @property
    def failures(self) -> int:
        """How often the agent was not connected."""
        return sum(line["event"] == "not connected" for line in self.log)

    def last_logged(self, event: str) -> dict[str, Any]:
        """The last line of this event in the silo's own log."""
        return [line for line in self.log if line["event"] == event][-1]

    def last_recorded(self, event: str) -> dict[str, Any]:
        """The last entry of this event in the silo's audit trail."""
        return [entry for entry in audit.read_entries(self.settings.audit_path) if entry["event"] == event][
            -1
        ]

    # messages

    async def connected(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._connected.wait()

    def meet(self) -> None:
        self.tell(job=pb.JobOffer(job=self._rogue.job.signed.to_wire()))

    def tell(self, **kind: Any) -> None:
        self.outgoing.put_nowait(pb.CoordinatorMessage(**kind))

    def relay(self, message: Any, key: PhaseKey) -> None:
        """A message of a session."""
        self.outgoing.put_nowait(wire.to_silo(message, key))

    def tell_bytes(self, data: bytes) -> None:
        """As they are, whatever they mean."""
        self.outgoing.put_nowait(data)

    async def broken_by(self, data: bytes) -> None:
        """Bytes that end the stream; on return the agent has come back and was told the job again."""
        self._connected.clear()
        self.outgoing.put_nowait(data)
        await self.connected()
        self.meet()

    async def answer(self, kind: str, **asked: Any) -> Any:
        """The next message of the silo, which must be of this kind; `asked` is what it is told before."""
        if asked:
            self.tell(**asked)
        async with asyncio.timeout(PATIENCE_SECONDS):
            message = await self._inbox.get()
        assert message.WhichOneof("kind") == kind, (self.name, message, self.log[-3:])
        return getattr(message, kind)

    async def uploaded(self) -> tuple[PhaseKey, bytes]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._vectors.get()

    async def refuses(self, code: Refusal, reason: str) -> None:
        """The next message is this refusal, the silo's own files say why, and nothing follows."""
        refused = await self.answer("refused")
        logged, recorded = self.last_logged("refused"), self.last_recorded("refused")
        assert (refused.code, logged["code"], recorded["code"]) == (code, code, code), logged
        assert re.search(reason, logged["reason"]), logged
        assert re.search(reason, recorded["reason"]), recorded
        await self.is_quiet()

    async def refuses_form(self, code: Refusal, reason: str) -> None:
        """A message that belongs to no phase: the log says why, and nothing is answered."""
        await self.is_quiet()
        logged = self.last_logged("message refused")
        assert logged["code"] == code, logged
        assert re.search(reason, logged["reason"]), logged

    async def is_quiet(self) -> None:
        """Nothing was answered but what was taken: the next answer is to a question about nothing."""
        refused = await self.answer("refused", survivors=session_pb2.Survivors(key=wire.key_to_wire(NOWHERE)))
        assert wire.key_from_wire(refused.key) == NOWHERE, refused

    async def settle(self) -> None:
        """Take whatever an earlier test left unanswered."""
        self.tell(survivors=session_pb2.Survivors(key=wire.key_to_wire(NOWHERE)))
        while True:
            async with asyncio.timeout(PATIENCE_SECONDS):
                message = await self._inbox.get()
            if message.HasField("refused") and wire.key_from_wire(message.refused.key) == NOWHERE:
                return

    # the server's side

    def attend(self, hello: pb.Hello) -> asyncio.Queue[Message]:
        self.hellos.append(hello)
        self.outgoing = asyncio.Queue()
        self._connected.set()
        return self.outgoing

    def leave(self, outgoing: asyncio.Queue[Message]) -> None:
        if self.outgoing is outgoing:
            self._connected.clear()

    async def read(self, requests: AsyncIterator[pb.SiloMessage]) -> None:
        async for message in requests:
            if message.WhichOneof("kind") not in ("heartbeat", "stage"):
                self.received.append(message)
                self._inbox.put_nowait(message)

    def take_upload(self, key: PhaseKey, data: bytes) -> None:
        self._vectors.put_nowait((key, data))


class Rogue(Hub):
    """`welcome` and `serve` may be replaced: what a silo is greeted with, what it downloads; and
    `own_files` before it is entered: the certificate that it shows.

    policy: fields of the silos' policy files. Further fields are those of the job.
    """

    def __init__(
        self, folder: Path, *, silos: int = 4, policy: dict[str, Any] | None = None, **job: Any
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.ceremony = Ceremony(folder=folder / "members")
        self.ceremony.enroll(Role.COORDINATOR, "hub")
        names = [*(f"silo-{place}" for place in range(silos)), SPARE]
        members = Members(
            authority_key=self.ceremony.key,
            authority=self.ceremony.anchors,
            silos={name: self.ceremony.enroll(Role.SILO, name) for name in names},
            operator=self.ceremony.enroll(Role.OPERATOR, "ops"),
        )
        super().__init__(folder, members=members, now=datetime.now(UTC), **job)
        self.round = self.port = self._jobs = 0
        given = {"approval": "automatic", "initial_state": "given"} | (policy or {})
        self.policy = {"federation": self.ceremony.federation, **given}
        self.welcome: Callable[[str], pb.Welcome] = self.greeting
        self.serve: Callable[[str, pb.DownloadRequest], Iterable[pb.Chunk]] = self.chunks
        self.own_files = files(self.ceremony, Role.COORDINATOR, "hub")
        self.hearing = Hearing()

    @property
    def names(self) -> list[str]:
        """The silos of the job."""
        return [name for name in sorted(self.members.silos) if name != SPARE]

    async def __aenter__(self) -> Self:
        logger = logging.getLogger(logs.ROOT)
        logger.addHandler(self.hearing)
        logger.setLevel(logging.INFO)
        await self.listen()
        for name in self.members.silos:
            self.agents[name] = Line(self, name, self._settings(name))  # type: ignore[assignment]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self.agents.values():
            await line.stop()
        await self.hang_up()
        logging.getLogger(logs.ROOT).removeHandler(self.hearing)

    async def listen(self) -> None:
        """At its former port, if there was one."""
        self._server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        self._server.add_generic_rpc_handlers((self._handlers(),))
        own = tls.load_identity(self.own_files), self.ceremony.anchors
        credentials = tls.server_credentials(lambda: own)
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", credentials)
        await self._server.start()

    async def hang_up(self) -> None:
        """End every call and listen no more."""
        await self._server.stop(None)

    async def start(self, names: Sequence[str] | None = None) -> None:
        """Agents that dial and are offered the job."""
        for name in names or self.names:
            await self.agents[name].start()
            self.agents[name].meet()

    async def control(self, *, unseen: Sequence[str] = (), late: Sequence[str] = ()) -> None:
        """The next round without tampering, enrollment first: every silo counts once, late ones do not.

        unseen: silos that are not shown the round's sum, so that they have to download the state after it.
        """
        if self.round == 0:
            await self.run(0, "enrollment.0")
        self.round += 1
        sums = await self.run(self.round, "train", unseen=unseen, late=late)
        votes = [0 if name in late else 1 / len(self.names) for name in self.names]
        np.testing.assert_allclose(sums["delta"], votes, atol=VOTE_ERROR)

    async def run(
        self,
        round: int,
        phase: str,
        *,
        attempt: int = 1,
        unseen: Sequence[str] = (),
        late: Sequence[str] = (),
    ) -> dict[str, np.ndarray[Any, Any]]:
        """One whole phase; silos that are `unseen` are not shown the sum, and get the proof of the others."""
        exchange = self.begin(round, phase, attempt=attempt)
        await self.until_signed(exchange, late=late)
        sums = await self.unmask(exchange)
        await self.agree(exchange, without=unseen)
        self.tell_outcome(exchange, cohort=exchange.session.survivors)
        return sums

    @property
    def brought(self) -> list[session_pb2.StateProof]:
        """The proofs that tasks of this job bring."""
        return [wire.proof_to_wire(proof, self.job.digest) for proof in self.proofs.get(self.job.digest, [])]

    def statement(self, exchange: Exchange, **fields: Any) -> NextState:
        """What a silo signs of this session, but for these fields; the sender is to be filled in."""
        terms, record = exchange.session.terms, exchange.session._record
        values: dict[str, Any] = {
            "sender": "",
            "cohort_digest": record.cohort_digest or bytes(32),
            "survivors": record.survivors or terms.names,
            "sum_digest": bytes(32),
            "draw_seed": b"",
        }
        return NextState(
            federation=terms.federation,
            session_digest=terms.digest(),
            parent_digest=terms.state_digest,
            **values | fields,
        )

    def proof(
        self, exchange: Exchange, statement: NextState, signatures: Mapping[str, bytes]
    ) -> session_pb2.StateProof:
        """The statement with these signatures, as a task brings it."""
        proof = session_pb2.StateProof(
            key=exchange.wire_key,
            roster=wire.signed_body_to_wire(self.roster.signed),
            layout_digest=exchange.session.terms.layout.digest,
            cohort_digest=statement.cohort_digest,
            survivors=statement.survivors,
            parent_digest=statement.parent_digest,
            sum_digest=statement.sum_digest,
            next_digest=statement.next_digest,
            draw_seed=statement.draw_seed,
        )
        for name, signature in signatures.items():
            certificate = self.members.silos[name].certificate_der
            proof.signers.add(name=name, certificate=certificate, signature=signature)
        return proof

    def conspire(
        self, round: int, phase: str, state: Arrays, *, by: Sequence[str] | None = None, **fields: Any
    ) -> session_pb2.StateProof:
        """The proof that this state follows from a phase that never was: these silos sign whatever it takes.

        by: all of the job's, if it is not said.
        """
        exchange = self.begin(round, phase)
        values = {"next_digest": self.put(state), "draw_seed": draw_seed_in(state)} | fields
        statement = self.statement(exchange, **values)
        signatures = {}
        for name in exchange.session.terms.names if by is None else by:
            said = dataclasses.replace(statement, sender=name)
            signatures[name] = bodies.sign(self.members.silos[name], said).signature
        return self.proof(exchange, statement, signatures)

    def begin_next(self) -> Exchange:
        """The round after the last one, of which no silo is told yet."""
        self.round += 1
        return self.begin(self.round, "train")

    def take_job(self, *, start: float = 0.0, **fields: Any) -> None:
        """Another job of the same silos, which are offered it; its first round comes next.

        start: every value of its first state.
        """
        self.state, self.round = {"model/votes": np.full(len(self.names), start, np.float32)}, 0
        self.job = self.sign(**fields)
        for name in self.names:
            self.agents[name].meet()

    async def new_job(self, *, rounds: int = 1, **control: Any) -> None:
        """The control: so many rounds without tampering of another job, over a model of its own.

        Over one that a test gave inputs for and took no further, no silo takes part in a sum of other silos.
        """
        self.serve, self.welcome = self.chunks, self.greeting
        for name in self.names:
            await self.agents[name].settle()
        self._jobs += 1
        self.take_job(nonce=f"{self._jobs:032x}", start=float(self._jobs), rounds=20)
        for _ in range(rounds):
            await self.control(**control)

    def sign_roster(self, **changes: Any) -> SignedBody:
        """The roster in force, but for these fields."""
        fields = {
            "authority_key": self.ceremony.key,
            "federation": self.ceremony.federation,
            "version": self.roster.version,
            "issued": self.roster.issued,
            "expires": self.roster.expires,
            "members": self.roster.members,
        }
        return sign_roster(**fields | changes)

    def issue(self, name: str, *, role: Role = Role.SILO) -> Identity:
        """Another certificate from the same authority, which the roster does not list."""
        member = MemberId(federation=self.ceremony.federation, role=role, name=name)
        hosts = ["localhost"] if role is Role.COORDINATOR else []
        return issue(self.ceremony.key, self.ceremony.certificate, member, now=self.now, days=3, hosts=hosts)

    # what must not have happened

    def check_nothing_left(self, exchange: Exchange, *, vectors: bool = False) -> None:
        """No share of this session and, unless `vectors` were due, no masked vector left any silo."""
        for line in self.agents.values():
            secrets = [
                message.WhichOneof("kind") for message in line.received if _is_secret(message, exchange.key)
            ]
            assert secrets == [], f"{line.name} gave {secrets}"
            assert vectors or exchange.key not in line.opened, f"{line.name} sent a masked vector"

    # the wire

    def greeting(self, silo: str) -> pb.Welcome:
        return pb.Welcome(
            protocol_version=wire.PROTOCOL_VERSION,
            software_version="rogue",
            unix_seconds=datetime.now(UTC).timestamp(),
            heartbeat_seconds=60,
            roster=wire.signed_body_to_wire(self.roster.signed),
        )

    def chunks(self, silo: str, request: pb.DownloadRequest) -> Iterable[pb.Chunk]:
        if rest := self.states[request.digest][request.offset :]:
            yield pb.Chunk(offset=request.offset, data=rest)

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "chorale.v1.Federation",
            {
                "Attend": grpc.stream_stream_rpc_method_handler(
                    self._attend, pb.SiloMessage.FromString, _serialize
                ),
                "Download": grpc.unary_stream_rpc_method_handler(
                    self._download, pb.DownloadRequest.FromString, _serialize
                ),
                "Upload": grpc.stream_stream_rpc_method_handler(
                    self._upload, pb.UploadMessage.FromString, _serialize
                ),
            },
        )

    async def _attend(self, requests: Any, context: Any) -> AsyncIterator[Message]:
        line: Any = self.agents[_caller(context)]
        first = await anext(aiter(requests))
        yield pb.CoordinatorMessage(welcome=self.welcome(line.name))
        outgoing = line.attend(first.hello)
        reading = asyncio.create_task(line.read(requests))
        try:
            while True:
                yield await outgoing.get()
        finally:
            line.leave(outgoing)
            reading.cancel()

    async def _download(self, request: pb.DownloadRequest, context: Any) -> AsyncIterator[pb.Chunk]:
        for chunk in self.serve(_caller(context), request):
            yield chunk

    async def _upload(self, requests: Any, context: Any) -> AsyncIterator[pb.UploadReceipt]:
        line: Any = self.agents[_caller(context)]
        data = b""
        async for message in requests:
            match message.WhichOneof("kind"):
                case "header":
                    key = wire.key_from_wire(message.header.key)
                    line.opened.append(key)
                    yield pb.UploadReceipt()
                case "chunk":
                    data += message.chunk.data
                case "end":
                    line.take_upload(key, data)
                    yield pb.UploadReceipt(received_bytes=len(data), complete=True)
                    return

    def _settings(self, name: str) -> SiloSettings:
        policy = self.folder / f"{name}-policy.yaml"
        written = Policy.model_validate(self.policy).model_dump(mode="json")
        policy.write_text(yaml.safe_dump(written, explicit_end=True))
        return SiloSettings.model_validate(
            {
                "name": name,
                "federation": self.ceremony.federation,
                "coordinator": f"127.0.0.1:{self.port}",
                "identity": files(self.ceremony, Role.SILO, name),
                "authority": self.ceremony.certificate_path,
                "directory": self.folder / name,
                "policy": policy,
                "metrics_listen": None,
                "data": {"format": "module", "module": "tests.support.one_hot:data", "name": "records"},
                "objective": "tests.support.one_hot:objective",
            }
        )


def with_proofs(task: pb.PhaseTask, *proofs: session_pb2.StateProof) -> pb.PhaseTask:
    """The same task with these proofs and no others."""
    copy = pb.PhaseTask()
    copy.CopyFrom(task)
    copy.ClearField("proofs")
    copy.proofs.extend(proofs)
    return copy


def files(ceremony: Ceremony, role: Role, name: str) -> IdentityFiles:
    """Where a member's certificate and key lie."""
    paths = [ceremony.path_of(role, name, ending) for ending in ("crt", "key")]
    return IdentityFiles(certificate=paths[0], key=paths[1])


def _serialize(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


def _caller(context: Any) -> str:
    """Who called, as the certificate has it."""
    (pem,) = context.auth_context()["x509_pem_cert"]
    return member_of(load_certificate(pem)).name


def _is_secret(message: pb.SiloMessage, key: PhaseKey) -> bool:
    kind = message.WhichOneof("kind") or ""
    return kind in SECRETS and wire.key_from_wire(getattr(message, kind).key) == key
