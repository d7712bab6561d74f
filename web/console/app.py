"""The console's routes. Every one but the login asks who is there; every POST asks which page sent it.

Reading works without scripts. `stream` sends fragments of the same pages as server-sent events to htmx.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from chorale.observability.logs import get_logger
from crypto.errors import ChoraleError
from web.console import proofs, rounds
from web.console.coordinator import GOING_ON, Coordinator, Overview, Unavailable, Watched
from web.console.logins import CertificateLogins, Login
from web.console.settings import CALLBACK, ConsoleSettings
from web.console.under_way import LoginsUnderWay
from web.shared.pages import Guard, form_of, page
from web.shared.phases import phase_rows, phases_csv
from web.shared.serving import CERTIFICATE, MAX_BODY_BYTES, static_folder
from web.shared.sessions import Session, Sessions, comes_from, is_own_form
from web.shared.streams import Streams
from web.shared.templating import environment

if TYPE_CHECKING:
    from web.console.oidc import Provider

NEWS_SECONDS = 2.0  # between two looks at the overview
MIN_GAP_SECONDS = 0.5  # between two fragments of a job
DAY_SECONDS = 86_400.0
MAX_PATH = 200  # characters; a longer one would not fit into a cookie

HEADINGS = {404: "Not found", 500: "An error of the console", 503: "No answer"}

_PATH = re.compile(r"/([A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*)?")
_JOB_ID = re.compile(r"[0-9a-f]{64}")

log = get_logger("web.console.app")


@dataclass(slots=True, kw_only=True)
class Console:
    """What every route needs."""

    settings: ConsoleSettings
    coordinator: Coordinator
    certificates: CertificateLogins | None
    provider: Provider | None
    sessions: Sessions[Login]
    under_way: LoginsUnderWay
    stopping: asyncio.Event
    streams: Streams = field(init=False)
    templates: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.templates = environment(Path(__file__).parent / "templates")
        self.streams = Streams(stopping=self.stopping)

    # who is there

    def session(self, request: Request, *, is_use: bool = True) -> Session[Login] | None:
        """The session of a request whose login still holds. is_use: a person did something."""
        found = self.sessions.of(request, is_use=is_use)
        if found is None or not found.who.certificate:
            return found
        try:
            assert self.certificates is not None
            self.certificates.check(found.who, getattr(request.state, CERTIFICATE))
        except ChoraleError as error:
            log.warning("session refused", name=found.who.name, reason=str(error))
            return None
        return found

    def render(
        self, request: Request, name: str, session: Session[Login] | None, *, status: int = 200, **values: Any
    ) -> Response:
        return page(
            self.templates,
            name,
            status=status,
            federation=self.settings.federation,
            session=session,
            path=request.url.path,
            **values,
        )

    def refuse(self, request: Request, session: Session[Login] | None, status: int, message: str) -> Response:
        heading = HEADINGS.get(status, "Not done")
        return self.render(request, "error.html", session, status=status, message=message, heading=heading)


Page = Callable[[Console, Request, Session[Login]], Any]


def private(answer: Page, *, is_post: bool = False) -> Callable[[Request], Any]:
    """A route for people who are logged in; a POST only from a form of ours."""

    async def route(request: Request) -> Response:
        console: Console = request.app.state.console
        session = console.session(request)
        if session is None:
            if is_post or request.headers.get("accept", "").startswith("text/event-stream"):
                return console.refuse(
                    request, None, 403, "You are not logged in, or no longer: log in again."
                )
            return RedirectResponse(f"/login?next={quote(request.url.path)}", status_code=303)
        if is_post:
            form = await form_of(request)
            if not is_own_form(request, form.get("csrf", ""), session, origin=console.settings.url):
                log.warning("form refused", name=session.who.name, path=request.url.path)
                message = (
                    "This form is not of this page, or is too old. Nothing was done: go back and try again."
                )
                return console.refuse(request, session, 403, message)
        try:
            made: Response = await answer(console, request, session)
            return made
        except ChoraleError as error:
            status = 503 if isinstance(error, Unavailable) and not error.is_refusal else 409
            return console.refuse(request, session, status, str(error))

    return route


# login


async def login_page(request: Request) -> Response:
    """The ways in, and what is wrong with the certificate that the browser showed."""
    console: Console = request.app.state.console
    der: bytes | None = getattr(request.state, CERTIFICATE)
    operator, trouble = "", ""
    if console.certificates is not None and der is not None:
        try:
            operator = console.certificates.login(der).name
        except ChoraleError as error:
            trouble = str(error)
    return console.render(
        request,
        "login.html",
        None,
        status=403 if trouble else 200,
        operator=operator,
        trouble=trouble,
        has_certificates=console.certificates is not None,
        has_provider=console.provider is not None,
        next=_own_path(request.query_params.get("next", "/")),
    )


async def login_by_certificate(request: Request) -> Response:
    """A button and no link: that a page of ours sent it is checked, though there is no session yet."""
    console: Console = request.app.state.console
    if console.certificates is None or not comes_from(request, console.settings.url):
        return console.refuse(request, None, 403, "This form is not of this page. Nobody was logged in.")
    try:
        login = console.certificates.login(getattr(request.state, CERTIFICATE))
    except ChoraleError as error:
        return _refused_login(console, request, error)
    form = await form_of(request)
    response = RedirectResponse(_own_path(form.get("next", "/")), status_code=303)
    return _logged_in(console, request, response, login)


async def login_by_provider(request: Request) -> Response:
    """The way to the provider."""
    console: Console = request.app.state.console
    if console.provider is None:
        return console.refuse(request, None, 404, "No login by a provider is set up here.")
    kept: dict[str, Any] = {"next": _own_path(request.query_params.get("next", "/"))}
    request.scope["session"] = kept
    try:
        response = await console.provider.begin(request)
    except ChoraleError as error:
        return _refused_login(console, request, error)
    console.under_way.keep(kept, response)
    return response


async def back_from_provider(request: Request) -> Response:
    """From the provider, to the page that was asked for first."""
    console: Console = request.app.state.console
    begun = console.under_way.of(request)
    if console.provider is None or begun is None:
        return console.refuse(
            request, None, 403, "No login was begun here, or it took too long: log in again."
        )
    request.scope["session"] = begun
    try:
        login = await console.provider.end(request)
    except ChoraleError as error:
        response = _refused_login(console, request, error)
        console.under_way.forget(response)
        return response
    # a page and no redirect: browsers send the strict cookie only where this site leads on itself
    response = console.render(request, "welcome.html", None, next=_own_path(begun["next"]))
    console.under_way.forget(response)
    return _logged_in(console, request, response, login)


async def logout(console: Console, request: Request, session: Session[Login]) -> Response:
    response = RedirectResponse("/login", status_code=303)
    console.sessions.end(request, response)
    log.info("logged out", name=session.who.name)
    return response


def _logged_in(console: Console, request: Request, response: Response, login: Login) -> Response:
    console.sessions.begin(login, request, response)
    log.info("logged in", name=login.name, right=login.right.value, operator=login.operator)
    return response


def _refused_login(console: Console, request: Request, error: ChoraleError) -> Response:
    log.warning("login refused", reason=str(error))
    return console.refuse(request, None, 403, f"You are not logged in: {error}.")


def _own_path(text: str) -> str:
    """A path of this console; the first page for anything else (open redirect)."""
    return text if len(text) <= MAX_PATH and _PATH.fullmatch(text) else "/"


# pages


async def overview(console: Console, request: Request, session: Session[Login]) -> Response:
    snapshot = await console.coordinator.overview()
    return console.render(request, "overview.html", session, **_overview_values(snapshot))


async def overview_stream(console: Console, request: Request, session: Session[Login]) -> Response:
    """The overview's tables, whenever they change."""

    async def fragments() -> AsyncGenerator[str, None]:
        last = ""
        while True:
            try:
                values = _overview_values(await console.coordinator.overview())
                html = console.templates.get_template("_overview.html").render(**values)
            except Unavailable as error:
                html = console.templates.get_template("_trouble.html").render(message=str(error))
            if html != last:
                yield html
                last = html
            await asyncio.sleep(NEWS_SECONDS)

    return _live(console, request, session, "overview", fragments)


