"""Lines that are long, thin or broken: connected at the first attempt, and never taken for distrust.

Real agents and operators over real TLS, through relays that hold up, slow down or break the handshake too.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chorale.transport import channel_options
from chorale.transport.line_probe import LineFailed, Trouble, probe
from client.errors import UNTRUSTED_HINT
from client.operations import connect
from client.settings import OperatorSettings
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import Role
from silo_agent import agent
from silo_agent.connection import control_stream
from silo_agent.connection.backoff import Backoff
from tests.support.ceremony import Ceremony
from tests.support.federation import OPERATOR, LocalFederation
from tests.support.history import check_finished
from tests.support.proxy import Break, BreakingProxy, DistantProxy
from tests.support.rogue import Rogue, files

HERE = "127.0.0.1"
SILO = "silo-0"
FAR_SECONDS = 1.6  # there and back: each byte is 800 ms on its way
MEGABYTE_PER_SECOND = 1e6
STALL_SECONDS = 3.0
LINES: list[dict[str, Any]] = [
    {"round_trip_seconds": 0.0},
    {"round_trip_seconds": 0.2},
    {"round_trip_seconds": FAR_SECONDS},
    {"round_trip_seconds": FAR_SECONDS, "bytes_per_second": MEGABYTE_PER_SECOND},
    {
        "round_trip_seconds": FAR_SECONDS,
        "bytes_per_second": MEGABYTE_PER_SECOND,
        "stall_seconds": STALL_SECONDS,
    },
]


@pytest.mark.gate  # ten seconds
async def test_agents_connect_over_every_line_at_their_first_attempt(tmp_path: Path) -> None:
    """An attempt had 200 ms for its handshake: at 100 ms it took two, at 800 ms none ever ended well."""
    async with Rogue(tmp_path, silos=len(LINES)) as rogue:
        with ExitStack() as stack:
            relays = [stack.enter_context(DistantProxy(HERE, rogue.port, **line)) for line in LINES]
            dialing = [rogue.agents[name] for name in rogue.names]
            for each, relay in zip(dialing, relays, strict=True):
                each.dial(coordinator=f"{HERE}:{relay.port}")
            await asyncio.gather(*(each.connected() for each in dialing))
            assert [(each.failures, relay.accepted) for each, relay in zip(dialing, relays, strict=True)] == [
                (0, 1)
            ] * len(LINES)
            for each in dialing:
                await each.stop()


async def test_agent_comes_back_over_a_long_line_after_a_restart(tmp_path: Path) -> None:
    """The time that an attempt has is not how long the agent waits for the next."""
    async with Rogue(tmp_path) as rogue:
        with DistantProxy(HERE, rogue.port, round_trip_seconds=0.1) as far:
            line = rogue.agents[SILO]
            line.dial(coordinator=f"{HERE}:{far.port}")
            await line.connected()
            await rogue.hang_up()
            await line.gives_up_for_now(times=2)  # the stream that ended, and a call that fails
            await rogue.listen()
            await line.connected()
            assert len(line.hellos) == 2
            await line.stop()


# nothing of it says that a certificate was refused by the agent
BROKEN = re.compile(
    r"the line to the coordinator at \S+ was cut( during the handshake|, or the coordinator is restarting)"
    r"|coordinator at \S+ refused this certificate or is restarting"
    r"|the coordinator at \S+ was not ready a moment ago, and is now"
    r"|coordinator is unreachable at \S+"  # a reset that comes with the end of TCP's own handshake
)
# how far a handshake gets: not begun, in the server's first record, in its certificate, all but the settings
HANDSHAKE_BYTES = (0, 1, 5, 100, 600, 1000, 1500)


async def test_no_broken_handshake_is_taken_for_distrust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each restart of the coordinator, silos logged "another authority signed it": gRPC's words for a
    handshake that failed were read as a certificate that was refused."""
    monkeypatch.setattr(control_stream, "Backoff", partial(Backoff, max_seconds=0.1))
    breaks = [(left, how) for left in HANDSHAKE_BYTES for how in (Break.CLOSED, Break.RESET) for _ in "ab"]
    async with Rogue(tmp_path) as rogue:
        with BreakingProxy(HERE, rogue.port, breaks=breaks) as relay:
            line = rogue.agents[SILO]
            line.dial(coordinator=f"{HERE}:{relay.port}")
            await line.connected()
            reasons = [record["reason"] for record in line.log if record["event"] == "not connected"]
            assert relay.breaks == []
            assert len(reasons) >= len(breaks) / 2, "an attempt and a probe each"
            assert [reason for reason in reasons if not BROKEN.fullmatch(reason)] == []
            await line.stop()


