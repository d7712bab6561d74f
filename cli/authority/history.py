"""Every roster that the authority signed, a file each: who is in and who has left follows from them alone.

Each is verified at every command, so that one that was changed, or is missing, is found. A folder that is
whole and old is not found here: coordinator and silos refuse what it signs.
Source: docs/protocol.md 1.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509

from chorale.runtime.files import read_limited, sync_directory, write_atomic
from client.errors import with_hint
from crypto.encoding import FieldReader
from crypto.errors import ChoraleError, ConfigError, RemoteProtocolError
from crypto.identity import certificates
from crypto.identity.certificates import Anchors, PrivateKey, SignedBody
from crypto.identity.roster import (
    Member,
    Roster,
    read_roster,
    roster_from_file_bytes,
    roster_to_file_bytes,
)
from crypto.identity.roster_memory import RosterMemory

ROSTER, ROSTERS = "roster.json", "rosters"
CERTIFICATES = "certificates"  # of members that a roster lists, by SHA-256
SKIPPED = "skipped"  # purpose of rosters/N.skipped.json: federation, N, and the version that follows instead
MAX_FILE_BYTES = 2 << 20  # a roster of the largest federation

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """rosters: all, in order of version."""

    rosters: tuple[Roster, ...] = ()

    @property
    def newest(self) -> Roster | None:
        return self.rosters[-1] if self.rosters else None

    @property
    def next_version(self) -> int:
        return self.rosters[-1].version + 1 if self.rosters else 1

    @property
    def members(self) -> tuple[Member, ...]:
        """Of the newest roster."""
        return self.rosters[-1].members if self.rosters else ()

    def memories(self) -> list[RosterMemory]:
        """What was known before each roster, and after the last."""
        memories = [RosterMemory()]
        for roster in self.rosters:
            memories.append(memories[-1].after(roster))
        return memories

    @property
    def left(self) -> Mapping[bytes, int]:
        """By fingerprint, the version that listed it no more."""
        return self.memories()[-1].left


def read_history(directory: Path, *, signers: Sequence[x509.Certificate], federation: str) -> History:
    """signers: the authority's certificates, today's and former ones.

    Raises ConfigError that names the file that is missing, or is not what the authority signed.
    """
    newest = _read(directory / ROSTER, signers, federation) if (directory / ROSTER).exists() else None
    folder = directory / ROSTERS
    if not folder.exists():
        if newest is not None or (directory / CERTIFICATES).exists():
            raise _missing(folder, "every version")
        return History()
    paths = {int(path.stem): path for path in folder.glob("*.json") if path.stem.isdecimal()}
    last = max([*paths, newest.version if newest else 0])
    rosters = []
    version = 1
    while version <= last:
        if version not in paths:
            version = _read_skipped(folder, version, signers, federation)
        if version not in paths:
            raise _missing(folder, f"version {version}")
        roster = _read(paths[version], signers, federation)
        if roster.version != version:
            raise ConfigError(f"{paths[version]}: expected version {version}, got {roster.version}")
        rosters.append(roster)
        version += 1
    if newest is not None and all(newest.digest != roster.digest for roster in rosters):
        kept = folder / f"{newest.version}.json"
        raise ConfigError(f"{directory / ROSTER}: another roster of version {newest.version} than {kept}")
    return History(rosters=tuple(rosters))


def keep(history: History, roster: Roster, *, directory: Path, key: PrivateKey) -> None:
    """Write the next roster behind those that are there: from now on it counts.

    Where it skips versions, a signed file says so first: without it, a version is missing.
    """
    signed, federation = roster.signed, roster.federation
    folder = directory / ROSTERS
    folder.mkdir(exist_ok=True)
    sync_directory(directory)
    skipped = folder / f"{history.next_version}.skipped.json"
    if roster.version > history.next_version:
        gap = certificates.sign(key, SKIPPED, federation, history.next_version, roster.version)
        write_atomic(skipped, roster_to_file_bytes(gap), mode=0o644)
    else:
        skipped.unlink(missing_ok=True)  # of a command that was cut short
    write_atomic(folder / f"{roster.version}.json", roster_to_file_bytes(signed), mode=0o644)


def _read(path: Path, signers: Sequence[x509.Certificate], federation: str) -> Roster:
    return _opened(
        path,
        signers,
        lambda signed, signer: read_roster(signed, authority=Anchors((signer,)), federation=federation),
    )


def _read_skipped(folder: Path, version: int, signers: Sequence[x509.Certificate], federation: str) -> int:
    """The version that follows instead of this one, by the authority's word.

    Raises ConfigError where it did not skip this version.
    """
    path = folder / f"{version}.skipped.json"
    if not path.exists():
        raise _missing(folder, f"version {version}")

    def read(signed: SignedBody, signer: x509.Certificate) -> int:
        fields = FieldReader(certificates.verify(signed, purpose=SKIPPED, certificate=signer), what=SKIPPED)
        named, skipped, following = fields.text(), fields.number(), fields.number()
        fields.end()
        if (named, skipped) != (federation, version) or following <= version:
            raise RemoteProtocolError(f"{SKIPPED}: expected version {version} of federation {federation}")
        return following

    return _opened(path, signers, read)


def _opened(
    path: Path, signers: Sequence[x509.Certificate], read: Callable[[SignedBody, x509.Certificate], T]
) -> T:
    """What one of the certificates signed. Raises ConfigError that names the file."""
    try:
        signed = roster_from_file_bytes(read_limited(path, MAX_FILE_BYTES))
        for signer in signers[:-1]:
            with suppress(RemoteProtocolError):
                return read(signed, signer)
        return read(signed, signers[-1])
    except (ConfigError, RemoteProtocolError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _missing(path: Path, what: str) -> ChoraleError:
    error = ConfigError(f"{path}: {what} is missing from the history of rosters")
    return with_hint(error, "put the authority's folder back from its newest copy")
