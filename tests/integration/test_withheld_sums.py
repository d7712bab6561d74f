"""A coordinator that shows revealed sums to no silo and asks again over the same model, over real mutual TLS,
against real agents.

The difference of two such sums is what the silos put in that only one of them holds. Every test sees the
exchange succeed without the tampering. Source: docs/protocol.md 6.10.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import Refusal
from tests.support.agents import Exchange
from tests.support.rogue import Rogue

pytestmark = pytest.mark.asyncio(loop_scope="module")

VICTIM = "silo-1"
UNPROVEN = "a sum over this model began in .*, and nothing proves who was in it"
OVERLAPS = "another sum over this model differs by 1 silos, expected none or at least 3"
ABANDONED = "was abandoned, and is never revealed"

nonces = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def four(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rogue]:
    """t = 3; max_repeats is 2."""
    policy = {"max_cohort_changes": 50}  # which other silos a sum may have is one rule more
    async with Rogue(tmp_path_factory.mktemp("four"), policy=policy) as rogue:
        await rogue.start()
        yield rogue


async def over_a_model_of_its_own(rogue: Rogue) -> None:
    for name in rogue.names:
        await rogue.agents[name].settle()
    nonce = next(nonces)
    rogue.take_job(nonce=f"{nonce:032x}", start=float(nonce), rounds=20)
    await rogue.run(0, "enrollment.0")


async def inputs_left(rogue: Rogue, *, late: Sequence[str] = ()) -> Exchange:
    """The next round up to the masked vectors, of which late ones do not arrive."""
    exchange = rogue.begin_next()
    await rogue.advertise(exchange)
    await rogue.share(exchange)
    await rogue.mask(exchange, late=late)
    return exchange


async def withheld(rogue: Rogue, *, late: Sequence[str] = ()) -> Exchange:
    """The next round's sum, which is revealed and shown to nobody: the state stays."""
    exchange = rogue.begin_next()
    await rogue.until_signed(exchange, late=late)
    sums = await rogue.unmask(exchange)
    np.testing.assert_allclose(sums["delta"] * 4, [name not in late for name in rogue.names], atol=1e-5)
    return exchange


async def all_refuse_task(rogue: Rogue, code: Refusal, reason: str, **task: Any) -> None:
    """task: fields that take the place of those that tasks bring."""
    exchange = rogue.begin_next()
    for field, value in task.items():
        exchange.task.ClearField(field)
        getattr(exchange.task, field).extend(value)
    for name in rogue.names:
        rogue.agents[name].tell(task=exchange.task)
        await rogue.agents[name].refuses(code, reason)
    rogue.check_nothing_left(exchange)


async def all_refuse_survivors(rogue: Rogue, exchange: Exchange) -> None:
    survivors = wire.to_silo(exchange.session.close_masked(), exchange.key).survivors
    for name in exchange.session.survivors:
        rogue.agents[name].tell(survivors=survivors)
        await rogue.agents[name].refuses(Refusal.OVERLAPPING_COHORT, OVERLAPS)
    rogue.check_nothing_left(exchange, vectors=True)


# sums


async def test_a_sum_that_nobody_is_shown_is_not_taken_again_without_one_silo(four: Rogue) -> None:
    await over_a_model_of_its_own(four)
    await withheld(four)
    without_it = await inputs_left(four, late=[VICTIM])
    await all_refuse_survivors(four, without_it)
    await all_refuse_task(four, Refusal.STATE, UNPROVEN)  # who is in the sum of the round that was left?
    await four.abandon(without_it)
    await withheld(four)  # the control: the same silos again
    await four.control()


async def test_a_restarted_silo_knows_of_earlier_sums(four: Rogue) -> None:
    await over_a_model_of_its_own(four)
    await withheld(four)
    for name in four.names:
        await four.agents[name].restart()
    await all_refuse_survivors(four, await inputs_left(four, late=[VICTIM]))


async def test_a_model_is_used_up_by_sums_that_nobody_is_shown(four: Rogue) -> None:
    """In another job too, which starts from the same model; a model that moved is another."""
    await over_a_model_of_its_own(four)
    start = float(four.state["model/votes"][0])
    for _ in range(3):  # max_repeats are allowed
        last = await withheld(four)
    used_up = "3 sums were taken over this model before, expected at most 2 repeats"
    await all_refuse_task(four, Refusal.STATE_USED_UP, used_up)
    first, state, round = four.job, four.state, four.round
    four.take_job(nonce=f"{next(nonces):032x}", start=start, rounds=20)
    await four.run(0, "enrollment.0")
    await all_refuse_task(four, Refusal.STATE_USED_UP, used_up)
    four.job, four.state, four.round = first, state, round
    await four.agree(last)
    await four.control()  # the control: over the state after it


async def test_a_silo_outside_a_sum_takes_part_again_once_that_is_proven(four: Rogue) -> None:
    await over_a_model_of_its_own(four)
    first = await withheld(four, late=[VICTIM])
    line = four.agents[VICTIM]
    unproven = four.begin_next()
    line.tell(task=unproven.task)
    await line.refuses(Refusal.STATE, UNPROVEN)
    four.add_cohort(first)
    (proof,) = four.cohorts[four.job.digest]
    for forged, reason in (
        (_with(proof, signatures=proof.signatures[:2]), "sum: expected signatures of 3 survivors, got 2"),
        (_with(proof, survivors=four.names), "sum: signature of silo-. over this cohort, U2 and U3: "),
    ):
        task = pb.PhaseTask()
        task.CopyFrom(unproven.task)
        task.cohorts.append(forged)
        line.tell(task=task)
        await line.refuses(Refusal.SIGNATURES, reason)
    four.check_nothing_left(unproven)
    four.add_cohort(await withheld(four, late=[VICTIM]))  # the control: the same silos again
    with_it = await inputs_left(four)
    await all_refuse_survivors(four, with_it)  # it would be the difference


