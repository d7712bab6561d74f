"""Errors of Chorale as gRPC codes: the one place where they meet. Source: docs/protocol.md 9."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc

from chorale.observability.logs import get_logger
from coordinator.jobs.job_manager import NOT_KNOWN, Draining, TooManyJobs
from crypto.errors import ChoraleError, PolicyRefusal, Refusal, RemoteProtocolError

Context = grpc.aio.ServicerContext[Any, Any]

log = get_logger("coordinator.calls")

_BY_CODE = {
    Refusal.STAGE: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.LEFT_OUT: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.ROSTER: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.NOT_NAMED: grpc.StatusCode.PERMISSION_DENIED,
}


def code_of(error: ChoraleError) -> grpc.StatusCode:
    if isinstance(error, Draining):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, TooManyJobs):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, RemoteProtocolError):
        if str(error) == NOT_KNOWN:
            return grpc.StatusCode.NOT_FOUND
        return _BY_CODE.get(error.code, grpc.StatusCode.INVALID_ARGUMENT)
    if isinstance(error, PolicyRefusal):
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.INTERNAL


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
        await context.abort(code_of(error), str(error))
    except Exception:
        log.exception("call failed")  # grpc answers UNKNOWN and says nothing here
        raise
