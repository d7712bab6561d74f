"""The silo's end of the line: whom it takes for the coordinator, and what it says when it cannot continue.

Real agents, in this process before a coordinator that a test made, or as processes.
"""

from __future__ import annotations

import base64
import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from chorale.transport.line_probe import Trouble
from chorale.transport.tls import IdentityFiles
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ConfigError
from crypto.identity.certificates import Role
from crypto.session.reveal import PendingReveal
from silo_agent.connection.control_stream import ConnectionFailed
from tests.support.ceremony import Ceremony
from tests.support.certificates import CLIENT, SERVER, odd_certificate
from tests.support.federation import LocalFederation
from tests.support.one_hot import GATE
from tests.support.rogue import Rogue, files

HERE = "127.0.0.1"
SILO = "silo-0"
NOT_ITS = "is not the coordinator's: "
GRPC_REFUSED_A_WRITE = "coordinator ended the stream: internal Internal error from Core"

# impostors


def _silo(rogue: Rogue) -> IdentityFiles:
    """As `authority sign` makes it: for clients, without a host."""
    return files(rogue.ceremony, Role.SILO, "silo-1")


def _silo_with_this_host(rogue: Rogue) -> IdentityFiles:
    return _odd(rogue, role=Role.SILO, usage=CLIENT, hosts=[HERE])


def _coordinator_for_clients_alone(rogue: Rogue) -> IdentityFiles:
    return _odd(rogue, role=Role.COORDINATOR, usage=CLIENT, hosts=[HERE])


def _coordinator_of_another_host(rogue: Rogue) -> IdentityFiles:
    return _odd(rogue, role=Role.COORDINATOR, usage=SERVER, hosts=["192.0.2.1"])


def _expired_coordinator(rogue: Rogue) -> IdentityFiles:
    ended = rogue.now - timedelta(minutes=1)
    return _odd(rogue, role=Role.COORDINATOR, usage=SERVER, hosts=[HERE], until=ended)


def _coordinator_of_tomorrow(rogue: Rogue) -> IdentityFiles:
    ends = rogue.now + timedelta(days=3)  # and begins two days before
    return _odd(rogue, role=Role.COORDINATOR, usage=SERVER, hosts=[HERE], until=ends)


def _coordinator_of_another_authority(rogue: Rogue) -> IdentityFiles:
    other = Ceremony(folder=rogue.folder / "other")
    other.enroll(Role.COORDINATOR, "hub")
    return files(other, Role.COORDINATOR, "hub")


def _odd(rogue: Rogue, *, role: Role, until: datetime | None = None, **fields) -> IdentityFiles:
    until = until or rogue.now + timedelta(days=1)
    rogue.ceremony.adopt(*odd_certificate(rogue.ceremony, "odd", role=role, until=until, **fields))
    return files(rogue.ceremony, role, "odd")


async def test_silo_takes_a_certificate_for_servers_and_this_host(tmp_path: Path) -> None:
    """The control of what follows: made by the same hands, and right."""
    rogue = Rogue(tmp_path)
    rogue.own_files = _odd(rogue, role=Role.COORDINATOR, usage=SERVER, hosts=[HERE])
    async with rogue:
        await rogue.start([SILO])
        assert len(rogue.agents[SILO].hellos) == 1


@pytest.mark.parametrize(
    "impostor, expected, trouble",
    [
        (_silo, f"{NOT_ITS}it is not one for servers", Trouble.OTHER_HOST),
        (_silo_with_this_host, f"{NOT_ITS}it is not one for servers", Trouble.OTHER_HOST),
        (_coordinator_for_clients_alone, f"{NOT_ITS}it is not one for servers", Trouble.OTHER_HOST),
        (_coordinator_of_another_host, f"{NOT_ITS}it is for another host than {HERE}", Trouble.OTHER_HOST),
        (_expired_coordinator, "has expired", Trouble.EXPIRED),
        (_coordinator_of_tomorrow, "is not valid yet, by the clock here", Trouble.NOT_YET_VALID),
        (_coordinator_of_another_authority, f"{NOT_ITS}another authority signed it", Trouble.OTHER_AUTHORITY),
    ],
)
async def test_silo_says_nothing_to_an_impostor(
    tmp_path: Path, impostor: Callable[[Rogue], IdentityFiles], expected: str, trouble: Trouble
) -> None:
    rogue = Rogue(tmp_path)
    rogue.own_files = impostor(rogue)
    async with rogue:
        line = rogue.agents[SILO]
        line.dial()
        assert await line.gives_up_for_now() == f"the certificate of {line.settings.coordinator} {expected}"
        assert trouble.is_distrust
        assert (line.hellos, line.received) == ([], [])


# what ends an agent, and what does not


async def test_agent_ends_when_a_heartbeat_shows_that_its_clock_is_wrong(tmp_path: Path) -> None:
    async with Rogue(tmp_path) as rogue:
        await rogue.start([SILO])
        line = rogue.agents[SILO]
        for seconds in (0, 250, -250):
            line.tell(heartbeat=pb.Heartbeat(unix_seconds=datetime.now(UTC).timestamp() + seconds))
        await line.is_quiet()
        assert line.last_logged("clock differs from the coordinator's")["skew_seconds"] == 250
        line.tell(heartbeat=pb.Heartbeat(unix_seconds=datetime.now(UTC).timestamp() + 400))
        expected = "clock: this one differs from the coordinator's by -400 seconds, at most 300 are allowed"
        with pytest.raises(ConnectionFailed, match=expected):
            await line.ended()


