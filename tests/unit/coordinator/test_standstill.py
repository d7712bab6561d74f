"""A silo that sends its input and is then silent, where no round goes on without it.

It is named, and its round can be given up before the cap of an hour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from chorale.v1 import federation_pb2 as fpb
from chorale.v1 import operations_pb2 as pb
from chorale.v1.records_pb2 import JobSummary
from tests.support.records import left_out, train_of
from tests.unit.coordinator.fake_silo import FakeSilo

SILENT, ROUNDS = "silo-2", 4
AWAITED = f"waiting for an answer of {SILENT}, without which the round stands still"
IN_THE_WAY = (
    f"{AWAITED}; {SILENT} stood in the way of 3 rounds in a row: skip rounds (chorale job skip-round), "
    "or cancel and submit the job without this silo"
)
# the message that it does not answer; the stage that then stands still, and why a round ends at its cap
SILENCES = {"signatures": ("unmask", "unmask-hard-cap"), "revealed_sum": ("revealed", "too-few-statements")}
silences = pytest.mark.parametrize("message", SILENCES)


@dataclass(kw_only=True)
class Silent(FakeSilo):
    """silent_on: the message of a training that it does not answer."""

    silent_on: str

    async def _receive(self, message: fpb.CoordinatorMessage) -> None:
        kind = str(message.WhichOneof("kind"))
        if kind != self.silent_on or getattr(message, kind).key.phase != "train":
            await super()._receive(message)


async def submitted(
    attended_hub: Any, message: str, *, rounds: int = ROUNDS, **settings: Any
) -> tuple[Any, bytes]:
    silent = {"kind": Silent, "silent_on": message}
    hub = await attended_hub(silos=3, silo_2=silent, **settings)
    return hub, await hub.submit(rounds=rounds)


async def first_summary(hub: Any, digest: bytes, holds: Callable[[JobSummary], bool]) -> JobSummary:
    async for event in hub.operations().WatchJob(pb.WatchRequest(job_digest=digest)):
        if event.HasField("summary") and holds(event.summary):
            return event.summary
    pytest.fail("the job ended before")


def overdue(hub: Any) -> float:
    return hub.host.resources.metrics.registry.get_sample_value(
        "chorale_coordinator_overdue", {"silo": SILENT}
    )


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("attempt_runner", "statements"):
        monkeypatch.setattr(f"coordinator.jobs.{module}.OVERDUE_SECONDS", 0.05)


@silences
async def test_silo_without_which_a_round_stands_still_is_named_and_its_rounds_are_skipped(
    attended_hub: Any, message: str
) -> None:
    """Each round took an hour, nobody was named, and its record left nobody out."""
    hub, digest = await submitted(attended_hub, message)
    for round in range(1, ROUNDS + 1):
        summary = await first_summary(
            hub,
            digest,
            lambda one, title=f"round {round},": one.progress.startswith(title) and AWAITED in one.state,
        )
        assert {each.silo: each.why for each in summary.awaited} == {SILENT: "overdue"}
        assert summary.state == (AWAITED if round < ROUNDS else IN_THE_WAY)
        assert overdue(hub) == 1
        await hub.control(digest, "SKIP_ROUND")
    summary, records = await hub.finish(digest)

    assert summary.status == "done"
    trains = [record for record in records if record.phase == "train"]
    assert {(record.result, record.reason) for record in trains} == {("used-up", "skipped")}
    assert [left_out(record) for record in trains] == [[(SILENT, SILENCES[message][0], "no-answer")]] * ROUNDS
    assert overdue(hub) == 0


@silences
async def test_silo_that_a_round_was_given_up_for_at_its_cap_is_in_the_record(
    attended_hub: Any, message: str
) -> None:
    stage, reason = SILENCES[message]
    hub, digest = await submitted(attended_hub, message, rounds=1, unmask_hard_cap_seconds=1.0)
    _, records = await hub.finish(digest)

    train = train_of(records)
    assert (train.result, train.reason) == ("used-up", reason)
    assert left_out(train) == [(SILENT, stage, "no-answer")]


async def test_round_whose_inputs_are_not_there_cannot_be_skipped(start_hub: Any) -> None:
    hub = await start_hub(silos=3)
    digest = await hub.submit(rounds=1)
    with pytest.raises(grpc.aio.AioRpcError, match="no round to skip: none waits in unmask or revealed"):
        await hub.control(digest, "SKIP_ROUND")
