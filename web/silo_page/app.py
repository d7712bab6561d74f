"""One institution's page on its own machine: read what was asked and sent, approve and reject.

The address that is printed once holds a token that logs one browser in. Nothing leaves the machine but what
`chorale silo approve` and `silo reject` let out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from chorale.observability.logs import get_logger
from chorale.spec.fields import checked_address
from chorale.transport.route import split_address
from chorale.transport.wire import MAX_REJECTION_CHARACTERS
from crypto.errors import ChoraleError, ConfigError
from silo_agent.approval.decisions import approve, may_be_rejected, reject
from silo_agent.approval.reading import read_view, signed_bytes
from silo_agent.approval.view import JobView
from silo_agent.disclosure.ledger.decisions import MAX_NAME_CHARACTERS
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.settings import SiloSettings
from web.shared.pages import Guard, form_of, page
from web.shared.serving import MAX_BODY_BYTES, bound_socket, serve_app, static_folder
from web.shared.sessions import Session, Sessions, is_own_form
from web.shared.templating import environment
from web.silo_page.facts import read_facts

LOOPBACK = ("127.0.0.1", "localhost", "::1")
IDLE_SECONDS = 30 * 60.0
LONGEST_SECONDS = 8 * 3600.0  # of one login; the page is started again for the next

log = get_logger("web.silo_page")


@dataclass(slots=True, kw_only=True)
class SiloPage:
    """screen: the lines of `chorale silo show`. read_settings: as they are now, of which an agent takes some
    while it runs. host: as browsers send it. token: logs in once."""

    name: str
    read_settings: Callable[[], SiloSettings]
    open_ledger: Callable[[], Ledger]
    screen: Callable[[JobView], Sequence[str]]
    host: str
    sessions: Sessions[str]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    templates: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.templates = environment(Path(__file__).parent / "templates")

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    @property
    def address(self) -> str:
        """What a person opens, once."""
        return f"{self.origin}/login?token={self.token}"

    def render(
        self, name: str, session: Session[str] | None, *, status: int = 200, **values: Any
    ) -> Response:
        return page(self.templates, name, status=status, silo=self.name, session=session, **values)

    def refuse(self, session: Session[str] | None, status: int, message: str) -> Response:
        return self.render("refused.html", session, status=status, message=message)

    def view(self, job_id: str) -> JobView:
        """Raises ChoraleError."""
        with closing(self.open_ledger()) as ledger:
            return read_view(ledger, self.read_settings(), job_id)


Answer = Callable[[SiloPage, Request, Session[str]], Any]


def private(answer: Answer, *, is_post: bool = False) -> Callable[[Request], Any]:
    """A route for the browser that was logged in; a POST only from a form of ours."""

    async def route(request: Request) -> Response:
        silo: SiloPage = request.app.state.silo
        session = silo.sessions.of(request)
        if session is None:
            message = (
                "This browser is not logged in: start `chorale silo page` again, and open what it prints."
            )
            return silo.refuse(None, 403, message)
        if is_post:
            form = await form_of(request)
            if not is_own_form(request, form.get("csrf", ""), session, origin=silo.origin):
                log.warning("form refused", path=request.url.path)
                return silo.refuse(session, 403, "This form is not of this page. Nothing was decided.")
        try:
            made: Response = await answer(silo, request, session)
            return made
        except ChoraleError as error:
            return silo.refuse(session, 409, f"Nothing was decided: {error}." if is_post else f"{error}.")

    return route


async def login(request: Request) -> Response:
    """The one browser that comes with the token, which then is worth nothing."""
    silo: SiloPage = request.app.state.silo
    given = request.query_params.get("token", "")
    if not silo.token or not hmac.compare_digest(given.encode(), silo.token.encode()):
        log.warning("login refused", reason="wrong or used token")
        return silo.refuse(
            None,
            403,
            "This address was used already, or is not what was printed: start the page again.",
        )
    silo.token = ""
    response = RedirectResponse("/", status_code=303)
    silo.sessions.begin("this machine", request, response)
    log.info("logged in")
    return response


async def overview(silo: SiloPage, request: Request, session: Session[str]) -> Response:
    facts = await asyncio.to_thread(lambda: read_facts(silo.open_ledger, silo.read_settings()))
    return silo.render("jobs.html", session, facts=facts)


async def job_page(silo: SiloPage, request: Request, session: Session[str]) -> Response:
    view = await asyncio.to_thread(silo.view, _job_id(request))
    lines = silo.screen(view)
    return silo.render(
        "job_view.html",
        session,
        view=view,
        may_be_rejected=may_be_rejected(view),
        lines=lines,
        seen=_digest_of(lines),
        most_reason=MAX_REJECTION_CHARACTERS,
        most_name=MAX_NAME_CHARACTERS,
    )


async def job_text(silo: SiloPage, request: Request, session: Session[str]) -> Response:
    """The bytes that the operator signed, as a file: a page would not show all of them as they are."""

    def read() -> bytes:
        with closing(silo.open_ledger()) as ledger:
            return signed_bytes(ledger.job(_job_id(request)))

    name = f"job-{_job_id(request)[:12]}.yaml"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(await asyncio.to_thread(read), media_type="application/yaml", headers=headers)


async def approve_job(silo: SiloPage, request: Request, session: Session[str]) -> Response:
    """Only what the person saw: a view that differs by now is shown again."""
    form, job_id = await form_of(request), _job_id(request)

    def decide() -> None:
        view = silo.view(job_id)
        if not hmac.compare_digest(form.get("seen", "").encode(), _digest_of(silo.screen(view)).encode()):
            raise ConfigError("what this job would do here has changed since you read it: read it again")
        with closing(silo.open_ledger()) as ledger:
            approve(ledger, view, by=form.get("by", ""))

    await asyncio.to_thread(decide)
    log.info("job approved", job=job_id[:12], by=form.get("by", ""))
    return RedirectResponse(f"/jobs/{quote(job_id)}", status_code=303)


async def reject_job(silo: SiloPage, request: Request, session: Session[str]) -> Response:
    form, job_id = await form_of(request), _job_id(request)

    def decide() -> None:
        with closing(silo.open_ledger()) as ledger:
            job = ledger.job(job_id)
            reject(ledger, job, by=form.get("by", ""), reason=form.get("reason", ""))

    await asyncio.to_thread(decide)
    log.info("job rejected", job=job_id[:12], by=form.get("by", ""))
    return RedirectResponse(f"/jobs/{quote(job_id)}", status_code=303)


async def logout(silo: SiloPage, request: Request, session: Session[str]) -> Response:
    response = silo.refuse(None, 200, "Logged out. To open the page again, start it again.")
    silo.sessions.end(request, response)
    return response


def _job_id(request: Request) -> str:
    """Raises ConfigError for what is no whole digest: half of one may become another job's."""
    job_id: str = request.path_params["job_id"]
    if len(job_id) != 64 or not set(job_id) <= set("0123456789abcdef"):
        raise ConfigError("a job's page is named by the 64 digits of its id")
    return job_id


