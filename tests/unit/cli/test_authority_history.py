"""The authority's rosters remember: who left stays out, in every folder that has signed its leaving."""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chorale.runtime.files import write_atomic
from crypto.identity.certificates import certificate_to_pem, fingerprint, load_certificate
from crypto.identity.issuing import new_authority
from crypto.identity.roster import roster_from_file_bytes, roster_to_file_bytes
from tests.unit.cli.conftest import Calls, Ended, newest_roster, signed_again

# `valid for 90 days` stood there alone, and silos refused the roster after a week
TAKEN = "; silos take it for 7, or what max_roster_age_days of their policy says"


class Office:
    """The founded folder, and its weekly work."""

    def __init__(self, folder: Path, chorale: Calls) -> None:
        self.folder, self.ca, self._chorale = folder, folder / "ca", chorale
        self.first_page = [folder / f"{name}.crt" for name in ("hub", "a", "b", "c")]

    def run(self, command: str, *arguments: str | Path, code: int = 0) -> Ended:
        ended = self._chorale("authority", command, *arguments, "--directory", self.ca)
        assert ended.code == code, ended.err
        return ended

    @property
    def version(self) -> int:
        return newest_roster(self.ca).version

    @property
    def silos(self) -> frozenset[str]:
        return newest_roster(self.ca).silo_names

    def listed(self, path: Path) -> bool:
        sha256 = fingerprint(load_certificate(path.read_bytes()))
        return any(member.fingerprint == sha256 for member in newest_roster(self.ca).members)


@pytest.fixture
def office(founded: Path, chorale: Calls) -> Office:
    made = Office(founded, chorale)
    made.run("roster", *made.first_page)
    return made


def test_the_weekly_work_takes_back_neither_a_revocation_nor_a_rotation(
    office: Office, chorale: Calls
) -> None:
    """Revoke, rotate, and the guide's "A new roster": clinic-c was in again, and clinic-a locked out."""
    newer = signed_again(chorale, office.folder, "a")
    office.run("revoke", "c")
    office.run("roster", newer)
    out = office.folder / "roster.json"
    ended = office.run("renew", "--out", out, "--valid-days", "30")
    assert ended.out == "".join(
        f"{path}: roster version 4, 3 members, valid for 30 days{TAKEN}\n"
        for path in (office.ca / "roster.json", out)
    )
    assert office.silos == {"a", "b"}
    assert office.listed(newer)
    assert newest_roster(office.ca).expires - newest_roster(office.ca).issued == timedelta(days=30)
    before = out.read_bytes()
    for given in ([office.first_page[3]], office.first_page):
        office.run("roster", *given, code=2)
    ended = office.run("roster", office.first_page[3], code=2)
    assert ended.err == (
        f"chorale: hint: sign a new request of it, or list this one again with --readmit c\n"
        f"chorale: error: {office.first_page[3]}: this certificate of silo c was revoked in version 2\n"
    )
    ended = office.run("roster", office.first_page[1], code=2)
    assert ended.err == (
        "chorale: hint: name the file of the newer, or go back to this one with --readmit a\n"
        f"chorale: error: {office.first_page[1]}: another certificate of silo a has replaced this one\n"
    )
    assert (office.ca / "roster.json").read_bytes() == before


def test_who_is_readmitted_is_marked_until_the_certificate_leaves(office: Office) -> None:
    a, b, c = office.first_page[1:]
    office.run("revoke", "c")
    office.run("revoke", "b")
    ended = office.run("roster", a, "--readmit", "b", code=2)
    assert "--readmit b: expected a certificate of this member\n" in ended.err
    # click takes the next option for a name that was forgotten
    for option in ("--readmit", "--admin", "--no-admin"):
        ended = office.run("roster", a, option, "--valid-days=9", code=2)
        assert "expected a member's name, got --valid-days=9" in ended.err
    office.run("roster", *office.first_page, "--readmit", "c", "--readmit", "b")

    def marks() -> dict[str, int]:
        return {member.name: member.readmitted_in for member in newest_roster(office.ca).members}

    assert marks() == {"hub": 0, "a": 0, "b": 4, "c": 4}
    office.run("renew")
    office.run("roster", c)
    office.run("revoke", "b")
    assert marks() == {"hub": 0, "a": 0, "c": 4}
    office.run("roster", b, code=2)
    office.run("roster", b, "--readmit", "b")
    assert marks()["b"] == 8


