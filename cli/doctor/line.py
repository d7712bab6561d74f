"""The way to the coordinator, and what the coordinator says of this party once it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from chorale.runtime.software import own_software
from chorale.spec.line_settings import LineSettings
from chorale.transport.line_probe import Trouble, probe
from chorale.transport.route import Route
from chorale.transport.wire import MAX_ROSTER_BYTES, signed_body_from_wire
from cli.doctor.credentials import CLOCK
from cli.doctor.findings import Findings
from cli.doctor.rosters import check_roster
from cli.errors import CommandFailed, failure_of
from client.operations import connect
from client.settings import OperatorSettings
from crypto.errors import ChoraleError
from crypto.identity.certificates import Anchors, Identity
from silo_agent.settings import SiloSettings

if TYPE_CHECKING:
    from chorale.v1 import federation_pb2 as pb

FIXES = {
    Trouble.UNKNOWN_HOST: "correct the host name in coordinator or proxy, or ask this network's name service",
    Trouble.UNREACHABLE: "see that the coordinator runs, correct coordinator, or let outgoing TCP to it "
    "through the firewall",
    Trouble.NO_ANSWER: "let outgoing TCP to {coordinator} through the firewall, or set proxy",
    Trouble.CUT: "have TLS inspection switched off for {coordinator}: nothing between may end the handshake",
    Trouble.NO_TLS: "correct coordinator: something else answers at {coordinator}",
    Trouble.OTHER_AUTHORITY: "compare {authority} with the authority's own copy; if they are the same, "
    "something between here and {coordinator} answers in its place",
    Trouble.OTHER_HOST: "set coordinator_name to the host name in the coordinator's certificate",
    Trouble.EXPIRED: "ask the coordinator's administrator to renew its certificate",
    Trouble.NOT_YET_VALID: CLOCK,
    Trouble.REFUSED: "ask the authority to list this certificate: chorale authority roster CERT, with "
    "--readmit NAME if it was revoked",
    Trouble.PROXY: "correct proxy, and have the proxy allow CONNECT to {coordinator}",
    Trouble.PROXY_LOGIN: "correct the login in the file of proxy_credentials",
}


def reaches(settings: LineSettings, *, say: Callable[[str], None], findings: Findings) -> bool:
    """Whether a coordinator answers that this party trusts, by the way that the settings name."""
    route: Route | None = None
    login = settings.proxy_credentials
    fix = f"write username:password on one line into {login}, and run chmod 600 {login}"
    with findings.step("proxy", fix=fix):
        route = settings.route()
    if route is None:
        return False
    by = "" if route.proxy is None else f" through proxy {route.proxy.address}"
    say(f"dialing the coordinator at {route.coordinator}{by}")
    failed = asyncio.run(probe(route))
    if failed.trouble is not Trouble.NONE:
        fix = FIXES[failed.trouble].format(coordinator=route.coordinator, authority=route.authority)
        findings.problem("line", str(failed), fix=fix)
        return False
    findings.fine("line", f"the coordinator at {route.coordinator} answers{by}")
    return True


def ask_as_silo(
    settings: SiloSettings,
    identity: Identity,
    authority: Anchors,
    *,
    now: datetime,
    max_age: timedelta,
    findings: Findings,
) -> None:
    """Says hello as the agent would, and leaves: what the welcome says of clock, roster and software."""
    from silo_agent.connection.control_stream import MAX_SKEW_SECONDS, WARNED_SKEW_SECONDS

    try:
        welcome = asyncio.run(_welcome(settings, identity, authority))
    except ChoraleError as error:
        fix = "install the release of Chorale that the coordinator expects"
        findings.problem("software", str(error), fix=fix)
        return
    if isinstance(welcome, str):
        findings.problem("roster", welcome, fix=FIXES[Trouble.REFUSED])
        return
    skew_seconds = now.timestamp() - welcome.unix_seconds
    difference = f"differs from the coordinator's by {skew_seconds:+.0f} seconds"
    if not abs(skew_seconds) <= MAX_SKEW_SECONDS:
        findings.problem("clock", f"{difference}, at most {MAX_SKEW_SECONDS:g} are allowed", fix=CLOCK)
        return
    if abs(skew_seconds) > WARNED_SKEW_SECONDS:
        findings.warn("clock", difference, fix=CLOCK)
    signed = signed_body_from_wire(welcome.roster, max_bytes=MAX_ROSTER_BYTES)
    check_roster(signed, identity.certificate, authority, now=now, max_age=max_age, findings=findings)


async def _welcome(settings: SiloSettings, identity: Identity, authority: Anchors) -> pb.Welcome | str:
    """Raises ChoraleError where the two sides can never work together."""
    from silo_agent.connection.channel import FederationStub, dial
    from silo_agent.connection.greeting import greet

    stub = FederationStub(lambda: dial(settings, identity, authority))
    stub.open()
    try:
        call = stub.Attend()
        found = await greet(call, target=settings.coordinator, software=own_software(), roster_version=0)
        call.cancel()
    finally:
        await stub.close()
    return found or "the line was cut, or the coordinator is restarting"


def ask_as_operator(settings: OperatorSettings, findings: Findings) -> None:
    """What the coordinator says of this operator: whether the roster lists it, and which silos are there."""
    with findings.step("roster", fix=FIXES[Trouble.REFUSED]), connect(settings) as (operations, _):
        try:
            reply = operations.silos()
        except Exception as error:  # grpc.RpcError, whose module may not be imported before connect
            raise CommandFailed(failure_of(error).message) from None
        here = sum(silo.connected for silo in reply.silos)
        silos = f"{here} of {len(reply.silos)} silos connected"
        for silo in reply.silos:
            if silo.two_agents:
                fix = "call its institution: one of them has to stop, or its certificate to be revoked"
                findings.warn("silos", f"two agents use the certificate of {silo.name}", fix=fix)
        findings.fine("roster", f"version {reply.roster_version} lists this operator, {silos}")
