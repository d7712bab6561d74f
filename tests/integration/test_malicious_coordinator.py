"""A coordinator that deviates inside sessions, over real mutual TLS, against real agents.

Each test first runs a round without the tampering and sees it succeed. Then one message is bent:
the silo refuses it by name, says why in its own log and audit trail, and nothing leaves it.
Guarantee G1. What else it relays: test_malicious_documents.py.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
import pytest_asyncio

from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import Refusal
from crypto.fixed_point.layout import Layout
from crypto.identity.certificates import Identity, Role, SignedBody
from crypto.session import bodies
from crypto.session.cohort import CohortRule
from crypto.session.messages import Cohort, Consistency, Envelopes, RelayedEnvelope, Survivors
from tests.protocol.malice import envelopes_among, relayed
from tests.support.agents import Exchange, changed, other_attempt
from tests.support.ceremony import stranger
from tests.support.rogue import SPARE, Rogue, with_proofs

pytestmark = pytest.mark.asyncio(loop_scope="module")

VICTIM = "silo-1"
Signed = dict[str, SignedBody]

nonces = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def four(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rogue]:
    """t = 3: one silo may be lost."""
    async with Rogue(tmp_path_factory.mktemp("four"), rounds=500) as rogue:
        await rogue.start()
        yield rogue


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ten(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rogue]:
    """t = 7, min_cohort = 5."""
    async with Rogue(tmp_path_factory.mktemp("ten"), silos=10, rounds=500) as rogue:
        await rogue.start()
        yield rogue


async def honest(rogue: Rogue) -> Exchange:
    """The control: a round without the tampering reveals exactly the sum; then the next round.

    Every test has a job and a model of its own: over one that a test gave inputs for and took no further, no
    silo takes part in a sum of other silos.
    """
    for name in rogue.names:
        await rogue.agents[name].settle()
    nonce = next(nonces)
    rogue.take_job(nonce=f"{nonce:032x}", start=float(nonce), rounds=20)
    await rogue.control()
    return rogue.begin_next()


async def adverts_of(rogue: Rogue, exchange: Exchange) -> Signed:
    await rogue.advertise(exchange)
    cohort = exchange.session.close_advertise()
    return dict(zip(exchange.session.cohort, cohort.adverts, strict=True))


def tell_cohort(rogue: Rogue, exchange: Exchange, name: str, adverts: Signed) -> None:
    cohort = Cohort(adverts=tuple(adverts.values()))
    rogue.agents[name].tell(cohort=wire.to_silo(cohort, exchange.key).cohort)


def tell_survivors(rogue: Rogue, key: PhaseKey, name: str, survivors: list[str]) -> None:
    message = Survivors(survivors=tuple(survivors))
    rogue.agents[name].tell(survivors=wire.to_silo(message, key).survivors)


def among(
    given: dict[str, Envelopes], key: PhaseKey, receiver: str, group: list[str]
) -> session_pb2.Envelopes:
    """What a group dealt to one of them, as if the others had sent nothing."""
    message = envelopes_among(given, receiver, tuple(group))
    return wire.to_silo(message, key).envelopes


# sizes


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


@pytest.mark.parametrize(
    "declared", [_threshold_of_three, _min_cohort_of_three, _seven_members, _other_layout]
)
async def test_silos_refuse_terms_that_the_coordinator_chose(
    ten: Rogue, declared: Callable[[Exchange], bytes]
) -> None:
    exchange = await honest(ten)
    task = changed(exchange.task, session_digest=declared(exchange))
    for name in ten.names:
        ten.agents[name].tell(task=task)
        await ten.agents[name].refuses(Refusal.TERMS, "the coordinator's terms are not this silo's")
    ten.check_nothing_left(exchange)


@pytest.mark.parametrize("stage", ["cohort", "sharers", "survivors"])
async def test_silos_refuse_answers_split_into_groups_of_three(ten: Rogue, stage: str) -> None:
    """Three sums of three or four silos, had the silos believed in t = 3."""
    exchange = await honest(ten)
    adverts = await adverts_of(ten, exchange) if stage == "cohort" else {}
    if stage != "cohort":
        await ten.advertise(exchange)
        await ten.share(exchange)
    given = exchange.session.close_share() if stage == "sharers" else {}
    if stage == "survivors":
        await ten.mask(exchange)
    for group in (ten.names[:3], ten.names[3:6], ten.names[6:]):
        for name in group:
            if stage == "cohort":
                tell_cohort(ten, exchange, name, {peer: adverts[peer] for peer in group})
            elif stage == "sharers":
                ten.agents[name].tell(envelopes=among(given, exchange.key, name, group))
            else:
                tell_survivors(ten, exchange.key, name, group)
            reason = f"{stage}: expected at least 7 silos, got {len(group)}"
            await ten.agents[name].refuses(Refusal.COHORT_TOO_SMALL, reason)
    ten.check_nothing_left(exchange, vectors=stage == "survivors")


async def test_silo_refuses_every_set_below_its_policys_least_silos(tmp_path) -> None:
    """t would allow three of four; this institution asks for four."""
    async with Rogue(tmp_path, policy={"min_silos": 4}, rounds=5) as rogue:
        await rogue.start()
        three, line = rogue.names[:3], rogue.agents[VICTIM]
        reason = "policy: expected a cohort of at least 4 silos, got 3"
        exchange = await honest(rogue)
        adverts = await adverts_of(rogue, exchange)
        tell_cohort(rogue, exchange, VICTIM, {name: adverts[name] for name in three})
        await line.refuses(Refusal.COHORT_TOO_SMALL, reason)
        rogue.check_nothing_left(exchange)

        exchange = rogue.begin(rogue.round, "train", attempt=2)
        await rogue.advertise(exchange)
        await rogue.share(exchange)
        line.tell(envelopes=among(exchange.session.close_share(), exchange.key, VICTIM, three))
        await line.refuses(Refusal.COHORT_TOO_SMALL, reason)
        rogue.check_nothing_left(exchange)

        exchange = rogue.begin(rogue.round, "train", attempt=3)
        await rogue.advertise(exchange)
        await rogue.share(exchange)
        await rogue.mask(exchange)
        tell_survivors(rogue, exchange.key, VICTIM, three)
        await line.refuses(Refusal.COHORT_TOO_SMALL, reason)
        rogue.check_nothing_left(exchange, vectors=True)


# adverts


def _swapped(field: str) -> Callable[[Rogue, Signed], SignedBody]:
    """Its signature with another silo's key."""

    def forge(rogue: Rogue, adverts: Signed) -> SignedBody:
        own, other = (
            getattr(bodies.read_advert(adverts[name]).advert, field) for name in ("silo-0", "silo-3")
        )
        body = adverts["silo-0"].body
        assert own in body
        return dataclasses.replace(adverts["silo-0"], body=body.replace(own, other))

    return forge


