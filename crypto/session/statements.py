"""The proof of a global state: t named silos of a phase signed that they computed it.

Two sets of t share an honest silo, which signs one state a phase. Source: docs/protocol.md 5.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crypto.encoding import digest
from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import Role, SignedBody, certificate_from_der, fingerprint
from crypto.identity.roster import Roster
from crypto.session import bodies
from crypto.session.cohort import CohortRule
from crypto.session.messages import NextState


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSigner:
    """One silo's signature over the state. certificate: DER."""

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
    signers: Mapping[str, StateSigner]

    def check(self, *, job_digest: bytes, roster: Roster, names: tuple[str, ...], rule: CohortRule) -> None:
        """At least t of the named silos signed this very state in this very session.

        roster: as `self.roster` opens. Raises RemoteProtocolError(code=STATE or SIGNATURES).
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
        if unnamed := sorted(self.signers.keys() - set(names)):
            raise _refused(f"{unnamed[0]} was not named", Refusal.STATE)
        for name, signer in self.signers.items():
            certificate = certificate_from_der(signer.certificate)
            if not roster.holds(Role.SILO, name, fingerprint(certificate)):
                raise _refused(f"the roster does not hold {name} with this certificate", Refusal.ROSTER)
            said = self.statement(name, federation=roster.federation, session_digest=session_digest)
            signed = SignedBody(body=bodies.body_of(said), signature=signer.signature)
            bodies.check_next_state(signed, certificate=certificate, expected=said)
        if len(self.signers) < rule.threshold:
            wanted = f"expected signatures of {rule.threshold} silos"
            raise _refused(f"{wanted}, got {len(self.signers)}", Refusal.SIGNATURES)

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


def _refused(message: str, code: Refusal) -> RemoteProtocolError:
    return RemoteProtocolError(f"proof of a state: {message}", code=code)