async def test_an_operator_connects_over_a_long_line_and_is_told_what_was_refused(tmp_path: Path) -> None:
    other = Ceremony(folder=tmp_path / "other")
    other.enroll(Role.COORDINATOR, "hub")
    async with Rogue(tmp_path / "own") as rogue:
        operator = OperatorSettings(
            federation=rogue.ceremony.federation,
            coordinator=f"{HERE}:{rogue.port}",
            identity=files(rogue.ceremony, Role.OPERATOR, OPERATOR),
            authority=rogue.ceremony.certificate_path,
        )
        with DistantProxy(HERE, rogue.port, round_trip_seconds=0.4) as far:
            away = operator.model_copy(update={"coordinator": f"{HERE}:{far.port}"})
            with pytest.raises(RemoteProtocolError, match="^coordinator refused: "):  # the rogue has no jobs
                await asyncio.to_thread(list_jobs, away)
            assert far.accepted == 1
        await rogue.hang_up()
        rogue.own_files = files(other, Role.COORDINATOR, "hub")
        await rogue.listen()
        with pytest.raises(LineFailed) as refused:
            await asyncio.to_thread(list_jobs, operator)
    expected = (
        f"the certificate of {operator.coordinator} is not the coordinator's: another authority signed it"
    )
    assert str(refused.value) == expected
    assert refused.value.__notes__ == [UNTRUSTED_HINT]


def list_jobs(settings: OperatorSettings) -> None:
    with connect(settings) as (operations, _):
        operations.jobs()


async def test_an_address_that_drops_every_packet_is_not_taken_for_distrust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a pod that is gone: "tcp handshaker shutdown" are gRPC's words for it, and a handshaker was
    taken for one of TLS that had read a certificate."""
    monkeypatch.setattr(channel_options, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(agent, "probe", partial(probe, seconds=0.5))
    async with Rogue(tmp_path) as rogue:
        with full_queue() as address:
            line = rogue.agents[SILO]
            line.dial(coordinator=address)
            expected = f"the coordinator at {address} did not answer within 0.5 seconds"
            assert await line.gives_up_for_now() == expected
            await line.stop()


@contextmanager
def full_queue() -> Iterator[str]:
    """The address of a server that accepts nothing: once its queue is full, the kernel drops what comes."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind((HERE, 0))
        server.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"{HERE}:{server.getsockname()[1]}"


@pytest.mark.parametrize("left", [0, 600])
async def test_a_handshake_that_stands_still_is_told_as_no_answer(tmp_path: Path, left: int) -> None:
    async with Rogue(tmp_path) as rogue:
        with BreakingProxy(HERE, rogue.port, breaks=[(left, Break.SILENT)]) as relay:
            settings = rogue.agents[SILO].settings.model_copy(update={"coordinator": f"{HERE}:{relay.port}"})
            failed = await probe(settings.route(), seconds=0.5)
    assert failed.trouble is Trouble.NO_ANSWER
    assert str(failed) == f"the coordinator at {settings.coordinator} did not answer within 0.5 seconds"


async def test_a_server_without_tls_is_not_taken_for_distrust(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with Rogue(tmp_path) as rogue, await asyncio.start_server(answer, HERE, 0) as server:
        address = f"{HERE}:{server.sockets[0].getsockname()[1]}"
        failed = await probe(rogue.agents[SILO].settings.model_copy(update={"coordinator": address}).route())
    assert (failed.trouble, str(failed)) == (
        Trouble.NO_TLS,
        f"{address} does not speak TLS 1.3 as a coordinator does",
    )


@pytest.mark.soak  # a minute
def test_a_round_ends_over_lines_that_are_800_ms_long(tmp_path: Path) -> None:
    """Nobody is cut off, and nothing is tried twice, though every answer takes 1.6 s."""
    with LocalFederation(folder=tmp_path, silos=3) as federation, ExitStack() as stack:
        federation.start_coordinator()
        port = int(federation.endpoint["grpc"].rpartition(":")[2])
        line = {"round_trip_seconds": FAR_SECONDS, "bytes_per_second": MEGABYTE_PER_SECOND}
        relays = [stack.enter_context(DistantProxy(HERE, port, **line)) for _ in federation.names]
        for name, relay in zip(federation.names, relays, strict=True):
            federation.start_silo(name, address=f"{HERE}:{relay.port}")
        federation.wait_connected()
        job_id = federation.submit(values=400_000, rounds=1)
        history = check_finished(federation, job_id, rounds=1)

        assert history.cohorts() == [federation.names]
        assert history.record(1).attempts == 1
        assert [relay.accepted for relay in relays] == [1, 1, 1]
        for name in federation.names:
            events = [record["event"] for record in federation.services[name].records()]
            assert not {"not connected", "upload interrupted", "download interrupted"} & set(events)
