"""What silos sign of a phase that is over, and the proof that t of them make together."""

from __future__ import annotations

from collections.abc import Mapping

from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import (
    Role,
    SignedBody,
    certificate_from_der,
    check_signature,
    fingerprint,
)
from crypto.identity.roster import Roster
from crypto.session import bodies
from crypto.session.cohort import CohortRule
from crypto.session.messages import Abandoned


def check_abandoned(
    signed: Mapping[str, SignedBody],
    *,
    certificates: Mapping[str, bytes],
    job_digest: bytes,
    round: int,
    phase: str,
    roster: Roster,
    names: tuple[str, ...],
    rule: CohortRule,
) -> None:
    """At least t of the named silos signed that they never reveal this phase.

    Then no t answers come together any more: two sets of t share an honest silo. signed and certificates
    (DER) are by silo. roster: of the phase. names: its named set. Bodies are compared and not parsed.
    Raises RemoteProtocolError(code=SIGNATURES or ROSTER). Source: docs/protocol.md 6.10.
    """
    for name, statement in signed.items():
        if name not in names or name not in certificates:
            raise _refused(f"{name} was not named, or came without its certificate", Refusal.SIGNATURES)
        certificate = certificate_from_der(certificates[name])
        if not roster.holds(Role.SILO, name, fingerprint(certificate)):
            raise _refused(f"the roster does not hold {name} with this certificate", Refusal.ROSTER)
        said = Abandoned(
            federation=roster.federation, job_digest=job_digest, round=round, phase=phase, sender=name
        )
        if statement.body != bodies.body_of(said):
            raise _refused(f"{name} signed another phase", Refusal.SIGNATURES)
        try:
            check_signature(statement, purpose=said.PURPOSE, certificate=certificate)
        except RemoteProtocolError as error:
            raise _refused(f"{name}: {error}", Refusal.SIGNATURES) from None
    if len(signed) < rule.threshold:
        raise _refused(
            f"expected signatures of {rule.threshold} silos, got {len(signed)}", Refusal.SIGNATURES
        )


def _refused(message: str, code: Refusal) -> RemoteProtocolError:
    return RemoteProtocolError(f"abandoned phase: {message}", code=code)
