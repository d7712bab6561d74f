"""The control stream against scripted coordinators: greetings, clocks, broken lines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from chorale.observability import logs
from chorale.runtime.audit import AuditLog
from chorale.runtime.software import Software
from chorale.transport import wire
from chorale.transport.channel_options import CONNECT_SECONDS
from chorale.transport.line_probe import PROBE_SECONDS, LineFailed, Trouble
from chorale.transport.wire import PROTOCOL_VERSION, PhaseKey, key_to_wire
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.certificates import Anchors
from crypto.identity.issuing import new_authority
from silo_agent.connection import own_certificates
from silo_agent.connection.backoff import MAX_WAIT_SECONDS, Backoff
from silo_agent.connection.channel import FederationStub
from silo_agent.connection.control_stream import (
    MAX_QUEUED_MESSAGES,
    SECOND_AGENT_SECONDS,
    ConnectionFailed,
    ControlStream,
    Outbox,
)
from silo_agent.connection.greeting import explain
from silo_agent.connection.own_certificates import OwnCertificates
from silo_agent.connection.status import FirstStatus
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds.data_sets import DataSet, DataSets
from silo_agent.rounds.rosters import Rosters
from tests.support.agents import PATIENCE_SECONDS, make_members
from tests.support.sessions import NOW

MakeStub = Callable[..., Awaitable[Any]]
KEY = PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)


async def found_nothing() -> LineFailed:
    return LineFailed(Trouble.NONE, "the line is well")


class Enough(Exception):
    """Ends a stream that would dial without end."""


class Agent:
    """A control stream and what it serves."""

    def __init__(self, folder: Path, *, waits: int = 0) -> None:
        members, policy = make_members(4), Policy(federation="test")
        self.metrics = SiloMetrics()
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.outbox = Outbox()
        self.audit = AuditLog(folder / "audit.jsonl")
        self.rosters = Rosters(
            credentials=OwnCertificates(members.silos["silo-0"], members.authority),
            ledger=self.ledger,
            data_sets=DataSets([DataSet.of(self.ledger, name="data", policy=policy)], ledger=self.ledger),
            lowest_version=1,
            audit=self.audit,
            clock=lambda: NOW,
        )
        self.preparing = (KEY,)
        self.moved_bytes = 0
        self.received: list[str] = []
        self.polls = 0
        self._waits = waits
        self.check: Callable[[], None] = lambda: None
        self.trusted = members.authority

    def close(self) -> None:
        self.audit.close()
        self.ledger.close()

    def receive(self, message: pb.CoordinatorMessage) -> None:
        self.received.append(message.WhichOneof("kind") or "")

    def poll(self) -> None:
        self.polls += 1

    def stream(
        self, stub: Any, probe: Callable[[], Awaitable[LineFailed]] | None = None, served: Any = None
    ) -> ControlStream:
        return ControlStream(
            stub,
            target="chorale.example:8443",
            probe=probe or found_nothing,
            software=Software(version="1.0", sha256="ab" * 32),
            served=served or self,
            moved_bytes=lambda: self.moved_bytes,
            outbox=self.outbox,
            metrics=self.metrics,
            renewal=Renewal(self),
            clock=lambda: NOW,
            random=lambda: 0.0,
            sleep=self._sleep,
        )

    @property
    def roster_version(self) -> int:
        return self.rosters.version

    async def _sleep(self, seconds: float) -> None:
        if seconds >= 5.0:  # a heartbeat
            await asyncio.Event().wait()
        self._waits -= 1
        if self._waits < 0:
            raise Enough


class Renewal(own_certificates.Renewal):
    """Without files: what the agent of a test says."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def authority(self) -> Anchors:
        self._agent.check()
        return self._agent.trusted

    def accepted(self) -> None:
        pass


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.close()


def welcome(*, version: int = PROTOCOL_VERSION, skew_seconds: float = 0.0) -> pb.CoordinatorMessage:
    signed = make_members(4).roster().signed
    return pb.CoordinatorMessage(
        welcome=pb.Welcome(
            protocol_version=version,
            unix_seconds=NOW.timestamp() + skew_seconds,
            heartbeat_seconds=5.0,
            roster=wire.signed_body_to_wire(signed),
        )
    )


def attend(*messages: pb.CoordinatorMessage, heard: list[Any] | None = None, replies: int = 0) -> Any:
    """A coordinator that says these, hears `replies` messages beyond the hello and hangs up."""

    async def Attend(self: Any, requests: Any, context: Any) -> Any:
        incoming = aiter(requests)
        first = await anext(incoming)
        if heard is not None:
            heard.append(first)
        for message in messages:
            yield message
        for _ in range(replies):
            assert heard is not None
            heard.append(await anext(incoming))

    return Attend


