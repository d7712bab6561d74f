"""An enrolled federation, in memory and as files, as every benchmark of the protocol needs one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from chorale.runtime.files import write_atomic
from crypto.identity import certificates
from crypto.identity.certificates import Identity, Role
from crypto.identity.roster import roster_to_file_bytes
from simulation.members import Authority, Members

NAME = "bench"
HUB = "hub"  # the coordinator, on loopback
LOOPBACK = "127.0.0.1"
AUTHORITY_FILE, ROSTER_FILE = "authority.crt", "roster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation(Members):
    coordinator: Identity

    def write_files(self, folder: Path) -> None:
        """What a federation's programs read: authority, roster, each member's `<name>.crt` and `.key`."""
        (folder / AUTHORITY_FILE).write_bytes(self.authority.pem)
        (folder / ROSTER_FILE).write_bytes(roster_to_file_bytes(self.roster.signed))
        for one in (self.coordinator, *self.silos.values()):
            (folder / f"{one.member.name}.crt").write_bytes(certificates.certificate_to_pem(one.certificate))
            write_atomic(folder / f"{one.member.name}.key", certificates.key_to_pem(one.key))


def make_federation(silos: int, *, now: datetime) -> Federation:
    """An authority, a coordinator and n silos with certificates of it, and the roster of the silos."""
    authority = Authority(NAME, now=now)
    names = [f"silo-{index:03}" for index in range(silos)]
    identities = {name: authority.enroll(Role.SILO, name) for name in names}
    return Federation(
        authority=authority.anchors,
        coordinator=authority.enroll(Role.COORDINATOR, HUB, addresses=[LOOPBACK]),
        silos=identities,
        roster=authority.roster(identities),
    )
