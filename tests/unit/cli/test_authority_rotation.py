"""`authority rotate`: three steps, what each leaves in the folder, and what is refused between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chorale.runtime.files import write_atomic
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import Anchors
from crypto.identity.roster import Roster, read_roster, roster_from_file_bytes
from tests.unit.cli.conftest import Calls


@pytest.fixture
def ca(founded: Path, chorale: Calls) -> Path:
    """An authority with a roster of three silos and a coordinator."""
    run(chorale, founded / "ca", "roster", *(founded / f"{name}.crt" for name in ("a", "b", "c", "hub")))
    return founded / "ca"


def run(chorale: Calls, ca: Path, *words: str | Path) -> str:
    ended = chorale("authority", *words, "--directory", ca)
    assert ended.code == 0, ended.err
    return ended.out


def refused(chorale: Calls, ca: Path, *words: str) -> str:
    ended = chorale("authority", *words, "--directory", ca)
    assert ended.code != 0
    return ended.err


def anchors(ca: Path) -> Anchors:
    return Anchors.load((ca / "authority.crt").read_bytes())


def newest(ca: Path, under: Anchors) -> Roster:
    return read_roster(
        roster_from_file_bytes((ca / "roster.json").read_bytes()), authority=under, federation="fed"
    )


def list_again(chorale: Calls, ca: Path, folder: Path, *names: str) -> None:
    """The same keys with certificates of the key that signs now."""
    folder.mkdir()
    requests = [ca.parent / f"{name}.csr" for name in names]
    run(chorale, ca, "sign", *requests, "--out", folder)
    run(chorale, ca, "roster", folder)


def test_the_key_changes_in_three_steps_and_versions_go_on(ca: Path, chorale: Calls) -> None:
    old = anchors(ca)
    run(chorale, ca, "rotate")
    both = anchors(ca)
    assert both.certificates[0] == old.certificates[0]
    new = Anchors(both.certificates[1:])
    run(chorale, ca, "renew")
    assert newest(ca, old).version == 2  # a member with the old file alone reads it

    run(chorale, ca, "rotate", "--switch")
    assert set(anchors(ca).certificates) == set(both.certificates)
    run(chorale, ca, "renew")
    assert newest(ca, new).version == 3
    with pytest.raises(RemoteProtocolError, match="the signature is not valid"):
        newest(ca, old)
    list_again(chorale, ca, ca.parent / "new", "a", "b", "c", "hub")

    run(chorale, ca, "rotate", "--finish")
    assert anchors(ca) == new
    assert sorted(path.name for path in ca.glob("*.key")) == ["authority.key"]
    run(chorale, ca, "renew")  # earlier versions are still read, under the old certificate
    assert newest(ca, new).version == 5
    run(chorale, ca, "rotate")  # and again
    assert anchors(ca).certificates[0] == new.certificates[0]


def test_the_old_certificate_stays_while_the_roster_needs_it(ca: Path, chorale: Calls) -> None:
    """Members whose certificates it had signed would have been locked out."""
    run(chorale, ca, "rotate")
    run(chorale, ca, "rotate", "--switch")
    assert "roster version 1 is signed with the old key" in refused(chorale, ca, "rotate", "--finish")
    list_again(chorale, ca, ca.parent / "new", "a", "hub")
    waiting = refused(chorale, ca, "rotate", "--finish")
    assert "these still have certificates of the old key: silo b, silo c" in waiting
    assert len(anchors(ca).certificates) == 2
    run(chorale, ca, "revoke", "b")
    list_again(chorale, ca, ca.parent / "newer", "c")
    run(chorale, ca, "rotate", "--finish")


def test_steps_out_of_order_say_which_one_is_next(ca: Path, chorale: Calls) -> None:
    assert "no change of the authority's key has begun" in refused(chorale, ca, "rotate", "--switch")
    assert "the authority's key was not changed" in refused(chorale, ca, "rotate", "--finish")
    run(chorale, ca, "rotate")
    assert "rotate --switch" in refused(chorale, ca, "rotate")
    assert "the authority's key was not changed" in refused(chorale, ca, "rotate", "--finish")
    run(chorale, ca, "rotate", "--switch")
    assert "rotate --finish" in refused(chorale, ca, "rotate")
    assert "no change of the authority's key has begun" in refused(chorale, ca, "rotate", "--switch")


@pytest.mark.parametrize("step", ["--switch", "--finish"])
def test_a_step_that_was_cut_short_is_run_again(
    ca: Path, chorale: Calls, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every write in turn; the key and the file of certificates must never be of two minds for good."""
    run(chorale, ca, "rotate")
    if step == "--finish":
        run(chorale, ca, "rotate", "--switch")
        list_again(chorale, ca, ca.parent / "new", "a", "b", "c", "hub")
    left: list[int] = []

    def cut_short(path: Path, data: bytes, *, mode: int) -> None:
        if not left:
            raise OSError("cut short")
        left.pop()
        write_atomic(path, data, mode=mode)

    with monkeypatch.context() as patched:
        patched.setattr("cli.authority.rotation.write_atomic", cut_short)
        for allowed in range(3 if step == "--switch" else 2):
            left[:] = range(allowed)
            assert chorale("authority", "rotate", step, "--directory", ca).code != 0
    kept = {path: path.read_bytes() for path in ca.glob("next.key")}
    run(chorale, ca, "rotate", step)
    for path, data in kept.items():  # cut short before its last move
        write_atomic(path, data)
        run(chorale, ca, "rotate", step)
    run(chorale, ca, "renew")
    assert newest(ca, Anchors(anchors(ca).certificates[:1])).members
