"""Who may call what: certificate, roster and role, checked at every call; all else is refused.

A grpc.aio interceptor sees only method and metadata, so it replaces the handler by one that
reads the TLS session first. Identity never comes from a message. Source: docs/protocol.md 1, 8.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from cryptography import x509
from google.protobuf.message import DecodeError

from chorale.observability.logs import get_logger
from coordinator.resources import Resources
from coordinator.service.connections import Connections
from coordinator.service.streams import Calls, TooManyCalls
from crypto.errors import ChoraleError, ConfigError, RemoteProtocolError
from crypto.identity.certificates import (
    MemberId,
    Role,
    check_certificate,
    fingerprint,
    load_certificate,
    member_of,
)

FEDERATION_METHODS = frozenset(f"/chorale.v1.Federation/{name}" for name in ("Attend", "Download", "Upload"))
OPERATIONS_METHODS = frozenset(
    f"/chorale.v1.Operations/{name}"
    for name in (
        "SubmitJob",
        "ListJobs",
        "WatchJob",
        "ControlJob",
        "FetchModel",
        "ListSilos",
        "FetchEvidence",
    )
)
COMMON_METHODS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.health.v1.Health/List",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }
)
ALLOWED: dict[Role, frozenset[str]] = {
    Role.SILO: FEDERATION_METHODS | COMMON_METHODS,
    Role.OPERATOR: OPERATIONS_METHODS | COMMON_METHODS,
}

MIN_CALLS = 32  # of one member and method, at once; more where many jobs may be unfinished

Context = grpc.aio.ServicerContext[Any, Any]
Admitted = Callable[[Any, Context], AbstractAsyncContextManager[Any]]
Parse = Callable[[bytes], Any]

log = get_logger("coordinator.service.access")


class AccessDenied(ChoraleError):
    """The caller is not let in. role: of its certificate; None where that does not say. `code` is what gRPC
    tells the caller."""

    def __init__(self, message: str, role: Role | None = None) -> None:
        super().__init__(message)
        self.role = "unknown" if role is None else role.value
        self.code = grpc.StatusCode.UNAUTHENTICATED if role is None else grpc.StatusCode.PERMISSION_DENIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, by the certificate of the TLS session."""

    member: MemberId
    certificate: x509.Certificate


class AccessGuard:
    """Decides from the TLS session and the current roster."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        # two for each job: a stream that a silo lost may linger when it begins again
        self._calls = Calls(max(MIN_CALLS, 2 * resources.settings.max_jobs))

    @contextmanager
    def admitted(self, context: Context, method: str) -> Iterator[Caller]:
        """Who calls, while it lasts. Raises AccessDenied that says which check failed, and TooManyCalls."""
        with self._telling_refusals(method):
            caller = caller_of(context)
            self._check(caller, method)
        with self._calls.counted(caller.member, method):
            yield caller

    def check(self, caller: Caller, method: str) -> None:
        """A call in progress: whether it would still be admitted. Raises AccessDenied as `admitted`."""
        with self._telling_refusals(method):
            self._check(caller, method)

    @contextmanager
    def _telling_refusals(self, method: str) -> Iterator[None]:
        try:
            yield
        except AccessDenied as denied:
            self._resources.metrics.refused_calls.labels(role=denied.role).inc()
            log.warning("call refused", method=method, reason=str(denied))
            raise

    def _check(self, caller: Caller, method: str) -> None:
        role = caller.member.role
        if method not in ALLOWED.get(role, frozenset()):
            raise AccessDenied(f"{method}: not allowed to a {role.value}", role)
        now, roster = self._resources.clock.now(), self._resources.roster_book.current
        try:
            member = check_certificate(
                caller.certificate,
                authority=self._resources.authority,
                role=role,
                federation=self._resources.settings.federation,
                now=now,
            )
            roster.check_trusted(self._resources.authority, now)
        except ChoraleError as error:
            raise AccessDenied(str(error), role) from None
        if now >= roster.expires:
            raise AccessDenied(f"roster: version {roster.version} has expired", role)
        if not roster.holds(role, member.name, fingerprint(caller.certificate)):
            raise AccessDenied(
                f"roster: version {roster.version} does not list this certificate of "
                f"{role.value} {member.name}",
                role,
            )


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Puts the guard before every handler of the server."""

    def __init__(self, guard: AccessGuard, connections: Connections) -> None:
        self._guard, self._connections = guard, connections

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method

        def parse(data: bytes) -> Any:
            """Bytes that do not parse are an error of the peer, not a crash of ours."""
            try:
                return handler.request_deserializer(data)
            except DecodeError:
                raise RemoteProtocolError("message: the bytes do not parse") from None

        @asynccontextmanager
        async def admitted(request: Any, context: Context) -> AsyncIterator[Any]:
            """The request, parsed after its sender was checked: gRPC would do it the other way round."""
            with ExitStack() as call:
                try:
                    caller = call.enter_context(self._guard.admitted(context, method))
                    self._connections.admit(context.peer(), caller.member)
                    request = request if handler.request_streaming else parse(request)
                except AccessDenied as denied:
                    self._connections.dismiss(context.peer())
                    await context.abort(denied.code, str(denied))
                except TooManyCalls as error:
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
                except RemoteProtocolError as error:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                yield request

        return _guarded(handler, admitted, parse if handler.request_streaming else None)


def _guarded(handler: Any, admitted: Admitted, parse: Parse | None) -> Any:
    """The same handler behind the check. gRPC treats coroutines and async generators differently,
    so each is wrapped as what it is."""
    behavior = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary

    async def generating(request: Any, context: Context) -> AsyncIterator[Any]:
        async with (
            admitted(request, context) as parsed,
            aclosing(behavior(parsed, context)) as replies,
        ):
            async for reply in replies:
                yield reply

    async def answering(request: Any, context: Context) -> Any:
        async with admitted(request, context) as parsed:
            return await behavior(parsed, context)

    factory = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[(bool(handler.request_streaming), bool(handler.response_streaming))]
    guarded = generating if inspect.isasyncgenfunction(behavior) else answering
    return factory(guarded, parse, handler.response_serializer)


def caller_of(context: Context) -> Caller:
    """Who made a call whose handler runs: gRPC frees the call with its handler, and the process crashes where
    one that was freed is asked. Raises AccessDenied where the connection does not prove who it is."""
    auth = {key: next(iter(values), b"") for key, values in context.auth_context().items()}
    if auth.get("ssl_tls_version") != b"TLSv1.3":
        raise AccessDenied("connection: expected TLS 1.3")
    try:
        certificate = load_certificate(auth.get("x509_pem_cert", b""))
    except ConfigError:
        raise AccessDenied("connection: expected a client certificate with a P-256 key") from None
    try:
        return Caller(member=member_of(certificate), certificate=certificate)
    except ChoraleError as error:
        raise AccessDenied(str(error)) from None
