"""A state proof as a document of an archive: what t silos signed of one phase. Its roster and the signers'
certificates stand in files of their own, once."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from chorale.evidence import MAX_SIGNATURE_BYTES, Count, Digest, Document, Name, PhaseName, from_base64
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import SignedBody, fingerprint
from crypto.session.statements import Signer, StateProof


class SignerRow(Document):
    """certificate: SHA-256 of its DER."""

    certificate: Digest
    signature: Annotated[str, Field(max_length=2 * MAX_SIGNATURE_BYTES)]


class ProofDocument(Document):
    """Digests in hexadecimal: of the job, the layout of what was summed, the cohort's adverts, the state
    before, the revealed sum, the state after. survivors: the silos in the sum. draw_seed: empty for none."""

    job: Digest
    round: Count
    phase: PhaseName
    attempt: Count
    roster_version: Count
    layout: Digest
    cohort: Digest
    survivors: tuple[Name, ...]
    parent: Digest
    sum: Digest
    next: Digest
    draw_seed: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    signers: dict[Name, SignerRow]

    @property
    def title(self) -> str:
        """Of its file's name."""
        return f"{self.round}-{self.phase}"

    @classmethod
    def of(cls, proof: StateProof, *, job: bytes, roster_version: int) -> ProofDocument:
        return cls(
            job=job.hex(),
            round=proof.round,
            phase=proof.phase,
            attempt=proof.attempt,
            roster_version=roster_version,
            layout=proof.layout_digest.hex(),
            cohort=proof.cohort_digest.hex(),
            survivors=proof.survivors,
            parent=proof.parent_digest.hex(),
            sum=proof.sum_digest.hex(),
            next=proof.next_digest.hex(),
            draw_seed=proof.draw_seed.hex(),
            signers={
                name: SignerRow(
                    certificate=fingerprint(signer.certificate).hex(),
                    signature=base64.b64encode(signer.signature).decode(),
                )
                for name, signer in sorted(proof.signers.items())
            },
        )

    def proof(self, roster: SignedBody, certificates: Mapping[str, bytes]) -> StateProof:
        """certificates: DER by SHA-256. Raises RemoteProtocolError for a signer without certificate."""
        signers = {}
        for name, row in self.signers.items():
            if row.certificate not in certificates:
                raise RemoteProtocolError(f"the certificate of {name} is not in the archive")
            signature = from_base64(row.signature, MAX_SIGNATURE_BYTES)
            signers[name] = Signer(certificate=certificates[row.certificate], signature=signature)
        return StateProof(
            roster=roster,
            round=self.round,
            phase=self.phase,
            attempt=self.attempt,
            layout_digest=bytes.fromhex(self.layout),
            cohort_digest=bytes.fromhex(self.cohort),
            survivors=self.survivors,
            parent_digest=bytes.fromhex(self.parent),
            sum_digest=bytes.fromhex(self.sum),
            next_digest=bytes.fromhex(self.next),
            draw_seed=bytes.fromhex(self.draw_seed),
            signers=signers,
        )
