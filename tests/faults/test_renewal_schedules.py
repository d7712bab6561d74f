"""A certificate that is renewed while its silo uploads, in any order: no round loses the silo.

Roster, files, a cut of the line, the stage and the upload come when a seed says. The control stream, the
transfer and the certificates are the product's; the coordinator is a model of when it lets whom in, with the
product's deadlines. The clock is virtual. Source: docs/protocol.md 7.2, 8.4, 8.8.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from chorale.runtime.software import Software
from chorale.transport.chunks import Chunk
from chorale.transport.line_probe import LineFailed, Trouble
from chorale.transport.wire import PROTOCOL_VERSION, PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from coordinator.jobs.deadlines import StageDeadlines, StageLimits
from crypto.errors import RemoteProtocolError
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.identity.certificates import Anchors, Identity
from crypto.identity.roster import Roster
from crypto.masking.masks import Masker, SignedSeed
from silo_agent.connection import transfer
from silo_agent.connection.control_stream import ControlStream, Outbox
from silo_agent.connection.own_certificates import OwnCertificates, Renewal
from silo_agent.connection.transfer import Transfer
from silo_agent.metrics import SiloMetrics
from tests.support import virtual_time
from tests.support.agents import make_members, with_another_certificate
from tests.support.sessions import NOW

RUNS, ALL_RUNS = 200, 1000
SILO = "silo-0"
HEARTBEAT_SECONDS = 5.0  # as by default, like these
LIMITS = StageLimits(deadline=30.0, hard_cap=600.0, grace=15.0, min_rate=10_000)
FILES_LATE_SECONDS = 6.0  # the most; a silo that is away for longer than the grace is left out, and rightly
KEY = PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
LAYOUT = Layout(members=3, quantities=(Quantity(name="delta", shape=(8,), bound=1.0, ring_bits=32),))
BEFORE = make_members(4)
AFTER = with_another_certificate(BEFORE, SILO)
ROSTERS = BEFORE.roster(version=7), AFTER.roster(version=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Seconds at which roster, files and stage come, and the line is cut; how long a message and a part of
    the upload take."""

    roster: float
    files: float
    stage: float
    cut: float
    latency: float
    part: float

    @classmethod
    def of(cls, seed: int) -> Schedule:
        draw = random.Random(seed)
        roster = draw.uniform(0, 20)
        return cls(
            roster=roster,
            files=max(0.0, roster + draw.uniform(-10, FILES_LATE_SECONDS)),
            stage=draw.uniform(0, 20),
            cut=draw.choice([draw.uniform(0, 25), 1e9]),
            latency=draw.choice([0.01, 0.1, 0.8]),
            part=draw.choice([0.0, 0.5, 5.0]),
        )


class Call:
    """One call of a silo, as grpc.aio has it. closed: the channel is, under it."""

    def __init__(self, coordinator: Coordinator, shown: Identity, serve: Any) -> None:
        self.shown = shown
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._coordinator = coordinator
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._status: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.Future()
        self._serving = asyncio.ensure_future(serve(self))
        self.closed = False

    # the silo's side

    async def write(self, message: Any) -> None:
        await asyncio.sleep(self._coordinator.schedule.latency)
        if self.closed:
            raise asyncio.CancelledError
        if self._status.done():
            raise asyncio.InvalidStateError
        self.inbox.put_nowait(message)

    async def read(self) -> Any:
        getting = asyncio.ensure_future(self._outbox.get())
        try:
            await asyncio.wait({getting, self._status}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
        finally:
            getting.cancel()
        if self.closed:
            raise asyncio.CancelledError
        code, details = self._status.result()
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)

    async def done_writing(self) -> None:
        return None

    async def code(self) -> grpc.StatusCode:
        return (self._status.result() if self._status.done() else await asyncio.shield(self._status))[0]

    async def details(self) -> str:
        return (self._status.result() if self._status.done() else await asyncio.shield(self._status))[1]

    def add_done_callback(self, callback: Any) -> None:
        self._status.add_done_callback(lambda _: callback(self))

    def cancel(self) -> None:
        self.end(grpc.StatusCode.CANCELLED)

    # the coordinator's

    def say(self, message: Any) -> None:
        self._outbox.put_nowait(message)

    def end(self, code: grpc.StatusCode, details: str = "") -> None:
        if not self._status.done():
            self._status.set_result((code, details))
            self._serving.cancel()


