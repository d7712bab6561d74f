"""A coordinator that serves states of its own making, over real mutual TLS, against real agents.

Each test first runs rounds whose states every silo computes. Then the coordinator goes on from another state,
with whatever it can show for it: every honest silo refuses it by name, and no input leaves.
Guarantee G1, docs/protocol.md 5.10 and 7.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest

from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import Refusal
from crypto.identity import certificates
from crypto.session import bodies
from strategies.base import Arrays
from tests.support.agents import Exchange
from tests.support.rogue import SPARE, Rogue, with_proofs

pytestmark = pytest.mark.asyncio(loop_scope="module")

VICTIM = "silo-1"
COLLUDER = "silo-3"
UNKNOWN = "a global state that no silo is known to have computed"
Proof = session_pb2.StateProof


def trap(rogue: Rogue) -> Arrays:
    """Rising thresholds: in a layer, the difference of two neighbors' sums is one record."""
    thresholds = np.linspace(-9, 9, len(rogue.names), dtype=np.float32)
    return {**rogue.state, "model/votes": thresholds}


async def all_refuse(rogue: Rogue, exchange: Exchange, reason: str, *codes: Refusal) -> None:
    """Every silo that is named, by one of these codes: `state`, if none is given."""
    for name in exchange.session.terms.names:
        line = rogue.agents[name]
        line.tell(task=exchange.task)
        refused, logged = await line.answer("refused"), line.last_logged("refused")
        assert refused.code in (codes or (Refusal.STATE,)), logged
        assert re.search(reason, logged["reason"]), logged
        await line.is_quiet()
    rogue.check_nothing_left(exchange)


def served(rogue: Rogue, state: Arrays, *proofs: Proof) -> Exchange:
    """The next round over a state that the coordinator made."""
    rogue.round += 1
    exchange = rogue.begin(rogue.round, "train", state=state)
    exchange.task = with_proofs(exchange.task, *proofs)
    return exchange


# without a proof


async def test_a_crafted_state_is_refused_in_every_phase(four: Rogue) -> None:
    """At the opening, before the first round, and later: the weights that read records have no way in."""
    await four.new_job(rounds=0)
    opening = four.begin(0, "enrollment.0", state=trap(four))
    await all_refuse(four, opening, UNKNOWN)
    await four.run(0, "enrollment.0")
    await all_refuse(four, served(four, trap(four)), UNKNOWN)
    four.round += 1
    await four.run(four.round, "train")
    await all_refuse(four, served(four, trap(four)), UNKNOWN)
    four.round = four.job.spec.rounds - 1
    await all_refuse(four, served(four, trap(four)), UNKNOWN)
    evaluation = four.begin(four.round, "evaluate.0", state=trap(four))
    await all_refuse(four, evaluation, UNKNOWN)
    await four.run(four.round, "evaluate.0")  # the control: over the state that they computed


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_state_that_was_moved_on_from_is_never_taken_again(four: Rogue, is_restarted: bool) -> None:
    """With its true proof, after a restart, and after the job was said to have ended."""
    await four.new_job()
    older, its_proofs = four.state, four.brought
    await four.control()
    if is_restarted:
        for name in four.names:
            await four.agents[name].restart()
    await all_refuse(four, served(four, older), UNKNOWN)
    await all_refuse(four, served(four, older, *its_proofs), UNKNOWN)
    for name in four.names:
        four.agents[name].tell(job_ended=pb.JobEnded(job_digest=four.job.digest, status="finished"))
        four.agents[name].meet()
    await all_refuse(four, served(four, older, *its_proofs), UNKNOWN)
    await four.control()


async def test_one_state_does_not_serve_five_rounds_with_another_silo_left_out(four: Rogue) -> None:
    """The differences of the sums would be single updates, exactly."""
    await four.new_job()
    over = four.state
    await four.control()  # the first of the five, in which all are
    for left_out in four.names:
        exchange = served(four, over)
        for name in four.names:
            if name != left_out:
                four.agents[name].tell(task=exchange.task)
                await four.agents[name].refuses(Refusal.STATE, UNKNOWN)
        four.check_nothing_left(exchange)
    await four.control()


# with a proof that is none


def conspired_by(*names: str) -> Callable[[Rogue, Arrays], Proof]:
    return lambda rogue, state: rogue.conspire(rogue.round, "train", state, by=names)


def _of_one_under_three_names(rogue: Rogue, state: Arrays) -> Proof:
    proof = rogue.conspire(rogue.round, "train", state, by=[COLLUDER])
    for name in ("silo-0", "silo-2"):
        proof.signers.add(
            name=name,
            certificate=proof.signers[0].certificate,
            signature=proof.signers[0].signature,
        )
    return proof


