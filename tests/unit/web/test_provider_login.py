"""What answers of a provider, or of who stands between, make of a login: one good token, and wrong ones."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey
from starlette.requests import Request
from starlette.testclient import TestClient

from chorale.spec.settings_file import check_values
from crypto.errors import ChoraleError, ConfigError
from tests.support import pages
from tests.support.pages import JOB, Pages
from web.console.oidc import Provider, login_of
from web.console.settings import CALLBACK, ConsoleSettings, OidcSettings, Right
from web.console.under_way import COOKIE, MOST_SECONDS
from web.shared import sessions

ISSUER, CLIENT, URL = "https://login.example", "console", "https://console.example"
SETTINGS = OidcSettings(
    issuer=ISSUER,
    client_id=CLIENT,
    roles={"ops": Right.OPERATOR, "see": Right.VIEWER, "all": Right.ADMIN},
    operators={"sub-olga": "olga"},
)
KEY = ECKey.generate_key("P-256", {"kid": "one"})
OTHER = ECKey.generate_key("P-256", {"kid": "one"})
SECRET = OctKey.import_key(CLIENT.encode() * 8)


class ToldProvider:
    """Answers as a provider does. claims: those of the signed token that differ; None leaves one out."""

    def __init__(
        self,
        *,
        key: Any = KEY,
        algorithm: str = "ES256",
        metadata: dict[str, Any] | None = None,
        **claims: Any,
    ) -> None:
        self._key = key
        self._algorithm = algorithm
        self._claims = claims
        self._metadata = metadata or {}
        self.nonce = ""
        self.verifier = ""

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == "/.well-known/openid-configuration":
            said = {
                "issuer": ISSUER,
                "authorization_endpoint": f"{ISSUER}/auth",
                "token_endpoint": f"{ISSUER}/token",
                "jwks_uri": f"{ISSUER}/keys",
                "id_token_signing_alg_values_supported": ["ES256", "HS256", "none"],
            }
            return httpx2.Response(200, json={**said, **self._metadata})
        if path == "/keys":
            return httpx2.Response(200, json={"keys": [KEY.as_dict(private=False)]})
        self.verifier = parse_qs(request.content.decode())["code_verifier"][0]
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": CLIENT,
            "sub": "sub-olga",
            "iat": now,
            "exp": now + 60,
            "groups": ["ops"],
        }
        claims |= {"nonce": self.nonce, **self._claims}
        claims = {name: value for name, value in claims.items() if value is not None}
        answer = {"access_token": "a", "token_type": "Bearer"}
        if self._algorithm == "unsigned":
            head, body = ({"alg": "none"}, claims)
            answer["id_token"] = ".".join([*(_base64(each) for each in (head, body)), ""])
        elif self._algorithm:
            header = {"alg": self._algorithm, "kid": "one"}
            answer["id_token"] = jwt.encode(header, claims, self._key, algorithms=[self._algorithm])
        return httpx2.Response(200, json=answer)


def _base64(value: dict[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _request(query: str, session: dict[str, Any]) -> Request:
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": query.encode(), "headers": []}
    return Request({**scope, "session": session})


async def _log_in(issuer: ToldProvider) -> Any:
    """Through both requests of a login."""
    provider = Provider(SETTINGS, url=URL, transport=httpx2.MockTransport(issuer))
    session: dict[str, Any] = {}
    asked = parse_qs(urlsplit((await provider.begin(_request("", session))).headers["location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{URL}/login/oidc/callback"]
    issuer.nonce = asked["nonce"][0]
    return await provider.end(_request(f"code=c&state={asked['state'][0]}", session))


async def test_good_token_makes_a_login() -> None:
    issuer = ToldProvider()
    login = await _log_in(issuer)
    assert (login.right, login.operator, login.certificate) == (Right.OPERATOR, "olga", b"")
    assert len(issuer.verifier) >= 43  # PKCE: the code alone is worth nothing


@pytest.mark.parametrize(
    ("issuer", "reason"),
    [
        (ToldProvider(key=OTHER), "bad_signature"),
        (ToldProvider(algorithm="unsigned"), "unsupported_algorithm"),
        (ToldProvider(key=SECRET, algorithm="HS256"), "unsupported_algorithm"),
        (ToldProvider(algorithm=""), "it has no ID token"),
        (ToldProvider(aud="another-client"), "invalid_claim"),
        (ToldProvider(aud=None), "missing_claim"),
        (ToldProvider(iss="https://evil.example"), "invalid_claim"),
        (ToldProvider(exp=1), "expired_token"),
        (ToldProvider(exp=None), "missing_claim"),
        (ToldProvider(nonce="of another login"), "invalid_claim"),
        (ToldProvider(nonce=None), "missing_claim"),
        (ToldProvider(sub=None), "missing_claim"),
        (ToldProvider(metadata={"issuer": "https://evil.example"}), "another issuer"),
        (ToldProvider(groups=["staff"]), "no role here"),
        (ToldProvider(groups=None), "no role here"),
        (ToldProvider(groups={"ops": True}), "no role here"),
        (ToldProvider(groups=7), "no role here"),
    ],
)
async def test_token_that_does_not_hold_lets_nobody_in(issuer: ToldProvider, reason: str) -> None:
    with pytest.raises(ChoraleError, match=reason):
        await _log_in(issuer)


async def test_answer_to_another_login_lets_nobody_in() -> None:
    provider = Provider(SETTINGS, url=URL, transport=httpx2.MockTransport(ToldProvider()))
    with pytest.raises(ChoraleError, match="mismatching_state"):
        await provider.end(_request("code=c&state=of-another", {}))


class ProviderPages(Pages):
    """A console where people log in by what `issuer` says."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.issuer = ToldProvider()
        transport = httpx2.MockTransport(self.issuer)
        self.console.provider = Provider(SETTINGS, url=pages.URL, transport=transport)


