"""What named silos sign of a phase that is over, and the proof that t of them make together.

Two sets of t share an honest silo. It signs one state a phase, and never abandons a phase that it revealed.
Source: docs/protocol.md 5.10, 6.10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from crypto.encoding import digest
from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import Role, SignedBody, certificate_from_der, fingerprint
from crypto.identity.roster import Roster
from crypto.session import bodies
from crypto.session.cohort import CohortRule
from crypto.session.messages import Abandoned, NextState, Signatures


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """One silo's signature over a statement that is known. certificate: DER."""

    certificate: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StateProof:
    """A phase's NextState as several silos signed it. roster: of its session.

    What a silo computes itself is not here: the named set, the sizes, the session digest.
    """

    roster: SignedBody
    round: int
    phase: str
    attempt: int
    layout_digest: bytes
    cohort_digest: bytes
    survivors: tuple[str, ...]
    parent_digest: bytes
    sum_digest: bytes
    next_digest: bytes
    draw_seed: bytes
    signers: Mapping[str, Signer]

    def check(self, *, job_digest: bytes, roster: Roster, names: tuple[str, ...], rule: CohortRule) -> None:
        """At least t of the named silos signed this very state in this very session.

        roster: as `self.roster` opens. Raises RemoteProtocolError(code=ROSTER or SIGNATURES).
        """
        # the fields of SessionTerms.digest, with the layout's digest in place of the layout
        session_digest = digest(
            "session",
            roster.federation,
            job_digest,
            roster.version,
            roster.digest,
            self.round,
            self.phase,
            self.attempt,
            list(names),
            self.layout_digest,
            rule.members,
            rule.threshold,
            rule.min_cohort,
            self.parent_digest,
        )
        _check_signers(
            self.signers,
            lambda name: self.statement(name, federation=roster.federation, session_digest=session_digest),
            roster=roster,
            names=names,
            threshold=rule.threshold,
        )

    def statement(self, name: str, *, federation: str, session_digest: bytes) -> NextState:
        """What that silo signed."""
        return NextState(
            federation=federation,
            session_digest=session_digest,
            cohort_digest=self.cohort_digest,
            sender=name,
            survivors=self.survivors,
            parent_digest=self.parent_digest,
            sum_digest=self.sum_digest,
            next_digest=self.next_digest,
            draw_seed=self.draw_seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortProof:
    """U3 of a session, as t of its members signed it; SumCheck.check_survivors checks it."""

    survivors: tuple[str, ...]
    signatures: Signatures


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedProof:
    """A phase that several named silos never reveal. roster: the phase's."""

    roster: SignedBody
    round: int
    phase: str
    signers: Mapping[str, Signer]

    def check(self, *, job_digest: bytes, roster: Roster, names: tuple[str, ...], rule: CohortRule) -> None:
        """At least t of the named silos signed that they never reveal this phase: no t answers come together
        any more.

        roster: as `self.roster` opens. Raises RemoteProtocolError(code=ROSTER or SIGNATURES).
        """
        _check_signers(
            self.signers,
            lambda name: self.statement(name, federation=roster.federation, job_digest=job_digest),
            roster=roster,
            names=names,
            threshold=rule.threshold,
        )

    def statement(self, name: str, *, federation: str, job_digest: bytes) -> Abandoned:
        """What that silo signed."""
        return Abandoned(
            federation=federation, job_digest=job_digest, round=self.round, phase=self.phase, sender=name
        )


def _check_signers(
    signers: Mapping[str, Signer],
    said_by: Callable[[str], NextState | Abandoned],
    *,
    roster: Roster,
    names: tuple[str, ...],
    threshold: int,
) -> None:
    """Every signature must hold; what was signed is known, so it is compared and not parsed."""
    if unnamed := sorted(signers.keys() - set(names)):
        raise _refused(f"{unnamed[0]} was not named", Refusal.SIGNATURES)
    for name, signer in signers.items():
        certificate = certificate_from_der(signer.certificate)
        if not roster.holds(Role.SILO, name, fingerprint(certificate)):
            raise _refused(f"the roster does not hold {name} with this certificate", Refusal.ROSTER)
        said = said_by(name)
        signed = SignedBody(body=bodies.body_of(said), signature=signer.signature)
        bodies.check_statement(signed, certificate=certificate, expected=said)
    if len(signers) < threshold:
        raise _refused(f"expected signatures of {threshold} silos, got {len(signers)}", Refusal.SIGNATURES)


def _refused(message: str, code: Refusal) -> RemoteProtocolError:
    return RemoteProtocolError(f"proof: {message}", code=code)