def _resigned(adverts: Signed, signer: Identity, **changes: str) -> SignedBody:
    """What silo-0 adverted, under another certificate."""
    advert = bodies.read_advert(adverts["silo-0"]).advert
    fields = {"certificate": signer.certificate_der, **changes}
    return bodies.sign(signer, dataclasses.replace(advert, **fields))


def _of_another_authority(rogue: Rogue, adverts: Signed) -> SignedBody:
    return _resigned(adverts, stranger(Role.SILO, "silo-0", now=rogue.now))


def _of_another_member(rogue: Rogue, adverts: Signed) -> SignedBody:
    return _resigned(adverts, rogue.members.silos["silo-3"])


def _of_the_operator(rogue: Rogue, adverts: Signed) -> SignedBody:
    return _resigned(adverts, rogue.members.operator)


def _off_the_roster(rogue: Rogue, adverts: Signed) -> SignedBody:
    """Of the right name, from the right authority, but not the certificate that the roster lists."""
    return _resigned(adverts, rogue.reissued("silo-0"))


def _outside_the_named_set(rogue: Rogue, adverts: Signed) -> SignedBody:
    return _resigned(adverts, rogue.members.silos[SPARE], name=SPARE)


def _cut_short(rogue: Rogue, adverts: Signed) -> SignedBody:
    return dataclasses.replace(adverts["silo-0"], body=adverts["silo-0"].body[:-1])


