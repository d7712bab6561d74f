"""A proof that silos computed a state: every field counts, and t named silos are needed."""

from __future__ import annotations

import dataclasses

import pytest

from crypto import encoding
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import Identity
from crypto.session import bodies
from crypto.session.cohort import CohortRule
from crypto.session.statements import Signer, StateProof
from tests.support.agents import Members, make_members

JOB = bytes(32)
RULE = CohortRule.for_members(4)
MEMBERS = make_members(4)
ROSTER = MEMBERS.roster()
NAMES = tuple(sorted(MEMBERS.silos))


def signer(identity: Identity, signature: bytes) -> Signer:
    return Signer(certificate=identity.certificate_der, signature=signature)


def make_proof(*signing: str, members: Members = MEMBERS, attempt: int = 1) -> StateProof:
    """Of round 3's training, signed by these silos."""
    unsigned = StateProof(
        roster=ROSTER.signed,
        round=3,
        phase="train",
        attempt=attempt,
        layout_digest=b"l" * 32,
        cohort_digest=b"c" * 32,
        survivors=NAMES[:3],
        parent_digest=b"p" * 32,
        sum_digest=b"s" * 32,
        next_digest=b"n" * 32,
        draw_seed=b"",
        signers={},
    )
    session_digest = encoding.digest(
        "session",
        ROSTER.federation,
        JOB,
        ROSTER.version,
        ROSTER.digest,
        3,
        "train",
        attempt,
        list(NAMES),
        b"l" * 32,
        RULE.members,
        RULE.threshold,
        RULE.min_cohort,
        b"p" * 32,
    )
    signers = {}
    for name in signing:
        said = unsigned.statement(name, federation=ROSTER.federation, session_digest=session_digest)
        signers[name] = signer(members.silos[name], bodies.sign(members.silos[name], said).signature)
    return dataclasses.replace(unsigned, signers=signers)


def check(proof: StateProof) -> None:
    proof.check(job_digest=JOB, roster=ROSTER, names=NAMES, rule=RULE)


def test_proof_holds_with_signatures_of_threshold_silos() -> None:
    check(make_proof(*NAMES[: RULE.threshold]))


def test_proof_of_another_job_or_naming_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="signature"):
        make_proof(*NAMES[:3]).check(job_digest=b"x" * 32, roster=ROSTER, names=NAMES, rule=RULE)
    with pytest.raises(RemoteProtocolError, match="silo-2 was not named"):
        make_proof(*NAMES[:3]).check(job_digest=JOB, roster=ROSTER, names=("silo-0", "silo-1"), rule=RULE)


def test_proof_is_refused_when_its_signatures_are_not_those_of_enough_silos() -> None:
    whole, one = make_proof(*NAMES), make_proof("silo-0")
    by_another = signer(MEMBERS.silos["silo-3"], whole.signers["silo-0"].signature)
    others = make_members.__wrapped__(4)  # else anyone could sign as three silos
    for proof, message in (
        (make_proof(*NAMES[:2]), "expected signatures of 3 silos, got 2"),
        (make_proof(*NAMES[:3], members=others), "roster does not hold silo-0"),
        (
            dataclasses.replace(one, signers=dict.fromkeys(NAMES[:3], one.signers["silo-0"])),
            "roster does not hold silo-1",
        ),
        (
            dataclasses.replace(whole, signers={**whole.signers, "silo-3": by_another}),
            "next-state of silo-3",
        ),
    ):
        with pytest.raises(RemoteProtocolError, match=message):
            check(proof)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 4},
        {"phase": "evaluate.0"},
        {"attempt": 2},
        {"layout_digest": bytes(32)},
        {"cohort_digest": bytes(32)},
        {"survivors": NAMES},
        {"parent_digest": bytes(32)},
        {"sum_digest": bytes(32)},
        {"next_digest": bytes(32)},
        {"draw_seed": bytes(32)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_proof_is_refused_when_a_field_is_not_what_silos_signed(changes: dict[str, object]) -> None:
    proof = make_proof(*NAMES[:3])
    with pytest.raises(RemoteProtocolError, match="signature"):
        check(dataclasses.replace(proof, **changes))