def _overview_values(snapshot: Overview) -> dict[str, Any]:
    now = time.time()
    silos = [
        {
            "name": silo.name,
            "connected": silo.connected,
            "two_agents": silo.two_agents,
            "seen": snapshot.seen.get(silo.name, 0.0),
            "certificate": silo.certificate_sha256.hex(),
            "days_left": (silo.certificate_expires_unix_seconds - now) / DAY_SECONDS
            if silo.connected
            else None,
            "software": silo.software_version if silo.connected else "",
            "is_same": silo.software_digest == snapshot.silos.software_digest,
        }
        for silo in sorted(snapshot.silos.silos, key=lambda silo: silo.connected)  # who is away first
    ]
    return {
        "silos": silos,
        "connected": sum(silo.connected for silo in snapshot.silos.silos),
        "roster_version": snapshot.silos.roster_version,
        "software": snapshot.silos.software_version,
        "jobs": snapshot.jobs,
    }


async def job_page(console: Console, request: Request, session: Session[Login]) -> Response:
    async with console.coordinator.watched(_digest(request)) as job:
        values = _job_values(console, job, session) | {"figures": rounds.figures(job.history)}
        return console.render(request, "job.html", session, **values)


async def job_stream(console: Console, request: Request, session: Session[Login]) -> Response:
    """The changing part of a job's page, with each news of the job."""
    digest = _digest(request)

    async def fragments() -> AsyncGenerator[str, None]:
        async with console.coordinator.watched(digest) as job:
            last, state = "", None
            while True:
                changed = job.changed
                values = _job_values(console, job, session) | {"figures": rounds.figures(job.history)}
                current = (values["job"].status, values["job"].state, values["job"].reason)
                # a live region is spoken when it is written, changed or not
                values["is_changed"], state = current != state, current
                html = console.templates.get_template("_job.html").render(session=session, **values)
                if html != last:
                    yield html
                    last = html
                await asyncio.sleep(MIN_GAP_SECONDS)
                await changed.wait()

    return _live(console, request, session, "job", fragments)


