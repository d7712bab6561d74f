"""The way to one silo: in order, bounded, and over at once when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from chorale.runtime.software import Software
from chorale.v1 import federation_pb2 as pb
from chorale.v1.session_pb2 import Cohort
from coordinator.members.attendance import (
    MAX_QUEUED_MESSAGES,
    SECOND_AGENT_SECONDS,
    Attendance,
    Connection,
    Leaving,
)
from coordinator.metrics import CoordinatorMetrics
from coordinator.process import Clock


def connection_to_a(agent: bytes = b"") -> Connection:
    expires = datetime(2100, 1, 1, tzinfo=UTC)
    return Connection("a", certificate_expires=expires, software=Software(version="1.0"), agent=agent)


def beat(number: float) -> pb.CoordinatorMessage:
    return pb.CoordinatorMessage(heartbeat=pb.Heartbeat(unix_seconds=number))


async def numbers(messages: AsyncIterator[pb.CoordinatorMessage]) -> list[float]:
    return [message.heartbeat.unix_seconds async for message in messages]


async def test_messages_go_out_in_order_until_the_connection_ends() -> None:
    connection = connection_to_a()
    outgoing = connection.outgoing()
    connection.send(beat(1))
    connection.send(beat(2))
    assert (await anext(outgoing)).heartbeat.unix_seconds == 1
    assert (await anext(outgoing)).heartbeat.unix_seconds == 2
    waiting = asyncio.create_task(anext(outgoing))
    await asyncio.sleep(0)
    connection.send(beat(3))
    assert (await waiting).heartbeat.unix_seconds == 3
    rest = asyncio.create_task(numbers(outgoing))
    await asyncio.sleep(0)  # it waits for news
    connection.end()
    assert await rest == []


async def test_what_was_sent_before_the_end_goes_out_and_nothing_after_it() -> None:
    # a revoked silo did not get the roster that revokes it, where both came at one moment
    connection = connection_to_a()
    connection.send(beat(1))
    connection.send(beat(2))
    connection.end()
    connection.send(beat(3))
    assert await numbers(connection.outgoing()) == [1, 2]


async def test_a_silo_that_lets_too_many_messages_wait_is_gone() -> None:
    connection = connection_to_a()
    for number in range(MAX_QUEUED_MESSAGES):
        connection.send(beat(number))
    assert not connection.ended.is_set()
    connection.send(beat(0))
    assert connection.ended.is_set()
    assert connection.farewell is not None
    assert connection.farewell.why is Leaving.TOO_SLOW
    assert await numbers(connection.outgoing()) == []


async def test_a_message_that_is_still_on_its_way_is_not_sent_again() -> None:
    """A silo on a slow line got a task of 200 kB again at each of its heartbeats, faster than the line took
    them, until it was disconnected for what waited."""
    connection = connection_to_a()
    outgoing = connection.outgoing()
    task, cohort = pb.CoordinatorMessage(task=pb.PhaseTask()), pb.CoordinatorMessage(cohort=Cohort())
    connection.send(task)
    assert await anext(outgoing) is task
    for _ in range(2 * MAX_QUEUED_MESSAGES):
        connection.send(task)  # the line carries it
        connection.send(cohort)  # it waits
    assert not connection.ended.is_set()
    assert await anext(outgoing) is cohort
    waiting = asyncio.create_task(anext(outgoing))
    await asyncio.sleep(0)
    connection.send(cohort)  # the silo has it, and lost it
    assert await waiting is cohort


async def test_no_task_is_left_waiting_when_the_stream_is_broken_off() -> None:
    before = asyncio.all_tasks()
    reading = asyncio.create_task(numbers(connection_to_a().outgoing()))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert asyncio.all_tasks() == before


async def test_two_agents_of_one_silo_do_not_displace_each_other_again_and_again() -> None:
    """They did every 0.1 to 0.5 s, and all that was logged is that a silo connected."""
    seconds = [0.0]
    metrics = CoordinatorMetrics()
    attendance = Attendance(metrics=metrics, clock=Clock(monotonic=lambda: seconds[0]))

    def come(agent: bytes) -> Connection:
        connection = connection_to_a(agent)
        attendance.join(connection)
        return connection

    def turned_away() -> float | None:
        return metrics.registry.get_sample_value("chorale_coordinator_second_agents_total", {"silo": "a"})

    first = come(b"1" * 16)
    again = come(b"1" * 16)  # dialed again after it lost the line
    copy = come(b"2" * 16)  # or the pod that took its place
    come(b"")  # a doctor asks
    copy = come(b"2" * 16)
    assert [each.farewell and each.farewell.why for each in (first, again)] == [Leaving.REPLACED] * 2
    assert not attendance.has_two_agents("a")
    back = come(b"1" * 16)
    assert attendance.connections["a"] is copy
    assert back.farewell is not None
    assert back.farewell.why is Leaving.SECOND_AGENT
    assert "two agents use the certificate of a" in back.farewell.sentence
    assert (await anext(copy.outgoing())).heartbeat.two_agents
    assert (turned_away(), attendance.has_two_agents("a")) == (1.0, True)
    seconds[0] = SECOND_AGENT_SECONDS
    assert not attendance.has_two_agents("a")
    attendance.leave(copy)
    assert come(b"1" * 16) is attendance.connections["a"]
