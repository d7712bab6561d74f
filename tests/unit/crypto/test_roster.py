from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from crypto import encoding
from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from crypto.identity import certificates, issuing, roster
from crypto.identity.certificates import CLOCK_SKEW, Anchors, Identity, Role, SignedBody
from crypto.identity.roster import Member, Roster

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DATES = (int(NOW.timestamp()), int(NOW.timestamp()) + 3600)
ROW = ["silo", "clinic-a", bytes(32)]


def sign(authority, members, *, version: int = 3, expires: datetime = NOW + timedelta(days=30)) -> SignedBody:
    return roster.sign_roster(
        authority_key=authority.key,
        federation="hospitals",
        version=version,
        issued=NOW,
        expires=expires,
        members=members,
    )


def open_(
    signed: SignedBody, authority, *, federation: str = "hospitals", now: datetime = NOW, max_age=None
) -> Roster:
    return roster.open_roster(
        signed, authority=Anchors((authority.certificate,)), federation=federation, now=now, max_age=max_age
    )


def as_member(who: Identity) -> Member:
    return Member(who.member.role, who.member.name, who.fingerprint)


@pytest.fixture(scope="module")
def signed(authority, silo: Identity, coordinator: Identity) -> SignedBody:
    return sign(authority, [as_member(silo), as_member(coordinator)])


def test_open_gives_back_what_was_signed(signed, authority, silo, coordinator) -> None:
    opened = open_(signed, authority)
    assert (opened.federation, opened.version) == ("hospitals", 3)
    assert (opened.issued, opened.expires) == (NOW, NOW + timedelta(days=30))
    assert opened.members == (as_member(coordinator), as_member(silo))
    assert opened.silo_names == {"clinic-a"}
    assert opened.digest == hashlib.sha256(signed.body).digest()


def test_holds_asks_for_role_name_and_certificate_together(signed, authority, silo, coordinator) -> None:
    opened = open_(signed, authority)
    assert opened.holds(Role.SILO, "clinic-a", silo.fingerprint)
    assert not opened.holds(Role.OPERATOR, "clinic-a", silo.fingerprint)
    assert not opened.holds(Role.SILO, "clinic-b", silo.fingerprint)
    assert not opened.holds(Role.SILO, "clinic-a", coordinator.fingerprint)


def test_check_member_accepts_this_very_certificate_only(signed, authority, silo) -> None:
    opened = open_(signed, authority)
    assert opened.check_member(silo.certificate) == silo.member
    renewed = authority.issue(Role.SILO, "clinic-a")
    with pytest.raises(RemoteProtocolError, match="version 3 does not hold silo clinic-a") as caught:
        opened.check_member(renewed.certificate)
    assert caught.value.code is Refusal.ROSTER


def test_check_member_refuses_another_federation(signed, authority) -> None:
    banks = type(authority)(*issuing.new_authority("banks", now=NOW, valid_days=1))
    stranger = banks.issue(Role.SILO, "clinic-a", federation="banks")
    with pytest.raises(RemoteProtocolError, match="expected federation hospitals, got banks"):
        open_(signed, authority).check_member(stranger.certificate)


def test_expired_future_and_old_rosters_are_refused(signed, authority) -> None:
    week = timedelta(days=7)
    assert open_(signed, authority, now=NOW + week, max_age=week)
    assert open_(signed, authority, now=NOW - CLOCK_SKEW)
    assert open_(signed, authority, now=NOW + timedelta(days=30))
    for now, max_age, message in [
        (NOW + timedelta(days=30, seconds=1), None, "version 3 expired at 2026-12-21"),
        (NOW - CLOCK_SKEW - timedelta(seconds=1), None, "issued at 2026-11-21T12:00"),
        (NOW + timedelta(days=8), week, "version 3 is 8 days old, at most 7 allowed"),
    ]:
        with pytest.raises(RemoteProtocolError, match=message) as caught:
            open_(signed, authority, now=now, max_age=max_age)
        assert caught.value.code is Refusal.ROSTER