class Coordinator:
    """Lets in whom its roster lists, and collects one vector in one stage."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.roster = ROSTERS[0]
        self.is_complete = asyncio.Event()
        self.attending: Call | None = None
        self._away_since = {SILO: 0.0}
        self._deadlines: StageDeadlines | None = None
        self.now = asyncio.get_running_loop().time

    async def run(self) -> bool:
        """Whether the silo's vector came before it was given up."""
        changes = asyncio.ensure_future(self._change_roster())
        await asyncio.sleep(self.schedule.stage)
        self._deadlines = StageDeadlines(LIMITS, started=self.now(), away_since=self._away_since)
        self._ask()
        while not self.is_complete.is_set() and self.now() < (until := self._deadlines.expires_at(SILO)):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.is_complete.wait(), min(1.0, until - self.now()))
        changes.cancel()
        return self.is_complete.is_set()

    async def attend(self, call: Call) -> None:
        await call.inbox.get()  # hello
        if not self._admits(call):
            return
        roster = pb.Welcome(
            protocol_version=PROTOCOL_VERSION,
            unix_seconds=NOW.timestamp(),
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )
        call.say(pb.CoordinatorMessage(welcome=roster))
        self.attending = call
        self._away_since.pop(SILO, None)
        call.add_done_callback(self._on_lost)
        self._ask()
        while self._admits(call):
            await asyncio.sleep(HEARTBEAT_SECONDS)
            call.say(pb.CoordinatorMessage(heartbeat=pb.Heartbeat(unix_seconds=NOW.timestamp())))

    async def upload(self, call: Call) -> None:
        await call.inbox.get()  # header
        if not self._admits(call):
            return
        if self._deadlines is None:
            return call.end(grpc.StatusCode.FAILED_PRECONDITION, "no masked vector is awaited now")
        call.say(pb.UploadReceipt(received_bytes=0))
        while True:
            self._deadlines.on_transfer(SILO, moved_bytes=1 << 20, now=self.now())
            message = await call.inbox.get()
            await asyncio.sleep(self.schedule.part)
            if not isinstance(message, Chunk):
                self.is_complete.set()
                return call.say(pb.UploadReceipt(complete=True))

    def _admits(self, call: Call) -> bool:
        if call.shown.fingerprint in {member.fingerprint for member in self.roster.members}:
            return True
        call.end(grpc.StatusCode.PERMISSION_DENIED, "the roster does not list this certificate")
        return False

    def _ask(self) -> None:
        if self._deadlines is not None and self.attending is not None:
            self.attending.say(pb.CoordinatorMessage(envelopes=session_pb2.Envelopes()))

    def _on_lost(self, call: Call) -> None:
        if self.attending is call:
            self.attending = None
            self._away_since[SILO] = self.now()

    async def _change_roster(self) -> None:
        await asyncio.sleep(self.schedule.roster)
        self.roster = ROSTERS[1]
        if self.attending is not None:
            self.attending.say(pb.CoordinatorMessage(roster=pb.RosterUpdate()))


class Stub:
    """As silo_agent.connection.channel.FederationStub."""

    def __init__(self, coordinator: Coordinator, silo: Silo) -> None:
        self._coordinator, self._silo = coordinator, silo
        self._calls: list[Call] = []
        self._is_open = False

    def open(self) -> None:
        self._shown, self._is_open = self._silo.renewal.next_identity(), True

    async def close(self) -> None:
        self._is_open = False
        for call in self._calls:
            call.closed = True
            call.cancel()
        self._calls.clear()

    def cut(self) -> None:
        """The line under all calls."""
        for call in self._calls:
            call.end(grpc.StatusCode.UNAVAILABLE, "cut")

    def Attend(self) -> Call:
        return self._call(self._coordinator.attend)

    def Upload(self) -> Call:
        return self._call(self._coordinator.upload)

    def _call(self, serve: Any) -> Call:
        if not self._is_open:
            raise grpc.aio.UsageError("channel is closed")
        self._calls.append(Call(self._coordinator, self._shown, serve))
        return self._calls[-1]