def _of_one_under_their_certificates(rogue: Rogue, state: Arrays) -> Proof:
    proof = _of_one_under_three_names(rogue, state)
    for signer in proof.signers:
        signer.certificate = rogue.members.silos[signer.name].certificate_der
    return proof


def _of_another_job(rogue: Rogue, state: Arrays) -> Proof:
    """Three of the silos signed it of a job with other records."""
    own, rogue.job = rogue.job, rogue.sign(nonce="f" * 32, rounds=20)
    proof = rogue.conspire(rogue.round, "train", state)
    rogue.job = own
    return proof


def _of_another_job_under_this_ones_key(rogue: Rogue, state: Arrays) -> Proof:
    proof = _of_another_job(rogue, state)
    proof.key.job_digest = rogue.job.digest
    return proof


def _of_another_phase(rogue: Rogue, state: Arrays) -> Proof:
    proof = rogue.conspire(rogue.round, "enrollment.0", state)
    proof.key.phase = "train"
    return proof


def _of_another_round(rogue: Rogue, state: Arrays) -> Proof:
    proof = rogue.conspire(rogue.round - 1, "train", state)
    proof.key.round = rogue.round
    return proof


def _replayed(rogue: Rogue, state: Arrays) -> Proof:
    """The true one of the newest state, of which the silos know as much."""
    return rogue.brought[-1]


def _replayed_with_another_outcome(rogue: Rogue, state: Arrays) -> Proof:
    proof = Proof()
    proof.CopyFrom(rogue.brought[-1])
    proof.next_digest = rogue.put(state)
    proof.key.round = rogue.round
    return proof


def _with_another_seed_of_the_draw(rogue: Rogue, state: Arrays) -> Proof:
    proof = rogue.conspire(rogue.round, "train", state)
    proof.draw_seed = b"s" * 32
    return proof


def _under_a_roster_of_its_own(rogue: Rogue, state: Arrays) -> Proof:
    proof = rogue.conspire(rogue.round, "train", state)
    signed = rogue.sign_roster(authority_key=certificates.new_key())
    proof.roster.CopyFrom(wire.signed_body_to_wire(signed))
    return proof


def _by_certificates_that_no_roster_holds(rogue: Rogue, state: Arrays) -> Proof:
    proof = rogue.conspire(rogue.round, "train", state, by=[])
    exchange = rogue.begin(rogue.round, "train")
    for name in rogue.names:
        identity = rogue.issue(name)
        said = rogue.statement(exchange, next_digest=rogue.put(state), sender=name)
        signature = bodies.sign(identity, said).signature
        proof.signers.add(name=name, certificate=identity.certificate_der, signature=signature)
    return proof


@pytest.mark.parametrize(
    ("forge", "reason", "codes"),
    [
        (conspired_by(), "expected signatures of 3 silos, got 0", (Refusal.SIGNATURES,)),
        (conspired_by("silo-0", COLLUDER), "expected signatures of 3 silos, got 2", (Refusal.SIGNATURES,)),
        (_of_one_under_three_names, "the roster does not hold silo-0", (Refusal.ROSTER,)),
        (_of_one_under_their_certificates, "silo-0: .*signature is not valid", (Refusal.SIGNATURES,)),
        (conspired_by("silo-0", COLLUDER, SPARE), "spare was not named", (Refusal.STATE, Refusal.SIGNATURES)),
        (_of_another_job, "the proof is of another job", (Refusal.STATE,)),
        (_of_another_job_under_this_ones_key, "signature is not valid", (Refusal.SIGNATURES,)),
        (_of_another_phase, "signature is not valid", (Refusal.SIGNATURES,)),
        (_of_another_round, "signature is not valid", (Refusal.SIGNATURES,)),
        (_replayed, UNKNOWN, (Refusal.STATE,)),
        (_replayed_with_another_outcome, "signature is not valid", (Refusal.SIGNATURES,)),
        (_with_another_seed_of_the_draw, "signature is not valid", (Refusal.SIGNATURES,)),
        (_under_a_roster_of_its_own, "roster: the signature is not valid", (Refusal.ROSTER,)),
        (_by_certificates_that_no_roster_holds, "the roster does not hold silo-0", (Refusal.ROSTER,)),
    ],
)
async def test_every_silo_refuses_a_state_with_a_forged_proof(
    four: Rogue, forge: Callable[[Rogue, Arrays], Proof], reason: str, codes: tuple[Refusal, ...]
) -> None:
    await four.new_job(rounds=2)
    crafted = trap(four)
    four.round += 1
    await all_refuse(four, served(four, crafted, forge(four, crafted)), reason, *codes)
    await four.control()  # what the silos computed is still the newest that they know


