"""How a call ended, as the coordinator said it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import grpc


class FirstStatus:
    """The first status of a call; make it before anything else may fail.

    A message that cannot be sent any more makes gRPC replace what the coordinator said, such as whom the
    roster does not list, by "Internal error from Core" (github.com/grpc/grpc/issues/36066).
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._first: tuple[grpc.StatusCode, str | None] | None = None
        call.add_done_callback(self._note)

    async def get(self) -> tuple[grpc.StatusCode, str | None]:
        """Code and details, as soon as the call has ended."""
        last = await self._call.code(), await self._call.details()
        return self._first or last

    def _note(self, call: Any) -> None:
        """gRPC calls it within the step of its loop that brings a status: the next may replace it."""
        self._first = _result(call.code()), _result(call.details())


def _result(ended: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine that waits for nothing returns."""
    try:
        ended.send(None)
    except StopIteration as result:
        return result.value
    raise AssertionError("gRPC calls back when a call has ended, and has a status then")
