"""The end of a phase at the coordinator: applied once t silos signed the state that it computed itself."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest

from chorale.job import open_job
from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import Store
from crypto import encoding
from crypto.errors import Refusal
from crypto.session.messages import NextState
from tests.unit.coordinator.fake_silo import FakeSilo

# no deadline helps: an agreement that waits for the silo that is silent never ends within the test
PATIENT = {
    "stage_deadline_seconds": 3000.0,
    "stage_hard_cap_seconds": 3600.0,
    "unmask_hard_cap_seconds": 3600.0,
}


@dataclass(kw_only=True)
class OddSilo(FakeSilo):
    """Does this with its statements of train: `withholds` them, `refuses`, or changes `body` or `signature`,
    or signs twice (`repeats`)."""

    does: str = ""
    withheld: list[pb.SiloMessage] = field(default_factory=list)

    def say(self, message: pb.SiloMessage) -> None:
        is_statement = message.WhichOneof("kind") == "next_state"
        if not is_statement or wire.phase_kind(message.next_state.key.phase) != "train":
            return super().say(message)
        if self.does == "withholds":
            self.withheld.append(message)
            return None
        if self.does == "refuses":
            key = wire.key_from_wire(message.next_state.key)
            return super().say(
                pb.SiloMessage(refused=wire.refused_to_wire(wire.Refused(code=Refusal.SUM), key))
            )
        if self.does == "another state":
            message = self._with_another_state(message)
        elif self.does == "bad signature":
            signature = message.next_state.statement.signature
            message.next_state.statement.signature = signature[:-1] + bytes([signature[-1] ^ 1])
        super().say(message)
        if self.does == "repeats":
            super().say(message)
        return None

    def _with_another_state(self, message: pb.SiloMessage) -> pb.SiloMessage:
        """Under a signature that holds."""
        *before, next_digest, draw_seed = encoding.decode(
            NextState.PURPOSE, message.next_state.statement.body, max_bytes=1 << 20
        )
        signed = self.identity.sign(NextState.PURPOSE, *before, next_digest[::-1], draw_seed)
        return wire.to_coordinator("next_state", signed, wire.key_from_wire(message.next_state.key))


async def start(hub, **does):
    """silo_0="refuses": the rest are honest."""
    await hub.start()
    for name in hub.names:
        hub.silo(name, kind=OddSilo, does=does.get(name.replace("-", "_"), ""))


async def train_of(hub, digest):
    _, records = await hub.finish(digest)
    return next(record for record in records if record.phase == "train")


@pytest.mark.parametrize("odd", ["withholds", "refuses", "another state", "bad signature", "repeats"])
async def test_statements_of_t_silos_suffice_and_no_other_counts(make_hub, odd):
    hub = make_hub(silos=4, **PATIENT)
    # where one signs twice another is silent, so that a signature counted twice would make four
    await start(hub, silo_0=odd, silo_1="withholds" if odd == "repeats" else "")
    digest = await hub.submit(rounds=1)
    train = await train_of(hub, digest)
    assert (train.result, list(train.cohort)) == ("applied", hub.names)
    assert train.verified_by == 3
    await hub.check_votes(digest, np.full(4, 0.25))


@pytest.mark.parametrize("odd", ["refuses", "another state", "bad signature"])
async def test_a_round_ends_at_once_where_too_few_silos_can_sign(make_hub, odd):
    hub = make_hub(silos=4, **PATIENT)
    await start(hub, silo_0=odd, silo_2=odd)
    digest = await hub.submit(rounds=1)
    train = await train_of(hub, digest)
    assert (train.result, train.reason, train.verified_by) == ("used-up", "too-few-statements", 0)
    state = await hub.state(digest)
    np.testing.assert_array_equal(state["model/votes"], np.zeros(4, np.float32))  # the one before stands


async def test_a_round_ends_at_the_hard_cap_without_silos_that_are_silent(make_hub):
    hub = make_hub(silos=4, **PATIENT | {"unmask_hard_cap_seconds": 1.0})
    await start(hub, silo_0="withholds", silo_2="withholds")
    train = await train_of(hub, await hub.submit(rounds=1))
    assert (train.result, train.reason) == ("used-up", "too-few-statements")


async def test_a_proof_is_kept_that_every_silo_can_check(make_hub):
    hub = make_hub(silos=4, **PATIENT)
    await start(hub, silo_3="withholds")
    digest = await hub.submit(rounds=1)
    await train_of(hub, digest)
    with closing(Store(hub.settings.directory / "coordinator.sqlite")) as store:
        proofs = [wire.proof_from_wire(proof) for proof in store.proofs(digest)]
    job_digest, proof = proofs[-1]
    assert (job_digest, proof.phase, sorted(proof.signers)) == (digest, "train", hub.names[:3])
    fake = hub.fakes["silo-0"]
    job = open_job(
        fake._jobs[digest], roster=fake._roster, authority=hub.ceremony.anchors, now=hub.clock.now()
    )
    rule = job.spec.rule(4)
    proof.check(job_digest=digest, roster=fake._roster, names=tuple(hub.names), rule=rule)


async def test_a_silo_that_connects_again_gets_the_sum_again(start_hub):
    hub = await start_hub(silos=4, **PATIENT)
    for name in hub.names:
        gone = ("train", "revealed_sum") if name in ("silo-0", "silo-1") else None
        hub.silo(name, kind=OddSilo, vanish_on=gone)
    digest = await hub.submit(rounds=1)
    first = [await hub.fakes[name].wait_for("revealed_sum", 2) for name in ("silo-0", "silo-1")]
    for name in ("silo-0", "silo-1"):
        await hub.fakes[name].stop()
        hub.silo(name, kind=OddSilo, **hub.fakes[name].kept)
    again = [await hub.fakes[name].wait_for("revealed_sum") for name in ("silo-0", "silo-1")]
    assert again == first
    train = await train_of(hub, digest)
    assert train.result == "applied"
    assert train.verified_by in (3, 4)  # t, or all where the last statement comes at once


async def test_a_silo_that_refused_may_sign_when_it_connects_again(make_hub):
    """It was suspended, or its disk was full."""
    hub = make_hub(silos=4, **PATIENT)
    await start(hub, silo_0="withholds", silo_1="refuses")
    digest = await hub.submit(rounds=1)
    while "without silo-1 (sum)" not in hub.host.job_manager.runner(digest).progress:
        await asyncio.sleep(0.01)  # no silo is told of another's refusal before the phase ends
    before = hub.fakes["silo-1"]
    await before.stop()
    hub.silo("silo-1", kind=OddSilo, **before.kept)
    train = await train_of(hub, digest)
    assert (train.result, train.verified_by) == ("applied", 3)
    assert hub.fakes["silo-1"].received["revealed_sum"] == before.received["revealed_sum"][1:]


async def test_a_coordinator_that_stops_with_a_revealed_sum_asks_for_the_same_statements(make_hub):
    hub = make_hub(silos=4, **PATIENT)
    await start(hub, silo_0="withholds", silo_1="withholds")
    digest = await hub.submit(rounds=1)
    for name in hub.names:
        await hub.fakes[name].wait_for("revealed_sum", 2)
    before = hub.fakes["silo-0"].received["revealed_sum"][-1]
    with closing(Store(hub.settings.directory / "coordinator.sqlite")) as store:
        assert store.phases(digest)[-1].state is PhaseState.REVEALED
    await hub.restart(kind=OddSilo)
    train = await train_of(hub, digest)
    assert (train.result, train.attempts, list(train.cohort)) == ("applied", 1, hub.names)
    for fake in hub.fakes.values():
        (asked,) = [each for each in fake.received["revealed_sum"] if each.key == before.key]
        assert asked == before
