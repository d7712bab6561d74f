"""What `authority show` prints: the newest roster, and what each version changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from cli.authority.folder import Folder
from crypto.identity.roster import Member, Roster

FINGERPRINT_DIGITS = 16  # of 64; enough to compare on the phone


def expiring(folder: Folder, roster: Roster) -> Iterator[str]:
    """A line for each member whose certificate expires before the roster, or may."""
    for member in roster.members:
        expires = folder.expiry(member)
        if expires is None:
            yield f"{member.title}: its certificate is not in this folder, so nothing says when it expires"
        elif expires < roster.expires:
            yield f"{member.title}: its certificate expires on {expires:%Y-%m-%d}, before the roster"


def as_json(folder: Folder) -> str:
    """roster: the newest, null before the first. history: oldest first, what each version changed."""
    newest = folder.history.newest
    roster = (
        None
        if newest is None
        else _dates(newest) | {"members": [_row(folder, each) for each in newest.members]}
    )
    document = {"federation": folder.federation, "roster": roster, "history": list(_history(folder))}
    return json.dumps(document, indent=1)


def as_text(folder: Folder, *, now: datetime) -> str:
    """The same for people."""
    newest = folder.history.newest
    if newest is None:
        return f"federation {folder.federation}: no roster yet"
    state = "expired" if newest.expires < now else "expires"
    rows = [["role", "name", "certificate", "expires", ""]]
    for member in newest.members:
        row = _row(folder, member)
        marks = ["admin"] if member.is_admin else []
        marks += [f"readmitted in version {member.readmitted_in}"] if member.readmitted_in else []
        rows.append(
            [
                row["role"],
                row["name"],
                _short(row["certificate"]),
                (row["expires"] or "unknown")[:10],
                ", ".join(marks),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"federation {folder.federation}: roster version {newest.version}, signed {newest.issued:%Y-%m-%d}, "
        f"{state} {newest.expires:%Y-%m-%d}",
        "",
        *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
        "",
    ]
    for entry in _history(folder):
        changes = [f"{word} {who}" for word in ("joined", "left", "readmitted") for who in entry[word]]
        changes += [
            f"{each['member']} changed its certificate from {_short(each['before'])} to {_short(each['now'])}"
            for each in entry["renewed"]
        ]
        changes += [f"admin {name}" for name in entry["admins_added"]]
        changes += [f"no longer admin {name}" for name in entry["admins_removed"]]
        lines.append(
            f"version {entry['version']}, {entry['issued'][:10]}: {'; '.join(changes) or 'as before'}"
        )
    return "\n".join(lines)


def _row(folder: Folder, member: Member) -> dict[str, Any]:
    expires = folder.expiry(member)
    return {
        "role": member.role.value,
        "name": member.name,
        "certificate": member.fingerprint.hex(),
        "expires": None if expires is None else expires.isoformat(),
        "admin": member.is_admin,
        "readmitted_in": member.readmitted_in or None,
    }


def _history(folder: Folder) -> Iterator[dict[str, Any]]:
    admins: set[str] = set()
    for roster, memory in zip(folder.history.rosters, folder.history.memories(), strict=False):
        changes = memory.changes(roster)
        before, admins = admins, {member.name for member in roster.members if member.is_admin}
        yield _dates(roster) | {
            "joined": [member.title for member in changes.joined],
            "left": [member.title for member in changes.left],
            "renewed": [
                {"member": now.title, "before": before.fingerprint.hex(), "now": now.fingerprint.hex()}
                for before, now in changes.renewed
            ],
            "readmitted": [member.title for member in changes.readmitted],
            "admins_added": sorted(admins - before),
            "admins_removed": sorted(before - admins),
        }


def _dates(roster: Roster) -> dict[str, Any]:
    return {
        "version": roster.version,
        "issued": roster.issued.isoformat(),
        "expires": roster.expires.isoformat(),
    }


def _short(fingerprint: str) -> str:
    return fingerprint[:FINGERPRINT_DIGITS]
