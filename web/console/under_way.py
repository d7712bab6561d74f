"""Logins that are at the provider: each is kept by the browser that began it, in a cookie."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import Request
from starlette.responses import Response

COOKIE = "__Host-chorale-login"
MOST_SECONDS = 600  # for the way to the provider and back


class LoginsUnderWay:
    """Encrypts what a login needs when it comes back. Here nothing is kept, so people who begin logins and
    never end them take no memory, and push nobody else's login out.

    clock: seconds. Security: the key is this process's own; a cookie that it did not make is no login.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._box = Fernet(Fernet.generate_key())

    def keep(self, values: dict[str, Any], response: Response) -> None:
        kept = self._box.encrypt_at_time(json.dumps(values).encode(), int(self._clock()))
        # lax: browsers send no strict cookie on the way back from another site
        response.set_cookie(
            COOKIE,
            kept.decode(),
            max_age=MOST_SECONDS,
            path="/",
            secure=True,
            httponly=True,
            samesite="lax",
        )

    def of(self, request: Request) -> dict[str, Any] | None:
        """What this browser's login kept; None for none, and for one that was begun too long ago."""
        token = request.cookies.get(COOKIE, "")
        try:
            values: dict[str, Any] = json.loads(
                self._box.decrypt_at_time(token.encode(), MOST_SECONDS, int(self._clock()))
            )
        except InvalidToken:
            return None
        return values

    def forget(self, response: Response) -> None:
        response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="lax")
