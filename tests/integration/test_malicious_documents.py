"""A coordinator that deviates in what it relays: rosters, jobs, global states, and bytes that are none.

Over real mutual TLS, against real agents, each after a round without the tampering. What it bends
inside sessions: test_malicious_coordinator.py. Guarantees G1, G3 and G5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from chorale.job import SignedJob, sign_job
from chorale.spec.state import state_to_bytes
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import Refusal
from crypto.identity import certificates
from crypto.identity.certificates import Role
from strategies.base import DRAW_SEED, TOTAL
from tests.support.agents import Exchange, changed
from tests.support.ceremony import stranger
from tests.support.rogue import SPARE, Message, Rogue, with_proofs

pytestmark = pytest.mark.asyncio(loop_scope="module")

VICTIM = "silo-1"


async def honest(rogue: Rogue, *, unseen: Sequence[str] = ()) -> Exchange:
    """The control: a round without the tampering reveals exactly the sum; then the next round.

    unseen: not shown the sum, so that they download the state after it.
    """
    await rogue.new_job(unseen=unseen)
    return rogue.begin_next()


def conspired(rogue: Rogue, state: dict[str, np.ndarray], *, attempt: int = 1) -> Exchange:
    """The round after the next, over a state that all silos signed and none computed.

    Nobody can make a silo take another one, so whatever is refused here is refused for what the state holds.
    """
    proof = rogue.conspire(rogue.round, "train", state)
    rogue.round += 1
    exchange = rogue.begin(rogue.round, "train", attempt=attempt, state=state)
    exchange.task = with_proofs(exchange.task, proof)
    return exchange


# rosters


ROSTERS: dict[str, Callable[[Rogue], dict[str, Any]]] = {
    "roster: expected version 7 or newer, got 6": lambda _: {"version": 6},
    "roster: version 9 is 8 days old, at most 7 allowed": lambda rogue: {
        "version": 9,
        "issued": rogue.now - timedelta(days=8),
    },
    "roster: version 9 expired at": lambda rogue: {
        "version": 9,
        "issued": rogue.now - timedelta(hours=25),
        "expires": rogue.now - timedelta(hours=1),
    },
    "roster: the signature is not valid": lambda _: {
        "version": 9,
        "authority_key": certificates.new_key(),
    },
    "roster: expected federation test, got elsewhere": lambda _: {"version": 9, "federation": "elsewhere"},
    "roster: two different rosters of version 7": lambda rogue: {
        "members": [one for one in rogue.roster.members if one.name != "silo-3"]
    },
}


@pytest.mark.parametrize("is_at_welcome", [False, True])
@pytest.mark.parametrize("reason", ROSTERS)
async def test_silo_refuses_a_roster(four: Rogue, reason: str, is_at_welcome: bool) -> None:
    exchange = await honest(four)
    line, given = four.agents[VICTIM], wire.signed_body_to_wire(four.sign_roster(**ROSTERS[reason](four)))
    if not is_at_welcome:
        line.tell(roster=pb.RosterUpdate(roster=given))
        await line.refuses_form(Refusal.ROSTER, reason)
        return
    welcome = four.greeting(VICTIM)
    welcome.roster.CopyFrom(given)
    four.welcome = lambda silo: welcome
    await line.stop()
    await line.start()
    await line.refuses_form(Refusal.ROSTER, reason)
    line.tell(task=exchange.task)
    await line.refuses(Refusal.ROSTER, "roster: the coordinator has relayed none")
    four.check_nothing_left(exchange)
    four.welcome = four.greeting
    await line.restart()


async def test_silo_computes_its_terms_under_the_newest_roster_it_saw(tmp_path) -> None:
    """A round begun under an older roster than it holds would name silos that were struck since."""
    async with Rogue(tmp_path) as rogue:
        await rogue.start()
        await rogue.control()
        exchange = rogue.begin_next()
        line = rogue.agents[VICTIM]
        newer = rogue.members.roster(version=8, without=["silo-3"], issued=rogue.now)
        line.tell(roster=pb.RosterUpdate(roster=wire.signed_body_to_wire(newer.signed)))
        line.tell(task=exchange.task)
        await line.refuses(Refusal.TERMS, "the coordinator's terms are not this silo's")
        rogue.check_nothing_left(exchange)


async def test_silo_refuses_the_advert_of_a_silo_that_was_struck(tmp_path) -> None:
    async with Rogue(tmp_path, silos=5) as rogue:
        await rogue.start()
        await rogue.control()
        before = rogue.begin_next()
        rogue.agents["silo-4"].tell(task=before.task)
        struck = wire.from_silo(pb.SiloMessage(advert=await rogue.agents["silo-4"].answer("advert")))
        rogue.roster = rogue.members.roster(version=8, without=["silo-4"], issued=rogue.now)
        update = pb.RosterUpdate(roster=wire.signed_body_to_wire(rogue.roster.signed))
        for name in rogue.names:
            rogue.agents[name].tell(roster=update)
        exchange = rogue.begin(rogue.round, "train", attempt=2)
        await rogue.advertise(exchange, without=["silo-4"])
        cohort = wire.to_silo(exchange.session.close_advertise(), exchange.key).cohort
        cohort.adverts[0].CopyFrom(wire.signed_body_to_wire(struck))
        rogue.agents[VICTIM].tell(cohort=cohort)
        await rogue.agents[VICTIM].refuses(Refusal.NOT_NAMED, "advert: the silo is not in the named set")
        line = rogue.agents["silo-4"]
        line.tell(task=rogue.begin_next().task)
        reason = "roster: version 8 does not hold silo silo-4 with this certificate"
        await line.refuses(Refusal.ROSTER, reason)
        rogue.check_nothing_left(exchange)


# jobs


def _with_a_byte_flipped(rogue: Rogue) -> SignedJob:
    signed = rogue.job.signed
    changed_spec = signed.spec_bytes.replace(b"learning_rate: 0.1", b"learning_rate: 0.9")
    assert changed_spec != signed.spec_bytes
    return dataclasses.replace(signed, spec_bytes=changed_spec)


def _signed_by_a_silo(rogue: Rogue) -> SignedJob:
    return sign_job(rogue.job.signed.spec_bytes + b"\n", rogue.members.silos["silo-0"])


def _signed_by_somebody_else(rogue: Rogue) -> SignedJob:
    """Next to the certificate of the operator whom the roster lists."""
    signed = sign_job(rogue.job.signed.spec_bytes + b"\n", rogue.members.silos["silo-0"])
    return dataclasses.replace(signed, operator_certificate=rogue.members.operator.certificate_der)


def _signed_by_a_stranger(rogue: Rogue) -> SignedJob:
    """An operator of another authority, under the operator's own name."""
    return sign_job(rogue.job.signed.spec_bytes + b"\n", stranger(Role.OPERATOR, "ops", now=rogue.now))


