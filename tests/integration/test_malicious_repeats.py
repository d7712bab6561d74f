"""A coordinator that takes several sums over one global state, or proves one under another roster, over
real mutual TLS, against real agents.

docs/decisions/0016-attempts-on-the-protocol.md lists these attempts with those that never got so far. Every
test first sees the exchange succeed without the tampering. Source: docs/protocol.md 5.10, 6.10.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from chorale.transport import wire
from chorale.v1 import session_pb2
from crypto.errors import Refusal
from crypto.session import bodies
from crypto.session.statements import AbandonedProof, CohortProof, Signer
from tests.support.agents import FEDERATION, Exchange
from tests.support.rogue import Rogue

pytestmark = pytest.mark.asyncio


async def masked(rogue: Rogue, exchange: Exchange, group: Sequence[str]) -> None:
    """The stages up to the masked vectors, of these silos alone: no other is told of it."""
    others = [name for name in rogue.names if name not in group]
    await rogue.advertise(exchange, without=others)
    await rogue.share(exchange)
    await rogue.mask(exchange)


async def summed(rogue: Rogue, exchange: Exchange, group: Sequence[str]) -> np.ndarray:
    """The revealed sum over these silos, of which no silo hears: the state stays as it is."""
    await masked(rogue, exchange, group)
    await rogue.consistency(exchange)
    sums = await rogue.unmask(exchange)
    return np.asarray(sums["delta"]) * len(rogue.names)


async def is_refused(rogue: Rogue, exchange: Exchange, group: Sequence[str], *, by: Iterable[str]) -> None:
    """These refuse U3, and the others are too few to reveal the sum."""
    await masked(rogue, exchange, group)
    survivors = wire.to_silo(exchange.session.close_masked(), exchange.key).survivors
    refusing = set(by)
    for name in refusing:
        rogue.agents[name].tell(survivors=survivors)
        await rogue.agents[name].refuses(Refusal.OVERLAPPING_COHORT, "another sum over this model")
    assert len(group) - len(refusing) < exchange.session.terms.rule.threshold


def cohort_proof(exchange: Exchange) -> session_pb2.CohortProof:
    """U3 as t silos signed it, whether or not it was ever revealed."""
    session = exchange.session
    proof = CohortProof(survivors=session.survivors, signatures=session.unmask_request())
    return wire.cohort_proof_to_wire(exchange.key, proof)


@pytest.mark.parametrize("is_lie", [False, True], ids=["control", "lie"])
async def test_u3_of_an_attempt_that_was_not_revealed_does_not_stand_for_that_which_was(
    tmp_path: Path, is_lie: bool
) -> None:
    """t silos sign U3 of an attempt; the next attempt is revealed, without one silo. With the first U3 as
    that of the phase, the next round was summed over all, and the difference was the one silo's update."""
    async with Rogue(tmp_path / "four", rounds=9) as rogue:
        await rogue.start()
        await rogue.control()
        signed_only = rogue.begin_next()
        await rogue.until_signed(signed_only)
        signed_only.session.close_consistency()
        revealed = rogue.begin(rogue.round, "train", attempt=2)
        three = rogue.names[:3]
        np.testing.assert_allclose(await summed(rogue, revealed, three), [1, 1, 1, 0], atol=1e-5)

        following = rogue.begin_next()
        if not is_lie:
            np.testing.assert_allclose(await summed(rogue, following, three), [1, 1, 1, 0], atol=1e-5)
            return
        following.task.cohorts.append(cohort_proof(signed_only))
        await is_refused(rogue, following, rogue.names, by=three)


def silos(*places: int) -> list[str]:
    return [f"silo-{place}" for place in places]


@pytest.mark.parametrize("is_lie", [False, True], ids=["control", "lie"])
async def test_three_sums_over_one_state_do_not_add_up_to_one_silo(tmp_path: Path, is_lie: bool) -> None:
    """Of seven silos two collude. Every two of the sums differ by four silos, so pairs tell nothing; but b
    plus c minus a was the update of silo-0 and what the colluders know."""
    a, b, c = silos(0, 1, 2, 3, 4), silos(0, 1, 2, 5, 6), silos(0, 3, 4, 5, 6)
    async with Rogue(tmp_path / "seven", silos=7, rounds=9) as rogue:
        await rogue.start()
        await rogue.control()
        sums = [await summed(rogue, rogue.begin_next(), a)]
        if is_lie:
            await is_refused(rogue, rogue.begin_next(), b, by=set(a) & set(b))
        else:
            sums += [await summed(rogue, rogue.begin_next(), a) for _ in (b, c)]
        np.testing.assert_allclose(sums, [[1] * 5 + [0] * 2] * len(sums), atol=1e-5)


