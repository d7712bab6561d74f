"""Which state a phase may run on: the first, or one that t silos signed; never one from before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ChoraleError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.masking.masks import UnmaskPlan
from crypto.session import bodies
from crypto.session.messages import Signatures
from crypto.session.statements import AbandonedProof, CohortProof, Signer, StateProof
from silo_agent.disclosure.ledger.known_states import FIRST, KnownState
from silo_agent.disclosure.ledger.state_uses import StateUse
from silo_agent.rounds.state_chain import StateChain
from silo_agent.training.objective import LocalState
from strategies.base import Arrays
from tests.support.agents import Agent, Exchange, Hub, make_members
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

KEPT = "method/kept"


@pytest.fixture
def hub(make_hub: MakeHub) -> Hub:
    made = make_hub(enrollment_every=1, rounds=4)
    made.add("silo-0")
    return made


def votes(number: int, **more: object) -> Arrays:
    return {"model/votes": np.full(4, number, np.float32), "method/total": np.array(400), **more}


def chain_of(agent: Agent) -> StateChain:
    return StateChain(
        silo=agent.name,
        known=agent.known,
        data_sets=agent.data_sets,
        local=agent.local,
        credentials=agent.credentials,
    )


def newest(hub: Hub) -> KnownState | None:
    return hub.agents["silo-0"].known.newest(hub.job.digest)


def task_of(hub: Hub, state: Arrays, *proofs: StateProof) -> pb.PhaseTask:
    brought = [wire.proof_to_wire(proof, hub.job.digest) for proof in proofs]
    return pb.PhaseTask(state_digest=hub.put(state), proofs=brought)


def accept(hub: Hub, round: int, phase: str, task: pb.PhaseTask) -> None:
    key = PhaseKey(job_digest=hub.job.digest, round=round, phase=phase, attempt=1)
    chain_of(hub.agents["silo-0"]).accept(key, task, hub.job, roster=hub.roster)


def refused(hub: Hub, round: int, phase: str, task: pb.PhaseTask, match: str) -> Refusal:
    """The code; nothing of it is known afterwards."""
    before = newest(hub)
    with pytest.raises((PolicyRefusal, RemoteProtocolError), match=match) as caught:
        accept(hub, round, phase, task)
    assert newest(hub) == before
    assert isinstance(caught.value, ChoraleError)
    return caught.value.code


# the first state


def test_a_job_starts_from_the_state_that_its_operator_signed(hub: Hub) -> None:
    first = hub.state
    other = task_of(hub, votes(1))
    assert refused(hub, 0, "enrollment.0", other, "no silo is known to have computed") is Refusal.STATE
    accept(hub, 0, "enrollment.0", task_of(hub, first))
    assert newest(hub) == KnownState(position=FIRST, state_digest=hub.put(first), draw_seed=b"")
    accept(hub, 1, "train", task_of(hub, first))  # where nothing was applied


def test_a_state_that_is_not_proven_is_refused(hub: Hub) -> None:
    accept(hub, 0, "enrollment.0", task_of(hub, hub.state))
    planted = task_of(hub, votes(1))
    assert refused(hub, 1, "train", planted, "no silo is known to have computed") is Refusal.STATE


# proofs


async def test_a_state_that_t_silos_signed_is_accepted_and_none_from_before(hub: Hub) -> None:
    first = hub.state
    proof = hub.prove(votes(1), 0, "enrollment.0")
    accept(hub, 1, "train", task_of(hub, votes(1), proof))
    assert newest(hub) == KnownState(position=(0, 0, 0), state_digest=hub.put(votes(1)), draw_seed=b"")
    await hub.agents["silo-0"].restart()
    accept(hub, 1, "train", task_of(hub, votes(1)))  # the proof is not needed again
    for state in (first, votes(2)):
        assert refused(hub, 2, "train", task_of(hub, state), "no silo is known") is Refusal.STATE


def test_one_signature_too_few_proves_nothing(hub: Hub) -> None:
    proof = hub.prove(votes(1), 0, "enrollment.0", signers=2)
    task = task_of(hub, votes(1), proof)
    assert refused(hub, 1, "train", task, "expected signatures of 3 silos, got 2") is Refusal.SIGNATURES


@pytest.mark.parametrize(
    "changes",
    [
        {"next_digest": b"x" * 32},
        {"parent_digest": b"x" * 32},
        {"sum_digest": b"x" * 32},
        {"round": 1},
        {"phase": "enrollment.1"},
        {"attempt": 2},
        {"survivors": ("silo-0", "silo-1", "silo-2")},
        {"draw_seed": b"s" * 32},
    ],
    ids=str,
)
def test_a_proof_of_anything_but_what_the_silos_signed_is_refused(
    hub: Hub, changes: dict[str, object]
) -> None:
    proof = hub.prove(votes(1), 0, "enrollment.0")
    task = task_of(hub, votes(1), replace(proof, **changes))
    assert refused(hub, 2, "train", task, "the signature is not valid") is Refusal.SIGNATURES
    accept(hub, 2, "train", task_of(hub, votes(1), proof))  # the control


def test_a_proof_of_another_job_is_refused(hub: Hub) -> None:
    own = hub.job
    hub.job = hub.sign(name="another")
    proof = hub.prove(votes(1), 0, "enrollment.0")
    stranger = pb.PhaseTask(
        state_digest=hub.put(votes(1)), proofs=[wire.proof_to_wire(proof, hub.job.digest)]
    )
    hub.job = own
    assert refused(hub, 1, "train", stranger, "the proof is of another job") is Refusal.STATE
    claimed = task_of(hub, votes(1), proof)  # under this job's digest: another session
    assert refused(hub, 1, "train", claimed, "the signature is not valid") is Refusal.SIGNATURES


def test_a_proof_of_a_phase_that_the_job_has_not_is_refused(hub: Hub) -> None:
    proof = hub.prove(votes(1), 0, "enrollment.0")
    task = task_of(hub, votes(1), replace(proof, phase="calibrate"))
    assert refused(hub, 2, "train", task, "expected one of enrollment, evaluate, train") is Refusal.STATE


def test_a_proof_under_a_roster_of_somebody_else_is_refused(hub: Hub) -> None:
    proof = hub.prove(votes(1), 0, "enrollment.0")
    strangers = make_members(5).roster().signed
    task = task_of(hub, votes(1), replace(proof, roster=strangers))
    assert refused(hub, 1, "train", task, "roster") is Refusal.ROSTER


def test_a_proof_is_checked_under_the_roster_of_its_session(hub: Hub) -> None:
    """A signer that was revoked since had computed the state."""
    proof = hub.prove(votes(1), 0, "enrollment.0")
    hub.roster = hub.members.roster(version=8, without=["silo-3"])
    accept(hub, 1, "train", task_of(hub, votes(1), proof))


def test_the_newest_proof_suffices_and_older_ones_change_nothing(hub: Hub) -> None:
    older = hub.prove(votes(1), 0, "enrollment.0")
    newer = hub.prove(votes(2), 1, "train")
    accept(hub, 2, "train", task_of(hub, votes(2), newer))
    accept(hub, 2, "train", task_of(hub, votes(2), older))  # sent to several silos
    back = task_of(hub, votes(1), older)
    assert refused(hub, 2, "train", back, "no silo is known to have computed") is Refusal.STATE


def test_no_second_state_of_one_phase_is_accepted(hub: Hub) -> None:
    """t silos never sign two; and were they to, this one keeps the first."""
    parent = hub.state
    first = hub.prove(votes(1), 0, "enrollment.0")
    hub.state = parent
    second = hub.prove(votes(2), 0, "enrollment.0")
    accept(hub, 1, "train", task_of(hub, votes(1), first))
    task = task_of(hub, votes(2), second)
    assert refused(hub, 1, "train", task, "no silo is known to have computed") is Refusal.STATE


@pytest.mark.parametrize(
    ("round", "phase", "is_later"),
    [
        (0, "enrollment.0", False),
        (0, "enrollment.1", False),
        (1, "train", False),
        (2, "train", False),
        (2, "enrollment.1", True),
        (3, "train", True),
        (4, "evaluate.0", True),
    ],
)
def test_only_phases_later_than_the_newest_state_run_on_it(
    hub: Hub, round: int, phase: str, is_later: bool
) -> None:
    proof = hub.prove(votes(1), 2, "train")
    task = task_of(hub, votes(1), proof)
    if is_later:
        accept(hub, round, phase, task)
    else:
        with pytest.raises(PolicyRefusal, match="the outcome of this or a later phase is known") as caught:
            accept(hub, round, phase, task)
        assert caught.value.code is Refusal.LATER_STATE


def test_more_proofs_than_two_are_refused(hub: Hub) -> None:
    proofs = [hub.prove(votes(number), number, "train") for number in (1, 2, 3)]
    task = task_of(hub, votes(3), *proofs)
    assert refused(hub, 4, "train", task, "at most 2 proofs, got 3") is Refusal.MALFORMED
    accept(hub, 4, "train", task_of(hub, votes(3), *proofs[1:]))


def test_rounds_that_are_drawn_need_the_opening_proof_first(make_hub: MakeHub) -> None:
    """It holds the seed that says whom the round named."""
    hub = make_hub(fraction=0.75, silos=6, rounds=4, update_bits=32)
    hub.add("silo-0")
    seed = np.arange(32, dtype=np.uint8)
    enrolled, trained = votes(0, **{"method/draw_seed": seed}), votes(1, **{"method/draw_seed": seed})
    enrolled["model/votes"] = trained["model/votes"] = np.zeros(6, np.float32)
    opening = hub.prove(enrolled, 0, "enrollment.0")
    train = hub.prove(trained, 1, "train")
    assert (len(opening.survivors), len(train.survivors)) == (6, 5)
    assert refused(hub, 2, "train", task_of(hub, trained, train), "expected 32 bytes") is Refusal.STATE
    accept(hub, 2, "train", task_of(hub, trained, opening, train))
    assert newest(hub) == KnownState(
        position=(1, 0, 0), state_digest=hub.put(trained), draw_seed=seed.tobytes()
    )


# local state


@pytest.mark.parametrize(
    ("changes", "kept"),
    [({}, 1), ({"survivors": ("silo-1", "silo-2", "silo-3")}, 0), ({"next_digest": None}, 0)],
    ids=["in the sum", "left out", "not applied"],
)
def test_a_proof_settles_what_is_pending(hub: Hub, changes: dict[str, object], kept: int) -> None:
    agent = hub.agents["silo-0"]
    local = LocalState()
    local.propose({KEPT: np.array(1)})
    agent.local.hold(PhaseKey(job_digest=hub.job.digest, round=1, phase="train", attempt=1), local)
    terms, before = hub.terms(1, "train"), hub.state
    proof = hub.prove(votes(1), 1, "train")
    if "next_digest" in changes:
        changes = {"next_digest": proof.parent_digest}
    proof = replace(proof, **changes)
    proof = replace(proof, signers=hub.signed(proof, terms, hub.names[1:]))
    after = before if "next_digest" in changes else votes(1)
    accept(hub, 2, "train", task_of(hub, after, proof))
    assert int(agent.local.begin(hub.job.digest).arrays.get(KEPT, np.array(0))) == kept
    assert not list((agent.folder / "local").glob("*.*.*.safetensors"))


# who was in earlier sums over the same model


async def signed_phase(make_hub: MakeHub) -> tuple[Hub, Exchange, Arrays]:
    """A training that the silos signed and silo-0 revealed nothing of, and the state that it read."""
    hub = await enrolled(make_hub, rounds=4)
    exchange, state = hub.begin(1, "train"), hub.state
    await hub.until_signed(exchange)
    exchange.session.close_consistency()
    assert over(hub, state) is Refusal.STATE
    return hub, exchange, state


def over(hub: Hub, state: Arrays, *, max_repeats: int = 1) -> Refusal | None:
    """What silo-0 says to a further sum over that state; None if it may begin."""
    agent = hub.agents["silo-0"]
    use = StateUse(
        job_digest=hub.job.digest,
        round=4,
        phase="train",
        training_digests=(hub.job.strategy.use_digest("train", state),),
        min_distance=3,
        members=4,
        is_drawn=False,
    )
    policy = agent.policy.model_copy(update={"max_repeats": max_repeats})
    try:
        agent.ledger.reveals(policy=policy, data_set="data").check_use(use)
    except PolicyRefusal as error:
        return error.code
    return None


def brought(hub: Hub, **earlier: Any) -> pb.PhaseTask:
    return pb.PhaseTask(state_digest=hub.put(hub.state), **earlier)


def cohort_of(exchange: Exchange) -> CohortProof:
    return CohortProof(survivors=exchange.session.survivors, signatures=exchange.session.unmask_request())


def abandoned(hub: Hub, signers: int, *, signed: str = "train", round: int = 1) -> AbandonedProof:
    """The last silos sign that they never reveal a phase; the proof is of round 1's training."""
    proof = AbandonedProof(roster=hub.roster.signed, round=round, phase=signed, signers={})
    by = {}
    for name in hub.names[-signers:]:
        identity = hub.members.silos[name]
        said = proof.statement(name, federation="test", job_digest=hub.job.digest)
        signature = bodies.sign(identity, said).signature
        by[name] = Signer(certificate=identity.certificate_der, signature=signature)
    return replace(proof, round=1, phase="train", signers=by)