async def test_the_agent_says_hello_takes_the_roster_and_beats(make_stub: MakeStub, agent: Agent) -> None:
    heard: list[pb.SiloMessage] = []
    outcome = pb.CoordinatorMessage(outcome=pb.PhaseOutcome())
    stub = await make_stub(Attend=attend(welcome(), outcome, heard=heard, replies=1))
    with pytest.raises(Enough):
        await agent.stream(stub).run()
    hello, beat = heard[0].hello, heard[1].heartbeat
    assert hello.protocol_version == PROTOCOL_VERSION
    assert (hello.software_version, hello.software_digest) == ("1.0", b"\xab" * 32)
    assert list(beat.preparing) == [key_to_wire(KEY)]
    assert beat.unix_seconds == NOW.timestamp()
    assert agent.received == ["roster", "outcome"]
    assert agent.polls == 1
    assert agent.metrics.registry.get_sample_value("chorale_silo_connected") == 0
    assert agent.metrics.registry.get_sample_value("chorale_silo_reconnects_total") == 1


async def test_the_agent_comes_back_after_the_line_broke(make_stub: MakeStub, tmp_path: Path) -> None:
    heard: list[pb.SiloMessage] = []
    agent = Agent(tmp_path, waits=2)
    stub = await make_stub(Attend=attend(welcome(), heard=heard))
    with pytest.raises(Enough):
        await agent.stream(stub).run()
    assert [message.WhichOneof("kind") for message in heard] == ["hello"] * 3
    agent.close()


@pytest.mark.parametrize("is_removed", [False, True])
async def test_the_line_ends_when_a_certificate_of_the_authority_was_removed(
    make_stub: MakeStub, agent: Agent, is_removed: bool
) -> None:
    """It stayed open to a coordinator whose certificate was one of the removed key."""
    heard: list[Any] = []
    new = new_authority("test", now=NOW, valid_days=9)[1]
    agent.trusted = Anchors((*agent.trusted.certificates, new))

    def remove() -> None:
        """With the first heartbeat; the reading before it was for the dialing."""
        if readings.pop() and is_removed:
            agent.trusted = Anchors((new,))

    readings = [True, False]
    agent.check = remove
    stub = await make_stub(Attend=attend(welcome(), heard=heard, replies=1))
    with pytest.raises(Enough):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await agent.stream(stub).run()
    assert agent.polls == (0 if is_removed else 1)
    assert len(heard) == (1 if is_removed else 2)


async def test_an_agent_that_another_one_excludes_waits_minutes(make_stub: MakeStub, agent: Agent) -> None:
    """Both dialed again at once and displaced each other for ever; neither log said why."""
    hellos, waited = list[bytes](), list[float]()

    async def Attend(self: Any, requests: Any, context: Any) -> Any:
        hellos.append((await anext(aiter(requests))).hello.agent)
        yield welcome()
        if len(hellos) == 1:  # as the other agent hears it
            yield pb.CoordinatorMessage(heartbeat=pb.Heartbeat(unix_seconds=NOW.timestamp(), two_agents=True))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, "two agents use the certificate of silo-0")

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if seconds >= SECOND_AGENT_SECONDS:
            raise Enough
        if seconds >= 5.0:  # a heartbeat, or silence
            await asyncio.Event().wait()

    stream = agent.stream(await make_stub(Attend=Attend))
    stream._sleep = sleep
    with pytest.raises(Enough):
        await stream.run()
    assert len(hellos) == 2
    assert {len(each) for each in {*hellos}} == {16}
    assert agent.metrics.registry.get_sample_value("chorale_silo_two_agents_timestamp_seconds")
    assert SECOND_AGENT_SECONDS <= waited[-1] <= 2 * SECOND_AGENT_SECONDS


async def test_a_version_that_the_coordinator_refuses_ends_the_agent(
    make_stub: MakeStub, agent: Agent
) -> None:
    async def Attend(self: Any, requests: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "protocol version: upgrade")
        yield

    with pytest.raises(RemoteProtocolError, match="coordinator refused: protocol version: upgrade"):
        await agent.stream(await make_stub(Attend=Attend)).run()