# rosters from before


@pytest.mark.parametrize("is_lie", [False, True], ids=["control", "lie"])
async def test_colluders_do_not_prove_a_state_under_a_roster_that_held_few_others(
    tmp_path: Path, is_lie: bool
) -> None:
    """Three of nine silos collude. A former roster holds no others of the job: t is 3 there, and with it
    they proved any state, on which all silos then trained."""
    crafted = {"model/votes": np.full(9, 7, np.float32), "method/total": np.array(900)}
    async with Rogue(tmp_path / "nine", silos=9, rounds=9) as rogue:
        await rogue.start()
        await rogue.control()
        newest = rogue.roster
        if is_lie:
            rogue.roster = rogue.members.roster(version=6, without=rogue.names[3:], issued=rogue.now)
        proof = rogue.prove(crafted, 2, "train")
        assert len(proof.signers) == (3 if is_lie else 7)
        rogue.roster = newest
        following = rogue.begin(3, "train")
        if not is_lie:
            np.testing.assert_allclose(await summed(rogue, following, rogue.names), [1] * 9, atol=1e-5)
            return
        for name in rogue.names:
            rogue.agents[name].tell(task=following.task)
            await rogue.agents[name].refuses(Refusal.ROSTER, "version 6, does not hold silo-3")
        rogue.check_nothing_left(following)


@pytest.mark.parametrize(
    ("version", "absent", "reason"),
    [
        (7, [], None),
        (6, silos(3, 4, 5, 6), "version 6, does not hold silo-3"),
        (6, [], "expected roster version 7 of this phase, got 6"),
    ],
    ids=["control", "few silos", "another version"],
)
async def test_a_phase_is_abandoned_under_its_own_roster_alone(
    tmp_path: Path, version: int, absent: list[str], reason: str | None
) -> None:
    """Else the statements of too few silos make it forgotten that a sum was taken."""
    async with Rogue(tmp_path / "seven", silos=7, rounds=9) as rogue:
        await rogue.start()
        await rogue.control()
        given_up = rogue.begin_next()
        await masked(rogue, given_up, rogue.names)
        roster = rogue.members.roster(version=version, without=absent, issued=rogue.now)
        proof = AbandonedProof(roster=roster.signed, round=rogue.round, phase="train", signers={})
        signers = {name: abandoned_by(rogue, name, proof) for name in rogue.names if name not in absent}
        following = rogue.begin_next()
        proof = dataclasses.replace(proof, signers=signers)
        following.task.abandoned.append(wire.abandoned_proof_to_wire(proof, rogue.job.digest))
        if reason is None:
            np.testing.assert_allclose(await summed(rogue, following, rogue.names), [1] * 7, atol=1e-5)
            return
        for name in rogue.names:
            rogue.agents[name].tell(task=following.task)
            await rogue.agents[name].refuses(Refusal.ROSTER, reason)
        rogue.check_nothing_left(following)


def abandoned_by(rogue: Rogue, name: str, proof: AbandonedProof) -> Signer:
    identity = rogue.members.silos[name]
    said = proof.statement(name, federation=FEDERATION, job_digest=rogue.job.digest)
    return Signer(certificate=identity.certificate_der, signature=bodies.sign(identity, said).signature)


# drawn rounds


async def test_a_silo_is_in_one_sum_of_a_kind_over_a_state_where_rounds_are_drawn(tmp_path: Path) -> None:
    """Each round names other silos, and each silo knows its own sums alone. Of ten silos and rounds of three,
    some fifty sums over one state that stood were solved for every silo's update."""
    policy = {"max_cohort_changes": 1_000}
    async with Rogue(tmp_path / "six", silos=6, policy=policy, rounds=99, fraction=0.5) as rogue:
        await rogue.start()
        await rogue.run(0, "enrollment.0")
        first = rogue.begin_next()
        before = set(first.session.terms.names)
        total = await summed(rogue, first, sorted(before))  # the control
        np.testing.assert_allclose(total, [name in before for name in rogue.names], atol=1e-5)

        following = rogue.begin_next()
        while not 0 < len(before & set(following.session.terms.names)) < len(before):
            following = rogue.begin_next()
        for name in following.session.terms.names:
            rogue.agents[name].tell(task=following.task)
            if name in before:
                await rogue.agents[name].refuses(Refusal.STATE, "each silo is in one sum of a kind")
            else:
                await rogue.agents[name].answer("advert")
        rogue.check_nothing_left(following)
