"""A silo's own page: who gets in, what is shown, what its forms do; each attack beside its control."""

from __future__ import annotations

import hashlib
from contextlib import closing
from html import unescape
from pathlib import Path

import pytest

from chorale.runtime.audit import AuditLog
from cli.silo.screen import screen
from crypto.errors import ConfigError
from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.training.data.settings import DataSettings
from tests.support.desk import URL, Desk
from tests.support.pages import csrf
from web.silo_page.app import run

OWN = {"origin": URL}
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_printed_address_logs_one_browser_in_once(desk: Desk) -> None:
    address = desk.silo.address
    stranger = desk.browser()
    assert stranger.get("/").status_code == 403
    assert stranger.get("/login?token=").status_code == 403
    assert stranger.get("/login?token=wrong").status_code == 403
    browser = desk.browser()
    answer = browser.get(address)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "token" not in browser.get("/").text
    again = stranger.get(address)
    assert again.status_code == 403
    assert "was used already" in again.text
    assert stranger.get("/login?token=").status_code == 403  # not even the empty one
    desk.seconds += 1801
    assert browser.get("/").status_code == 403


def test_person_reads_the_screen_and_approves_by_name(desk: Desk) -> None:
    browser = desk.logged_in()
    assert "waits for approval" in browser.get("/").text
    html = browser.get(desk.job).text
    with closing(Ledger(desk.settings.ledger_path)):
        lines = screen(desk.silo.view(desk.digest.hex()))
    assert len(lines) > 10
    for line in lines:
        assert line in unescape(html)
    done = browser.post(f"{desk.job}/approve", data=desk.form(browser, by="Petra K."), headers=OWN)
    assert (done.status_code, desk.decision) == (303, Decision.APPROVED)
    assert "approved" in browser.get("/").text


def test_page_reads_the_settings_as_they_are(desk: Desk) -> None:
    """An agent takes changed data settings while it runs; the page went on with those of its start."""
    browser = desk.logged_in()
    html = " ".join(unescape(browser.get(desk.job).text).split())
    assert "data set north-data" in html
    assert "own tests.support.one_hot:objective" in html  # it said `Chorale's own alone`
    assert isinstance(desk.settings.data, DataSettings)
    data = desk.settings.data.model_copy(update={"name": "wards"})
    desk.settings = desk.settings.model_copy(update={"data": data})
    assert "data set wards" in browser.get(desk.job).text
    assert "wards" in browser.get("/").text


def test_reason_of_a_rejection_is_kept_for_the_operator(desk: Desk) -> None:
    browser = desk.logged_in()
    form = desk.form(browser, by="Petra", reason="ask the ethics board first")
    too_long = browser.post(f"{desk.job}/reject", data={**form, "reason": "x" * 201}, headers=OWN)
    assert too_long.status_code == 409
    assert desk.decision is Decision.OFFERED
    assert browser.post(f"{desk.job}/reject", data=form, headers=OWN).status_code == 303
    assert desk.decision is Decision.REJECTED
    with closing(Ledger(desk.settings.ledger_path)) as ledger:
        (said,) = ledger.decisions().of(desk.digest)
    assert (said.by, said.reason) == ("Petra", "ask the ethics board first")


def test_two_people_are_two_names(tmp_path: Path) -> None:
    desk = Desk(tmp_path, required_approvals=2)
    browser = desk.logged_in()
    assert browser.post(f"{desk.job}/approve", data=desk.form(browser, by="Petra"), headers=OWN).is_redirect
    assert desk.decision is Decision.OFFERED
    assert "approved by Petra; another person" in browser.get("/").text
    again = browser.post(f"{desk.job}/approve", data=desk.form(browser, by="petra"), headers=OWN)
    assert again.status_code == 409
    assert desk.decision is Decision.OFFERED
    assert browser.post(f"{desk.job}/approve", data=desk.form(browser, by="Otto"), headers=OWN).is_redirect
    assert desk.decision is Decision.APPROVED


def test_approval_holds_for_what_was_read_alone(desk: Desk) -> None:
    """A page that lay open while the policy changed."""
    browser = desk.logged_in()
    form = desk.form(browser, by="Petra")
    desk.policy(required_approvals=2)
    answer = browser.post(f"{desk.job}/approve", data=form, headers=OWN)
    assert answer.status_code == 409
    assert "has changed since you read it" in answer.text
    for seen in ("", "0" * 64):
        assert (
            browser.post(f"{desk.job}/approve", data={**form, "seen": seen}, headers=OWN).status_code == 409
        )
    desk.policy()
    assert browser.post(f"{desk.job}/approve", data=form, headers=OWN).is_redirect


def test_job_that_is_over_waits_for_nobody(desk: Desk) -> None:
    """It stood there as `waits for approval` for good, with a button."""
    browser = desk.logged_in()
    with closing(Ledger(desk.settings.ledger_path)) as ledger:
        ledger.note_over(desk.digest)
    for page in ("/", desk.job):
        html = browser.get(page).text
        assert "waits for approval" not in html
        assert "over (says the coordinator)" in html
    assert f"{desk.job}/approve" not in html
    assert f"{desk.job}/reject" not in html
    for way in ("approve", "reject"):
        form = desk.form(browser, by="Petra", reason="no")
        answer = browser.post(f"{desk.job}/{way}", data=form, headers=OWN)
        assert (answer.status_code, desk.decision) == (409, Decision.OFFERED)