def _twice(rogue: Rogue, adverts: Signed) -> SignedBody:
    return adverts["silo-3"]


@pytest.mark.parametrize(
    "forge, code, reason",
    [
        (_swapped("channel_key"), Refusal.ADVERT, "advert: the signature is not valid"),
        (_swapped("mask_key"), Refusal.ADVERT, "advert: the signature is not valid"),
        (_of_another_authority, Refusal.ROSTER, "it was not issued by this federation's authority"),
        (_of_another_member, Refusal.ADVERT, "advert of silo-0: the certificate is of silo-3"),
        (_of_the_operator, Refusal.ROSTER, "certificate: expected role silo, got operator"),
        (_off_the_roster, Refusal.ROSTER, "advert of silo-0: certificate not on the roster"),
        (_outside_the_named_set, Refusal.NOT_NAMED, "advert: the silo is not in the named set"),
        (_cut_short, Refusal.MALFORMED, "advert: ends early"),
        (_twice, Refusal.ADVERT, "cohort: a silo adverts twice"),
    ],
)
async def test_silo_refuses_a_cohort_with_a_forged_advert(
    four: Rogue, forge: Callable[[Rogue, Signed], SignedBody], code: Refusal, reason: str
) -> None:
    exchange = await honest(four)
    adverts = await adverts_of(four, exchange)
    tell_cohort(four, exchange, VICTIM, adverts | {"silo-0": forge(four, adverts)})
    await four.agents[VICTIM].refuses(code, reason)
    tell_cohort(four, exchange, VICTIM, adverts)  # the session is over, whatever follows
    await four.agents[VICTIM].is_quiet()
    four.check_nothing_left(exchange)


@pytest.mark.parametrize("name", ["silo-0", VICTIM])
async def test_silo_refuses_an_advert_replayed_from_an_earlier_attempt(four: Rogue, name: str) -> None:
    exchange = await honest(four)
    earlier = await adverts_of(four, exchange)
    second = four.begin(four.round, "train", attempt=2)
    adverts = await adverts_of(four, second)
    tell_cohort(four, second, VICTIM, adverts | {name: earlier[name]})
    await four.agents[VICTIM].refuses(Refusal.ADVERT, f"advert of {name}: made for another session")
    four.check_nothing_left(second)


async def test_silo_refuses_its_own_advert_from_before_a_restart(four: Rogue) -> None:
    """The same attempt, other keys: the others would seal to keys that are gone."""
    exchange = await honest(four)
    earlier = await adverts_of(four, exchange)
    line = four.agents[VICTIM]
    await line.restart()
    line.tell(task=exchange.task)
    advert = wire.from_silo(pb.SiloMessage(advert=await line.answer("advert")))
    assert advert != earlier[VICTIM]
    tell_cohort(four, exchange, VICTIM, earlier)
    await line.refuses(Refusal.ADVERT, "this silo's own advert is not the one it sent")
    four.check_nothing_left(exchange)


# sets


