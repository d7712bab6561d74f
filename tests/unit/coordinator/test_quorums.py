"""From CONSISTENCY on, t silos suffice: who answers late is not waited for, and loses nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from tests.support.records import left_out, train_of
from tests.unit.coordinator.fake_silo import FakeSilo

# no deadline helps: a stage that waits for the silo that is silent never ends within the test
PATIENT = {"stage_deadline_seconds": 3000.0, "stage_hard_cap_seconds": 3600.0}


@dataclass(kw_only=True)
class LateSilo(FakeSilo):
    """Keeps back what it would say of this kind in train, until released. is_lying: its shares are false."""

    keeps: str = ""
    is_lying: bool = False
    withheld: list[pb.SiloMessage] = field(default_factory=list)

    def say(self, message: pb.SiloMessage) -> None:
        kind = str(message.WhichOneof("kind"))
        body = getattr(message, kind)
        is_train = hasattr(body, "key") and wire.phase_kind(body.key.phase) == "train"
        if self.is_lying and is_train and kind == "unmask_shares":
            for share in body.self_mask_shares:
                share.secret = bytes([*share.secret[:-1], share.secret[-1] ^ 1])
        if kind == self.keeps and is_train:
            self.withheld.append(message)
        else:
            super().say(message)

    def release(self) -> None:
        for message in self.withheld:
            super().say(message)


async def start(hub, *, keeps, **others):
    """The last silo is late with these messages."""
    await hub.start()
    hub.start_silos(silo_3={"kind": LateSilo, "keeps": keeps}, **others)
    return hub.fakes["silo-3"]


def check_all_in(records, *, rounds):
    trains = [record for record in records if record.phase == "train"]
    assert [record.result for record in trains] == ["applied"] * rounds
    for record in trains:
        assert list(record.cohort) == ["silo-0", "silo-1", "silo-2", "silo-3"]
        assert not record.left_out


async def test_silo_that_signs_late_is_not_waited_for_and_not_left_out(make_hub):
    hub = make_hub(silos=4, **PATIENT)
    late = await start(hub, keeps="consistency")
    digest, _, records = await hub.run(rounds=2)
    check_all_in(records, rounds=2)
    assert len(late.withheld) == 2
    # asked for its shares like the others, and its input is in both sums
    asked = [request for request in late.received["signatures"] if request.key.phase == "train"]
    assert [request.key.round for request in asked] == [1, 2]
    assert all(len(request.signatures) == 3 for request in asked)
    await hub.check_votes(digest, np.full(4, 0.5))


async def test_shares_that_come_late_are_ignored_and_their_silo_is_not_left_out(make_hub):
    hub = make_hub(silos=4, **PATIENT)
    late = await start(hub, keeps="unmask_shares")
    digest = await hub.submit(rounds=2)
    while not any(record.record.round == 1 for record in late.received.get("outcome", [])):
        await late.wait_for("outcome", len(late.received.get("outcome", [])) + 1)
    late.release()  # the first round has been applied without them

    _, records = await hub.finish(digest)

    check_all_in(records, rounds=2)
    await hub.check_votes(digest, np.full(4, 0.5))


async def test_false_shares_count_for_nothing_and_their_giver_is_named(make_hub):
    hub = make_hub(silos=4, **PATIENT)
    late = await start(hub, keeps="unmask_shares", silo_0={"kind": LateSilo, "is_lying": True})
    digest = await hub.submit(rounds=1)
    liars: dict[str, str] = {}
    while not liars:
        await asyncio.sleep(0.01)  # the session is asked: no silo is told of a lie before the phase ends
        attempt = hub.host.job_manager.runner(digest).attempt
        liars = {} if attempt is None else attempt.session.liars
    assert not attempt.session.can_unmask  # two true answers of the three that are needed, and a false one
    while not late.withheld:
        await asyncio.sleep(0.01)
    late.release()

    _, records = await hub.finish(digest)

    train = train_of(records)
    assert train.result == "applied"
    assert left_out(train) == [("silo-0", "unmask", "lied")]
    await hub.check_votes(digest, np.full(4, 0.25))
