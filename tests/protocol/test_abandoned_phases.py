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
from crypto.session.statements import check_abandoned
from tests.support.sessions import Federation, make_federation

JOB = b"j" * 32
RULE = CohortRule.for_members(5)  # t = 4


def check(made: Federation, signers: Sequence[Identity], **said: Any) -> None:
    """Statements by these silos, of which `said` changes the fields."""
    fields = {"federation": "test", "job_digest": JOB, "round": 3, "phase": "train", **said}
    signed = {
        one.member.name: bodies.sign(one, Abandoned(**{"sender": one.member.name, **fields}))
        for one in signers
    }
    check_abandoned(
        signed,
        certificates={one.member.name: one.certificate_der for one in signers},
        job_digest=JOB,
        round=3,
        phase="train",
        roster=made.roster,
        names=made.names,
        rule=RULE,
    )


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
    with pytest.raises(RemoteProtocolError, match="silo-000 signed another phase"):
        check(federation, list(federation.silos.values()), **said)


def test_one_silo_does_not_speak_for_another() -> None:
    federation = make_federation(5)
    with pytest.raises(RemoteProtocolError, match="silo-001 signed another phase"):
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
    with pytest.raises(RemoteProtocolError, match="silo-000: ") as caught:
        check_abandoned(
            {first.member.name: forged},
            certificates={first.member.name: first.certificate_der},
            job_digest=JOB,
            round=3,
            phase="train",
            roster=federation.roster,
            names=federation.names,
            rule=RULE,
        )
    assert caught.value.code is Refusal.SIGNATURES