async def test_signatures_on_an_earlier_cohort_say_who_was_in_its_sum(make_hub: MakeHub) -> None:
    hub, exchange, state = await signed_phase(make_hub)
    proof = wire.cohort_proof_to_wire(exchange.key, cohort_of(exchange))
    accept(hub, 2, "train", brought(hub, cohorts=[proof]))
    assert over(hub, state) is None
    assert over(hub, state, max_repeats=0) is Refusal.STATE_USED_UP  # it was a use all the same


@pytest.mark.parametrize("what", ["one silo fewer", "too few signatures", "another attempt's"])
async def test_a_false_cohort_is_refused_and_settles_nothing(make_hub: MakeHub, what: str) -> None:
    hub, exchange, state = await signed_phase(make_hub)
    true = cohort_of(exchange)
    if what == "one silo fewer":
        false = replace(true, survivors=true.survivors[1:])
    elif what == "too few signatures":
        two = {name: true.signatures.signatures[name] for name in hub.names[:2]}
        false = replace(true, signatures=Signatures(signatures=two))
    else:
        hub.tell_outcome(exchange, cohort=[], result="failed")
        exchange_2 = hub.begin(1, "train", attempt=2)
        await hub.until_signed(exchange_2)
        exchange_2.session.close_consistency()
        false = cohort_of(exchange_2)
    task = brought(hub, cohorts=[wire.cohort_proof_to_wire(exchange.key, false)])
    assert refused(hub, 2, "train", task, "sum: ") is Refusal.SIGNATURES
    assert over(hub, state) is Refusal.STATE
    accept(hub, 2, "train", brought(hub, cohorts=[wire.cohort_proof_to_wire(exchange.key, true)]))
    assert over(hub, state) is None