def test_read_roster_opens_an_expired_one(authority, silo) -> None:
    expired = sign(authority, [as_member(silo)], expires=NOW + timedelta(seconds=1))
    read = roster.read_roster(expired, authority=Anchors((authority.certificate,)), federation="hospitals")
    assert read.silo_names == {"clinic-a"}


def test_a_roster_of_another_authority_or_federation_is_refused(signed, authority, other_authority) -> None:
    with pytest.raises(RemoteProtocolError, match="roster: the signature is not valid") as caught:
        open_(signed, other_authority)
    assert caught.value.code is Refusal.ROSTER
    with pytest.raises(RemoteProtocolError, match="expected federation banks, got hospitals"):
        open_(signed, authority, federation="banks")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["hospitals", 1, *DATES], "a field is missing"),
        (["hospitals", 1, *DATES, [], 0], "1 fields too many"),
        # the reader took rosters that sign_roster never writes
        (["hospitals", 0, *DATES, []], "expected a version from 1 to"),
        (["hospitals", 1 << 62, *DATES, []], "expected a version from 1 to 4611686018427387903"),
        (["hospitals", (1 << 64) - 1, *DATES, []], "expected a version from 1 to 4611686018427387903"),
        (["hospitals", 1, *reversed(DATES), []], "that expires after it is issued"),
        (["hospitals", 1, *DATES, [ROW, ROW]], "named twice"),
        (["hospitals", 1, *DATES, [["silo", "b", bytes(32)], ["silo", "a", bytes(32)]]], "not sorted"),
        (["hospitals", 1, *DATES, [["silo", "a", bytes(32)], ["silo", "a", bytes([1] * 32)]]], "named twice"),
        (["hospitals", 1, *DATES, [["nurse", "a", bytes(32)]]], "role or name is malformed"),
        (["hospitals", 1, *DATES, [["silo", "A", bytes(32)]]], "role or name is malformed"),
        (["hospitals", 1, *DATES, [["silo", "a", bytes(31)]]], "expected 32 bytes, got 31"),
        (["hospitals", 1, *DATES, [[*ROW, 1]]], "expected text, got int"),
        (["hospitals", 1, *DATES, [[*ROW, "admin"]]], "mark is malformed"),
        (["hospitals", 1, *DATES, [["operator", "olga", bytes(32), "root"]]], "mark is malformed"),
        (["hospitals", 1, *DATES, [["operator", "olga", bytes(32), ""]]], "mark is malformed"),
        (["hospitals", 1, *DATES, [["operator", "olga", bytes(32), 1]]], "expected text, got int"),
        (["hospitals", 1, *DATES, [["operator", "olga", bytes(32), "admin", ""]]], "mark is malformed"),
        (["hospitals", 2, *DATES, [[*ROW, "readmitted"]]], "a field is missing"),
        (["hospitals", 2, *DATES, [[*ROW, "readmitted", "2"]]], "expected a number, got str"),
        (["hospitals", 2, *DATES, [[*ROW, "readmitted", 0]]], "mark is malformed"),
        (["hospitals", 2, *DATES, [[*ROW, "readmitted", 1]]], "readmitted in version 1, expected 2 to 2"),
        (["hospitals", 2, *DATES, [[*ROW, "readmitted", 3]]], "readmitted in version 3, expected 2 to 2"),
        (["hospitals", 2, *DATES, [[*ROW, "readmitted", 2, "admin"]]], "1 fields too many"),
        (["hospitals", 1, *DATES, ["silo"]], "expected a list, got str"),
        (["hospitals", 1, DATES[0], encoding.MAX_NUMBER, [ROW]], "a date is out of range"),
    ],
)
def test_a_signed_but_odd_roster_is_refused(authority, fields, message) -> None:
    odd = certificates.sign(authority.key, "roster", *fields)
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        open_(odd, authority)
    assert caught.value.code is Refusal.ROSTER


