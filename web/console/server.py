"""The console's process: reads its settings, asks the coordinator, serves browsers."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import partial

from chorale.observability import logs
from chorale.observability.logs import get_logger
from chorale.transport import tls
from web.console.settings import ConsoleSettings

IDLE_SECONDS = 30 * 60.0  # a session that rests so long ends
# a provider is asked at the login alone: whose account it closes can read here until then
LONGEST_SECONDS = 4 * 3600.0

log = get_logger("web.console.server")


def run(settings: ConsoleSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises ChoraleError for files and addresses that cannot be used."""
    tls.restrict_to_tls13()
    logs.configure()
    asyncio.run(serve(settings))


async def serve(settings: ConsoleSettings) -> None:
    """Serve until SIGTERM or SIGINT; grpc is imported here, after `run` restricted it to TLS 1.3."""
    from web.console.app import Console, application
    from web.console.coordinator import connected
    from web.console.logins import CertificateLogins
    from web.console.under_way import LoginsUnderWay
    from web.shared.serving import bound_socket, serve_app, tls_context
    from web.shared.sessions import Sessions

    certificates = None
    if settings.roster is not None:
        certificates = CertificateLogins(
            federation=settings.federation,
            authority=settings.authority,
            roster=settings.roster,
            clock=partial(datetime.now, UTC),
        )
    provider = None
    if settings.oidc is not None:
        from web.console.oidc import Provider  # Authlib and its HTTP client

        provider = Provider(settings.oidc, url=settings.url)
    context = tls_context(settings.tls, clients=None if certificates is None else certificates.trusted_pem)
    listening = bound_socket(settings.listen)
    async with connected(settings, clock=time.monotonic) as coordinator:
        console = Console(
            settings=settings,
            coordinator=coordinator,
            certificates=certificates,
            provider=provider,
            sessions=Sessions(
                clock=time.monotonic,
                idle_seconds=IDLE_SECONDS,
                longest_seconds=LONGEST_SECONDS,
                cookie="__Host-chorale",
            ),
            under_way=LoginsUnderWay(clock=time.monotonic),
            stopping=asyncio.Event(),
        )
        await coordinator.try_once()
        operator = coordinator.own_name
        await serve_app(
            application(console),
            listening,
            tls=context,
            stopping=console.stopping,
            say=lambda: log.info(
                "console serves", url=settings.url, listen=settings.listen, operator=operator
            ),
        )