def _of_other_silos(rogue: Rogue) -> SignedJob:
    others = (*(name for name in rogue.names if name != VICTIM), SPARE)
    return rogue.sign(silos=others).signed


@pytest.mark.parametrize(
    "forge, code, reason",
    [
        (_with_a_byte_flipped, Refusal.JOB_INVALID, "job: the signature is not valid"),
        (_signed_by_a_silo, Refusal.ROSTER, "certificate: .*operator"),
        (_signed_by_somebody_else, Refusal.JOB_INVALID, "job: the signature is not valid"),
        (_signed_by_a_stranger, Refusal.ROSTER, "it was not issued by this federation's authority"),
        (_of_other_silos, Refusal.NOT_NAMED, "does not list this silo"),
    ],
)
async def test_silo_refuses_a_job(
    four: Rogue, forge: Callable[[Rogue], SignedJob], code: Refusal, reason: str
) -> None:
    exchange = await honest(four)
    signed, line = forge(four), four.agents[VICTIM]
    line.tell(job=pb.JobOffer(job=signed.to_wire()))
    await line.refuses_form(code, reason)
    key = PhaseKey(job_digest=signed.digest, round=0, phase="enrollment.0", attempt=1)
    line.tell(task=changed(exchange.task, key=wire.key_to_wire(key)))
    await line.refuses(code, reason)
    four.check_nothing_left(dataclasses.replace(exchange, key=key))


async def test_silo_that_the_job_does_not_list_joins_nothing(four: Rogue) -> None:
    exchange = await honest(four)
    line = four.agents[SPARE]
    await line.start()
    line.meet()
    await line.refuses_form(Refusal.NOT_NAMED, "does not list this silo")
    line.tell(task=exchange.task)
    await line.refuses(Refusal.NOT_NAMED, "does not list this silo")
    four.check_nothing_left(exchange)
    await line.stop()


