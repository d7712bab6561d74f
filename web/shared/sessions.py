"""Who is logged in: cookies that no script reads, kept by their hash, and a token for every form."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

MOST = 1000  # sessions at once; the oldest goes
MOST_OF_ONE = 20  # of one login; its oldest goes

Who = TypeVar("Who")


@dataclass(slots=True, kw_only=True)
class Session(Generic[Who]):
    """One login of one browser."""

    who: Who
    begun: float
    used: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


class Sessions(Generic[Who]):
    """clock: monotonic seconds. idle_seconds: a session that is not used so long ends. longest_seconds: after
    which a person logs in again, busy or not. cookie: its name; with the prefix __Host- browsers take it from
    this host over TLS alone."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        idle_seconds: float,
        longest_seconds: float,
        cookie: str,
        is_secure: bool = True,
    ) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._longest_seconds = longest_seconds
        self._cookie = cookie
        self._is_secure = is_secure
        self._sessions: dict[str, Session[Who]] = {}

    def begin(self, who: Who, request: Request, response: Response) -> Session[Who]:
        """A new session under a new secret; the one that the browser came with ends (session fixation)."""
        self._forget(request)
        now = self._clock()
        own = [key for key, each in self._sessions.items() if each.who == who]
        for key in own[: max(0, len(own) + 1 - MOST_OF_ONE)]:  # so that nobody logs others out by logging in
            del self._sessions[key]
        while len(self._sessions) >= MOST:
            self._sessions.pop(next(iter(self._sessions)))
        secret = secrets.token_urlsafe(32)
        made = self._sessions[_key(secret)] = Session(who=who, begun=now, used=now)
        response.set_cookie(
            self._cookie,
            secret,
            path="/",
            secure=self._is_secure,
            httponly=True,
            samesite="strict",
        )
        return made

    def of(self, request: Request, *, is_use: bool = True) -> Session[Who] | None:
        """The session of a request, unless it was unused too long or is too old. is_use: this is a use."""
        key = _key(request.cookies.get(self._cookie, ""))
        found, now = self._sessions.get(key), self._clock()
        if found is None:
            return None
        if now - found.used > self._idle_seconds or now - found.begun > self._longest_seconds:
            del self._sessions[key]
            return None
        if is_use:
            found.used = now
        return found

    def end(self, request: Request, response: Response) -> None:
        self._forget(request)
        response.delete_cookie(
            self._cookie,
            path="/",
            secure=self._is_secure,
            httponly=True,
            samesite="strict",
        )

    def _forget(self, request: Request) -> None:
        self._sessions.pop(_key(request.cookies.get(self._cookie, "")), None)


def is_own_form(request: Request, token: str, session: Session[Who], *, origin: str) -> bool:
    """Whether a form was sent by a page of ours, in this session (cross-site request forgery)."""
    return comes_from(request, origin) and hmac.compare_digest(token.encode(), session.csrf.encode())


def comes_from(request: Request, origin: str) -> bool:
    """Whether the browser says that a page of this origin sent the request, as it does for every POST."""
    return request.headers.get("origin") == origin


def _key(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