@pytest.mark.parametrize("answer", ["y", "n"])
def test_going_back_to_a_replaced_certificate_is_asked_on_a_terminal(
    office: Office, chorale: Calls, answer: str
) -> None:
    office.run("roster", signed_again(chorale, office.folder, "a"))
    older = office.first_page[1]
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "authority",
        "roster",
        str(older),
        "--directory",
        str(office.ca),
    ]
    controller, terminal = pty.openpty()
    os.write(controller, f"{answer}\n".encode())
    ended = subprocess.run(command, stdin=terminal, capture_output=True, text=True, check=False)
    os.close(controller)
    os.close(terminal)
    question = f"{older}: another certificate of silo a has replaced this one. Go back to it?"
    assert ended.stdout.startswith(question)
    assert office.listed(older) is (answer == "y")
    if answer == "n":
        assert (ended.returncode, "with --readmit a" in ended.stderr) == (2, True)
        return
    (member,) = [each for each in newest_roster(office.ca).members if each.name == "a"]
    assert (ended.returncode, member.readmitted_in) == (0, 3)


def test_two_certificates_of_one_member_are_refused(office: Office, chorale: Calls) -> None:
    newer = signed_again(chorale, office.folder, "a")
    ended = office.run("roster", office.folder, newer, code=2)
    message = f"{newer}: another certificate of silo a than {office.first_page[1]}; name one of them"
    assert message in ended.err


def test_show_prints_the_newest_roster_and_every_change(office: Office, chorale: Calls) -> None:
    newer = signed_again(chorale, office.folder, "a")
    office.run("roster", newer)
    office.run("revoke", "c")
    office.run("renew")
    office.run("roster", office.first_page[3], "--readmit", "c")
    (office.ca / "authority.key").unlink()  # which stays in its safe
    shown = json.loads(office.run("show", "--json").out)
    sha256 = {
        path: fingerprint(load_certificate(path.read_bytes())).hex() for path in (*office.first_page, newer)
    }
    members = {each["name"]: each for each in shown["roster"]["members"]}
    assert {name: each["certificate"] for name, each in members.items()} == {
        "hub": sha256[office.first_page[0]],
        "a": sha256[newer],
        "b": sha256[office.first_page[2]],
        "c": sha256[office.first_page[3]],
    }
    until = load_certificate(newer.read_bytes()).not_valid_after_utc.isoformat()
    assert members["a"] == {
        "role": "silo",
        "name": "a",
        "certificate": sha256[newer],
        "expires": until,
        "admin": False,
        "readmitted_in": None,
    }
    assert members["c"]["readmitted_in"] == 5
    changed = {"member": "silo a", "before": sha256[office.first_page[1]], "now": sha256[newer]}
    history = [
        {name: value for name, value in entry.items() if value and name not in ("issued", "expires")}
        for entry in shown["history"]
    ]
    assert history == [
        {"version": 1, "joined": ["coordinator hub", "silo a", "silo b", "silo c"]},
        {"version": 2, "renewed": [changed]},
        {"version": 3, "left": ["silo c"]},
        {"version": 4},
        {"version": 5, "joined": ["silo c"], "readmitted": ["silo c"]},
    ]
    text = office.run("show").out
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    for line in (
        f"federation fed: roster version 5, signed {today}, expires ",
        f"silo         a     {sha256[newer][:16]}  {until[:10]}\n",
        f"silo         c     {sha256[office.first_page[3]][:16]}  {until[:10]}  readmitted in version 5\n",
        f"version 2, {today}: silo a changed its certificate from {changed['before'][:16]} to ",
        f"version 3, {today}: left silo c\n",
        f"version 4, {today}: as before\n",
        f"version 5, {today}: joined silo c; readmitted silo c\n",
    ):
        assert line in text