LATE = pb.CoordinatorMessage(heartbeat=pb.Heartbeat(unix_seconds=NOW.timestamp() + 1000))


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ([welcome(skew_seconds=301.0)], ConnectionFailed, "differs from the coordinator's by -301 seconds"),
        ([welcome(skew_seconds=-301.0)], ConnectionFailed, r"differs from the coordinator's by \+301 sec"),
        ([welcome(skew_seconds=math.nan)], ConnectionFailed, "clock: "),
        ([welcome(), LATE], ConnectionFailed, "at most 300 are allowed"),  # off during the connection
        ([welcome(version=9)], RemoteProtocolError, f"protocol version {PROTOCOL_VERSION}, got 9"),
    ],
    ids=["behind", "ahead", "no number", "later", "version"],
)
async def test_a_clock_five_minutes_off_or_another_version_ends_the_agent(
    make_stub: MakeStub, agent: Agent, said: list[pb.CoordinatorMessage], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await agent.stream(await make_stub(Attend=attend(*said))).run()
    assert agent.received == ["roster"] * (len(said) - 1)


async def test_a_clock_one_minute_off_is_a_warning(
    make_stub: MakeStub, agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure()
    stub = await make_stub(Attend=attend(welcome(skew_seconds=61.0)))
    with pytest.raises(Enough):
        await agent.stream(stub).run()
    assert agent.metrics.registry.get_sample_value("chorale_silo_clock_skew_seconds") == -61.0
    assert '"skew_seconds": -61' in capsys.readouterr().err


async def test_a_certificate_of_ones_own_that_no_longer_holds_ends_the_agent(
    make_stub: MakeStub, agent: Agent
) -> None:
    def expired() -> None:
        raise ConfigError("own certificate: expired on 2026-11-21")

    agent.check = expired
    with pytest.raises(ConfigError, match="own certificate: expired"):
        await agent.stream(await make_stub(Attend=attend(welcome()))).run()


async def test_a_coordinator_without_a_welcome_is_left(make_stub: MakeStub, agent: Agent) -> None:
    stub = await make_stub(Attend=attend(pb.CoordinatorMessage(heartbeat=pb.Heartbeat())))
    with pytest.raises(Enough):
        await agent.stream(stub).run()
    assert agent.received == []


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
async def test_a_heartbeat_that_is_no_number_is_not_kept(
    make_stub: MakeStub, agent: Agent, seconds: float
) -> None:
    """asyncio.sleep of no number returns at once: the agent would send as fast as it can."""
    heard: list[pb.SiloMessage] = []
    message = welcome()
    message.welcome.heartbeat_seconds = seconds
    stub = await make_stub(Attend=attend(message, heard=heard, replies=1))
    with pytest.raises(Enough):
        await agent.stream(stub).run()
    assert [each.WhichOneof("kind") for each in heard] == ["hello"]
    assert agent.received == []


def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a second, with heartbeats that are too far apart for one to come."""
    heartbeats = 4 * welcome().welcome.heartbeat_seconds
    monkeypatch.setattr("silo_agent.connection.control_stream.SILENCE_SECONDS", 0.1 - heartbeats)


async def silent(self: Any, requests: Any, context: Any) -> Any:
    yield welcome()
    await asyncio.Event().wait()


async def test_a_coordinator_that_falls_silent_is_left(
    make_stub: MakeStub, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_silence(monkeypatch)
    with pytest.raises(Enough):
        await agent.stream(await make_stub(Attend=silent)).run()
    assert agent.received == ["roster"]


async def test_a_coordinator_is_not_left_while_a_transfer_fills_the_line(
    make_stub: MakeStub, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream was broken off in the middle of a download, and the silo was left out for it."""
    short_silence(monkeypatch)
    chunks = iter(range(1, 6))

    class Moving(Agent):
        moved_bytes = property(lambda self: next(chunks, 6), lambda self, value: None)

    agent.__class__ = Moving
    with pytest.raises(Enough):
        await agent.stream(await make_stub(Attend=silent)).run()
    assert next(chunks, None) is None, "left while bytes moved"


async def test_bytes_that_are_no_message_are_left_even_where_the_coordinator_keeps_the_call_open(
    agent: Agent,
) -> None:
    async def Attend(requests: Any, context: Any) -> Any:
        incoming = aiter(requests)
        await anext(incoming)
        yield welcome().SerializeToString()
        await anext(incoming)  # the heartbeat: nothing of the agent's is on its way that could end the call
        yield b"\xff" * 64
        await asyncio.Event().wait()

    handler = grpc.stream_stream_rpc_method_handler(Attend)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("chorale.v1.Federation", {"Attend": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stub = FederationStub(lambda: grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    with pytest.raises(Enough):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await agent.stream(stub).run()
    await server.stop(None)


@pytest.mark.parametrize("broken", ["poll", "receive", "preparing"])
async def test_an_error_beside_the_reader_ends_the_stream_and_the_agent_dials_again(
    make_stub: MakeStub, tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """The task that beats died, and the silo stayed connected without a heartbeat."""
    agent, calls = Agent(tmp_path, waits=1), 0

    class Broken:
        roster_version = 0
        preparing: tuple[PhaseKey, ...] = ()

        def receive(self, message: pb.CoordinatorMessage) -> None: ...
        def poll(self) -> None: ...

    def fail(*_: Any) -> Any:
        raise OSError("database or disk is full")

    setattr(Broken, broken, property(fail) if broken == "preparing" else fail)

    async def Attend(self: Any, requests: Any, context: Any) -> Any:
        nonlocal calls
        calls += 1
        yield welcome()
        await asyncio.Event().wait()  # this side never ends it

    stream = agent.stream(await make_stub(Attend=Attend), served=Broken())
    with pytest.raises(Enough):
        await stream.run()
    assert calls == 2
    assert not stream.is_connected
    assert [record.levelname for record in caplog.records].count("ERROR") == calls
    agent.close()


async def test_the_outbox_drops_the_oldest_while_the_line_is_down() -> None:
    outbox = Outbox()
    for number in range(MAX_QUEUED_MESSAGES + 2):
        outbox.send(pb.SiloMessage(heartbeat=pb.Heartbeat(unix_seconds=number)))
    assert (await outbox.next()).heartbeat.unix_seconds == 2


@pytest.mark.parametrize(
    ("code", "details", "sentence"),
    [
        ("PERMISSION_DENIED", "roster: version 3", "coordinator refused this silo: roster: version 3"),
        ("ABORTED", "replaced by a newer connection", "ended the stream: aborted replaced by"),
        ("INTERNAL", None, "coordinator ended the stream: internal"),
    ],
)
def test_every_end_of_a_stream_is_one_clear_sentence(code: str, details: str | None, sentence: str) -> None:
    assert sentence in explain(grpc.StatusCode[code], details)


async def test_a_connection_that_fails_is_counted_by_what_the_probe_found(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """One that ends after the welcome is not counted: its certificates had been accepted."""

    async def distrust() -> LineFailed:
        return LineFailed(Trouble.OTHER_AUTHORITY, "another authority signed it")

    stub = FederationStub(lambda: grpc.aio.insecure_channel("127.0.0.1:1"))  # nothing listens on port 1
    stream = agent.stream(stub, probe=distrust)
    with pytest.raises(Enough):
        await stream.run()
    assert failures(agent) == {Trouble.OTHER_AUTHORITY: 1.0}
    assert reasons(caplog) == ["another authority signed it"]


async def test_a_line_that_breaks_after_the_welcome_is_not_blamed_on_the_certificate(
    make_stub: MakeStub, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    async def Attend(self: Any, requests: Any, context: Any) -> Any:
        incoming = aiter(requests)
        await anext(incoming)
        yield welcome()
        await anext(incoming)  # the heartbeat: nothing of the agent's is on its way that could end the call
        await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    with pytest.raises(Enough):
        await agent.stream(await make_stub(Attend=Attend)).run()
    assert failures(agent) == {}
    message = "the line to the coordinator at chorale.example:8443 was cut, or the coordinator is restarting"
    assert reasons(caplog) == [message]


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why the agent was not connected, each time."""
    return [vars(each)["fields"]["reason"] for each in caplog.records if each.msg == "not connected"]


def failures(agent: Agent) -> dict[Trouble, float]:
    """Those that were counted."""
    name = "chorale_silo_connection_failures_total"
    counted = {each: agent.metrics.registry.get_sample_value(name, {"reason": each}) for each in Trouble}
    return {each: count for each, count in counted.items() if count}


def waits(*, jitter: float, tries: int) -> list[float]:
    """What an agent waits after each failed try, always with the same draw."""
    backoff = Backoff(random=lambda: jitter)
    return [backoff.next_seconds() for _ in range(tries)]


def test_an_agent_is_back_within_half_a_minute_of_the_coordinator() -> None:
    """Outages of 74 s were measured: the longest wait was 30 s, and what followed it took as long again."""
    longest = waits(jitter=1.0, tries=20)
    assert longest[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert max(longest) == MAX_WAIT_SECONDS
    # the worst: an attempt that began just before the coordinator was there again, and the wait after it,
    # during which the probe looks for a reason
    assert CONNECT_SECONDS + max(MAX_WAIT_SECONDS, PROBE_SECONDS) < 30.0
    # the median of a uniform draw
    assert max(waits(jitter=0.5, tries=20)) < 10.0


def test_silos_that_lost_their_coordinator_together_do_not_return_together() -> None:
    """Each wait is drawn from nine tenths of its step."""
    for early, late in zip(waits(jitter=0.0, tries=8), waits(jitter=1.0, tries=8), strict=True):
        assert early == pytest.approx(late / 10)


async def test_refusal_is_told_whatever_grpc_makes_of_a_message_that_came_too_late(
    make_stub: MakeStub,
) -> None:
    async def refuse(self: object, messages: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "roster: version 2 does not list it")

    call = (await make_stub(Attend=refuse)).Attend()
    status = FirstStatus(call)
    assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    call._cython_call.set_internal_error("Failed execute_batch")  # what a write does that finds no stream
    assert await call.code() is grpc.StatusCode.INTERNAL
    assert await status.get() == (
        grpc.StatusCode.PERMISSION_DENIED,
        "roster: version 2 does not list it",
    )
