"""Rosters a second time: docs/protocol.md 1.3 and 1.5."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from primitives import Disagreement, Malformed, decode, encode, expect

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def check_roster(vectors: Any) -> int:
    for vector in vectors["valid"]:
        version, rows = read(vector["body"])
        expect("version", version, vector["version"])
        body = bytes.fromhex(vector["body"])
        expect("body", encode("roster", *decode("roster", body)), body)
        expect("digest", hashlib.sha256(body).hexdigest(), vector["digest"])
        expect("order", rows, sorted(rows, key=lambda row: row[:3]))
    for vector in vectors["invalid"]:
        try:
            read(vector["body"])
        except Malformed:
            continue
        raise Disagreement(f"{vector['failure']}: it was read without complaint")
    for vector in vectors["sequences"]:
        listed = [read(body) for body in [*vector["accepted"], vector["next"]]]
        expect(vector["name"], follows(listed[:-1], listed[-1]), vector["is_accepted"])
    return sum(map(len, vectors.values()))


def read(body: str) -> tuple[int, list[tuple[str, str, bytes, int]]]:
    """The version, and of each member role, name, SHA-256 and the version that readmitted it, or 0."""
    federation, version, issued, expires, rows = decode("roster", bytes.fromhex(body))
    members = []
    for role, name, fingerprint, *marks in rows:
        if role not in ("coordinator", "operator", "silo") or not NAME.fullmatch(name):
            raise Malformed("a role or a name")
        if role == "operator" and marks[:1] == ["admin"]:
            marks = marks[1:]
        if marks and (len(marks) != 2 or marks[0] != "readmitted" or not 2 <= marks[1] <= version):
            raise Malformed("a mark")
        members.append((role, name, fingerprint, marks[1] if marks else 0))
    names = [member[:2] for member in members]
    if len(set(names)) < len(names) or names != sorted(names):
        raise Malformed("members")
    if not NAME.fullmatch(federation) or version < 1 or expires <= issued:
        raise Malformed("a head")
    return version, members


def follows(accepted: list[Any], following: Any) -> bool:
    """No certificate is in it that has left those accepted, unless it was readmitted since."""
    for _, _, fingerprint, readmitted_in in following[1]:
        listed = [version for version, rows in accepted if fingerprint in {row[2] for row in rows}]
        without = [version for version, _ in accepted if listed and version > listed[-1]]
        if without and readmitted_in <= without[0]:
            return False
    return True