async def test_agent_of_another_authority_does_not_dial(tmp_path: Path) -> None:
    other = Ceremony(folder=tmp_path / "other")
    async with Rogue(tmp_path / "own") as rogue:
        line = rogue.agents[SILO]
        line.dial(authority=other.certificate_path)
        with pytest.raises(
            ConfigError, match="own certificate: it was not issued by this federation's authority"
        ):
            await line.ended()
        assert line.hellos == []


async def test_agent_waits_for_a_coordinator_that_is_not_there(tmp_path: Path) -> None:
    async with Rogue(tmp_path) as rogue:
        line = rogue.agents[SILO]
        line.dial(coordinator="127.0.0.1:1")  # nothing listens on port 1
        assert await line.gives_up_for_now() == "coordinator is unreachable at 127.0.0.1:1"
        await line.stop()
        await line.start()


def test_agent_whose_certificate_expires_while_it_serves_ends_with_one_line(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, coordinator={"heartbeat_seconds": 0.2}) as federation:
        federation.start_coordinator()
        expires = (datetime.now(UTC) + timedelta(seconds=6)).replace(microsecond=0)
        federation.ceremony.adopt(*odd_certificate(federation.ceremony, SILO, until=expires))
        federation.ceremony.publish()
        service = federation.start_silo(SILO)
        service.wait_for(lambda record: record["event"] == "connected")
        assert service.process.wait(30) == 2
        refused = [record["reason"] for record in service.records() if record["event"] == "not connected"]
        ended = f"certificate: certificate expired at {expires.isoformat()}"
        # a silo that writes while it is refused reads no more of the reason than gRPC's own word
        (told_why,) = refused
        assert told_why in (f"coordinator refused this silo: {ended}", GRPC_REFUSED_A_WRITE)
        last = service.log.read_text().splitlines()[-1]
        expected = f"{SILO}.crt: own certificate: expired on {expires:%Y-%m-%d %H:%M} UTC"
        assert last.startswith("chorale: error: ")
        assert last.endswith(expected)


# a federation of processes


def test_job_goes_on_without_the_silo_that_a_new_roster_strikes(tmp_path: Path) -> None:
    """Revoked while it trains; and no log, audit trail or other file of text holds a secret after it."""
    gate = tmp_path / "gate"
    gate.touch()
    hub = {"heartbeat_seconds": 0.2, "reconnect_grace_seconds": 0.5}
    with LocalFederation(folder=tmp_path, coordinator=hub, env={GATE: str(gate)}) as federation:
        federation.start()
        federation.wait_connected()  # half a second of grace leaves a slow starter out of the enrollment
        job_id = federation.submit(rounds=2)
        for name in federation.names:
            federation.services[name].wait_for(lambda record: record.get("phase") == "enrollment.0")
        federation.hub.wait_for(lambda record: record.get("round") == 1 and record["event"] == "stage")
        federation.ceremony.publish(without=("silo-3",))
        struck = (
            "coordinator refused this silo: roster: version 2 does not list this certificate of silo silo-3"
        )
        # a silo that writes while it is refused reads the reason when it dials again
        federation.services["silo-3"].wait_for(
            lambda record: record["event"] == "not connected" and record["reason"] == struck
        )
        gate.unlink()
        assert federation.finish()["status"] == "done"
        votes = federation.fetch(job_id)["model/votes"]
        np.testing.assert_allclose(votes, [2 / 3, 2 / 3, 2 / 3, 0], atol=1e-6)
        assert federation.services["silo-3"].is_running
        _check_no_secret_is_written(federation)


def _check_no_secret_is_written(federation: LocalFederation) -> None:
    texts = {path: path.read_text() for path in _texts(federation.folder)}
    assert len(texts) >= 10, "a log and an audit trail of each of five"
    kept = {name: _pending(federation.folder / name / "ledger.sqlite") for name in federation.names}
    signed = {name: pending for name, pending in kept.items() if pending}
    assert len(signed) >= 3, "three signatures end a stage, and the struck silo's may have come too late"
    for name, pending in signed.items():
        # the search finds what is meant to be told
        assert _finds(texts, pending[-1].cohort_digest)
        for secret in _secrets(pending):
            assert not _finds(texts, secret), f"a share or seed of {name} in {_finds(texts, secret)}"
    for path in federation.ceremony.folder.glob("*.key"):
        for line in path.read_text().splitlines()[1:-1]:
            assert not [found for found, text in texts.items() if line in text], f"{path.name} in a log"


def _texts(folder: Path) -> list[Path]:
    return [*folder.glob("*.log"), *folder.glob("*/audit.jsonl")]


def _pending(ledger: Path) -> list[PendingReveal]:
    with closing(sqlite3.connect(ledger)) as database:
        rows = database.execute("SELECT answer FROM reveals WHERE answer IS NOT NULL").fetchall()
    return [PendingReveal.from_bytes(answer) for (answer,) in rows]


def _secrets(pending: list[PendingReveal]) -> Iterator[bytes]:
    for each in pending:
        for named in (*dataclasses.astuple(each.answer), each.pair_seeds):
            yield from named.values()


def _finds(texts: dict[Path, str], secret: bytes) -> list[Path]:
    """Where it stands as hex, base64 or a Python literal."""
    forms = secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1]
    return [path for path, text in texts.items() if any(form in text for form in forms)]
