"""The end of a phase at the coordinator: silos check the sum, compute the next state, and t of them sign it.

The coordinator computes the same state, to lay out the phases that follow, and cannot put another one in its
place: a silo goes on from what it computed or what t silos signed. Source: docs/protocol.md 5.10, 7.11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from chorale.observability.logs import get_logger
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from coordinator.jobs.attempt_runner import AttemptFailed
from coordinator.reasons import FailureReason
from coordinator.resources import Resources
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.messages import RevealedSum, Signatures
from crypto.session.session_record import SessionRecord
from crypto.session.statements import Signer, StateProof

KINDS = frozenset({"next_state", "refused"})

log = get_logger("coordinator.jobs.agreement")


class Agreement:
    """Collects the statements on one phase.

    unsigned: the proof without its signers. record: of the session whose sum was revealed.
    """

    def __init__(
        self,
        *,
        resources: Resources,
        key: PhaseKey,
        record: SessionRecord,
        unsigned: StateProof,
        self_mask_seeds: dict[str, bytes],
        on_progress: Callable[[str], None],
    ) -> None:
        self.key = key
        self._clock = resources.clock
        self._send = resources.attendance.send
        self._hard_cap_seconds = resources.settings.unmask_hard_cap_seconds
        self._record = record
        self._unsigned = unsigned
        self._session_digest = record.terms.digest()
        self._on_progress = on_progress
        self._signers: dict[str, Signer] = {}
        self._out: dict[str, str] = {}  # silos that will not sign, and why
        self._news = asyncio.Event()
        signatures = tuple(record.signatures[name] for name in sorted(record.signatures))
        revealed = RevealedSum(
            survivors=record.survivors,
            signatures=Signatures(signatures=signatures),
            sum_digest=unsigned.sum_digest,
            self_mask_seeds=self_mask_seeds,
        )
        self._message = wire.to_silo(revealed, key)

    async def run(self) -> StateProof:
        """The proof, once t silos signed. Raises AttemptFailed where too few do."""
        threshold = self._record.terms.rule.threshold
        for silo in self._record.sharers:
            self._send(silo, self._message)
        hard_cap_at = self._clock.monotonic() + self._hard_cap_seconds
        while len(self._signers) < threshold:
            self._news.clear()
            awaited = [silo for silo in self._record.sharers if silo not in self._signers | self._out]
            seconds = hard_cap_at - self._clock.monotonic()
            if len(self._signers) + len(awaited) < threshold or seconds <= 0:
                raise AttemptFailed(FailureReason.TOO_FEW_STATEMENTS, is_final=True)
            self._tell(awaited)
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                continue
        return replace(self._unsigned, signers=dict(self._signers))

    def on_connected(self, silo: str) -> None:
        """The silo gets the sum again, if it has not answered."""
        if silo in self._record.sharers and silo not in self._signers:
            self._out.pop(silo, None)
            self._send(silo, self._message)
            self._news.set()

    def on_message(self, silo: str, message: pb.SiloMessage) -> None:
        """A statement, or a refusal to make one."""
        if silo not in self._record.sharers or silo in self._signers:
            return
        scope = {"silo": silo, "job": self.key.job_digest.hex()[:12], "round": self.key.round}
        try:
            if message.HasField("refused"):
                self._out[silo] = wire.refused_from_wire(message.refused).value
                log.warning("silo refused the sum", code=self._out[silo], phase=self.key.phase, **scope)
            else:
                self._take(silo, message)
        except RemoteProtocolError as error:
            self._out[silo] = error.code.value
            log.warning("statement not accepted", reason=str(error), phase=self.key.phase, **scope)
        self._news.set()

    def _take(self, silo: str, message: pb.SiloMessage) -> None:
        signed = wire.from_silo(message)
        assert isinstance(signed, SignedBody)
        advert = self._record.adverts[silo]
        federation = self._record.terms.federation
        expected = self._unsigned.statement(silo, federation=federation, session_digest=self._session_digest)
        bodies.check_statement(signed, certificate=advert.certificate, expected=expected)
        certificate = advert.advert.certificate
        self._signers[silo] = Signer(certificate=certificate, signature=signed.signature)
        self._out.pop(silo, None)

    def _tell(self, awaited: list[str]) -> None:
        told = [f"awaiting the state of {', '.join(awaited)}"] if awaited else []
        told += [f"without {silo} ({why})" for silo, why in sorted(self._out.items())]
        self._on_progress("; ".join(told))
