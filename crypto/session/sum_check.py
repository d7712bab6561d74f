"""What a silo of U2 keeps to check the revealed sum: the sum key, and what U2 committed to.

The ledger stores it before the first byte of the masked vector leaves, so that the silo can check the sum
after a restart, and also where U3 leaves it out. Source: docs/protocol.md 5.9.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from crypto import encoding
from crypto.encoding import FieldReader
from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Layout
from crypto.masking import tags
from crypto.masking.masks import vectors_from_stream
from crypto.session import seeds
from crypto.session.bodies import DIGEST_BYTES
from crypto.session.messages import Signatures
from crypto.session.reveal import MAX_PENDING_BYTES, check_signatures, named_rows, read_named


@dataclass(frozen=True, slots=True, kw_only=True)
class SumCheck:
    """state_digest: of the state that the sum moves. threshold: t. members: m. sharers: U2.

    certificates: DER, of every silo in U2. self_mask_commitments: of their adverts. sum_key: k.
    Security: k stands in the ledger alone, in no message, log, audit entry or evidence.
    """

    federation: str
    job_digest: bytes
    round: int
    phase: str
    attempt: int
    session_digest: bytes
    layout_digest: bytes
    state_digest: bytes
    threshold: int
    members: int
    cohort_digest: bytes
    name: str
    sharers: tuple[str, ...]
    certificates: dict[str, bytes]
    self_mask_commitments: dict[str, bytes]
    sum_key: bytes = field(repr=False)

    def check_survivors(self, survivors: tuple[str, ...], signatures: Signatures) -> None:
        """U3 is what t of its members signed in this cohort. Raises RemoteProtocolError(code=SIGNATURES)."""
        if list(survivors) != sorted(set(survivors)) or not set(survivors) <= set(self.sharers):
            raise RemoteProtocolError("sum: expected a sorted subset of U2", code=Refusal.SIGNATURES)
        check_signatures(self, survivors, signatures, scope="sum")

    def check_sum(
        self, stream: bytes | bytearray | memoryview, layout: Layout, survivors: tuple[str, ...]
    ) -> None:
        """The stream holds the tagged words that U3 summed, and their tags.

        layout: Layout.tagged of the session's. survivors: as check_survivors accepted them. The stream is
        read block by block, so it may be mapped from a file. Raises RemoteProtocolError(code=SUM).
        """
        if layout.members != self.members or layout.tagged != layout:
            raise LocalProtocolError("sum: the layout is not that of this session's tagged quantities")
        try:
            sums = vectors_from_stream(layout, stream)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"sum: {error}", code=Refusal.SUM) from None
        tags.check(sums, layout=layout, sum_key=self.sum_key, survivors=survivors)

    def check_self_mask_seeds(self, given: Mapping[str, bytes], survivors: tuple[str, ...]) -> None:
        """One b(v) for each v in U3, each the one that v committed to. Raises RemoteProtocolError."""
        if given.keys() != set(survivors):
            raise RemoteProtocolError("self-mask seeds: expected one of each survivor")
        for name, seed in given.items():
            commitment = seeds.self_mask_commitment(seed, name=name)
            if not hmac.compare_digest(commitment, self.self_mask_commitments[name]):
                raise RemoteProtocolError(f"self-mask seed of {name}: not the one that it committed to")

    def to_bytes(self) -> bytes:
        return encoding.encode(
            "sum-check",
            self.federation,
            self.job_digest,
            self.round,
            self.phase,
            self.attempt,
            self.session_digest,
            self.layout_digest,
            self.state_digest,
            self.threshold,
            self.members,
            self.cohort_digest,
            self.name,
            list(self.sharers),
            named_rows(self.certificates),
            named_rows(self.self_mask_commitments),
            self.sum_key,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> SumCheck:
        """Raises RemoteProtocolError for anything but what to_bytes wrote."""
        values = encoding.decode("sum-check", data, max_bytes=MAX_PENDING_BYTES)
        reader = FieldReader(values, what="sum check")
        made = cls(
            federation=reader.text(),
            job_digest=reader.data(DIGEST_BYTES),
            round=reader.number(),
            phase=reader.text(),
            attempt=reader.number(),
            session_digest=reader.data(DIGEST_BYTES),
            layout_digest=reader.data(DIGEST_BYTES),
            state_digest=reader.data(DIGEST_BYTES),
            threshold=reader.number(),
            members=reader.number(),
            cohort_digest=reader.data(DIGEST_BYTES),
            name=reader.text(),
            sharers=reader.texts(),
            certificates=read_named(reader.rows()),
            self_mask_commitments=read_named(reader.rows()),
            sum_key=reader.data(seeds.SUM_KEY_BYTES),
        )
        reader.end()
        names = set(made.sharers)
        if made.certificates.keys() != names or made.self_mask_commitments.keys() != names:
            raise RemoteProtocolError("sum check: expected a certificate and a commitment of each of U2")
        if made.to_bytes() != data:  # one row has one encoding
            raise RemoteProtocolError("sum check: its bytes are not in the canonical encoding")
        return made
