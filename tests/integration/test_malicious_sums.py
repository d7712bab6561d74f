"""A coordinator that lies about a revealed sum, over real mutual TLS, against real agents.

Each test first runs an honest job's round and sees every silo compute the state after it. Then a round is
revealed, and its sum is shown with one thing bent: every honest silo refuses it by name, signs nothing, and
nothing of the next phase's input leaves it. Guarantee G1, docs/protocol.md 5.9 and 5.10.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from crypto.errors import Refusal
from crypto.fixed_point.ring import Words
from crypto.masking import masks
from crypto.session.messages import RevealedSum, Signatures
from tests.support.agents import Exchange
from tests.support.attacks import SPARE, Play
from tests.support.attacks_on_sets import SIGNATURES, signatures_shown
from tests.support.rogue import Rogue, with_proofs

pytestmark = pytest.mark.asyncio(loop_scope="module")

VICTIM = "silo-1"
OF_OTHER_SETS = "sum: signature of silo-[0-3] over this cohort, U2 and U3: .* is not valid"
FALSE_TAGS = "sum: its tags are not"
UNKNOWN = "a global state that no silo is known to have computed"
Bend = Callable[[Exchange], None]


async def revealed_round(rogue: Rogue, *, late: Sequence[str] = ()) -> Exchange:
    """The control: a job's first round, whose next state every silo computes; then the next one's sum.

    Every test has a job of its own, because the second false sum of a job suspends it.
    """
    await rogue.new_job()
    exchange = rogue.begin_next()
    await rogue.until_signed(exchange, late=late)
    await rogue.unmask(exchange)
    return exchange


def tell_sum(rogue: Rogue, exchange: Exchange, name: str, revealed: RevealedSum) -> None:
    rogue.agents[name].relay(revealed, exchange.key)


async def all_refuse(
    rogue: Rogue, exchange: Exchange, revealed: RevealedSum, code: Refusal, reason: str
) -> None:
    """Every silo of U2 refuses the sum, and whatever state the coordinator goes on with."""
    for name in exchange.session.sharers:
        tell_sum(rogue, exchange, name, revealed)
        await rogue.agents[name].refuses(code, reason)
    following = rogue.begin(
        rogue.round + 1, "train", state={"model/votes": np.full(len(rogue.names), 7.0, np.float32)}
    )
    for name in exchange.session.sharers:
        rogue.agents[name].tell(task=following.task)
        await rogue.agents[name].refuses(Refusal.STATE, UNKNOWN)
    rogue.check_nothing_left(following)
    signed = [
        message.next_state.key.round
        for name in exchange.session.sharers
        for message in rogue.agents[name].received
        if message.HasField("next_state") and message.next_state.key.job_digest == exchange.key.job_digest
    ]
    assert rogue.round not in signed


# what the sum holds


def _tagged(exchange: Exchange, name: str) -> tuple[Words, slice]:
    """The vector that a tagged quantity stands in, and where."""
    layout = exchange.session.terms.layout
    (quantity,) = [each for each in layout.quantities if each.name == name and each.is_tagged]
    return exchange.revealed[quantity.ring_bits], layout.slices(quantity.ring_bits)[name]


def _one_word(exchange: Exchange) -> None:
    words, place = _tagged(exchange, "delta")
    words[place.start] += 1


def _the_highest_bit(exchange: Exchange) -> None:
    words, place = _tagged(exchange, "delta")
    words[place.start] ^= words.dtype.type(1 << 31)


def _the_weight(exchange: Exchange) -> None:
    """A divisor of its own choice."""
    words, place = _tagged(exchange, "weight")
    words[place] = 1


def _two_words_swapped(exchange: Exchange) -> None:
    words, place = _tagged(exchange, "delta")
    words[place.start] += 5
    words[[place.start, place.start + 1]] = words[[place.start + 1, place.start]]


def _scaled_with_its_tags(exchange: Exchange) -> None:
    for words in exchange.revealed.values():
        words *= 2


def _nothing(exchange: Exchange) -> None:
    for words in exchange.revealed.values():
        words[:] = 0


def _a_tag(exchange: Exchange) -> None:
    exchange.revealed[64][-1] += 1


def _without_a_survivors_input(exchange: Exchange) -> None:
    """As far as a coordinator can know it: what silo-0 put in, its tags left."""
    words, place = _tagged(exchange, "delta")
    words[place.start] -= words[place.start + 1]  # all put in the same
    words, place = _tagged(exchange, "weight")
    words[place] -= words[place] // 4


def _without_a_survivors_vector(exchange: Exchange) -> None:
    own = masks.vectors_from_stream(exchange.session.terms.layout, exchange.vectors["silo-0"])
    for bits, words in exchange.revealed.items():
        words -= own[bits]


@pytest.mark.parametrize(
    "bend",
    [
        _one_word,
        _the_highest_bit,
        _the_weight,
        _two_words_swapped,
        _scaled_with_its_tags,
        _nothing,
        _a_tag,
        _without_a_survivors_input,
        _without_a_survivors_vector,
    ],
)
@pytest.mark.parametrize("late", [[], ["silo-3"]], ids=["all", "one late"])
async def test_every_silo_refuses_a_sum_that_was_changed(four: Rogue, bend: Bend, late: list[str]) -> None:
    """Also one whose input is not in it."""
    exchange = await revealed_round(four, late=late)
    true = four.revealed(exchange)
    bend(exchange)
    bent = four.revealed(exchange)
    assert bent.sum_digest != true.sum_digest
    await all_refuse(four, exchange, bent, Refusal.SUM, rf"{FALSE_TAGS}|a tagged word")
    for name in four.names:
        assert four.agents[name].last_recorded("sum_refused")["round"] == four.round
        # the round is used up here: no second sum of it is looked at
        tell_sum(four, exchange, name, true)
        await four.agents[name].refuses(Refusal.SUM, "another sum of this phase failed")
    await four.control(late=late)  # over the state before, and over the same silos


async def test_bytes_that_are_no_sum_are_refused(four: Rogue) -> None:
    """Of the announced digest, with a byte too few or too many; or of another digest."""
    exchange = await revealed_round(four)
    true = four.revealed(exchange)
    stream = four.states[true.sum_digest]
    for served, reason in (
        (stream[:-1], r"download: expected \d+ bytes, got \d+"),
        (stream + b"\0", "download: chunks do not fit the announced size"),
        (bytes(len(stream)), "download: the digest is not the announced one"),
    ):
        four.states[true.sum_digest] = served
        for name in four.names:
            tell_sum(four, exchange, name, true)
            await four.agents[name].refuses(Refusal.STATE, reason)
            left = list((four.agents[name].settings.directory / "cache").glob(f"{true.sum_digest.hex()}*"))
            assert left == []
    four.states[true.sum_digest] = stream
    await four.agree(exchange)  # the true one is still taken: none was seen to be false


# whose sum it is


async def test_two_silos_are_not_shown_two_sums(four: Rogue) -> None:
    """The one who saw the true sum goes on alone: its statement proves nothing to the others."""
    exchange = await revealed_round(four)
    true = four.revealed(exchange)
    following = four.following(exchange)
    signed = (await four.ask_state(exchange, "silo-0", true)).statement
    _one_word(exchange)
    bent = four.revealed(exchange)
    for name in four.names[1:]:
        tell_sum(four, exchange, name, bent)
        await four.agents[name].refuses(Refusal.SUM, FALSE_TAGS)
    statement = four.statement(
        exchange, sum_digest=true.sum_digest, next_digest=four.put(following), sender="silo-0"
    )
    proof = four.proof(exchange, statement, {"silo-0": signed.signature})
    later = four.begin(four.round + 1, "train", state=following)
    later.task = with_proofs(later.task, proof)
    for name in four.names[1:]:
        four.agents[name].tell(task=later.task)
        await four.agents[name].refuses(Refusal.SIGNATURES, "expected signatures of 3 silos, got 1")
    four.check_nothing_left(later)


async def test_the_sum_of_the_round_before_is_refused(four: Rogue) -> None:
    first = await revealed_round(four)
    yesterday = four.revealed(first)
    await four.agree(first)  # the control: then it was true
    exchange = four.begin_next()
    await four.until_signed(exchange)
    await four.unmask(exchange)
    todays = four.revealed(exchange)
    for name in four.names:
        tell_sum(four, exchange, name, yesterday)
        await four.agents[name].refuses(Refusal.SIGNATURES, OF_OTHER_SETS)
    replayed = dataclasses.replace(todays, sum_digest=yesterday.sum_digest)
    await all_refuse(four, exchange, replayed, Refusal.SUM, FALSE_TAGS)


async def test_the_sum_of_another_attempt_is_refused(four: Rogue) -> None:
    await revealed_round(four)
    first = four.begin_next()
    await four.until_signed(first)
    second = four.begin(four.round, "train", attempt=2)
    await four.until_signed(second)
    await four.unmask(second)
    shown = four.revealed(second)
    of_first = dataclasses.replace(shown, signatures=first.session.unmask_request())
    for exchange, revealed, code, reason in (
        (second, of_first, Refusal.SIGNATURES, OF_OTHER_SETS),
        (first, shown, Refusal.SIGNATURES, OF_OTHER_SETS),
        (first, of_first, Refusal.SUM, FALSE_TAGS),
    ):
        await all_refuse(four, exchange, revealed, code, reason)


async def test_the_sum_of_another_job_is_refused(four: Rogue) -> None:
    other = await revealed_round(four)
    of_other = four.revealed(other)
    await four.agree(other)  # the control
    exchange = await revealed_round(four)
    for name in four.names:
        tell_sum(four, exchange, name, of_other)
        await four.agents[name].refuses(Refusal.SIGNATURES, OF_OTHER_SETS)
    replayed = dataclasses.replace(four.revealed(exchange), sum_digest=of_other.sum_digest)
    await all_refuse(four, exchange, replayed, Refusal.SUM, FALSE_TAGS)


# who is in it


async def test_every_silo_refuses_survivors_that_t_of_them_did_not_sign(four: Rogue) -> None:
    """Every row of the table of signatures, and other survivors than those that were signed."""
    exchange = await revealed_round(four, late=["silo-3"])
    true, names = four.revealed(exchange), four.names
    for reason, shown in signatures_by_reason(four, exchange):
        for line in (four.agents[name] for name in names):
            line.relay(dataclasses.replace(true, signatures=shown), exchange.key)
            if reason.startswith("sum: "):
                await line.refuses(Refusal.SIGNATURES, reason)
            else:
                await line.refuses_form(Refusal.MALFORMED, reason)
    for survivors, reason in (
        (("silo-1", "silo-2"), "sum: a signature is of silo-0, which is not in U3"),
        ((*names[:3], SPARE), "sum: expected a sorted subset of U2"),
        ((*names[:3], "silo-2"), "sum: expected a sorted subset of U2"),
    ):
        bent = dataclasses.replace(true, survivors=survivors)
        await all_refuse(four, exchange, bent, Refusal.SIGNATURES, reason)
    await four.agree(exchange)  # the control: nothing false was seen of the sum itself


def signatures_by_reason(rogue: Rogue, exchange: Exchange) -> Iterator[tuple[str, Signatures]]:
    play = Play(
        names=exchange.session.terms.names,
        silos=rogue.members.silos,
        session=exchange.session,
        issue=rogue.issue,
        told={},
        dealt={},
    )
    for name, (_, reason, over_the_line) in SIGNATURES.items():
        yield over_the_line or f"sum: {reason.format(*play.names)}", signatures_shown(play, name)


async def test_a_silo_that_u3_leaves_out_checks_the_sum_like_the_others(four: Rogue) -> None:
    exchange = await revealed_round(four, late=[VICTIM])
    assert VICTIM not in exchange.session.survivors
    true = four.revealed(exchange)
    with_it = dataclasses.replace(true, survivors=tuple(four.names))
    tell_sum(four, exchange, VICTIM, with_it)
    await four.agents[VICTIM].refuses(Refusal.SIGNATURES, OF_OTHER_SETS)
    await four.agree(exchange)


async def test_a_second_phase_with_a_false_sum_suspends_the_job_at_every_silo(four: Rogue) -> None:
    exchange = await revealed_round(four)
    _one_word(exchange)
    await all_refuse(four, exchange, four.revealed(exchange), Refusal.SUM, FALSE_TAGS)
    second = four.begin_next()
    await four.until_signed(second)
    await four.unmask(second)
    true = four.revealed(second)
    _scaled_with_its_tags(second)
    bent = four.revealed(second)
    for name in four.names:
        tell_sum(four, second, name, bent)
        await four.agents[name].refuses(Refusal.SUM, FALSE_TAGS)
    for name in four.names:
        tell_sum(four, second, name, true)
        await four.agents[name].refuses(Refusal.DATA, "suspended")
    third = four.begin_next()
    for name in four.names:
        four.agents[name].tell(task=third.task)
        await four.agents[name].refuses(Refusal.DATA, "suspended")
    four.check_nothing_left(third)


# the seed of a draw


async def test_forged_self_mask_seeds_of_an_opening_are_refused(tmp_path) -> None:
    """They would be the coordinator's choice of who is drawn."""
    async with Rogue(tmp_path, silos=5, fraction=0.6) as rogue:
        await rogue.start()
        opening = rogue.begin(0, "enrollment.0")
        await rogue.until_signed(opening)
        await rogue.unmask(opening)
        true = rogue.revealed(opening)
        seeds = true.self_mask_seeds
        swapped = seeds | {"silo-0": seeds["silo-1"], "silo-1": seeds["silo-0"]}
        for given, reason in (
            (seeds | {"silo-2": bytes(32)}, "self-mask seed of silo-2: not the one that it committed to"),
            (swapped, "self-mask seed of silo-0: not the one that it committed to"),
            ({}, "self-mask seeds: expected one of each survivor"),
            (
                {name: seed for name, seed in seeds.items() if name != "silo-4"},
                "self-mask seeds: expected one of each survivor",
            ),
        ):
            forged = dataclasses.replace(true, self_mask_seeds=given)
            for name in rogue.names:
                tell_sum(rogue, opening, name, forged)
                await rogue.agents[name].refuses(Refusal.MALFORMED, reason)
        first_round = rogue.begin(
            1, "train", state={**rogue.following(opening), "method/draw_seed": np.zeros(32, np.uint8)}
        )
        for name in rogue.names:
            rogue.agents[name].tell(task=first_round.task)
            await rogue.agents[name].refuses(Refusal.STATE, UNKNOWN)
        rogue.check_nothing_left(first_round)
        await rogue.agree(opening)  # the control: with the true seeds all sign one state


# who is shown it


async def test_a_silo_from_which_the_sum_is_withheld_takes_no_state_but_a_proven_one(four: Rogue) -> None:
    exchange = await revealed_round(four)
    following = four.following(exchange)
    await four.agree(exchange, without=[VICTIM])
    later = four.begin_next()
    line = four.agents[VICTIM]
    line.tell(task=with_proofs(later.task))
    await line.refuses(Refusal.STATE, UNKNOWN)
    four.check_nothing_left(later)
    assert four.put(following) == later.task.state_digest
    await four.advertise(later)  # the control: with the proof of the others it goes on
    tell_sum(four, exchange, VICTIM, four.revealed(exchange))
    reason = "the global state before it is not here"
    await line.refuses(Refusal.STATE, reason)  # and never signs what it went past


async def test_a_sum_is_answered_once_and_the_same_after_a_restart(four: Rogue) -> None:
    exchange = await revealed_round(four)
    true = four.revealed(exchange)
    await four.agree(exchange)
    first = await four.ask_state(exchange, VICTIM, true)
    await four.agents[VICTIM].restart()
    assert await four.ask_state(exchange, VICTIM, true) == first
    _one_word(exchange)
    assert await four.ask_state(exchange, VICTIM, four.revealed(exchange)) == first