class Silo:
    """The product's control stream, transfer and certificates around one vector. has_repeats: whether
    repeated envelopes start an upload that failed once more, as the agent's message handler does."""

    preparing: Sequence[PhaseKey] = ()
    roster_version = 0

    def __init__(self, coordinator: Coordinator, seed: int, *, has_repeats: bool) -> None:
        draw = random.Random(seed).random
        self.own = OwnCertificates(BEFORE.silos[SILO], BEFORE.authority)
        self.newest: Roster = ROSTERS[0]
        self._coordinator, self._has_repeats = coordinator, has_repeats
        self._has_read = False
        self._uploading: asyncio.Task[None] | None = None
        metrics = SiloMetrics()
        self.renewal = Renewal(
            self.own,
            self,  # type: ignore[arg-type]
            newest=lambda: self.newest,
            refused=metrics.credentials_refused,
        )
        self.stub = Stub(coordinator, self)
        self._transfer = Transfer(self.stub, metrics=SiloMetrics(), random=draw)  # type: ignore[arg-type]
        self.stream = ControlStream(
            self.stub,  # type: ignore[arg-type]
            target="coordinator",
            probe=self._probe,
            software=Software(version="1.0", sha256="ab" * 32),
            served=self,  # type: ignore[arg-type]
            moved_bytes=lambda: self._transfer.moved_bytes,
            outbox=Outbox(),
            metrics=metrics,
            renewal=self.renewal,
            clock=lambda: NOW,
            random=draw,
        )

    def receive(self, message: pb.CoordinatorMessage) -> None:
        if message.HasField("roster"):
            self.newest = self._coordinator.roster  # by the welcome, too
        elif message.HasField("envelopes") and (
            self._uploading is None or (self._has_repeats and self._uploading.done())
        ):
            self._uploading = asyncio.ensure_future(self._upload())

    def poll(self) -> None:
        return None

    async def _upload(self) -> None:
        seeds = (SignedSeed(seed=b"b" * 32, sign=1),)
        masker = Masker(layout=LAYOUT, cohort_digest=b"c" * 32, seeds=seeds)
        encoder = Encoder({"delta": [0.0] * 8}, layout=LAYOUT)
        with suppress(RemoteProtocolError):
            await self._transfer.upload(KEY, masker, encoder, total_bytes=LAYOUT.total_bytes)

    def refresh(self, credentials: OwnCertificates, refused: object) -> None:
        """As CredentialFiles."""
        if not self._has_read and self._coordinator.now() >= self._coordinator.schedule.files:
            self._has_read = True
            credentials.take_over(AFTER.silos[SILO], AFTER.authority)

    def check(self, identity: Identity, authority: Anchors) -> None:
        """Every certificate is valid, as CredentialFiles may find."""

    async def _probe(self) -> LineFailed:
        return LineFailed(Trouble.NONE, "the line is well")


async def is_in_the_sum(seed: int, *, has_repeats: bool = True) -> bool:
    schedule = Schedule.of(seed)
    coordinator = Coordinator(schedule)
    silo = Silo(coordinator, seed, has_repeats=has_repeats)
    attending = asyncio.ensure_future(silo.stream.run())
    cutting = asyncio.get_running_loop().call_later(schedule.cut, silo.stub.cut)
    try:
        return await coordinator.run()
    finally:
        cutting.cancel()
        attending.cancel()


def left_out(seeds: range, **options: bool) -> list[tuple[int, Schedule]]:
    return [
        (seed, Schedule.of(seed)) for seed in seeds if not virtual_time.run(is_in_the_sum(seed, **options))
    ]


def test_no_order_of_roster_files_line_and_upload_loses_a_silo() -> None:
    assert left_out(range(RUNS)) == []


@pytest.mark.soak
def test_no_order_of_a_thousand_loses_a_silo() -> None:
    assert left_out(range(RUNS, ALL_RUNS)) == []


def test_control_denied_uploads_that_end_lose_silos(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before: a denial was an answer, and repeated envelopes met silence."""
    without = transfer.RETRIED - {grpc.StatusCode.PERMISSION_DENIED}
    monkeypatch.setattr(transfer, "RETRIED", without)
    assert left_out(range(RUNS), has_repeats=False)