async def test_envelopes_do_not_verify_among_silos_told_different_cohorts(four: Rogue) -> None:
    exchange = await honest(four)
    adverts = await adverts_of(four, exchange)
    three = four.names[:3]
    cohorts = {"silo-0": three, "silo-1": three, "silo-2": four.names, "silo-3": four.names}
    dealt: dict[str, dict[str, RelayedEnvelope]] = {}
    for name, group in cohorts.items():
        tell_cohort(four, exchange, name, {peer: adverts[peer] for peer in group})
        shares = wire.from_silo(pb.SiloMessage(shares=await four.agents[name].answer("shares")))
        receivers = [peer for peer in group if peer != name]
        dealt[name] = {peer: relayed(shares, place) for place, peer in enumerate(receivers)}
    for name in three:
        envelopes = tuple(dealt[peer][name] for peer in three if peer != name)
        message = Envelopes(sharers=tuple(three), envelopes=envelopes)
        four.agents[name].tell(envelopes=wire.to_silo(message, exchange.key).envelopes)
        reason = "signed for another cohort or silo"
        await four.agents[name].refuses(Refusal.ENVELOPE, reason)
    four.check_nothing_left(exchange)


async def told_survivors(
    rogue: Rogue, exchange: Exchange, survivors_by_silo: dict[str, list[str]]
) -> dict[str, bytes]:
    """What each silo signs when it is told this U3."""
    await rogue.advertise(exchange)
    await rogue.share(exchange)
    await rogue.mask(exchange)
    signed = {}
    for name, survivors in survivors_by_silo.items():
        tell_survivors(rogue, exchange.key, name, survivors)
        signed[name] = (await rogue.agents[name].answer("consistency")).signature
    return signed


def tell_signatures(rogue: Rogue, key: PhaseKey, name: str, *signed: tuple[str, bytes]) -> None:
    message = session_pb2.Signatures(
        key=wire.key_to_wire(key),
        signatures=[session_pb2.NamedSignature(name=signer, signature=each) for signer, each in signed],
    )
    rogue.agents[name].tell(signatures=message)


async def test_no_silo_answers_when_silos_were_told_different_survivors(four: Rogue) -> None:
    exchange = await honest(four)
    three = four.names[:3]
    survivors_by_silo = {"silo-0": three, "silo-1": three, "silo-2": four.names, "silo-3": four.names}
    signed = await told_survivors(four, exchange, survivors_by_silo)
    for name in ("silo-0", "silo-2"):
        same = [
            (peer, signed[peer])
            for peer in survivors_by_silo
            if survivors_by_silo[peer] == survivors_by_silo[name]
        ]
        tell_signatures(four, exchange.key, name, *same)
        reason = "unmask: expected signatures of 3 survivors, got 2"
        await four.agents[name].refuses(Refusal.SIGNATURES, reason)
    for name in ("silo-1", "silo-3"):
        tell_signatures(four, exchange.key, name, *[(peer, signed[peer]) for peer in survivors_by_silo[name]])
        reason = "unmask: signature of silo-. over this cohort, U2 and U3: .* is not valid"
        await four.agents[name].refuses(Refusal.SIGNATURES, reason)
    four.check_nothing_left(exchange, vectors=True)


async def test_one_signature_many_times_counts_once(four: Rogue) -> None:
    exchange = await honest(four)
    signed = await told_survivors(four, exchange, dict.fromkeys(four.names, four.names))
    first = signed["silo-0"]
    for name, shown, code, reason in (
        ("silo-0", [("silo-0", first)] * 4, Refusal.MALFORMED, "signatures: silo-0 is given twice"),
        (VICTIM, [(name, first) for name in four.names], Refusal.SIGNATURES, "unmask: signature of silo-1 "),
    ):
        tell_signatures(four, exchange.key, name, *shown)
        await four.agents[name].refuses(code, reason)
    four.check_nothing_left(exchange, vectors=True)