async def test_a_cohort_that_this_silo_has_no_part_in_settles_nothing(make_hub: MakeHub) -> None:
    hub, exchange, state = await signed_phase(make_hub)
    stranger = replace(exchange.key, round=3)
    accept(hub, 2, "train", brought(hub, cohorts=[wire.cohort_proof_to_wire(stranger, cohort_of(exchange))]))
    assert over(hub, state) is Refusal.STATE


async def test_what_t_silos_never_reveal_was_no_use(make_hub: MakeHub) -> None:
    hub, exchange, state = await signed_phase(make_hub)
    proof = wire.abandoned_proof_to_wire(abandoned(hub, 3), hub.job.digest)
    accept(hub, 2, "train", brought(hub, abandoned=[proof]))
    assert over(hub, state, max_repeats=0) is None
    hub.agents["silo-0"].tell(signatures=exchange.unmask_request())
    assert await hub.agents["silo-0"].refusal() == "already-revealed"


async def test_too_few_or_other_statements_forget_no_use(make_hub: MakeHub) -> None:
    hub, _, state = await signed_phase(make_hub)
    for proof, why in (
        (abandoned(hub, 2), "expected signatures of 3 silos, got 2"),
        (abandoned(hub, 3, round=2), "the signature is not valid"),
        (abandoned(hub, 3, signed="enrollment.1"), "the signature is not valid"),
    ):
        task = brought(hub, abandoned=[wire.abandoned_proof_to_wire(proof, hub.job.digest)])
        assert refused(hub, 2, "train", task, why) is Refusal.SIGNATURES
        assert over(hub, state) is Refusal.STATE


