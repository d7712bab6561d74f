"""t named silos that never reveal a phase: whose statements count, and over what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import Identity
from crypto.session import bodies
from crypto.session.cohort import CohortRule
from crypto.session.messages import Abandoned
from crypto.session.statements import AbandonedProof, Signer
from tests.support.sessions import Federation, make_federation

JOB = b"j" * 32
RULE = CohortRule.for_members(5)  # t = 4


def check(made: Federation, signers: Sequence[Identity], **said: Any) -> None:
    """Statements by these silos, of which `said` changes the fields."""
    fields = {"federation": "test", "job_digest": JOB, "round": 3, "phase": "train", **said}
    signed = {one: bodies.sign(one, Abandoned(**{"sender": one.member.name, **fields})) for one in signers}
    prove(
        made,
        {
            one.member.name: Signer(certificate=one.certificate_der, signature=statement.signature)
            for one, statement in signed.items()
        },
    )


def prove(made: Federation, signers: dict[str, Signer]) -> None:
    proof = AbandonedProof(roster=made.roster.signed, round=3, phase="train", signers=signers)
    proof.check(job_digest=JOB, roster=made.roster, names=made.names, rule=RULE)


def test_t_named_silos_abandon_a_phase() -> None:
    federation = make_federation(5)
    silos = list(federation.silos.values())
    check(federation, silos[:4])
    check(federation, silos)
    with pytest.raises(RemoteProtocolError, match="expected signatures of 4 silos, got 3") as caught:
        check(federation, silos[:3])
    assert caught.value.code is Refusal.SIGNATURES


@pytest.mark.parametrize(
    "said",
    [{"round": 2}, {"phase": "evaluate.0"}, {"job_digest": b"k" * 32}, {"federation": "other"}],
    ids=lambda said: next(iter(said)),
)
def test_statements_of_another_phase_do_not_count(said: dict[str, Any]) -> None:
    federation = make_federation(5)
    with pytest.raises(RemoteProtocolError, match="abandoned of silo-000"):
        check(federation, list(federation.silos.values()), **said)


def test_one_silo_does_not_speak_for_another() -> None:
    federation = make_federation(5)
    with pytest.raises(RemoteProtocolError, match="abandoned of silo-001"):
        check(federation, list(federation.silos.values()), sender="silo-000")


@pytest.mark.parametrize(
    ("signer", "words", "code"),
    [
        (lambda made: made.spare, "spare was not named", Refusal.SIGNATURES),
        (lambda made: made.issue("silo-004"), "does not hold silo-004", Refusal.ROSTER),
    ],
    ids=["not named", "another certificate"],
)
def test_only_named_silos_of_the_roster_count(
    signer: Callable[[Federation], Identity], words: str, code: Refusal
) -> None:
    federation = make_federation(5)
    silos = [*list(federation.silos.values())[:4], signer(federation)]
    with pytest.raises(RemoteProtocolError, match=words) as caught:
        check(federation, silos)
    assert caught.value.code is code


def test_a_signature_must_hold() -> None:
    federation = make_federation(5)
    first, second, *_ = federation.silos.values()
    forged = bodies.sign(
        second,
        Abandoned(federation="test", job_digest=JOB, round=3, phase="train", sender=first.member.name),
    )
    first_signs = Signer(certificate=first.certificate_der, signature=forged.signature)
    with pytest.raises(RemoteProtocolError, match="abandoned of silo-000: ") as caught:
        prove(federation, {first.member.name: first_signs})
    assert caught.value.code is Refusal.SIGNATURES