async def test_signatures_of_others_than_the_survivors_open_nothing(four: Rogue) -> None:
    """Of a silo that is not named, of one that U3 leaves out, or none that could be one."""
    exchange = await honest(four)
    three = four.names[:3]
    signed = await told_survivors(four, exchange, dict.fromkeys(three, three))
    lost = bodies.sign(
        four.members.silos["silo-3"],
        Consistency(
            cohort_digest=exchange.session.cohort_digest,
            sender="silo-3",
            sharers=exchange.session.sharers,
            survivors=tuple(three),
        ),
    ).signature
    for name, more, code, reason in (
        ("silo-0", ("silo-3", lost), Refusal.SIGNATURES, "unmask: a signature is of silo-3, which is not"),
        ("silo-1", (SPARE, lost), Refusal.SIGNATURES, "unmask: a signature is of spare, which is not"),
        ("silo-2", ("silo-3", b""), Refusal.MALFORMED, "signature: expected 1 to 72 bytes, got 0"),
    ):
        tell_signatures(four, exchange.key, name, *signed.items(), more)
        await four.agents[name].refuses(code, reason)
    four.check_nothing_left(exchange, vectors=True)


async def test_signatures_of_one_attempt_do_not_open_the_next(four: Rogue) -> None:
    first = await honest(four)
    stolen = await told_survivors(four, first, dict.fromkeys(four.names, four.names))
    second = four.begin(four.round, "train", attempt=2)
    await told_survivors(four, second, dict.fromkeys(four.names, four.names))
    for name in four.names:
        tell_signatures(four, second.key, name, *stolen.items())
        reason = "unmask: signature of silo-0 over this cohort, U2 and U3: .* is not valid"
        await four.agents[name].refuses(Refusal.SIGNATURES, reason)
        tell_signatures(four, first.key, name, *stolen.items())
        await four.agents[name].refuses(Refusal.STAGE, "this silo has no such session")
    for exchange in (first, second):
        four.check_nothing_left(exchange, vectors=True)


async def test_silo_outside_the_survivors_gives_nothing(four: Rogue) -> None:
    exchange = await honest(four)
    others = [name for name in four.names if name != VICTIM]
    signed = await told_survivors(four, exchange, dict.fromkeys(others, others))
    line = four.agents[VICTIM]
    tell_survivors(four, exchange.key, VICTIM, others)
    await line.is_quiet()
    assert line.last_logged("left out of the session")["reason"] == "survivors: this silo is left out"
    assert line.last_recorded("left out")["round"] == four.round
    tell_signatures(four, exchange.key, VICTIM, *signed.items())
    await line.is_quiet()
    await line.restart()
    tell_signatures(four, exchange.key, VICTIM, *signed.items())
    await line.refuses(Refusal.STAGE, "this silo has no such session")
    four.check_nothing_left(exchange, vectors=True)


# answers


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_silo_never_gives_both_shares_of_one_silo(four: Rogue, is_restarted: bool) -> None:
    exchange = await honest(four)
    await four.until_signed(exchange, lost=["silo-3"])
    exchange.session.close_consistency()
    line = four.agents[VICTIM]
    answer = await four.ask_shares(exchange, VICTIM)
    if is_restarted:
        await line.restart()
    recover = session_pb2.RecoverRequest(key=exchange.wire_key, names=["silo-0"])
    line.tell(recover=recover)
    await line.refuses(Refusal.SIGNATURES, "recover: a name is not in U2 minus U3")
    await line.restart()  # the session was over; the ledger has it
    tell_survivors(four, exchange.key, VICTIM, four.names)
    await line.refuses(Refusal.STAGE, "got Survivors in state revealed")
    assert {entry.name for entry in answer.self_mask_shares} == {"silo-0", "silo-1", "silo-2"}
    assert {entry.name for entry in answer.recovery_shares} == {"silo-3"}
    assert [message.unmask_shares for message in line.received if message.HasField("unmask_shares")][
        -1
    ] == answer


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
    tell_signatures(four, later, VICTIM, *exchange.session.unmask_request().signatures.items())
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
                tell_survivors(rogue, exchange.key, name, rogue.names[:3])
                reason = "cohort changed nearly, more than 0 times"
                await rogue.agents[name].refuses(Refusal.OVERLAPPING_COHORT, reason)
            rogue.check_nothing_left(exchange, vectors=True)