def test_approval_of_a_job_that_is_over_can_be_taken_back(desk: Desk) -> None:
    """The coordinator alone says that it is over, and the approval would hold if it offered the job again."""
    browser = desk.logged_in()
    assert browser.post(f"{desk.job}/approve", data=desk.form(browser, by="Petra"), headers=OWN).is_redirect
    with closing(Ledger(desk.settings.ledger_path)) as ledger:
        ledger.note_over(desk.digest)
    html = browser.get(desk.job).text
    assert "Take back the approval of" in html
    assert "Reject" not in html
    form = desk.form(browser, by="Petra", reason="no")
    assert browser.post(f"{desk.job}/reject", data=form, headers=OWN).is_redirect
    assert desk.decision is Decision.REJECTED


def test_job_that_would_be_refused_has_no_button_and_no_way_around(tmp_path: Path) -> None:
    desk = Desk(tmp_path, max_rounds=1)
    browser = desk.logged_in()
    assert f"{desk.job}/approve" not in browser.get(desk.job).text
    seen = desk.form(browser)["seen"]
    form = {"csrf": csrf(browser, desk.job), "seen": seen, "by": "Petra"}
    assert browser.post(f"{desk.job}/approve", data=form, headers=OWN).status_code == 409
    assert desk.decision is Decision.OFFERED


def test_forms_of_other_pages_decide_nothing(desk: Desk) -> None:
    browser = desk.logged_in()
    form = desk.form(browser, by="Petra", reason="no")
    for action in ("approve", "reject"):
        for headers, csrf_token in (
            ({"origin": "http://127.0.0.1:9090"}, form["csrf"]),  # another server of this machine
            ({"origin": "null"}, form["csrf"]),
            ({}, form["csrf"]),
            (OWN, ""),
        ):
            answer = browser.post(f"{desk.job}/{action}", data={**form, "csrf": csrf_token}, headers=headers)
            assert answer.status_code == 403
        assert browser.get(f"{desk.job}/{action}").status_code == 405
    assert desk.decision is Decision.OFFERED
    stranger = desk.browser()
    assert stranger.post(f"{desk.job}/approve", data=form, headers=OWN).status_code == 403
    assert desk.decision is Decision.OFFERED
    assert browser.post(f"{desk.job}/reject", data=form, headers=OWN).is_redirect


def test_page_answers_to_its_own_address_alone(desk: Desk) -> None:
    """DNS rebinding: evil.example resolves to 127.0.0.1."""
    for url in ("http://evil.example:8080", "http://localhost:8080", "http://127.0.0.1:9090"):
        answer = desk.browser(url).get(f"/login?token={desk.silo.token}")
        assert answer.status_code == 421
    assert desk.logged_in().get("/").status_code == 200  # the token is still good


def test_texts_of_audit_log_and_job_are_text(desk: Desk) -> None:
    job = desk.digest.hex()
    with closing(AuditLog(desk.settings.audit_path)) as audit:
        entry = {"job": job, "round": 1, "phase": SCRIPT}
        audit.append("refused", **entry, code="policy", reason=f"max_rounds {SCRIPT}")
        audit.append("refused", **entry, code="job-not-approved", reason="not yet")
        audit.append(REVEALED_EVENT, **entry, cohort="00", survivors=["south", SCRIPT])
    html = desk.logged_in().get("/").text
    assert SCRIPT not in html
    assert "max_rounds &lt;script&gt;" in html
    assert "not yet" not in html  # what waits for a person is not refused
    assert "south, &lt;script&gt;" in html


def test_damaged_audit_log_is_told_in_a_sentence(desk: Desk) -> None:
    with closing(AuditLog(desk.settings.audit_path)) as audit:
        audit.append("refused", job="a", round=1, phase="train", code="policy", reason="no")
    data = desk.settings.audit_path.read_bytes()
    desk.settings.audit_path.write_bytes(data.replace(b'"no"', b'"on"') + data)
    answer = desk.logged_in().get("/")
    assert answer.status_code == 409
    assert "audit" in answer.text


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "10.1.2.3:80", "example.org:80"])
def test_page_listens_on_this_machine_alone(desk: Desk, listen: str) -> None:
    with pytest.raises(ConfigError, match="--listen: expected an address of this machine alone"):
        run(
            lambda: desk.settings,
            listen=listen,
            open_ledger=desk.silo.open_ledger,
            screen=screen,
            say=lambda _line: None,
        )


def test_unknown_job_and_half_an_id_are_told(desk: Desk) -> None:
    browser = desk.logged_in()
    for job_id in ("0" * 64, desk.digest.hex()[:12], "..%2f.."):
        assert browser.get(f"/jobs/{job_id}").status_code in (404, 409)
    assert browser.get(desk.job).status_code == 200


def test_page_gives_the_job_as_it_was_signed(desk: Desk) -> None:
    browser = desk.logged_in()
    assert f'href="{desk.job}/job.yaml"' in browser.get(desk.job).text
    answer = browser.get(f"{desk.job}/job.yaml")
    assert hashlib.sha256(answer.content).digest() == desk.digest
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert desk.browser().get(f"{desk.job}/job.yaml").status_code == 403
