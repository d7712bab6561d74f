"""The certificates of this silo: the one in use, the next one, and the one before; and how they are renewed.

A new certificate lies in the silo's files before a roster lists it, and rounds that run go on under the
roster they began with. So a silo holds both, and no round is lost. Source: docs/protocol.md 8.8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from prometheus_client import Gauge

from chorale.credentials import CredentialFiles, Credentials
from chorale.observability.logs import get_logger
from crypto.errors import ConfigError
from crypto.identity.certificates import Anchors, Identity, Role
from crypto.identity.roster import Roster

log = get_logger("silo_agent.connection.own_certificates")


class OwnCertificates(Credentials):
    """`identity` is the one that the coordinator accepted last."""

    def __init__(self, identity: Identity, authority: Anchors) -> None:
        super().__init__(identity, authority)
        self._next: Identity | None = None
        self._former: Identity | None = None
        self._dialed = identity
        self._tries = Counter[bytes]()  # by fingerprint, since the coordinator accepted one

    def take_over(self, identity: Identity, authority: Anchors) -> None:
        """The authority at once; the certificate with the first connection that the coordinator accepts it
        for."""
        self.authority = authority
        self._next = None if identity.fingerprint == self.identity.fingerprint else identity

    def of(self, roster: Roster) -> Identity:
        """The one that the roster lists; the one in use where it lists none."""
        return self._listed(roster) or self.identity

    def is_listed(self, roster: Roster) -> bool:
        return self._listed(roster) is not None

    def dialing(self, roster: Roster | None, is_sound: Callable[[Identity], bool]) -> Identity:
        """What the next try to connect shows: the one that was tried less often, at first the one that the
        newest roster lists.

        is_sound: whether a certificate is valid now.
        """
        both = [one for one in (self.identity, self._next) if one is not None and is_sound(one)]
        if roster is not None:
            both.sort(key=lambda one: not _lists(roster, one))
        self._dialed = min(both, key=lambda one: self._tries[one.fingerprint], default=self.identity)
        self._tries[self._dialed.fingerprint] += 1
        return self._dialed

    def accepted(self) -> None:
        """The coordinator has accepted the connection."""
        self._tries.clear()
        if self._dialed is self._next:
            self._former, self.identity, self._next = self.identity, self._next, None
            log.info("new certificate in use", certificate=self.identity.fingerprint.hex()[:12])

    def _listed(self, roster: Roster) -> Identity | None:
        own = (self.identity, self._next, self._former)
        return next((one for one in own if one is not None and _lists(roster, one)), None)


class Renewal:
    """Follows the silo's files: what a try to connect shows, and whom it trusts.

    newest: the roster that was accepted last; None before the first. refused: 1 while the files do not hold.
    """

    def __init__(
        self,
        own: OwnCertificates,
        files: CredentialFiles,
        *,
        newest: Callable[[], Roster | None],
        refused: Gauge,
    ) -> None:
        self._own, self._files, self._newest, self._refused = own, files, newest, refused

    def authority(self) -> Anchors:
        """Whom this silo trusts now: files that changed are read again."""
        self._files.refresh(self._own, self._refused)
        return self._own.authority

    def next_identity(self) -> Identity:
        """For a try to connect. Raises ConfigError where no certificate of this silo is valid any more."""
        identity = self._own.dialing(self._newest(), self._is_sound)
        self._files.check(identity, self._own.authority)
        return identity

    def accepted(self) -> None:
        """The coordinator has accepted the connection."""
        self._own.accepted()

    def _is_sound(self, identity: Identity) -> bool:
        try:
            self._files.check(identity, self._own.authority)
        except ConfigError:
            return False
        return True


def _lists(roster: Roster, one: Identity) -> bool:
    return roster.holds(Role.SILO, one.member.name, one.fingerprint)