async def all_rounds(console: Console, request: Request, session: Session[Login]) -> Response:
    async with console.coordinator.watched(_digest(request)) as job:
        values = {
            **_job_values(console, job, session),
            "rows": phase_rows(rounds.phases(job.history, newest=rounds.MOST_ROWS), main=job.history.main),
        }
        return console.render(request, "rounds.html", session, **values)


async def download(console: Console, request: Request, session: Session[Login]) -> Response:
    """rounds.csv and rounds.json. The name of the file is ours: a job's own may hold anything."""
    kind, digest = request.url.path.rpartition(".")[2], _digest(request)
    async with console.coordinator.watched(digest) as job:
        data, media = (
            (phases_csv(rounds.phases(job.history)), "text/csv")
            if kind == "csv"
            else (rounds.as_json(job.history), "application/json")
        )
    return _file(data, media, name=f"rounds-{digest.hex()[:12]}.{kind}")


async def signed_job(console: Console, request: Request, session: Session[Login]) -> Response:
    digest = _digest(request)
    async with console.coordinator.watched(digest) as job:
        return _file(job.spec_bytes, "application/yaml", name=f"job-{digest.hex()[:12]}.yaml")


async def cancel(console: Console, request: Request, session: Session[Login]) -> Response:
    digest = _digest(request)
    job = await console.coordinator.job(digest.hex())
    if job is None:
        return console.refuse(request, session, 404, "The coordinator has no such job.")
    if not session.who.may_steer(job.operator):
        message = (
            f"This job belongs to operator {job.operator}: only this operator or an admin may cancel it."
        )
        return console.refuse(request, session, 403, message)
    await console.coordinator.cancel(digest)
    log.info("job cancelled", job=digest.hex()[:12], by=session.who.name)
    return RedirectResponse(f"/jobs/{digest.hex()}", status_code=303)


async def model(console: Console, request: Request, session: Session[Login]) -> Response:
    """The job's model, for its operator alone, and only where this console asks as that operator."""
    digest = _digest(request)
    job = await console.coordinator.job(digest.hex())
    if job is None or not _has_model(console, session, job.operator):
        return console.refuse(request, session, 403, "Only the operator of a job may fetch its model.")
    parts = await console.coordinator.model(digest)
    return _file(parts, "application/octet-stream", name=f"model-{digest.hex()[:12]}.safetensors")


def _live(
    console: Console,
    request: Request,
    session: Session[Login],
    event: str,
    fragments: Callable[[], AsyncGenerator[str, None]],
) -> Response:
    """A stream that ends with the login: logged out, unused for too long, expired or off the roster."""
    if console.streams.is_full(session.who):
        raise Unavailable("too many live pages are open: this one does not move by itself")
    return console.streams.answer(
        event,
        fragments,
        who=session.who,
        is_allowed=lambda: console.session(request, is_use=False) is not None,
    )


async def evidence(console: Console, request: Request, session: Session[Login]) -> Response:
    """The job's evidence, for whom may have its model: the console's identity signs it."""
    digest = _digest(request)
    job = await console.coordinator.job(digest.hex())
    if job is None or not _has_model(console, session, job.operator):
        return console.refuse(request, session, 403, "Only the operator of a job may fetch its evidence.")
    data = await console.coordinator.evidence(digest)
    return _file(data, "application/zip", name=f"evidence-{digest.hex()[:12]}.zip")


