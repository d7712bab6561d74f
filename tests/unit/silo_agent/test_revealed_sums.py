"""The end of a phase at silos: the true sum is signed for, whatever else a coordinator shows is refused."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from chorale.runtime.audit import read_entries
from chorale.transport import wire
from crypto.fixed_point.ring import Words
from crypto.masking import masks
from crypto.session import bodies
from crypto.session.messages import RevealedSum, Signatures
from tests.support.agents import FEDERATION, Agent, Exchange, Hub
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

ME = "silo-0"


@pytest_asyncio.fixture
async def hub(make_hub: MakeHub) -> Hub:
    return await enrolled(make_hub, rounds=6)


async def refusal(hub: Hub, exchange: Exchange, shown: RevealedSum, *, name: str = ME) -> str:
    """Of the silo that is shown this; it knows no more than before."""
    agent = hub.agents[name]
    before = agent.known.newest(hub.job.digest)
    code = await agent.refusal(revealed_sum=wire.to_silo(shown, exchange.key).revealed_sum)
    assert agent.known.newest(hub.job.digest) == before
    assert agent.known.signed(exchange.key) is None
    assert not list((agent.folder / "cache").glob("*.sum"))
    return code


def tampered(hub: Hub, exchange: Exchange, change: Callable[[dict[int, Words]], None]) -> RevealedSum:
    """The sum as the coordinator shows it after this change."""
    kept = exchange.revealed
    exchange.revealed = {ring_bits: words.copy() for ring_bits, words in kept.items()}
    change(exchange.revealed)
    shown = hub.revealed(exchange)
    exchange.revealed = kept
    return shown


def put(hub: Hub, stream: bytes) -> bytes:
    digest = hashlib.sha256(stream).digest()
    hub.states[digest] = stream
    return digest


def decision(agent: Agent) -> list[str]:
    return [job.decision for job in agent.ledger.jobs()]


def said(hub: Hub, exchange: Exchange, name: str) -> bytes:
    """The statement that the silo owes."""
    unsigned = hub.unsigned(exchange, hub.revealed(exchange))
    session_digest = exchange.session.terms.digest()
    return bodies.body_of(unsigned.statement(name, federation=FEDERATION, session_digest=session_digest))


# the control


async def test_every_silo_computes_the_state_and_trains_on_it(hub: Hub) -> None:
    for round in (1, 2):
        await hub.run(round, "train")
    for agent in hub.agents.values():
        newest = agent.known.newest(hub.job.digest)
        assert newest is not None
        assert newest.state_digest == hub.put(hub.state)
        assert (agent.folder / "cache" / f"{newest.state_digest.hex()}.safetensors").exists()
        assert not [entry for entry in _audit(agent) if entry["event"] == "sum_refused"]
    np.testing.assert_allclose(hub.state["model/votes"], np.full(4, 0.5), atol=1e-6)


# sums that are not those of the silos


def _changed(words: dict[int, Words]) -> None:
    words[32][0] += np.uint32(1)


def _swapped(words: dict[int, Words]) -> None:
    words[32][0] += np.uint32(7)  # silos' words are alike
    words[32][[0, 1]] = words[32][[1, 0]]


def _scaled(words: dict[int, Words]) -> None:
    for each in words.values():
        each *= each.dtype.type(2)


def _nothing(words: dict[int, Words]) -> None:
    for each in words.values():
        each[:] = 0


@pytest.mark.parametrize("change", [_changed, _swapped, _scaled, _nothing])
async def test_a_changed_sum_is_refused_by_every_silo_and_only_the_true_one_moves_the_job(
    hub: Hub, change: Callable[[dict[int, Words]], None]
) -> None:
    exchange = await hub.until_revealed(1)
    shown = tampered(hub, exchange, change)
    assert shown.sum_digest != hub.revealed(exchange).sum_digest
    for name in hub.names[:3]:
        assert await refusal(hub, exchange, shown, name=name) == "sum"
        (entry,) = [each for each in _audit(hub.agents[name]) if each["event"] == "sum_refused"]
        assert (entry["round"], entry["phase"]) == (1, "train")
    await hub.ask_state(exchange, "silo-3", hub.revealed(exchange))  # the control


async def test_words_swapped_in_a_sum_are_found(hub: Hub) -> None:
    """Of two silos that differ: all else is as it was."""

    def swap(words: dict[int, Words]) -> None:
        assert words[64][0] != words[64][1]
        words[64][[0, 1]] = words[64][[1, 0]]

    exchange = await hub.until_revealed(1)
    assert await refusal(hub, exchange, tampered(hub, exchange, swap)) == "sum"


def _without(hub: Hub, exchange: Exchange, name: str) -> Callable[[dict[int, Words]], None]:
    """Take one survivor out with its tags, as a coordinator could that colludes with it."""
    layout = exchange.session.terms.layout
    masker = hub.agents[name].transfers.maskers[exchange.key]
    own = {
        ring_bits: words.copy()
        for ring_bits, words in masks.vectors_from_stream(layout, exchange.vectors[name]).items()
    }
    opposite = tuple(replace(each, sign=-each.sign) for each in masker.seeds)
    plan = masks.UnmaskPlan(
        layout=layout, cohort_digest=masker.cohort_digest, seeds=opposite, survivors=(name,)
    )
    plan.unmask(own)

    def subtract(words: dict[int, Words]) -> None:
        for ring_bits in words:
            words[ring_bits] -= own[ring_bits]

    return subtract


async def test_a_sum_that_lacks_a_survivor_is_refused_under_either_set(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    shown = tampered(hub, exchange, _without(hub, exchange, "silo-3"))
    fewer = replace(shown, survivors=("silo-0", "silo-1", "silo-2"))
    assert await refusal(hub, exchange, fewer) == "signatures"  # of another U3
    assert await refusal(hub, exchange, shown) == "sum"


async def test_two_silos_are_not_shown_two_sums(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    other = tampered(hub, exchange, _without(hub, exchange, "silo-3"))
    await hub.ask_state(exchange, ME, hub.revealed(exchange))
    assert await refusal(hub, exchange, other, name="silo-1") == "sum"
    # a silo that has answered says the same again, whatever it is shown
    again = await hub.ask_state(exchange, ME, other)
    assert again.statement.body == said(hub, exchange, ME)


async def test_the_sum_of_yesterday_is_refused(hub: Hub) -> None:
    first = await hub.until_revealed(1)
    yesterday = hub.revealed(first)
    await hub.agree(first)
    today = await hub.until_revealed(2)
    assert await refusal(hub, today, yesterday) == "signatures"
    mixed = replace(hub.revealed(today), sum_digest=yesterday.sum_digest)
    assert await refusal(hub, today, mixed) == "sum"
    again = await hub.ask_state(first, "silo-1", yesterday)  # what was signed then
    assert hub.agents["silo-1"].known.signed(first.key) == wire.signed_body_from_wire(again.statement)
    assert await refusal(hub, replace_attempt(today), hub.revealed(today), name="silo-1") == "stage"


def replace_attempt(exchange: Exchange) -> Exchange:
    return replace(exchange, key=replace(exchange.key, attempt=2))


async def test_a_sum_that_is_not_what_its_digest_says_is_fetched_in_vain(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    true = hub.revealed(exchange)
    stream = hub.states[true.sum_digest]
    for damaged in (stream[:-8], stream + bytes(8), b""):
        assert await refusal(hub, exchange, replace(true, sum_digest=put(hub, damaged))) == "state"
    hub.states[true.sum_digest] = stream[:-1] + bytes([stream[-1] ^ 1])
    assert await refusal(hub, exchange, true) == "state"
    assert await refusal(hub, exchange, replace(true, sum_digest=bytes(32))) == "state"
    hub.states[true.sum_digest] = stream
    await hub.ask_state(exchange, ME, true)  # no check of a sum has failed


async def test_survivors_are_those_that_t_of_them_signed(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    true = hub.revealed(exchange)
    signatures = true.signatures.signatures
    assert len(signatures) == 4
    two = {name: signatures[name] for name in hub.names[:2]}
    for shown in (
        replace(true, signatures=Signatures(signatures=two)),
        replace(true, signatures=Signatures(signatures={**two, "silo-2": signatures["silo-1"]})),
        replace(true, signatures=Signatures(signatures={**two, "silo-9": signatures["silo-2"]})),
        replace(true, signatures=Signatures(signatures={})),
        replace(true, survivors=true.survivors[:3]),
        replace(true, survivors=(*true.survivors, "silo-9")),
        replace(true, survivors=true.survivors[::-1]),
    ):
        assert await refusal(hub, exchange, shown) == "signatures"
    assert decision(hub.agents[ME]) == ["approved"]
    three = replace(true, signatures=Signatures(signatures={**two, "silo-2": signatures["silo-2"]}))
    await hub.ask_state(exchange, ME, three)  # the control


async def test_a_sum_of_a_phase_that_the_silo_had_no_part_in_is_refused(hub: Hub) -> None:
    exchange = await hub.until_revealed(1, "train", lost=["silo-3"])
    assert await refusal(hub, exchange, hub.revealed(exchange), name="silo-3") == "stage"
    await hub.ask_state(exchange, ME, hub.revealed(exchange))


async def test_an_opening_needs_the_seeds_that_survivors_committed_to(make_hub: MakeHub) -> None:
    """Else the coordinator chooses whom the rounds name."""
    hub = make_hub(silos=6, fraction=0.75)
    hub.add_all(assumed_colluders=0)
    exchange = await hub.until_revealed(0, "enrollment.0")
    true = hub.revealed(exchange)
    given = dict(true.self_mask_seeds)
    for seeds in (
        {},
        {name: given[name] for name in hub.names[1:]},
        {**given, ME: bytes(32)},
        {**given, ME: given["silo-1"], "silo-1": given[ME]},
    ):
        assert await refusal(hub, exchange, replace(true, self_mask_seeds=seeds)) == "malformed"
    await hub.agree(exchange)
    newest = hub.agents[ME].known.newest(hub.job.digest)
    assert newest is not None
    assert len(newest.draw_seed) == 32


# who computes


async def test_a_silo_whose_vector_did_not_arrive_computes_what_the_others_do(hub: Hub) -> None:
    exchange = await hub.until_revealed(1, late=("silo-3",))
    assert exchange.session.survivors == ("silo-0", "silo-1", "silo-2")
    await hub.agree(exchange)
    newest = hub.agents["silo-3"].known.newest(hub.job.digest)
    assert newest is not None
    assert newest.state_digest == hub.put(hub.state)
    hub.proofs.clear()  # it needs none
    await hub.agents["silo-3"].answer("advert", task=hub.begin(2, "train").task)


# durable first, and once


async def test_a_statement_is_durable_before_it_is_sent(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    agent = hub.agents[ME]
    seen: list[tuple[Any, bool]] = []

    def look(message: Any) -> None:
        state = agent.folder / "cache" / f"{hub.put(hub.following(exchange)).hex()}.safetensors"
        seen.append((agent.known.signed(exchange.key), state.exists()))
        agent.sent.put_nowait(message)

    agent.handler._replies.send = look
    answer = await hub.ask_state(exchange, ME, hub.revealed(exchange))
    assert seen == [(wire.signed_body_from_wire(answer.statement), True)]


async def test_a_restart_between_sum_and_statement_changes_nothing_in_it(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    true, agent = hub.revealed(exchange), hub.agents[ME]
    begun = asyncio.Event()

    async def never_ends(**_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    agent.transfers.download = never_ends  # type: ignore[method-assign]
    agent.tell(revealed_sum=wire.to_silo(true, exchange.key).revealed_sum)
    await asyncio.wait_for(begun.wait(), 20)
    await agent.restart()
    first = await hub.ask_state(exchange, ME, true)
    assert first.statement.body == said(hub, exchange, ME)
    await agent.restart()
    again = await hub.ask_state(exchange, ME, true)
    assert again == first


async def test_a_ledger_that_cannot_be_written_gives_no_statement(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    true, agent = hub.revealed(exchange), hub.agents[ME]

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    agent.known.sign = full  # type: ignore[method-assign]
    assert await refusal(hub, exchange, true) == "internal"
    await agent.restart()
    assert (await hub.ask_state(exchange, ME, true)).statement.body == said(hub, exchange, ME)


async def test_the_sum_asked_for_twice_at_once_is_answered_once(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    agent = hub.agents[ME]
    shown = hub.shown(exchange)
    agent.tell(revealed_sum=shown)
    await agent.answer("next_state", revealed_sum=shown)
    again = hub.begin(1, "train", attempt=2)
    assert await agent.refusal(task=again.task) == "later-state"  # and nothing in between


# sums that fail


async def test_the_first_bad_sum_is_refused_and_the_second_suspends_the_job(hub: Hub) -> None:
    agent = hub.agents[ME]
    for round, expected in ((1, "approved"), (2, "suspended")):
        exchange = await hub.until_revealed(round)
        assert await refusal(hub, exchange, tampered(hub, exchange, _changed)) == "sum"
        assert decision(agent) == [expected]
        if round == 1:
            for name in hub.names[1:]:  # the others were shown the true one
                await hub.ask_state(exchange, name, hub.revealed(exchange))
            hub.prove(hub.following(exchange), 1, "train")
    assert await refusal(hub, exchange, hub.revealed(exchange)) == "data"
    await agent.restart()
    assert await agent.refusal(task=hub.begin(3, "train").task) == "data"
    agent.ledger.decisions().approve(hub.job.digest, by="ann")
    await agent.answer("advert", task=hub.begin(3, "train").task)


async def test_no_other_sum_of_a_phase_is_checked_after_one_that_failed(hub: Hub) -> None:
    """However many a coordinator tries, one of them is checked."""
    exchange = await hub.until_revealed(1)
    agent = hub.agents[ME]
    assert await refusal(hub, exchange, tampered(hub, exchange, _changed)) == "sum"
    await agent.restart()
    assert await refusal(hub, exchange, hub.revealed(exchange)) == "sum"
    assert decision(agent) == ["approved"]  # it is one phase
    # it goes on from what the others compute
    await hub.agree(exchange, without=[ME])
    await agent.answer("advert", task=hub.begin(2, "train").task)


def _audit(agent: Agent) -> list[dict[str, Any]]:
    return list(read_entries(agent.folder / "audit.jsonl"))