async def test_silo_that_the_draw_does_not_name_joins_nothing(tmp_path) -> None:
    """fraction 0.6 of five: the coordinator asks a silo that no hash chose."""
    async with Rogue(tmp_path, silos=5, fraction=0.6) as rogue:
        await rogue.start()
        await rogue.run(0, "enrollment.0")
        exchange = rogue.begin(1, "train")
        drawn = exchange.session.terms.names
        assert len(drawn) == 3
        outside = [name for name in rogue.names if name not in drawn]
        await rogue.advertise(exchange, without=outside)
        rogue.agents[outside[0]].tell(task=exchange.task)
        await rogue.agents[outside[0]].refuses(Refusal.NOT_NAMED, "round 1: this silo is not named")
        rogue.check_nothing_left(exchange)


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (None, "method/draw_seed: expected 32 bytes, got none"),
        (np.zeros(31, np.uint8), r"method/draw_seed: expected 32 bytes, got uint8 of shape \(31,\)"),
        (np.zeros(32, np.float32), r"method/draw_seed: expected 32 bytes, got float32 of shape \(32,\)"),
    ],
    ids=["missing", "short", "floats"],
)
async def test_silo_refuses_a_drawn_round_over_a_state_without_its_seed(
    tmp_path, seed: np.ndarray | None, reason: str
) -> None:
    async with Rogue(tmp_path, silos=5, fraction=0.6) as rogue:
        await rogue.start()
        await rogue.run(0, "enrollment.0")
        # control: over the state with the opening's seed the same silos advertise
        control = rogue.begin(1, "train")
        await rogue.advertise(control, without=set(rogue.names) - set(control.session.terms.names))
        exchange = rogue.begin(2, "train")
        target = exchange.session.terms.names[0]
        planted = {name: array for name, array in rogue.state.items() if name != DRAW_SEED}
        planted |= {} if seed is None else {DRAW_SEED: seed}
        digest = rogue.put(planted)
        proof = rogue.conspire(1, "train", rogue.state, next_digest=digest)
        size = len(rogue.states[digest])
        task = with_proofs(changed(exchange.task, state_digest=digest, state_bytes=size), proof)
        rogue.agents[target].tell(task=task)
        await rogue.agents[target].refuses(Refusal.TERMS, reason)
        rogue.check_nothing_left(exchange)


async def test_silo_reveals_two_openings_of_a_draw_and_no_third(tmp_path) -> None:
    """A coordinator could throw revealed openings away until a draw suits it."""
    async with Rogue(tmp_path, silos=5, fraction=0.6) as rogue:
        await rogue.start()
        seeds = []
        for number in range(2):  # the first two are the control
            opening = rogue.begin(0, f"enrollment.{number}")
            await rogue.until_signed(opening)
            await rogue.unmask(opening)  # no silo is shown the sum
            seeds.append(rogue.following(opening)[DRAW_SEED].tobytes())
        assert len(set(seeds)) == 2
        exchange = rogue.begin(0, "enrollment.2")
        for name in rogue.names:
            rogue.agents[name].tell(task=exchange.task)
            await rogue.agents[name].refuses(Refusal.POLICY, "2 openings of the job were revealed")
        rogue.check_nothing_left(exchange)


# global states


def _other_total(rogue: Rogue) -> dict[str, np.ndarray]:
    return {**rogue.state, TOTAL: np.array(int(rogue.state[TOTAL]) + 100, np.int64)}


async def test_silo_refuses_other_bytes_than_the_digest_announces(four: Rogue) -> None:
    exchange = await honest(four, unseen=[VICTIM])
    other = state_to_bytes(_other_total(four))
    assert len(other) == exchange.task.state_bytes
    four.serve = lambda silo, request: [pb.Chunk(offset=0, data=other)]
    four.agents[VICTIM].tell(task=exchange.task)
    await four.agents[VICTIM].refuses(Refusal.STATE, "download: the digest is not the announced one")
    four.check_nothing_left(exchange)