def test_an_operator_may_have_the_admin_mark(authority, silo) -> None:
    lead = Member(Role.OPERATOR, "lead", bytes([1] * 32), is_admin=True)
    olga = Member(Role.OPERATOR, "olga", bytes([2] * 32))
    opened = open_(sign(authority, [as_member(silo), olga, lead]), authority)
    assert [opened.is_admin(name) for name in ("lead", "olga", "clinic-a", "nobody")] == [
        True, False, False, False
    ]  # fmt: skip
    assert opened.holds(Role.OPERATOR, "lead", lead.fingerprint)  # the mark is no part of who it is
    with pytest.raises(ConfigError, match="only an operator can be an admin"):
        sign(authority, [Member(Role.SILO, "lead", bytes(32), is_admin=True)])


def test_a_roster_without_marks_has_the_bytes_that_it_always_had(authority, silo, coordinator) -> None:
    members = [as_member(silo), as_member(coordinator), Member(Role.OPERATOR, "olga", bytes(32))]
    rows = [[member.role.value, member.name, member.fingerprint] for member in sorted(members)]
    expected = encoding.encode(
        "roster", "hospitals", 3, int(NOW.timestamp()), int((NOW + timedelta(days=30)).timestamp()), rows
    )
    assert sign(authority, members).body == expected
    marked = [*members[:2], Member(Role.OPERATOR, "olga", bytes(32), is_admin=True)]
    rows[1].append("admin")
    assert sign(authority, marked).body == encoding.encode(
        "roster", "hospitals", 3, int(NOW.timestamp()), int((NOW + timedelta(days=30)).timestamp()), rows
    )


def test_a_member_may_be_marked_as_readmitted(authority, silo) -> None:
    back = replace(as_member(silo), readmitted_in=3)
    lead = Member(Role.OPERATOR, "lead", bytes([1] * 32), is_admin=True, readmitted_in=2)
    opened = open_(sign(authority, [back, lead]), authority)
    assert [(member.is_admin, member.readmitted_in) for member in opened.members] == [(True, 2), (False, 3)]
    assert opened.holds(Role.SILO, "clinic-a", silo.fingerprint)  # the mark is no part of who it is
    with pytest.raises(ConfigError, match="readmitted in versions 2 to 3"):
        sign(authority, [replace(back, readmitted_in=4)])


def test_sign_roster_refuses_what_nobody_would_accept(authority, silo) -> None:
    member = as_member(silo)
    for version in (0, 1 << 62):
        with pytest.raises(ConfigError, match="a version from 1 to"):
            sign(authority, [member], version=version)
    assert open_(sign(authority, [member], version=(1 << 62) - 1), authority).version == roster.MAX_VERSION
    with pytest.raises(ConfigError, match="expires after it is issued"):
        sign(authority, [member], expires=NOW)
    with pytest.raises(ConfigError, match="each named once"):
        sign(authority, [member, member])
    crowd = [Member(Role.SILO, f"s{i}", bytes(32)) for i in range(roster.MAX_MEMBERS + 1)]
    with pytest.raises(ConfigError, match="at most 4096 members"):
        sign(authority, crowd)
    assert len(open_(sign(authority, crowd[:-1]), authority).members) == roster.MAX_MEMBERS


def test_file_bytes_are_read_back(signed) -> None:
    assert roster.roster_from_file_bytes(roster.roster_to_file_bytes(signed)) == signed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"3",
        b"\xff",
        b"[" * 100_000,
        b'{"body": "AA=="}',
        b'{"body": "AA==", "signature": "AA==", "more": 1}',
        b'{"body": 1, "signature": "AA=="}',
        b'{"body": "A", "signature": "AA=="}',
        b'{"body": "A?==", "signature": "AA=="}',
        json.dumps({"body": "A" * (2 << 20), "signature": ""}).encode(),
    ],
    ids=range(11),
)
def test_odd_files_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="roster file: expected JSON with body and signature"):
        roster.roster_from_file_bytes(data)