def test_renewing_names_the_certificates_that_expire_first(office: Office) -> None:
    lines = office.run("renew", "--valid-days", "400").out.splitlines()
    until = load_certificate(office.first_page[1].read_bytes()).not_valid_after_utc
    assert lines[0].endswith("roster version 2, 4 members, valid for 400 days" + TAKEN)
    assert lines[1:] == [
        f"{who}: its certificate expires on {until:%Y-%m-%d}, before the roster"
        for who in ("coordinator hub", "silo a", "silo b", "silo c")
    ]


def test_there_is_nothing_to_renew_before_the_first_roster(founded: Path, chorale: Calls) -> None:
    ended = chorale("authority", "renew", "--directory", founded / "ca")
    assert (ended.code, "there is no roster to sign again\n" in ended.err) == (2, True)
    assert (
        chorale("authority", "show", "--directory", founded / "ca").out == "federation fed: no roster yet\n"
    )


# after a theft of the key, which may have signed versions that this folder does not have


def test_a_renewal_may_skip_versions_and_the_history_says_so(office: Office) -> None:
    office.run("renew", "--version", "1000000")
    office.run("revoke", "c")
    office.run("renew", "--version", "1000002")  # the next one
    assert (office.version, office.silos) == (1000002, {"a", "b"})
    names = sorted(path.name for path in (office.ca / "rosters").iterdir())
    assert names == ["1.json", "1000000.json", "1000001.json", "1000002.json", "2.skipped.json"]
    assert "version 1000000, " in office.run("show").out
    ended = office.run("renew", "--version", "1000002", code=2)
    assert "roster: expected a version from 1000003 to 2048578, got 1000002\n" in ended.err
    ended = office.run("renew", "--version", "2048579", code=2)
    assert "got 2048579\n" in ended.err
    assert office.version == 1000002


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ("2.skipped.json", "rosters: version 2 is missing from the history"),
        ("9.json", "rosters: version 9 is missing from the history"),
        ("10.json", "rosters: version 10 is missing from the history"),
        ("1.json", "rosters: version 1 is missing from the history"),
    ],
)
def test_a_file_that_is_missing_around_skipped_versions_is_found(
    office: Office, gone: str, expected: str
) -> None:
    office.run("renew", "--version", "9")
    office.run("renew")
    (office.ca / "rosters" / gone).unlink()
    assert expected in office.run("renew", code=2).err


def test_a_skip_counts_where_it_was_signed_for_alone(office: Office) -> None:
    office.run("renew", "--version", "9")
    office.run("renew")
    office.run("renew")
    folder = office.ca / "rosters"
    (folder / "10.json").unlink()
    shutil.copy(folder / "2.skipped.json", folder / "10.skipped.json")
    ended = office.run("renew", code=2)
    assert "10.skipped.json: skipped: expected version 10 of federation fed" in ended.err
    shutil.copy(folder / "1.json", folder / "10.skipped.json")
    assert (
        "10.skipped.json: skipped: the bytes belong to another kind of message"
        in office.run("renew", code=2).err
    )


def test_a_skip_that_was_cut_short_is_forgotten_by_the_next_command(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, *, mode: int) -> None:
        if path.name == "9.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_atomic(path, data, mode=mode)

    with monkeypatch.context() as patch:
        patch.setattr("cli.authority.history.write_atomic", full)
        office.run("renew", "--version", "9", code=1)
    for _ in range(9):
        office.run("renew")
    (office.ca / "rosters" / "2.json").unlink()
    assert "version 2 is missing from the history" in office.run("renew", code=2).err


def test_whom_a_roster_that_is_not_here_left_out_is_readmitted_too(office: Office) -> None:
    """Silos had seen the thief's roster, and the authority could not tell them that silo a is in."""
    office.run("roster", office.first_page[1], "--readmit", "a")
    (member,) = [each for each in newest_roster(office.ca).members if each.name == "a"]
    assert member.readmitted_in == office.version == 2