@pytest.fixture
def console(tmp_path: Path) -> ProviderPages:
    return ProviderPages(folder=tmp_path)


def _begin(console: ProviderPages) -> tuple[TestClient, str]:
    """A browser at the provider, and the path that leads it back."""
    browser = console.browser()
    answer = browser.get("/login/oidc", params={"next": JOB})
    asked = parse_qs(urlsplit(answer.headers["location"]).query)
    console.issuer.nonce = asked["nonce"][0]
    return browser, f"{CALLBACK}?code=c&state={asked['state'][0]}"


def test_no_stranger_ends_a_login_that_is_under_way(
    console: ProviderPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logins under way were a table of 1,000, whose oldest went: anybody could fill it."""
    monkeypatch.setattr(sessions, "MOST", 3)
    olga, back = _begin(console)
    nonce = console.issuer.nonce
    for _ in range(4):
        _begin(console)
    console.issuer.nonce = nonce
    answer = olga.get(back)
    assert (answer.status_code, f'href="{JOB}"' in answer.text) == (200, True)
    assert olga.get(JOB).status_code == 200
    assert COOKIE not in olga.cookies
    assert olga.get(back).status_code == 403


def test_a_login_ends_in_its_own_browser_and_in_time(console: ProviderPages) -> None:
    olga, back = _begin(console)
    thief = console.browser()
    assert "No login was begun here" in thief.get(back).text
    thief.cookies.set(COOKIE, olga.cookies[COOKIE][:-4] + "AAA=", domain="console.example")
    assert "No login was begun here" in thief.get(back).text
    # bytes that no token has: the console failed on them
    odd = console.browser().get(back, headers={"cookie": f"{COOKIE}=é".encode("latin-1")})
    assert (odd.status_code, "No login was begun here" in odd.text) == (403, True)
    console.seconds += MOST_SECONDS + 1
    assert "it took too long" in olga.get(back).text
    console.seconds -= 1
    assert olga.get(back).status_code == 200  # the control


def test_strongest_role_counts_and_names_come_from_settings_alone() -> None:
    login = login_of({"sub": "x", "groups": ["see", "all"], "preferred_username": "olga"}, SETTINGS)
    assert (login.right, login.operator, login.name) == (Right.ADMIN, "", "olga")
    viewer = login_of({"sub": "sub-olga", "groups": "see"}, SETTINGS)
    assert not viewer.may_steer("olga")
    assert not viewer.may_fetch("olga")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("url", "http://console.example", "expected https://host"),
        ("url", "https://console.example/path", "expected https://host"),
        (
            "oidc",
            {"issuer": "http://login.example", "client_id": "c", "roles": {}},
            "expected an https:// address",
        ),
        ("oidc", {"issuer": ISSUER, "client_id": "c", "roles": {"a": "root"}}, "viewer"),
        ("roster", None, "nobody could log in"),
    ],
)
def test_settings_that_would_let_the_wrong_people_in_are_refused(
    field: str, value: Any, expected: str
) -> None:
    files = {"certificate": "a", "key": "b"}
    good = {"federation": "f", "coordinator": "h:1", "identity": files, "authority": "c", "tls": files}
    good |= {"url": "https://console.example", "roster": "roster.json"}
    assert check_values(ConsoleSettings, good, source="console.yaml").host == "console.example"
    with pytest.raises(ConfigError, match=expected):
        check_values(ConsoleSettings, {**good, field: value}, source="console.yaml")
