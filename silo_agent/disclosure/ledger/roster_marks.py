"""The rosters that this silo accepted: the newest version, and who left, by the key that said so.

What a key signed counts for as long as the silo's file of the authority lists a certificate of that key.
After a change of the key, what a thief of the old one signed binds nobody. Source: docs/protocol.md 1.5, 1.6.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Set

from chorale.runtime.database import Migration
from crypto.errors import PolicyRefusal, Refusal
from crypto.identity.certificates import Anchors, Role, key_digest, public_key_of
from crypto.identity.roster import PURPOSE, Member, Roster
from crypto.identity.roster_memory import RosterChanges, RosterMemory

TABLES: Migration = (
    """
    CREATE TABLE listed_certificates ( -- of members, in rosters that were accepted
        fingerprint BLOB NOT NULL PRIMARY KEY, -- SHA-256 of the certificate's DER
        role VARCHAR NOT NULL,
        name VARCHAR NOT NULL,
        is_listed BOOLEAN NOT NULL -- in the one that was accepted last
    )
    """,
    """
    CREATE TABLE departures ( -- of certificates, by the authority's key that signed the roster without them
        fingerprint BLOB NOT NULL,
        signer BLOB NOT NULL, -- SHA-256 of the key's SubjectPublicKeyInfo
        left_in INTEGER NOT NULL, -- the first accepted version of that key that did not list it
        PRIMARY KEY (fingerprint, signer)
    )
    """,
    """
    CREATE TABLE roster_marks ( -- the newest accepted roster of each of the authority's keys
        signer BLOB NOT NULL PRIMARY KEY, -- as above
        version INTEGER NOT NULL,
        digest BLOB NOT NULL,
        is_newest BOOLEAN NOT NULL -- accepted last, of all keys
    )
    """,
)


def accept(
    connection: sqlite3.Connection, roster: Roster, *, authority: Anchors, lowest_version: int
) -> RosterChanges | None:
    """As `Ledger.accept_roster`."""
    signed_by = authority.signer_of(roster.signed, purpose=PURPOSE, code=Refusal.ROSTER)
    signer = key_digest(public_key_of(signed_by))
    standing = {key_digest(public_key_of(each)) for each in authority.certificates}
    rows = connection.execute("SELECT * FROM roster_marks").fetchall()
    marks = [row for row in rows if row["signer"] in standing]
    newest = max((row["version"] for row in marks), default=0)
    lowest = max(lowest_version, newest)
    if roster.version < lowest:
        raise PolicyRefusal(
            f"roster: expected version {lowest} or newer, got {roster.version}", code=Refusal.ROSTER
        )
    same = [row for row in marks if row["version"] == roster.version]
    if any(row["digest"] != roster.digest for row in same):
        raise PolicyRefusal(f"roster: two different rosters of version {roster.version}", code=Refusal.ROSTER)
    memory = _memory(connection, standing, version=lowest if newest else 0)
    if any(row["is_newest"] for row in same):
        return None
    memory.check(roster)
    _write(connection, roster, signer=signer)
    return memory.changes(roster)


def newest_version(connection: sqlite3.Connection) -> int:
    """Of the roster that was accepted last; 0 before the first."""
    mark = connection.execute("SELECT version FROM roster_marks WHERE is_newest").fetchone()
    return mark["version"] if mark else 0


def _memory(connection: sqlite3.Connection, standing: Set[bytes], *, version: int) -> RosterMemory:
    mark = connection.execute("SELECT signer FROM roster_marks WHERE is_newest").fetchone()
    listed = connection.execute("SELECT * FROM listed_certificates WHERE is_listed").fetchall()
    # whom a roster of a removed key lists has not come back by it
    staying = {row["fingerprint"] for row in listed} if mark and mark["signer"] in standing else set()
    left: dict[bytes, int] = {}
    for row in connection.execute("SELECT * FROM departures ORDER BY left_in"):
        if row["signer"] in standing and row["fingerprint"] not in staying:
            left[row["fingerprint"]] = row["left_in"]
    members = [Member(Role(row["role"]), row["name"], row["fingerprint"]) for row in listed]
    return RosterMemory(version=version, members=tuple(sorted(members)), left=left)


def _write(connection: sqlite3.Connection, roster: Roster, *, signer: bytes) -> None:
    connection.execute("UPDATE roster_marks SET is_newest = 0")
    connection.execute(
        "INSERT INTO roster_marks (signer, version, digest, is_newest) VALUES (?, ?, ?, 1)"
        " ON CONFLICT (signer) DO UPDATE SET version = excluded.version, digest = excluded.digest,"
        " is_newest = 1",
        (signer, roster.version, roster.digest),
    )
    known = dict(connection.execute("SELECT fingerprint, is_listed FROM listed_certificates").fetchall())
    gone = known.keys() - {member.fingerprint for member in roster.members}
    connection.executemany(  # each key says so for itself: of two, the other one may be removed
        "INSERT INTO departures (fingerprint, signer, left_in) VALUES (?, ?, ?)"
        " ON CONFLICT (fingerprint, signer) DO UPDATE SET left_in ="
        " CASE WHEN ? THEN excluded.left_in ELSE left_in END",
        [(each, signer, roster.version, known[each]) for each in gone],
    )
    connection.execute("UPDATE listed_certificates SET is_listed = 0")
    connection.executemany(
        "INSERT INTO listed_certificates (fingerprint, role, name, is_listed) VALUES (?, ?, ?, 1)"
        " ON CONFLICT (fingerprint) DO UPDATE SET is_listed = 1",
        [(member.fingerprint, member.role, member.name) for member in roster.members],
    )
    connection.executemany(
        "DELETE FROM departures WHERE fingerprint = ? AND signer = ?",
        [(member.fingerprint, signer) for member in roster.members],
    )
