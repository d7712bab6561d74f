from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from bench.masking import sum_alone
from bench.parties.plain_round import BY_HAND, PROTOBUF, Server, _chunks
from bench.round import Cost, Held, Limit, Measured, Moved, rows
from chorale.v1 import federation_pb2 as pb
from crypto.errors import LocalProtocolError

SILOS = 3
LENGTH = 300_001  # two chunks, of which the second is short


async def test_plain_round_moves_the_model_by_the_mean_of_what_came(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server(silos=SILOS, length=LENGTH)
    for number in (1, 2):
        models = await asyncio.gather(*(downloaded(server) for _ in range(SILOS)))
        for model_P in models:
            np.testing.assert_array_equal(model_P, np.full(LENGTH, 2.0 * (number - 1), np.float32))
        vectors = (np.full(LENGTH, value, np.float32) for value in (1.0, 2.0, 3.0))
        await asyncio.gather(*(server.upload(sent(vector_P), None) for vector_P in vectors))
    events = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert events == ['{"event": "ended"'] * 2


async def test_messages_are_answered_when_all_silos_have_sent_theirs() -> None:
    server = Server(silos=SILOS, length=1)
    lines = [server.exchange(messages(bytes([silo]), bytes([9])), None) for silo in range(SILOS)]
    early = [asyncio.ensure_future(anext(line)) for line in lines[1:]]
    await asyncio.sleep(0.01)
    assert not any(one.done() for one in early)
    assert await asyncio.gather(anext(lines[0]), *early) == [bytes([silo]) for silo in range(SILOS)]
    assert await asyncio.gather(*(anext(line) for line in lines)) == [bytes([9])] * SILOS


async def test_the_floor_moves_the_same_bytes_and_leaves_the_model_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server(silos=1, length=LENGTH, is_floor=True)
    vector_P = np.ones(LENGTH, np.float32)
    await server.upload(sent(vector_P), None)
    assert '"event": "ended"' in capsys.readouterr().out
    np.testing.assert_array_equal(await downloaded(server), np.zeros(LENGTH, np.float32))
    by_hand, plain = (
        [framing.write(chunk) for chunk in _chunks(vector_P, framing)] for framing in (BY_HAND, PROTOBUF)
    )
    assert by_hand == plain


async def messages(*sent: bytes) -> AsyncIterator[bytes]:
    for message in sent:
        yield message


async def downloaded(server: Server) -> np.ndarray[Any, Any]:
    parts = [chunk.data async for chunk in server.download(b"", None)]
    assert len(parts) == 2
    return np.frombuffer(b"".join(parts), np.float32)


async def sent(vector_P: np.ndarray[Any, Any]) -> AsyncIterator[pb.Chunk]:
    for chunk in _chunks(vector_P):
        yield chunk


@pytest.mark.parametrize("silos", [4, 10])
def test_rows_hold_a_round_to_its_targets(silos: int) -> None:
    measured = Measured(
        cost=Cost(wall_seconds=0.9, cpu_seconds=0.6),
        phase_seconds=0.8,
        stages={},
        moved=Moved(down_bytes=5e6, up_bytes=4e6),
    )
    held = rows(
        silos,
        measured,
        Cost(wall_seconds=0.3, cpu_seconds=0.4),
        coordinator=Held(vectors=1.4, fixed_bytes=70e6),
        silo=Held(vectors=1.5, fixed_bytes=1e6),
    )
    found = {row.name: row for row in held}

    assert found[f"secure round / plain round, {silos} silos, wall"].value == pytest.approx(3.0)
    assert not found[f"secure round / plain round, {silos} silos, wall"].holds
    assert found[f"secure round / plain round, {silos} silos, CPU"].value == pytest.approx(1.5)
    # the delta is the model's own
    assert found[f"peak extra memory of a silo / vector, {silos} silos"].value == pytest.approx(0.5)
    assert found[f"peak extra memory of the coordinator / vector, {silos} silos"].holds
    assert not found[f"memory of the coordinator beyond that, {silos} silos"].holds
    assert not found[f"download / upload of a silo in a round, {silos} silos"].holds
    assert ("secure round over processes, 4 silos, wall" in found) == (silos == 4)


def test_sum_alone_costs_more_with_more_silos_and_is_what_it_should_be() -> None:
    few, many = (sum_alone.measure(silos=silos, length=1000) for silos in (4, 12))
    assert 0 < few.cpu_seconds < many.cpu_seconds
    assert 0 < few.message_bytes < many.message_bytes


def test_a_limit_is_what_is_moved_and_what_is_summed() -> None:
    assert Limit(moved_cpu_seconds=0.5, sum_cpu_seconds=0.25).cpu_seconds == 0.75


def test_a_wrong_sum_is_no_limit() -> None:
    exact_L = np.arange(4.0)
    sum_alone.check(exact_L, exact_L + 1e-6)
    with pytest.raises(LocalProtocolError, match="the revealed sum is not the sum of the inputs"):
        sum_alone.check(exact_L, exact_L + np.array([0, 0, 0.01, 0]))
