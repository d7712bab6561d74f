"""Rosters byte for byte, bodies that nobody may accept, and which rosters follow on others."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from crypto import encoding
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import Role, SignedBody, new_key
from crypto.identity.roster import Member, sign_roster, stored_roster
from crypto.identity.roster_memory import RosterMemory

ISSUED = datetime(2026, 11, 23, tzinfo=UTC)
EXPIRES = datetime(2027, 2, 21, tzinfo=UTC)


def roster_vectors() -> dict[str, Any]:
    hub, olga = _member(Role.COORDINATOR, "hub"), _member(Role.OPERATOR, "olga")
    a, b, newer_a = (_member(Role.SILO, *words) for words in (("a",), ("b",), ("a", "newer")))
    admin = replace(olga, is_admin=True)
    valid = [
        (1, [hub, olga, a, b]),
        (2, [hub, admin, newer_a]),
        (3, [hub, replace(admin, readmitted_in=3), newer_a, replace(b, readmitted_in=2)]),
    ]
    back = {version: replace(b, readmitted_in=version) for version in (3, 4)}
    sequences = [
        ("renewed", [(1, [hub, a, b])], (2, [hub, a, b])),
        ("revoked, and back", [(1, [hub, a, b]), (2, [hub, a])], (3, [hub, a, b])),
        ("revoked, and slept through", [(1, [hub, a, b]), (3, [hub, a])], (4, [hub, a, b])),
        ("revoked, and never seen before", [(2, [hub, a])], (4, [hub, a, b])),
        ("replaced, and back", [(1, [hub, a]), (2, [hub, newer_a])], (3, [hub, a])),
        ("readmitted", [(1, [hub, a, b]), (2, [hub, a])], (3, [hub, a, back[3]])),
        ("readmitted, and slept through", [(1, [hub, a, b]), (2, [hub, a])], (9, [hub, a, back[3]])),
        (
            "readmitted, and revoked since",
            [(1, [b]), (2, [hub]), (3, [hub, back[3]]), (4, [hub])],
            (5, [hub, back[3]]),
        ),
        (
            "readmitted twice",
            [(1, [b]), (2, [hub]), (3, [hub, back[3]]), (4, [hub])],
            (5, [hub, replace(b, readmitted_in=5)]),
        ),
    ]
    return {
        "valid": [
            {"version": version, "body": body.hex(), "digest": hashlib.sha256(body).hexdigest()}
            for version, body in ((version, _body(version, members)) for version, members in valid)
        ],
        "invalid": [{"failure": name, "body": body.hex()} for name, body in _invalid().items()],
        "sequences": [_sequence(*sequence) for sequence in sequences],
    }


def _member(role: Role, name: str, kind: str = "certificate") -> Member:
    return Member(role, name, hashlib.sha256(f"{kind} of {role} {name}".encode()).digest())


def _body(version: int, members: list[Member]) -> bytes:
    return sign_roster(
        authority_key=new_key(),
        federation="hospitals",
        version=version,
        issued=ISSUED,
        expires=EXPIRES,
        members=members,
    ).body


def _invalid() -> dict[str, bytes]:
    dates = [int(ISSUED.timestamp()), int(EXPIRES.timestamp())]
    silo, operator = ["silo", "a", bytes(32)], ["operator", "olga", bytes(32)]
    rows: dict[str, list[list[Any]]] = {
        "an admin who is no operator": [[*silo, "admin"]],
        "a mark that is not known": [[*silo, "revoked", 2]],
        "readmitted without a version": [[*silo, "readmitted"]],
        "readmitted in version 0": [[*silo, "readmitted", 0]],
        "readmitted in the first version": [[*silo, "readmitted", 1]],
        "readmitted in a later version": [[*silo, "readmitted", 4]],
        "readmitted before admin": [[*operator, "readmitted", 3, "admin"]],
        "a field too many": [[*silo, "readmitted", 3, 3]],
        "two members of one name": [silo, ["silo", "a", b"\1" * 32]],
        "members out of order": [silo, operator],
    }
    return {name: encoding.encode("roster", "hospitals", 3, *dates, listed) for name, listed in rows.items()}


def _sequence(
    name: str, seen: list[tuple[int, list[Member]]], following: tuple[int, list[Member]]
) -> dict[str, Any]:
    bodies = [_body(*each) for each in (*seen, following)]
    *accepted, last = [stored_roster(SignedBody(body=body, signature=b"")) for body in bodies]
    try:
        RosterMemory.of(accepted).check(last)
        is_accepted = True
    except RemoteProtocolError:
        is_accepted = False
    return {
        "name": name,
        "accepted": [body.hex() for body in bodies[:-1]],
        "next": bodies[-1].hex(),
        "is_accepted": is_accepted,
    }
