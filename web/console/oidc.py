"""Login by an OpenID Connect provider: authorization code with PKCE, the ID token checked by Authlib.

Source: OpenID Connect Core 1.0, section 3.1; RFC 7636.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.starlette_client import OAuth
from joserfc.errors import JoseError
from starlette.requests import Request
from starlette.responses import RedirectResponse

from chorale.runtime.key_files import read_key
from crypto.errors import ChoraleError, ConfigError, RemoteProtocolError
from web.console.logins import Login
from web.console.settings import CALLBACK, OidcSettings, Right

ASK_SECONDS = 10.0
CLOCK_SKEW_SECONDS = 60
MAX_SECRET_BYTES = 4096
ALGORITHMS = {
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
}
STRENGTH = (Right.ADMIN, Right.OPERATOR, Right.VIEWER)  # of several words the first counts


class Provider:
    """One provider. What a login keeps between its two requests is in `request.session`."""

    def __init__(
        self, settings: OidcSettings, *, url: str, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        """url: the console's own. transport: how the provider is asked. Raises ConfigError for bad files."""
        self._settings = settings
        self._redirect = url + CALLBACK
        secret = settings.client_secret
        try:
            trusted: ssl.SSLContext | bool = (
                True if settings.authority is None else ssl.create_default_context(cafile=settings.authority)
            )
        except OSError as error:
            raise ConfigError(f"oidc.authority: {settings.authority}: {error.strerror or error}") from None
        self._client: Any = OAuth().register(
            "provider",
            client_id=settings.client_id,
            client_secret=None if secret is None else read_key(secret, MAX_SECRET_BYTES).decode().strip(),
            server_metadata_url=f"{settings.issuer}/.well-known/openid-configuration",
            client_kwargs={
                "scope": settings.scope,
                "code_challenge_method": "S256",
                "token_endpoint_auth_method": "none" if secret is None else "client_secret_basic",
                "verify": trusted,
                "timeout": ASK_SECONDS,
                "transport": transport,
                "follow_redirects": False,
            },
        )

    async def begin(self, request: Request) -> RedirectResponse:
        """The way to the provider. Raises ChoraleError."""
        await self._check_metadata()
        answer: RedirectResponse = await self._client.authorize_redirect(request, self._redirect)
        return answer

    async def end(self, request: Request) -> Login:
        """Who came back. Raises RemoteProtocolError that says why nobody is let in."""
        await self._check_metadata()
        wanted = {
            "iss": {"essential": True, "value": (await self._client.load_server_metadata())["issuer"]},
            "aud": {"essential": True, "value": self._settings.client_id},
            "sub": {"essential": True},
            "exp": {"essential": True},
        }
        try:
            token = await self._client.authorize_access_token(
                request, claims_options=wanted, leeway=CLOCK_SKEW_SECONDS
            )
        except (AuthlibBaseError, JoseError) as error:
            raise RemoteProtocolError(f"the provider's answer is refused: {error.error}") from None
        except Exception as error:
            raise _unreachable(error) from None
        claims = token.get("userinfo")
        if not claims:
            raise RemoteProtocolError("the provider's answer is refused: it has no ID token")
        return login_of(claims, self._settings)

    async def _check_metadata(self) -> None:
        try:
            metadata = await self._client.load_server_metadata()
        except Exception as error:
            raise _unreachable(error) from None
        if str(metadata.get("issuer", "")).rstrip("/") != self._settings.issuer:
            raise RemoteProtocolError("the provider names itself by another issuer than oidc.issuer")
        # never a token without a signature, nor one that our own secret signs
        offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        metadata["id_token_signing_alg_values_supported"] = [each for each in offered if each in ALGORITHMS]


def login_of(claims: dict[str, Any], settings: OidcSettings) -> Login:
    """Who the claims of a checked ID token name. Raises RemoteProtocolError for who has no right here."""
    said = claims.get(settings.role_claim, [])
    listed = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    words = {word for word in listed if isinstance(word, str)}
    rights = {settings.roles[word] for word in words if word in settings.roles}
    subject = str(claims["sub"])
    if not rights:
        raise RemoteProtocolError(
            f"your login has no role here: none of your {settings.role_claim} is listed in oidc.roles"
        )
    shown = claims.get("name") or claims.get("preferred_username") or subject
    return Login(
        name=str(shown)[:100],
        right=next(right for right in STRENGTH if right in rights),
        operator=settings.operators.get(subject, ""),
    )


def _unreachable(error: Exception) -> ChoraleError:
    return RemoteProtocolError(f"the provider cannot be asked ({type(error).__name__}); try again")