def _digest_of(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def application(silo: SiloPage) -> ASGIApp:
    """The silo's page, behind the check of the host name."""
    job = "/jobs/{job_id}"
    made = Starlette(
        routes=[
            Route("/login", login, methods=["GET"]),
            Route("/logout", private(logout, is_post=True), methods=["POST"]),
            Route("/", private(overview), methods=["GET"]),
            Route(job, private(job_page), methods=["GET"]),
            Route(f"{job}/job.yaml", private(job_text), methods=["GET"]),
            Route(f"{job}/approve", private(approve_job, is_post=True), methods=["POST"]),
            Route(f"{job}/reject", private(reject_job, is_post=True), methods=["POST"]),
            Mount("/static", StaticFiles(directory=static_folder())),
        ],
        max_body_size=MAX_BODY_BYTES,
    )
    made.state.silo = silo
    return Guard(made, host=silo.host)


def run(
    read_settings: Callable[[], SiloSettings],
    *,
    listen: str,
    open_ledger: Callable[[], Ledger],
    screen: Callable[[JobView], Sequence[str]],
    say: Callable[[str], None],
) -> None:
    """Serve on loopback until SIGTERM or SIGINT. say: prints the address.

    Raises ConfigError for an address that is not on loopback, ChoraleError where it is taken.
    """
    try:
        host, _ = split_address(checked_address(listen))
    except ValueError as error:
        raise ConfigError(f"--listen: {error}") from None
    if host not in LOOPBACK:
        raise ConfigError(
            f"--listen: expected an address of this machine alone (127.0.0.1:PORT), got {listen}"
        )
    open_ledger().close()  # a wrong folder is told now
    listening = bound_socket(listen)
    port = listening.getsockname()[1]
    silo = SiloPage(
        name=read_settings().name,
        read_settings=read_settings,
        open_ledger=open_ledger,
        screen=screen,
        host=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        # cookies do not tell ports apart: pages of two silos on one machine have two names
        sessions=Sessions(
            clock=time.monotonic,
            idle_seconds=IDLE_SECONDS,
            longest_seconds=LONGEST_SECONDS,
            cookie=f"chorale-silo-{port}",
            is_secure=False,
        ),
    )
    serving = serve_app(
        application(silo),
        listening,
        tls=None,
        stopping=asyncio.Event(),
        say=lambda: say(silo.address),
    )
    asyncio.run(serving)
