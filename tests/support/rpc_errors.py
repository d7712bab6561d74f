"""What a call over gRPC fails with: its sentence and its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest


@contextmanager
def rpc_fails(code: str, words: str) -> Iterator[Any]:
    """The calls inside end with this code, and with a sentence in which the pattern is found."""
    with pytest.raises(grpc.aio.AioRpcError, match=words) as raised:
        yield raised
    assert raised.value.code() is grpc.StatusCode[code], raised.value
