"""Errors of Chorale as gRPC codes: the one place where they meet. Source: docs/protocol.md 9."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc

from chorale.observability.logs import get_logger
from chorale.runtime.disk import NoRoom
from chorale.runtime.machine import LimitTooLow
from coordinator.jobs.job_manager import Draining, NotTheOperator, TooManyJobs, UnknownJob
from coordinator.service.streams import TooManyCalls, TooSlow
from crypto.errors import ChoraleError, PolicyRefusal, Refusal, RemoteProtocolError

Context = grpc.aio.ServicerContext[Any, Any]

log = get_logger("coordinator.calls")

_BY_TYPE: dict[type[ChoraleError], grpc.StatusCode] = {
    NoRoom: grpc.StatusCode.RESOURCE_EXHAUSTED,
    LimitTooLow: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Draining: grpc.StatusCode.UNAVAILABLE,
    TooManyCalls: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyJobs: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooSlow: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnknownJob: grpc.StatusCode.NOT_FOUND,
    NotTheOperator: grpc.StatusCode.PERMISSION_DENIED,
    PolicyRefusal: grpc.StatusCode.PERMISSION_DENIED,
}
_BY_REFUSAL = {  # of any other RemoteProtocolError; the rest of them is malformed
    Refusal.STAGE: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.LEFT_OUT: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.ROSTER: grpc.StatusCode.PERMISSION_DENIED,
}


async def abort(context: Context, code: grpc.StatusCode, sentence: str) -> NoReturn:
    """End the call; grpc.aio's abort raises."""
    await context.abort(code, sentence)
    raise AssertionError("abort returned")


@asynccontextmanager
async def errors_as_codes(context: Context) -> AsyncIterator[None]:
    """A ChoraleError inside ends the call with its code and its sentence."""
    try:
        yield
    except ChoraleError as error:
        log.debug("call refused", error=type(error).__name__, reason=str(error)[:300])
        code = grpc.StatusCode.INTERNAL
        if isinstance(error, RemoteProtocolError):
            code = _BY_REFUSAL.get(error.code, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(_BY_TYPE.get(type(error), code), str(error))
    except Exception:
        log.exception("call failed")  # grpc answers UNKNOWN and says nothing here
        raise
