"""Answers, forms and headers of every page that is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_FIELDS = 8  # of a form

HEADERS = {
    # no inline script or style anywhere; htmx comes from /static
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


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
