"""A coordinator that deviates inside sessions, over real mutual TLS, against real agents.

Each test first runs a round without the tampering and sees it succeed. Then one message is bent: the silo
refuses it by name, says why in its own log and audit trail, and nothing leaves it. Guarantee G1.
The same table in memory: tests/protocol/test_malicious_sessions.py. What else it relays:
test_malicious_documents.py.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import Refusal
from crypto.fixed_point.layout import Layout
from crypto.session.cohort import CohortRule
from crypto.session.messages import Cohort, Survivors
from tests.support.agents import Exchange, changed, other_attempt
from tests.support.attacks import (
    Advertises,
    Attack,
    Play,
    Refused,
    Restarted,
    Told,
    Unknown,
    envelopes_among,
    told_next,
)
from tests.support.attacks_on_sets import ATTACKS
from tests.support.rogue import Rogue, with_proofs

pytestmark = pytest.mark.asyncio(loop_scope="module")

VICTIM = "silo-1"
ANSWERS = {"cohort": "shares", "survivors": "consistency", "signatures": "unmask_shares"}


async def honest(rogue: Rogue) -> Exchange:
    """The control: a round without the tampering reveals exactly the sum; then the next round."""
    await rogue.new_job()
    return rogue.begin_next()


# the table


async def come_to(rogue: Rogue, exchange: Exchange, stage: str, *, earlier: Play | None = None) -> Play:
    """At `unmask` the last silo is lost."""
    await rogue.advertise(exchange)
    if stage != "share":
        await rogue.share(exchange)
    if stage in ("consistency", "unmask"):
        await rogue.mask(exchange, without=rogue.names[-1:] if stage == "unmask" else ())
    if stage == "unmask":
        await rogue.consistency(exchange)
    return Play(
        names=exchange.session.terms.names,
        silos=rogue.members.silos,
        session=exchange.session,
        issue=rogue.issue,
        told=told_next(exchange.session, stage),
        dealt=exchange.dealt,
        earlier=earlier,
    )


async def play(rogue: Rogue, attack: Attack, exchange: Exchange, earlier: Play | None) -> None:
    script = attack.script(await come_to(rogue, exchange, attack.stage, earlier=earlier))
    answer: Any = None
    while True:
        try:
            step = script.send(answer)
        except StopIteration:
            break
        line, key, answer = rogue.agents[step.silo], exchange.key, None
        match step:
            case Told(_, message):
                kind = ANSWERS[str(wire.to_silo(message, key).WhichOneof("kind"))]
                line.relay(message, key)
                answer = wire.from_silo(pb.SiloMessage(**{kind: await line.answer(kind)}))
            case Refused(_, message, Refusal.LEFT_OUT, reason):  # which is no refusal: nothing is answered
                line.relay(message, key)
                await line.is_quiet()
                assert line.last_logged("left out of the session")["reason"] == reason
                assert line.last_recorded("left out")["round"] == rogue.round
            case Refused(_, message, code, reason, over_the_line):
                line.relay(message, key)
                await line.refuses(Refusal.MALFORMED if over_the_line else code, over_the_line or reason)
            case Restarted():
                await line.restart()
            case Advertises():
                line.tell(task=exchange.task)
                answer = wire.from_silo(pb.SiloMessage(advert=await line.answer("advert")))
            case Unknown(_, message):
                line.relay(message, key)
                await line.refuses(Refusal.STAGE, "this silo has no such session")
    if not attack.answers:
        rogue.check_nothing_left(exchange, vectors=attack.stage in ("consistency", "unmask"))


@pytest.mark.parametrize(
    ("silos", "stage"), dict.fromkeys((attack.silos, attack.stage) for attack in ATTACKS.values())
)
async def test_silo_refuses_what_a_coordinator_bends(tmp_path, silos: int, stage: str) -> None:
    """Attempts of one round; an error names its attack."""
    rows = {name: each for name, each in ATTACKS.items() if (each.silos, each.stage) == (silos, stage)}
    attempts, policy = itertools.count(1), {"max_cohort_changes": 100}
    async with Rogue(tmp_path / "line", silos=silos, policy=policy, max_attempts=100) as rogue:
        await rogue.start()
        await rogue.control()
        rogue.round += 1
        for name, attack in rows.items():
            try:
                earlier = None
                if attack.replays:
                    before = rogue.begin(rogue.round, "train", attempt=next(attempts))
                    earlier = await come_to(rogue, before, stage)
                exchange = rogue.begin(rogue.round, "train", attempt=next(attempts))
                await play(rogue, attack, exchange, earlier)
            except BaseException as error:
                error.add_note(f"attack: {name}")
                raise


async def test_a_session_that_refused_is_over_whatever_follows(four: Rogue) -> None:
    exchange = await honest(four)
    given = (await come_to(four, exchange, "share")).told[VICTIM]
    line = four.agents[VICTIM]
    line.relay(Cohort(adverts=(*given.adverts[:3], given.adverts[0])), exchange.key)
    await line.refuses(Refusal.ADVERT, "cohort: a silo adverts twice")
    line.relay(given, exchange.key)
    await line.is_quiet()
    four.check_nothing_left(exchange)


# what only the line or an agent can show


async def test_one_signature_under_one_name_twice_is_refused(four: Rogue) -> None:
    exchange = await honest(four)
    play = await come_to(four, exchange, "unmask")
    signed = session_pb2.NamedSignature(name="silo-0", signature=play.given.signatures["silo-0"])
    message = session_pb2.Signatures(key=exchange.wire_key, signatures=[signed] * 4)
    four.agents[VICTIM].tell(signatures=message)
    await four.agents[VICTIM].refuses(Refusal.MALFORMED, "signatures: silo-0 is given twice")
    four.check_nothing_left(exchange, vectors=True)


async def test_signatures_of_a_session_that_another_followed_are_of_none(four: Rogue) -> None:
    exchange = await honest(four)
    stolen = await come_to(four, exchange, "unmask")
    await come_to(four, four.begin(four.round, "train", attempt=2), "unmask")
    for name in stolen.session.survivors:
        four.agents[name].relay(stolen.given, exchange.key)
        await four.agents[name].refuses(Refusal.STAGE, "this silo has no such session")
    four.check_nothing_left(exchange, vectors=True)


def _threshold_of_three(exchange: Exchange) -> bytes:
    rule = CohortRule(members=10, threshold=3, min_cohort=5)
    return dataclasses.replace(exchange.session.terms, rule=rule).digest()


def _min_cohort_of_three(exchange: Exchange) -> bytes:
    rule = CohortRule(members=10, threshold=7, min_cohort=3)
    return dataclasses.replace(exchange.session.terms, rule=rule).digest()


def _seven_members(exchange: Exchange) -> bytes:
    terms = exchange.session.terms
    layout = Layout(members=7, quantities=terms.layout.quantities)
    names, rule = terms.names[:7], CohortRule.for_members(7)
    return dataclasses.replace(terms, names=names, rule=rule, layout=layout).digest()


def _other_layout(exchange: Exchange) -> bytes:
    layout = exchange.session.terms.layout
    fewer = Layout(members=layout.members, quantities=layout.quantities[1:])
    return dataclasses.replace(exchange.session.terms, layout=fewer).digest()


async def test_silos_refuse_terms_that_the_coordinator_chose(tmp_path) -> None:
    async with Rogue(tmp_path / "ten", silos=10, rounds=9) as ten:
        await ten.start()
        await ten.control()
        exchange = ten.begin_next()
        for declared in (_threshold_of_three, _min_cohort_of_three, _seven_members, _other_layout):
            task = changed(exchange.task, session_digest=declared(exchange))
            for name in ten.names:
                ten.agents[name].tell(task=task)
                await ten.agents[name].refuses(Refusal.TERMS, "the coordinator's terms are not this silo's")
        ten.check_nothing_left(exchange)


async def test_silo_refuses_every_set_below_its_policys_least_silos(tmp_path) -> None:
    """t would allow three of four; this institution asks for four."""
    async with Rogue(tmp_path, policy={"min_silos": 4}, rounds=5) as rogue:
        await rogue.start()
        await rogue.control()
        rogue.round += 1
        three, line = rogue.names[:3], rogue.agents[VICTIM]
        for attempt, (stage, bend) in enumerate(
            (
                ("share", lambda play: Cohort(adverts=play.given.adverts[:3])),
                ("masked", lambda play: envelopes_among(play, VICTIM, three)),
                ("consistency", lambda _: Survivors(survivors=tuple(three))),
            ),
            start=1,
        ):
            exchange = rogue.begin(rogue.round, "train", attempt=attempt)
            line.relay(bend(await come_to(rogue, exchange, stage)), exchange.key)
            reason = "policy: expected a cohort of at least 4 silos, got 3"
            await line.refuses(Refusal.COHORT_TOO_SMALL, reason)
            rogue.check_nothing_left(exchange, vectors=stage == "consistency")


# rounds that were revealed


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("attempt", [1, 2])
async def test_silo_refuses_a_round_that_was_revealed(four: Rogue, attempt: int, is_restarted: bool) -> None:
    """Of which it was not shown the sum: else it knows the state after it, and refuses for that."""
    await honest(four)
    before = four.state
    await four.control(unseen=[VICTIM])
    exchange = four.begin_next()
    revealed = four.begin(four.round - 1, "train", attempt=attempt, state=before)
    line = four.agents[VICTIM]
    if is_restarted:
        await line.restart()
    given = len(line.received)
    line.tell(task=with_proofs(revealed.task))
    await line.refuses(Refusal.ALREADY_REVEALED, f"round {four.round - 1} train: was revealed before")
    assert [message.WhichOneof("kind") for message in line.received[given:]] == ["refused", "refused"]
    four.check_nothing_left(exchange)


async def test_silo_repeats_the_identical_answer_and_no_other(four: Rogue) -> None:
    """Asked again it may answer again, also after a restart: the same shares, of the same session."""
    exchange = await honest(four)
    await four.until_signed(exchange)
    exchange.session.close_consistency()
    answer = await four.ask_shares(exchange, VICTIM)
    assert await four.ask_shares(exchange, VICTIM) == answer
    await four.agents[VICTIM].restart()
    assert await four.ask_shares(exchange, VICTIM) == answer
    later = other_attempt(exchange.key, 2)
    four.agents[VICTIM].relay(exchange.session.unmask_request(), later)
    await four.agents[VICTIM].refuses(Refusal.STAGE, "this silo has no such session")


@pytest.mark.parametrize("is_second_job", [False, True])
async def test_silo_refuses_a_cohort_that_differs_by_one_silo(tmp_path, is_second_job: bool) -> None:
    """The difference of the two sums would be one silo's. With a policy that allows it, it is revealed."""
    for allowed in (1, 0):
        async with Rogue(tmp_path / str(allowed), policy={"max_cohort_changes": allowed}) as rogue:
            await rogue.start()
            await rogue.control()
            if is_second_job:
                rogue.take_job(nonce="1" * 32, start=1.0)  # another model
                await rogue.run(0, "enrollment.0")
            exchange = rogue.begin_next()
            await rogue.advertise(exchange)
            await rogue.share(exchange)
            await rogue.mask(exchange, without=["silo-3"])
            if allowed:
                await rogue.consistency(exchange)
                sums = await rogue.unmask(exchange)
                np.testing.assert_allclose(sums["delta"], [1 / 4, 1 / 4, 1 / 4, 0], atol=1e-6)
                continue
            for name in rogue.names[:3]:
                rogue.agents[name].relay(Survivors(survivors=tuple(rogue.names[:3])), exchange.key)
                reason = "cohort changed nearly, more than 0 times"
                await rogue.agents[name].refuses(Refusal.OVERLAPPING_COHORT, reason)
            rogue.check_nothing_left(exchange, vectors=True)
