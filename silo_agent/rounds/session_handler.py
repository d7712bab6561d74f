"""One attempt at one phase: messages of the wire in, answers of the session's state machine out.

Whatever the coordinator repeats, byte for byte, gets the answer it got before; everything else goes
through the session's own table. Source: docs/protocol.md 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ChoraleError, Refusal, RemoteProtocolError
from crypto.identity.certificates import Anchors
from crypto.masking.masks import Masker
from crypto.session.messages import (
    Cohort,
    Envelopes,
    RecoveredSeeds,
    RevealedSum,
    Shares,
    Survivors,
    UnmaskShares,
)
from crypto.session.silo_session import OVER, Answer, EnvelopeComplaint, SiloSession
from crypto.session.sum_check import SumCheck
from silo_agent.disclosure.policy.policy import Policy

SESSION_MESSAGES = frozenset({"cohort", "envelopes", "survivors", "signatures", "recover"})
MAX_REPLAYS = 16  # of one session: it has five kinds of messages, and RECOVER may come in parts


class SessionHandler:
    """Answers the messages of one session."""

    def __init__(
        self,
        key: PhaseKey,
        session: SiloSession,
        *,
        policy: Callable[[], Policy],
        authority: Callable[[], Anchors],
        recheck: Callable[[], None] = lambda: None,
    ) -> None:
        """policy, authority: what is in force and whom this silo trusts, asked at each message. recheck:
        raises PolicyRefusal, before an input is spent and before U3 is signed, where it may not be any more.
        """
        self.key = key
        self._authority = authority
        self._trusted = authority()
        self._session = session
        self._policy = policy
        self._recheck = recheck
        self._advert: pb.SiloMessage | None = None
        self._replies: dict[bytes, pb.SiloMessage | Masker | None] = {}

    @property
    def is_over(self) -> bool:
        return self._session.state in OVER

    @property
    def sum_check(self) -> SumCheck | None:
        """What checks U3 and the revealed sum, once the session masked."""
        return self._session.sum_check

    def advertise(self) -> pb.SiloMessage:
        """The advert; repeated as it was when the coordinator asks for the phase again."""
        if self._advert is None:
            advert = self._session.advertise()
            self._advert = wire.to_coordinator("advert", advert, self.key)
        return self._advert

    def receive(self, message: pb.CoordinatorMessage) -> pb.SiloMessage | Masker | None:
        """The answer to one message of the session; None where there is none to give, a Masker where the
        answer is the masked vector.

        Raises PolicyRefusal or RemoteProtocolError; the session is then over for good.
        """
        if not self._authority().holds_all_of(self._trusted):
            self._session.end()  # its key may have signed roster and cohort
            raise RemoteProtocolError(
                "session: a certificate of the authority was removed since it began", code=Refusal.ROSTER
            )
        digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
        if digest in self._replies:
            return self._replies[digest]
        if self.is_over:
            return None
        try:
            received = wire.from_coordinator(message)
            if isinstance(received, Envelopes | Survivors):
                self._recheck()
            if isinstance(received, Cohort):
                self._policy().check_cohort(received.adverts)
            elif isinstance(received, Envelopes):
                self._policy().check_cohort(received.sharers)
            elif isinstance(received, RevealedSum):
                raise RemoteProtocolError("session: a revealed sum comes after it", code=Refusal.STAGE)
            reply = self._answer(self._session.receive(received))
        except EnvelopeComplaint as error:
            self._remember(digest, wire.to_coordinator("complaint", error.complaint, self.key))
            raise
        except ChoraleError:
            self._session.end()
            raise
        self._drop_maskers()  # the next message says that the vector is there
        self._remember(digest, reply)
        return reply

    def end(self) -> None:
        """Drop what is secret."""
        self._session.end()
        self._drop_maskers()

    def _answer(self, answer: Answer) -> pb.SiloMessage | Masker:
        match answer:
            case Masker():
                return answer
            case Shares():
                return wire.to_coordinator("shares", answer, self.key)
            case bytes():
                return wire.to_coordinator("consistency", answer, self.key)
            case UnmaskShares():
                return wire.to_coordinator("unmask_shares", answer, self.key)
            case RecoveredSeeds():
                return wire.to_coordinator("recovered_seeds", answer, self.key)

    def _drop_maskers(self) -> None:
        self._replies = {
            one: None if isinstance(each, Masker) else each for one, each in self._replies.items()
        }

    def _remember(self, digest: bytes, reply: pb.SiloMessage | Masker | None) -> None:
        while len(self._replies) >= MAX_REPLAYS:
            self._replies.pop(next(iter(self._replies)))
        self._replies[digest] = reply