DOWNLOADS: dict[str, tuple[Callable[[bytes], list[tuple[int, bytes]]], Refusal, str]] = {
    "too many": (
        lambda data: [(0, data), (len(data), b"\0")],
        Refusal.STATE,
        "download: chunks do not fit the announced size",
    ),
    "too few": (lambda data: [(0, data[:-1])], Refusal.STATE, r"download: expected \d+ bytes, got \d+"),
    "a gap": (
        lambda data: [(8, data[8:])],
        Refusal.STATE,
        "download: chunks do not fit the announced size",
    ),
    "a chunk too large": (
        lambda _: [(0, bytes(wire.CHUNK_BYTES + 1))],
        Refusal.MALFORMED,
        "chunk: expected 1 to 1048576 bytes, got 1048577",
    ),
}


@pytest.mark.parametrize(("cut", "code", "reason"), DOWNLOADS.values(), ids=DOWNLOADS)
async def test_silo_refuses_a_download(
    four: Rogue, cut: Callable[[bytes], list[tuple[int, bytes]]], code: Refusal, reason: str
) -> None:
    exchange = await honest(four, unseen=[VICTIM])
    four.serve = lambda silo, request: [
        pb.Chunk(offset=offset, data=data)
        for offset, data in cut(four.states[request.digest][request.offset :])
    ]
    four.agents[VICTIM].tell(task=exchange.task)
    await four.agents[VICTIM].refuses(code, reason)
    four.check_nothing_left(exchange)


async def test_silo_handed_another_model_completes_no_session(four: Rogue) -> None:
    """Its task is consistent in itself; its advert fits no other session, nor theirs its own."""
    await honest(four)
    marked = {**four.state, "model/votes": np.full(4, 7, np.float32)}
    planted = conspired(four, marked)
    exchange = four.begin(four.round, "train")
    exchange.task = with_proofs(exchange.task)  # they computed it
    adverts = {}
    for name in four.names:
        line = four.agents[name]
        line.tell(task=planted.task if name == VICTIM else exchange.task)
        adverts[name] = (await line.answer("advert")).advert
    cohort = pb.CoordinatorMessage().cohort
    cohort.key.CopyFrom(exchange.wire_key)
    cohort.adverts.extend(adverts.values())
    for name in four.names:
        other = "silo-0" if name == VICTIM else VICTIM
        four.agents[name].tell(cohort=cohort)
        await four.agents[name].refuses(Refusal.ADVERT, f"advert of {other}: made for another session")
    four.check_nothing_left(exchange)


async def test_silo_refuses_another_total_under_the_terms_of_the_true_one(four: Rogue) -> None:
    await honest(four)
    exchange = conspired(four, _other_total(four))
    of_the_true_one = four.begin(four.round, "train").task.session_digest
    four.agents[VICTIM].tell(task=changed(exchange.task, session_digest=of_the_true_one))
    reason = "the coordinator's terms are not this silo's"
    await four.agents[VICTIM].refuses(Refusal.TERMS, reason)
    four.check_nothing_left(exchange)


async def test_silo_refuses_a_total_below_its_own_count(four: Rogue) -> None:
    """p above 1 would give it more weight than all: the sum would be nearly its own update."""
    await honest(four)
    exchange = conspired(four, {**four.state, TOTAL: np.array(90, np.int64)})
    four.agents[VICTIM].tell(task=exchange.task)
    reason = "more samples than enrollment counted in all silos"
    await four.agents[VICTIM].refuses(Refusal.NOT_ENROLLED, reason)
    four.check_nothing_left(exchange)
    four.agents[VICTIM].tell(task=four.begin_next().task)  # no second total is compared with the count
    await four.agents[VICTIM].refuses(Refusal.DATA, "suspended after an input was refused")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_silo_refuses_another_model_at_the_next_attempt(four: Rogue, is_restarted: bool) -> None:
    first = await honest(four)
    await four.advertise(first)
    second = four.begin(four.round, "train", attempt=2, state=_other_total(four))
    # an enrollment repeated after a round stands between its training and the next
    proof = four.conspire(four.round - 1, "enrollment.0", _other_total(four))
    second.task = with_proofs(second.task, proof)
    line = four.agents[VICTIM]
    if is_restarted:
        await line.restart()
    line.tell(task=second.task)
    await line.refuses(Refusal.STATE, "was begun with another global state")
    four.check_nothing_left(second)