def test_nobody_is_readmitted_before_the_first_roster(founded: Path, chorale: Calls) -> None:
    ended = chorale("authority", "roster", founded / "a.crt", "--readmit", "a", "--directory", founded / "ca")
    assert (ended.code, "there is no roster that it could have left" in ended.err) == (2, True)


# the history


def _swap(ca: Path) -> None:
    (ca / "rosters/2.json").write_bytes((ca / "rosters/1.json").read_bytes())


def _edit(ca: Path) -> None:
    path = ca / "rosters/2.json"
    signed = roster_from_file_bytes(path.read_bytes())
    body = signed.body.replace(b"clinic", b"cl1nic").replace(b"silo", b"s1lo")
    path.write_bytes(roster_to_file_bytes(type(signed)(body=body, signature=signed.signature)))


def _foreign(ca: Path) -> None:
    (ca / "authority.crt").write_bytes(
        certificate_to_pem(new_authority("fed", now=datetime.now(UTC), valid_days=1)[1])
    )


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_swap, "rosters/2.json: expected version 2, got 1"),
        (_edit, "rosters/2.json: roster: the signature is not valid"),
        (_foreign, "roster.json: roster: the signature is not valid"),
        (lambda ca: (ca / "rosters/1.json").unlink(), "rosters: version 1 is missing from the history"),
        (lambda ca: (ca / "rosters/2.json").unlink(), "rosters: version 2 is missing from the history"),
        (lambda ca: (ca / "rosters/3.json").unlink(), "rosters: version 3 is missing from the history"),
        (lambda ca: shutil.rmtree(ca / "rosters"), "rosters: every version is missing from the history"),
        (lambda ca: (ca / "rosters/2.json").write_text("{"), "2.json: roster file: expected JSON"),
    ],
)
@pytest.mark.parametrize("command", ["renew", "show", "revoke"])
def test_history_that_was_changed_is_found_by_the_next_command(
    office: Office, spoil: Callable[[Path], None], expected: str, command: str
) -> None:
    office.run("revoke", "c")
    office.run("renew")
    spoil(office.ca)
    ended = office.run(command, *(["b"] if command == "revoke" else []), code=2)
    assert expected in ended.err
    assert not (office.ca / "rosters/4.json").exists()


def test_another_roster_of_the_newest_version_is_found(office: Office) -> None:
    shutil.copytree(office.ca, office.folder / "second machine")
    office.run("revoke", "c")
    there = Office(office.folder, office._chorale)
    there.ca = office.folder / "second machine"
    there.run("renew")
    shutil.copy(there.ca / "roster.json", office.ca / "roster.json")
    assert "roster.json: another roster of version 2 than " in office.run("renew", code=2).err


def test_folder_that_was_put_back_goes_on_from_the_roster_in_use(office: Office) -> None:
    office.run("renew")
    shutil.copytree(office.ca, office.folder / "copy")
    office.run("revoke", "c")
    in_use = (office.ca / "roster.json").read_bytes()
    shutil.rmtree(office.ca)
    shutil.copytree(office.folder / "copy", office.ca)
    (office.ca / "rosters/3.json").write_bytes(in_use)
    assert "was revoked in version 3" in office.run("roster", *office.first_page, code=2).err
    office.run("renew")
    assert (office.version, office.silos) == (4, {"a", "b"})


def test_revocation_that_was_signed_and_not_handed_out_stands(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, *, mode: int) -> None:
        if path.name == "roster.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_atomic(path, data, mode=mode)

    with monkeypatch.context() as patch:
        patch.setattr("cli.authority.folder.write_atomic", full)
        assert "no space left on device" in office.run("revoke", "b", code=1).err
    assert (office.version, office.silos) == (1, {"a", "b", "c"})
    office.run("renew")
    assert (office.version, office.silos) == (3, {"a", "c"})
