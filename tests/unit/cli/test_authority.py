"""The authority's commands, one after the other as a federation is founded."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from cryptography.x509 import ExtendedKeyUsage
from cryptography.x509.oid import ExtendedKeyUsageOID

from crypto.identity.certificates import Role, load_certificate
from crypto.identity.roster import Roster
from tests.unit.cli.conftest import Calls, make_request, newest_roster, open_file, signed_again


def test_keys_are_private_and_certificates_fit_the_role(founded: Path) -> None:
    for key in (founded / "a.key", founded / "ca" / "authority.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    usages = {name: _usage(founded / f"{name}.crt") for name in ("a", "hub")}
    assert usages == {
        "a": [ExtendedKeyUsageOID.CLIENT_AUTH],
        "hub": [ExtendedKeyUsageOID.SERVER_AUTH],
    }


def test_an_authority_key_that_others_may_read_is_refused(founded: Path, chorale: Calls) -> None:
    key = founded / "ca" / "authority.key"
    key.chmod(0o644)
    ended = chorale("authority", "roster", founded / "a.crt", "--directory", founded / "ca")
    assert ended.code == 2
    assert f"{key}: a key that other users can read or write (mode 0644): run chmod 600 {key}\n" in ended.err
    key.chmod(0o600)
    assert chorale("authority", "roster", founded / "a.crt", "--directory", founded / "ca").code == 0


def test_roster_grows_by_certificates_and_shrinks_by_revoking(founded: Path, chorale: Calls) -> None:
    ca, out = founded / "ca", founded / "roster.json"
    assert chorale("authority", "roster", founded / "a.crt", "--directory", ca, "--out", out).code == 0
    assert chorale("authority", "roster", founded, "--directory", ca, "--out", out).code == 0
    grown = _roster(founded)
    assert (grown.version, grown.silo_names) == (2, {"a", "b", "c"})
    assert {member.role for member in grown.members} == {Role.SILO, Role.COORDINATOR}
    assert chorale("authority", "revoke", "b", "--directory", ca, "--out", out).code == 0
    shrunk = _roster(founded)
    assert (shrunk.version, shrunk.silo_names) == (3, {"a", "c"})
    assert (ca / "roster.json").read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    ("command", "what", "message"),
    [
        ("revoke", "z", "silo z: not on the roster; it names a\n"),
        ("roster", "a.csr", "a.csr: certificate: expected a PEM certificate"),
        ("roster", "empty", "no .crt file of a member in this folder"),
    ],
)
def test_what_is_no_member_is_named(
    founded: Path, chorale: Calls, command: str, what: str, message: str
) -> None:
    (founded / "empty").mkdir()
    chorale("authority", "roster", founded / "a.crt", "--directory", founded / "ca")
    given = what if command == "revoke" else founded / what
    ended = chorale("authority", command, given, "--directory", founded / "ca")
    assert ended.code == 2
    assert message in ended.err


def test_an_operator_gets_and_loses_the_admin_mark(founded: Path, chorale: Calls) -> None:
    ca = founded / "ca"

    def admins() -> list[str]:
        return [member.name for member in newest_roster(ca).members if member.is_admin]

    for name in ("lead", "olga"):
        make_request(chorale, founded, "operator", name)
        assert chorale("authority", "sign", founded / f"{name}.csr", "--directory", ca).code == 0
    assert chorale("authority", "roster", founded, "--directory", ca, "--admin", "lead").code == 0
    assert admins() == ["lead"]
    assert newest_roster(ca).is_admin("lead")
    # the mark is of the name: it stays when the roster is renewed, with another certificate, too
    newer = signed_again(chorale, founded, "lead")
    assert chorale("authority", "roster", newer, "--directory", ca).code == 0
    assert admins() == ["lead"]
    assert chorale("authority", "revoke", "c", "--directory", ca).code == 0
    assert admins() == ["lead"]
    changed = chorale("authority", "roster", "--directory", ca, "--admin", "olga", "--no-admin", "lead")
    assert changed.code == 0
    assert admins() == ["olga"]
    assert (newest_roster(ca).version, newest_roster(ca).silo_names) == (4, {"a", "b"})


def test_the_admin_mark_is_for_operators_of_the_roster(founded: Path, chorale: Calls) -> None:
    ca = founded / "ca"
    for name in ("a", "nobody"):
        ended = chorale("authority", "roster", founded, "--directory", ca, "--admin", name)
        assert ended.code == 2
        assert f"operator {name}: not on the roster and not among the certificates" in ended.err
    ended = chorale("authority", "roster", "--directory", ca)
    assert ended.code == 2
    assert "roster: expected a certificate, --admin or --no-admin" in ended.err
    assert not (ca / "roster.json").exists()


def test_key_is_never_overwritten(founded: Path, chorale: Calls) -> None:
    before = (founded / "a.key").read_bytes()
    ended = make_request(chorale, founded, "silo", "a", code=2)
    assert "a.key: a key is already there and is not overwritten" in ended.err
    again = chorale("authority", "init", "--federation", "fed", "--directory", founded / "ca")
    assert again.code == 2
    assert (founded / "a.key").read_bytes() == before


def test_requests_are_signed_all_or_none(tmp_path: Path, chorale: Calls) -> None:
    chorale("authority", "init", "--federation", "fed", "--directory", tmp_path / "ca")
    make_request(chorale, tmp_path, "silo", "new")
    (tmp_path / "bad.csr").write_text("nonsense")
    requests = [tmp_path / "new.csr", tmp_path / "bad.csr"]
    ended = chorale("authority", "sign", *requests, "--directory", tmp_path / "ca")
    assert ended.code == 2
    assert "bad.csr: request: expected a PEM certificate request" in ended.err
    assert not (tmp_path / "new.crt").exists()


def test_request_and_certificate_show_the_same_key(tmp_path: Path, founded: Path, chorale: Calls) -> None:
    asked = chorale("silo", "csr", "--name", "new", "--federation", "fed", "--out", tmp_path / "new")
    request = tmp_path / "new" / "new.csr"
    signed = chorale("authority", "sign", request, "--directory", founded / "ca", "--out", tmp_path / "made")
    assert (tmp_path / "made" / "new.crt").exists()
    shown = re.search(r"new\.csr: key ([0-9a-f]{32})$", asked.out, re.MULTILINE)
    assert shown is not None
    assert signed.out.rstrip().endswith(f", key {shown[1]}")


def test_host_is_for_coordinators_alone(tmp_path: Path, chorale: Calls) -> None:
    ended = make_request(chorale, tmp_path, "silo", "a", "--host", "a.example.org", code=2)
    assert "--host: expected none for a silo: only a coordinator is dialed" in ended.err
    assert not (tmp_path / "a.key").exists()


def test_certificate_of_another_authority_is_not_put_on_the_roster(founded: Path, chorale: Calls) -> None:
    chorale("authority", "init", "--federation", "fed", "--directory", founded / "other")
    ended = chorale("authority", "roster", founded / "a.crt", "--directory", founded / "other")
    assert ended.code == 2
    assert "a.crt: certificate: it was not issued by this federation's authority" in ended.err


def test_a_members_folder_may_hold_the_authoritys_certificate(founded: Path, chorale: Calls) -> None:
    """As docs/first-federation.md has it: authority.crt is copied into the folder of each member."""
    member = founded / "member"
    member.mkdir()
    for file in (founded / "a.crt", founded / "ca" / "authority.crt"):
        (member / file.name).write_bytes(file.read_bytes())
    ended = chorale("authority", "roster", member, "--directory", founded / "ca")
    assert ended.code == 0, ended.err
    (member / "a.crt").unlink()
    ended = chorale("authority", "roster", member, "--directory", founded / "ca")
    assert (ended.code, "no .crt file of a member in this folder" in ended.err) == (2, True)


def _usage(path: Path) -> list[object]:
    extension = load_certificate(path.read_bytes()).extensions.get_extension_for_class(ExtendedKeyUsage)
    return list(extension.value)


def _roster(folder: Path) -> Roster:
    return open_file(folder / "roster.json", folder / "ca")
