"""Who gets in by a certificate: operators on the roster, now; and what the others are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crypto.errors import ChoraleError
from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony
from tests.support.pages import URL, Pages
from web.console.logins import CertificateLogins
from web.console.settings import Right


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    return Pages(folder=tmp_path)


def _logins(pages: Pages) -> CertificateLogins:
    assert pages.console.certificates is not None
    return pages.console.certificates


def test_rights_are_those_of_the_roster(pages: Pages) -> None:
    olga, ada = (_logins(pages).login(pages.certificates[name]) for name in ("olga", "ada"))
    assert (olga.right, olga.operator) == (Right.OPERATOR, "olga")
    assert ada.right is Right.ADMIN
    assert (olga.may_steer("olga"), olga.may_steer("petra"), olga.may_steer("")) == (True, False, False)
    assert ada.may_steer("olga")
    assert not ada.may_fetch("olga")


def test_certificates_that_do_not_hold_are_named(pages: Pages, tmp_path: Path) -> None:
    logins = _logins(pages)
    with pytest.raises(ChoraleError, match="showed no certificate"):
        logins.login(None)
    with pytest.raises(ChoraleError, match="role"):
        logins.login(pages.certificates["north"])
    foreign = Ceremony(folder=tmp_path / "foreign").enroll(Role.OPERATOR, "olga")
    with pytest.raises(ChoraleError, match="authority"):
        logins.login(foreign.certificate_der)
    pages.now = datetime.now(UTC) + timedelta(days=5, minutes=1)
    with pytest.raises(ChoraleError, match="your certificate expired on .* ask the authority for a new one"):
        logins.login(pages.certificates["olga"])


def test_operator_who_left_the_roster_is_logged_out_at_once(pages: Pages) -> None:
    olga, petra = pages.logged_in("olga"), pages.logged_in("petra")
    pages.ceremony.publish(without=("olga",))
    assert olga.get("/").status_code == 303
    page = olga.get("/login")
    assert page.status_code == 403
    assert "does not hold operator olga with this certificate" in page.text
    assert olga.post("/login/certificate", headers={"origin": URL}).status_code == 403
    assert petra.get("/").status_code == 200


def test_admin_who_is_none_any_more_has_the_rights_of_a_new_login(pages: Pages) -> None:
    ada = pages.logged_in("ada")
    pages.ceremony.publish()
    assert ada.get("/").status_code == 303


def test_expired_roster_lets_nobody_in(pages: Pages) -> None:
    olga = pages.logged_in("olga")
    pages.ceremony.publish(issued=datetime.now(UTC) - timedelta(days=6))
    assert olga.get("/").status_code == 303
    assert "expired" in olga.get("/login").text


def test_roster_that_expires_while_the_console_runs_lets_nobody_in(pages: Pages) -> None:
    lasting = pages.ceremony.enroll(Role.OPERATOR, "long", days=8).certificate_der
    pages.ceremony.publish()
    assert _logins(pages).login(lasting).name == "long"
    pages.now = datetime.now(UTC) + timedelta(days=6)
    with pytest.raises(ChoraleError, match="roster: version 2 expired"):
        _logins(pages).login(lasting)