async def test_what_this_silo_revealed_is_no_abandoned_phase(make_hub: MakeHub) -> None:
    hub, exchange, state = await signed_phase(make_hub)
    await hub.ask_shares(exchange, "silo-0")
    task = brought(hub, abandoned=[wire.abandoned_proof_to_wire(abandoned(hub, 3), hub.job.digest)])
    assert refused(hub, 2, "train", task, "was revealed before") is Refusal.ALREADY_REVEALED
    assert over(hub, state, max_repeats=0) is Refusal.STATE_USED_UP


async def test_more_earlier_phases_than_a_hundred_are_refused(make_hub: MakeHub) -> None:
    hub, exchange, state = await signed_phase(make_hub)
    cohort = wire.cohort_proof_to_wire(exchange.key, cohort_of(exchange))
    given_up = wire.abandoned_proof_to_wire(abandoned(hub, 3), hub.job.digest)
    for task in (brought(hub, cohorts=[cohort] * 101), brought(hub, abandoned=[given_up] * 101)):
        assert refused(hub, 2, "train", task, "at most 100 earlier phases, got 101") is Refusal.MALFORMED
    assert over(hub, state) is Refusal.STATE


@pytest.mark.parametrize("by", ["sum", "proof"])
async def test_the_outcome_of_a_phase_says_who_was_in_its_sum(make_hub: MakeHub, by: str) -> None:
    hub, exchange, state = await signed_phase(make_hub)
    for name in hub.names[1:]:  # silo-0 is asked for no share
        shares = await hub.ask_shares(exchange, name)
        exchange.session.on_unmask(name, wire.from_silo(pb.SiloMessage(unmask_shares=shares)))
    plan = exchange.session.close_unmask()
    assert isinstance(plan, UnmaskPlan)
    hub.reveal(exchange, plan)
    if by == "sum":
        await hub.ask_state(exchange, "silo-0", hub.revealed(exchange))
    else:
        await hub.agree(exchange, without=["silo-0"])
        accept(hub, 2, "train", task_of(hub, hub.state, *hub.proofs[hub.job.digest]))
    assert over(hub, state) is None
