"""How long a stream may stand still, and how many of them a member may have: nobody holds a file for ever.

Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import MemberId

Message = TypeVar("Message")


class TooSlow(RemoteProtocolError):
    """The peer sent nothing, or read nothing, for too long."""


class TooManyCalls(RemoteProtocolError):
    """The member has as many calls of a method under way as it may."""


class Calls:
    """The calls under way, by member and method, over all connections of a member."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: Counter[tuple[MemberId, str]] = Counter()

    @contextmanager
    def counted(self, member: MemberId, method: str) -> Iterator[None]:
        """While a call lasts. Raises TooManyCalls."""
        if self._under_way[member, method] >= self._most:
            raise TooManyCalls(
                f"{method}: {self._most} calls of {member.role.value} {member.name} are under way already"
            )
        self._under_way[member, method] += 1
        try:
            yield
        finally:
            self._under_way[member, method] -= 1
            if not self._under_way[member, method]:
                del self._under_way[member, method]


async def received(messages: AsyncIterator[Message], *, seconds: float, what: str) -> AsyncIterator[Message]:
    """The peer's messages. Raises TooSlow where the next one does not come in time."""
    source = aiter(messages)
    while True:
        try:
            async with asyncio.timeout(seconds):
                message = await anext(source, None)
        except TimeoutError:
            raise TooSlow(f"{what}: nothing came for {seconds:g} seconds") from None
        if message is None:
            return
        yield message


async def send(
    context: grpc.aio.ServicerContext[Any, Any], message: object, *, seconds: float, what: str
) -> None:
    """Raises TooSlow where the peer does not make room for the message in time."""
    try:
        async with asyncio.timeout(seconds):
            await context.write(message)
    except TimeoutError:
        raise TooSlow(f"{what}: nothing was read for {seconds:g} seconds") from None