async def test_a_job_of_other_silos_asks_again_where_enough_of_them_differ(tmp_path: Path) -> None:
    """Over the model that a job before it starts from too."""
    async with Rogue(tmp_path / "nine", silos=9, policy={"max_cohort_changes": 50}) as rogue:
        await rogue.start()
        far, near = rogue.names[3:], rogue.names[1:7]
        for number, names in enumerate((rogue.names[:6], far, near), start=1):
            rogue.take_job(nonce=f"{number:032x}", silos=tuple(names), rounds=9)
            for phase in ("enrollment.0", "train"):
                exchange = rogue.begin(int(phase == "train"), phase)
                await rogue.advertise(exchange, without=[name for name in rogue.names if name not in names])
                await rogue.share(exchange)
                await rogue.mask(exchange)
                if names == near and phase == "train":
                    break
                await rogue.consistency(exchange)
                await rogue.unmask(exchange)
                if phase != "train":
                    await rogue.agree(exchange)
        survivors = wire.to_silo(exchange.session.close_masked(), exchange.key).survivors
        for name in near[:-1]:  # all that were in the first job's sum; t of six is five
            rogue.agents[name].tell(survivors=survivors)
            await rogue.agents[name].refuses(Refusal.OVERLAPPING_COHORT, "another sum over this model")
        rogue.check_nothing_left(exchange, vectors=True)


# phases without a sum


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_silo_that_abandoned_a_phase_neither_signs_nor_reveals_it(
    four: Rogue, is_restarted: bool
) -> None:
    await over_a_model_of_its_own(four)
    exchange = four.begin_next()
    await four.until_signed(exchange)
    exchange.session.close_consistency()
    line = four.agents[VICTIM]
    await four.ask_abandon(exchange, VICTIM)
    if is_restarted:
        await line.restart()
    request = wire.to_silo(exchange.session.unmask_request(), exchange.key).signatures
    line.tell(signatures=request)
    await line.refuses(Refusal.ALREADY_REVEALED, ABANDONED)
    line.tell(task=four.begin(four.round, "train", attempt=2).task)
    await line.refuses(Refusal.ALREADY_REVEALED, ABANDONED)
    four.check_nothing_left(exchange, vectors=True)
    again = await four.ask_abandon(exchange, VICTIM)  # it says the same again
    assert again.key == exchange.wire_key
    await four.ask_shares(exchange, "silo-0")  # the control: one that did not abandon it


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_silo_that_revealed_a_phase_does_not_abandon_it(four: Rogue, is_restarted: bool) -> None:
    await over_a_model_of_its_own(four)
    exchange = four.begin_next()
    await four.until_signed(exchange)
    exchange.session.close_consistency()
    line = four.agents[VICTIM]
    answer = await four.ask_shares(exchange, VICTIM)
    if is_restarted:
        await line.restart()
    line.tell(abandon=session_pb2.Abandon(key=exchange.wire_key))
    await line.refuses(Refusal.ALREADY_REVEALED, "was revealed before")
    assert await four.ask_shares(exchange, VICTIM) == answer
    await four.ask_abandon(exchange, "silo-0")  # the control: one that did not reveal it


async def test_a_phase_that_t_silos_abandoned_is_forgotten_and_on_no_other_word(four: Rogue) -> None:
    await over_a_model_of_its_own(four)
    other = await inputs_left(four)
    await four.abandon(other)
    (of_other_job,) = four.abandoned[four.job.digest]
    await over_a_model_of_its_own(four)
    given_up = await inputs_left(four)
    await all_refuse_task(four, Refusal.STATE, UNPROVEN)
    await four.abandon(given_up)
    (proof,) = four.abandoned.pop(four.job.digest)
    later = session_pb2.SessionKey()
    later.CopyFrom(proof.key)
    later.round += 1
    for forged, code, reason in (
        (
            _with(proof, signers=proof.signers[:2]),
            Refusal.SIGNATURES,
            "expected signatures of 3 silos, got 2",
        ),
        (_with(proof, signers=proof.signers[:1] * 3), Refusal.SIGNATURES, "of 3 silos, got 1"),
        (_with(proof, key=later), Refusal.SIGNATURES, "abandoned of silo-0"),
        (_with(of_other_job, key=given_up.wire_key), Refusal.SIGNATURES, "abandoned of silo-0"),
        (of_other_job, Refusal.STATE, UNPROVEN),
    ):
        await all_refuse_task(four, code, reason, abandoned=[forged])
    four.abandoned[four.job.digest] = [proof]
    await withheld(four)  # the control


def _with(message: Any, **fields: Any) -> Any:
    """The same but for these fields."""
    copy = type(message)()
    copy.CopyFrom(message)
    for field, value in fields.items():
        copy.ClearField(field)
        if field == "key":
            copy.key.CopyFrom(value)
        else:
            getattr(copy, field).extend(value)
    return copy
