"""One attempt at one phase: the session's state machine between two wires.

Whatever the coordinator repeats, byte for byte, gets the answer it got before; everything else goes
through the session's own table. Source: docs/protocol.md 5.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ChoraleError, LocalProtocolError
from crypto.masking.masks import Masker, Source
from crypto.session.messages import Cohort, Envelopes, RecoveredSeeds, Shares, SignedBody, UnmaskShares
from crypto.session.silo_session import OVER, Answer, EnvelopeComplaint, Message, SiloSession
from silo_agent.policy.policy import Policy

SESSION_MESSAGES = frozenset({"cohort", "envelopes", "survivors", "signatures", "recover"})
MAX_REPLAYS = 16  # of one session: it has five kinds of messages, and RECOVER may come in parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What the session asks to be sent as a stream."""

    masker: Masker = field(repr=False)
    source: Source = field(repr=False)


Reply = pb.SiloMessage | Upload | None


class Attempt:
    """source is None where the session was taken up from the ledger: its vector has left already."""

    def __init__(self, key: PhaseKey, session: SiloSession, *, policy: Policy, source: Source | None) -> None:
        self.key = key
        self._session = session
        self._policy = policy
        self._source = source
        self._advert: pb.SiloMessage | None = None
        self._replies: dict[bytes, pb.SiloMessage | None] = {}

    @property
    def is_over(self) -> bool:
        return self._session.state in OVER

    def advertise(self) -> pb.SiloMessage:
        """The advert; repeated as it was when the coordinator asks for the phase again."""
        if self._advert is None:
            advert = self._session.advertise()
            self._advert = wire.to_coordinator("advert", advert, self.key)
        return self._advert

    def receive(self, message: pb.CoordinatorMessage) -> Reply:
        """The answer to one message of the session; None where there is none to give.

        Raises PolicyRefusal or RemoteProtocolError; the session is then over for good.
        """
        digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
        if digest in self._replies:
            return self._replies[digest]
        if self.is_over:
            return None
        try:
            reply = self._answer(self._session.receive(self._read(message)))
        except EnvelopeComplaint as error:
            self._remember(digest, wire.to_coordinator("complaint", error.complaint, self.key))
            raise
        except ChoraleError:
            self._session.end()
            raise
        self._remember(digest, None if isinstance(reply, Upload) else reply)
        return reply

    def end(self) -> None:
        """Drop what is secret."""
        self._session.end()
        self._source = None

    def _read(self, message: pb.CoordinatorMessage) -> Message:
        received = wire.from_coordinator(message)
        if isinstance(received, Cohort):
            self._policy.check_cohort(received.adverts)
        elif isinstance(received, Envelopes):
            self._policy.check_cohort(received.sharers)
        return received

    def _answer(self, answer: Answer) -> pb.SiloMessage | Upload:
        match answer:
            case Masker():
                if self._source is None:
                    raise LocalProtocolError("session: a session from the ledger masks nothing")
                return Upload(masker=answer, source=self._source)
            case Shares():
                return wire.to_coordinator("shares", answer, self.key)
            case SignedBody():
                return wire.to_coordinator("consistency", answer, self.key)
            case UnmaskShares():
                return wire.to_coordinator("unmask_shares", answer, self.key)
            case RecoveredSeeds():
                return wire.to_coordinator("recovered_seeds", answer, self.key)

    def _remember(self, digest: bytes, reply: pb.SiloMessage | None) -> None:
        while len(self._replies) >= MAX_REPLAYS:
            self._replies.pop(next(iter(self._replies)))
        self._replies[digest] = reply