async def test_silo_refuses_a_first_model_that_the_operator_did_not_sign(tmp_path) -> None:
    async with Rogue(tmp_path) as rogue:
        await rogue.start()
        await rogue.control()
        rogue.take_job(nonce="1" * 32)
        marked = {"model/votes": np.full(4, 7, np.float32)}
        exchange = rogue.begin(0, "enrollment.0", state=marked)
        rogue.agents[VICTIM].tell(task=exchange.task)
        reason = "a global state that no silo is known to have computed"
        await rogue.agents[VICTIM].refuses(Refusal.STATE, reason)
        rogue.check_nothing_left(exchange)


# messages


async def test_oversized_message_ends_the_stream_and_nothing_else(four: Rogue) -> None:
    """The earlier session continues over the next stream."""
    exchange = await honest(four)
    await four.advertise(exchange)
    line = four.agents[VICTIM]
    hellos = len(line.hellos)
    cohort = wire.to_silo(exchange.session.close_advertise(), exchange.key).cohort
    padded = pb.CoordinatorMessage(cohort=cohort).SerializeToString() + _unknown_field(bytes(5 << 20))
    await line.broken_by(padded)
    assert "resource_exhausted" in line.last_logged("not connected")["reason"]
    assert len(line.hellos) == hellos + 1
    await line.is_quiet()
    four.check_nothing_left(exchange)
    await _finish(four, exchange, cohort)


@pytest.mark.parametrize("data", [b"\x2a\xff", b"\xff" * 64], ids=["truncated", "garbage"])
async def test_bytes_that_are_no_message_end_the_stream_and_nothing_else(four: Rogue, data: bytes) -> None:
    exchange = await honest(four)
    await four.advertise(exchange)
    line = four.agents[VICTIM]
    cohort = wire.to_silo(exchange.session.close_advertise(), exchange.key).cohort
    await line.broken_by(data)
    assert line.last_logged("not connected")["reason"] == "coordinator sent bytes that are not a message"
    await line.is_quiet()
    four.check_nothing_left(exchange)
    await _finish(four, exchange, cohort)


@pytest.mark.parametrize("data", [b"", None], ids=["empty", "unknown oneof"])
async def test_message_of_no_known_kind_is_left_alone(four: Rogue, data: bytes | None) -> None:
    exchange = await honest(four)
    await four.advertise(exchange)
    cohort = wire.to_silo(exchange.session.close_advertise(), exchange.key).cohort
    four.agents[VICTIM].tell_bytes(_unknown_field(b"what is this") if data is None else data)
    await four.agents[VICTIM].is_quiet()
    await _finish(four, exchange, cohort)


async def test_repeated_messages_get_the_same_answer_and_count_once(four: Rogue) -> None:
    exchange = await honest(four)
    line = four.agents[VICTIM]
    await four.advertise(exchange)
    line.tell(task=exchange.task)
    again = wire.from_silo(pb.SiloMessage(advert=await line.answer("advert")))
    exchange.session.on_advert(VICTIM, again)  # which accepts nothing but the same bytes
    cohort = wire.to_silo(exchange.session.close_advertise(), exchange.key).cohort
    line.tell(cohort=cohort)
    first = await line.answer("shares")
    line.tell(cohort=cohort)
    assert await line.answer("shares") == first
    fewer = pb.CoordinatorMessage(cohort=cohort).cohort
    del fewer.adverts[-1]
    line.tell(cohort=fewer)
    await line.refuses(Refusal.STAGE, "wrong or repeated message, got Cohort in state shared")
    four.check_nothing_left(exchange)


def _unknown_field(data: bytes) -> bytes:
    """Field 99 of a protobuf message, which no version of ours has."""
    size, length = len(data), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([0x9A, 0x06]) + length + bytes([size]) + data


async def _finish(rogue: Rogue, exchange: Exchange, cohort: Message) -> None:
    """The rest of an honest round whose cohort is fixed: every silo counts once."""
    for name in rogue.names:
        rogue.agents[name].tell(cohort=cohort)
        exchange.session.on_shares(
            name, wire.from_silo(pb.SiloMessage(shares=await rogue.agents[name].answer("shares")))
        )
    await rogue.mask(exchange)
    await rogue.consistency(exchange)
    sums = await rogue.unmask(exchange)
    np.testing.assert_allclose(sums["delta"], np.full(4, 0.25), atol=1e-6)
