"""Templates and headers of every page. Texts of peers are hostile: escaped, printable, and short."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crypto.errors import printable

MAX_TEXT = 1000  # characters of one text on a page
MAX_FIELDS = 8  # of a form

HEADERS = {
    # no inline script or style anywhere; htmx and charts come from /static
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def plain(value: object) -> object:
    """Text as it may stand on a page: no control characters, none that turn its direction, not too long.

    Every expression of a template passes here before it is escaped.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    cut = value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "..."
    return printable(cut)


def environment(*folders: Path) -> Environment:
    """Templates of these folders and of this one."""
    made = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["moment"] = moment
    made.filters["size"] = size
    made.filters["figure"] = figure
    return made


def moment(unix_seconds: float) -> str:
    """A time in UTC; a dash for what is none."""
    try:
        return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M} UTC" if unix_seconds > 0 else "-"
    except (ValueError, OverflowError, OSError):
        return "-"


def size(count_bytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count_bytes >= factor:
            return f"{count_bytes / factor:.3g} {unit}"
    return f"{count_bytes:.0f} bytes"


def figure(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def page(
    templates: Environment,
    name: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    html = templates.get_template(name).render(**values)
    return HTMLResponse(html, status_code=status, headers={"cache-control": "no-store", **(headers or {})})


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a plain form. The body is bounded by the app. A field that comes twice counts once."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        return {}
    try:
        return dict(parse_qsl((await request.body()).decode(), max_num_fields=MAX_FIELDS))
    except ValueError:
        return {}


class Guard:
    """Stands before every route: answers on its own host name alone, and sets the headers of every answer.

    host: as browsers send it. Security: another name that leads to this address (DNS rebinding) is refused.
    """

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self._app = app
        self._host = host.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        hosts = [value for name, value in scope["headers"] if name == b"host"]
        answer: Callable[[Scope, Receive, Send], Awaitable[None]] = self._app
        if hosts != [self._host]:
            answer = PlainTextResponse("this page is not served under that name\n", status_code=421)
        await answer(scope, receive, with_headers)