async def test_three_silos_that_sign_a_state_are_believed(four: Rogue) -> None:
    """The control of all forged proofs: they fail for what is forged in them, and for nothing else."""
    await four.new_job()
    crafted = trap(four)
    four.round += 1
    proof = four.conspire(four.round, "train", crafted, by=["silo-0", "silo-2", COLLUDER])
    four.agents[VICTIM].tell(task=served(four, crafted, proof).task)
    await four.agents[VICTIM].answer("advert")


async def test_no_more_than_two_proofs_are_read(four: Rogue) -> None:
    await four.new_job(rounds=2)
    proofs = four.brought * 3
    assert len(proofs) == 3
    await all_refuse(four, served(four, four.state, *proofs), "at most 2 proofs, got 3", Refusal.MALFORMED)
    await four.advertise(served(four, four.state, *four.brought))  # the control


async def test_a_colluding_silo_signs_a_false_state_in_vain(four: Rogue) -> None:
    """Two true signatures and a false one make no proof of either state."""
    await four.new_job()
    exchange = four.begin_next()
    await four.until_signed(exchange)
    await four.unmask(exchange)
    revealed, following, crafted = four.revealed(exchange), four.following(exchange), trap(four)
    true = four.statement(exchange, sum_digest=revealed.sum_digest, next_digest=four.put(following))
    false = four.statement(exchange, sum_digest=revealed.sum_digest, next_digest=four.put(crafted))
    signatures = {
        name: (await four.ask_state(exchange, name, revealed)).statement.signature
        for name in ("silo-0", VICTIM)
    }
    own = bodies.sign(four.members.silos[COLLUDER], dataclasses.replace(false, sender=COLLUDER)).signature
    for statement, state in ((true, following), (false, crafted)):
        proof = four.proof(exchange, statement, signatures | {COLLUDER: own})
        four.round += 1
        later = four.begin(four.round, "train", state=state)
        task = with_proofs(later.task, proof)
        four.agents["silo-2"].tell(task=task)
        await four.agents["silo-2"].refuses(Refusal.SIGNATURES, "signature is not valid")
        four.check_nothing_left(later)
    # the control: with a third true one the silo goes on
    third = dataclasses.replace(true, sender="silo-3")
    signatures["silo-3"] = bodies.sign(four.members.silos["silo-3"], third).signature
    later = served(four, following, four.proof(exchange, true, signatures))
    four.agents["silo-2"].tell(task=later.task)
    await four.agents["silo-2"].answer("advert")


async def test_a_silo_signs_one_state_for_a_phase_whatever_it_is_shown(four: Rogue) -> None:
    """Told that others went another way, it neither follows two of them nor signs again."""
    await four.new_job()
    exchange = four.begin_next()
    await four.until_signed(exchange)
    await four.unmask(exchange)
    revealed = four.revealed(exchange)
    signed = await four.ask_state(exchange, VICTIM, revealed)
    other = four.conspire(four.round, "train", trap(four))
    line = four.agents[VICTIM]
    line.tell(task=served(four, trap(four), other).task)
    await line.refuses(Refusal.STATE, UNKNOWN)  # even of all: it knows this phase's outcome
    assert await four.ask_state(exchange, VICTIM, revealed) == signed


# the draw


async def test_a_proof_counts_the_silos_that_were_drawn(tmp_path) -> None:
    """Three of five silos are drawn. Two of them and one that was not are no t."""
    async with Rogue(tmp_path, silos=5, fraction=0.6) as rogue:
        await rogue.start()
        await rogue.run(0, "enrollment.0")
        drawn = rogue.begin(1, "train").session.terms.names
        others = [name for name in rogue.names if name not in drawn]
        crafted = trap(rogue)
        for by, reason, codes in (
            ([*drawn[:2], others[0]], "was not named", (Refusal.STATE, Refusal.SIGNATURES)),
            (drawn[:2], "expected signatures of 3 silos, got 2", (Refusal.SIGNATURES,)),
        ):
            proof = rogue.conspire(1, "train", crafted, by=by)
            later = rogue.begin(2, "train", state=crafted)
            later.task = with_proofs(later.task, proof)
            await all_refuse(rogue, later, reason, *codes)
        first = rogue.begin(1, "train")  # the control: the round of those who were drawn
        await rogue.advertise(first, without=others)
