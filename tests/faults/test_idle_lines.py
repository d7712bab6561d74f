"""A NAT or proxy that cuts idle lines: keepalive shorter than its patience holds the line, a longer one
loses it, and the silo comes back. No heartbeat helps: they are minutes apart here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from chorale.transport.channel_options import (
    KEEPALIVE_SECONDS,
    MAX_HEARTBEAT_SECONDS,
    MAX_KEEPALIVE_SECONDS,
    MIN_KEEPALIVE_SECONDS,
)
from tests.faults.conftest import MakeFederation
from tests.support.federation import LocalFederation
from tests.support.processes import wait_until
from tests.support.proxy import IdleCuttingProxy

NAT_SECONDS = 60.0  # the tightest ones in use
HELD, CUT = "silo-0", "silo-1"
CUTS = 2  # of one line, while the other must hold
LOST = "the line to the coordinator"
NEVER = MAX_KEEPALIVE_SECONDS
FAR_APART = {"heartbeat_seconds": MAX_HEARTBEAT_SECONDS}

soak = pytest.mark.soak  # minutes
patience_and_keepalive = pytest.mark.parametrize(
    "idle_seconds, keepalive_seconds",
    [
        pytest.param(3.0, MIN_KEEPALIVE_SECONDS, id="3 s"),
        pytest.param(NAT_SECONDS, KEEPALIVE_SECONDS, id="60 s", marks=soak),
    ],
)


@contextmanager
def lines(federation: LocalFederation, *, idle_seconds: float) -> Iterator[dict[str, IdleCuttingProxy]]:
    """The coordinator runs, and each silo reaches it through a NAT of its own."""
    federation.start_coordinator()
    port = int(federation.endpoint["grpc"].rpartition(":")[2])
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(IdleCuttingProxy("127.0.0.1", port, idle_seconds=idle_seconds))
            for name in (HELD, CUT)
        }


def connect(federation: LocalFederation, name: str, line: IdleCuttingProxy, *, keepalive: float) -> None:
    federation.silo = {"keepalive_seconds": keepalive}
    federation.start_silo(name, address=f"127.0.0.1:{line.port}")
    federation.services[name].wait_for(lambda record: record["event"] == "connected")


def losses(federation: LocalFederation, name: str) -> list[str]:
    """Why the silo lost its line, each time."""
    records = federation.services[name].records()
    return [record["reason"] for record in records if record["event"] == "not connected"]


def has_come_back(federation: LocalFederation, name: str) -> bool:
    events = [record["event"] for record in federation.services[name].records()]
    return events.count("not connected") >= CUTS and events.count("connected") > CUTS


@patience_and_keepalive
def test_a_silo_that_pings_holds_an_idle_line_and_one_that_does_not_comes_back(
    make_federation: MakeFederation, idle_seconds: float, keepalive_seconds: float
) -> None:
    """At 1 s, the lowest setting, the coordinator must accept every ping, else it closes the connection."""
    federation = make_federation(silos=2, coordinator={**FAR_APART, "keepalive_seconds": NEVER})
    with lines(federation, idle_seconds=idle_seconds) as line:
        connect(federation, HELD, line[HELD], keepalive=keepalive_seconds)
        connect(federation, CUT, line[CUT], keepalive=NEVER)
        wait_until(
            lambda: has_come_back(federation, CUT),
            "a silo whose idle line is cut to come back",
            seconds=CUTS * idle_seconds + 60.0,
            detail=federation.services[CUT].tail,
        )

        assert all(reason.startswith(LOST) for reason in losses(federation, CUT))
        assert (line[HELD].cuts, losses(federation, HELD)) == (0, [])


@patience_and_keepalive
def test_a_coordinator_that_pings_holds_the_idle_line_of_a_silo_that_does_not(
    make_federation: MakeFederation, idle_seconds: float, keepalive_seconds: float
) -> None:
    federation = make_federation(silos=2, coordinator={**FAR_APART, "keepalive_seconds": keepalive_seconds})
    with lines(federation, idle_seconds=idle_seconds) as line:
        connect(federation, HELD, line[HELD], keepalive=NEVER)
        for _ in range(CUTS):  # who never says a word is cut as always
            with socket.create_connection(("127.0.0.1", line[CUT].port)) as silent:
                silent.settimeout(idle_seconds + 60.0)
                assert silent.recv(1) == b""

        assert line[CUT].cuts == CUTS
        assert (line[HELD].cuts, losses(federation, HELD)) == (0, [])