async def proof(console: Console, request: Request, session: Session[Login]) -> Response:
    """What the job's evidence proves, checked now: for whom may have the evidence."""
    digest = _digest(request)
    job = await console.coordinator.job(digest.hex())
    if job is None or not _has_model(console, session, job.operator):
        return console.refuse(request, session, 403, "Only the operator of a job may check its evidence.")
    held = await console.coordinator.proof(digest)
    return console.render(
        request,
        "proof.html",
        session,
        id=digest.hex(),
        job=job,
        terms=proofs.terms(held),
        notes=held.notes,
    )


def _has_model(console: Console, session: Session[Login], operator: str) -> bool:
    return session.who.may_fetch(operator) and console.coordinator.own_name == operator


def _job_values(console: Console, job: Watched, session: Session[Login]) -> dict[str, Any]:
    summary = job.history.summary
    has_ended = summary.status not in GOING_ON
    return {
        "job": summary,
        "id": summary.job_digest.hex(),
        "rows": phase_rows(rounds.phases(job.history, newest=rounds.NEWEST), main=job.history.main),
        "phases": len(job.history.records),
        "newest": rounds.NEWEST,
        "main": job.history.main,
        "facts": rounds.facts(job.history),
        "trouble": job.trouble,
        "has_ended": has_ended,
        "is_changed": False,
        "terms": rounds.terms(job.spec_bytes, job.history),
        "is_private": rounds.is_private(job.spec_bytes),
        "may_cancel": not has_ended and session.who.may_steer(summary.operator),
        "has_model": _has_model(console, session, summary.operator),
        "is_others": session.who.operator != summary.operator,
        "console_is": console.coordinator.own_name,
    }


def _digest(request: Request) -> bytes:
    """Raises Unavailable for what is no job's id."""
    job_id = request.path_params["job_id"]
    if not _JOB_ID.fullmatch(job_id):
        raise Unavailable("a job's page is named by the 64 digits of its id", is_refusal=True)
    return bytes.fromhex(job_id)


def _file(data: Any, media_type: str, *, name: str | None = None) -> Response:
    headers = {"cache-control": "no-store"}
    if name is not None:
        headers["content-disposition"] = f'attachment; filename="{name}"'
    made = Response if isinstance(data, bytes) else StreamingResponse
    return made(data, media_type=media_type, headers=headers)


def application(console: Console) -> ASGIApp:
    """The console, behind the check of the host name."""
    job = "/jobs/{job_id}"
    routes = [
        Route("/login", login_page, methods=["GET"]),
        Route("/login/certificate", login_by_certificate, methods=["POST"]),
        Route("/login/oidc", login_by_provider, methods=["GET"]),
        Route(CALLBACK, back_from_provider, methods=["GET"]),
        Route("/logout", private(logout, is_post=True), methods=["POST"]),
        Route("/", private(overview), methods=["GET"]),
        Route("/live", private(overview_stream), methods=["GET"]),
        Route(job, private(job_page), methods=["GET"]),
        Route(f"{job}/live", private(job_stream), methods=["GET"]),
        Route(f"{job}/rounds", private(all_rounds), methods=["GET"]),
        Route(f"{job}/rounds.csv", private(download), methods=["GET"]),
        Route(f"{job}/rounds.json", private(download), methods=["GET"]),
        Route(f"{job}/job.yaml", private(signed_job), methods=["GET"]),
        Route(f"{job}/model", private(model), methods=["GET"]),
        Route(f"{job}/evidence", private(evidence), methods=["GET"]),
        Route(f"{job}/proof", private(proof), methods=["GET"]),
        Route(f"{job}/cancel", private(cancel, is_post=True), methods=["POST"]),
        Mount("/static", StaticFiles(directory=static_folder())),
    ]

    async def lost(request: Request, _error: Exception) -> Response:
        return console.refuse(request, console.session(request), 404, "There is no such page.")

    async def broken(request: Request, _error: Exception) -> Response:
        return console.refuse(request, None, 500, "This is a bug of the console; its log has more.")

    made = Starlette(
        routes=routes,
        exception_handlers={404: lost, 500: broken},
        max_body_size=MAX_BODY_BYTES,
    )
    made.state.console = console
    return Guard(made, host=console.settings.host)
