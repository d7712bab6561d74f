"""A silo's own page in Debian's Chromium, beside real processes. SCREENSHOTS as in test_pages.py."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import DESKTOP, PHONE, chromium, serious, visit
from tests.support.console import ConsoleProcess
from tests.support.federation import LocalFederation
from tests.support.node import axe
from tests.support.processes import Service, run_cli, wait_until

SHOTS = os.environ.get("SCREENSHOTS")


def _page(federation: LocalFederation, silo: str) -> str:
    """The address that a page's process prints."""
    log = federation.folder / f"{silo}-page.log"
    arguments = ["silo", "page", "--config", str(federation.folder / f"{silo}.yaml")]
    federation.services[f"{silo}-page"] = Service(f"{silo}-page", arguments, log=log, extra_env={})
    wait_until(lambda: b"token=" in log.read_bytes(), "the page's address", detail=lambda: log.read_text())
    return log.read_text().strip()


def _shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@pytest.mark.soak  # 48 s
def test_institution_approves_and_rejects_and_operators_read_why(tmp_path: Path) -> None:
    policy = {"approval": "manual"}
    with LocalFederation(folder=tmp_path, silos=3, policy=policy) as federation, chromium() as browser:
        federation.start()
        federation.wait_connected()
        console = ConsoleProcess(federation=federation)
        console.start()
        job_id = federation.submit(rounds=2)
        address = _page(federation, "silo-0")
        with (
            visit(browser, address) as person,
            visit(browser, console.url, certificate=console.files_of("ops")) as operator,
        ):
            page, watched = person.page, operator.page
            watched.goto(console.url)
            watched.get_by_role("button", name="Log in as operator ops").click()
            watched.get_by_role("link", name="one-hot").click()
            expect(watched.get_by_role("status")).to_contain_text("waiting for approval at silo-0")
            page.goto(address)
            expect(page).to_have_url(re.compile(r":\d+/$"))  # the token is gone
            page.get_by_role("link", name="one-hot").click()
            assert serious(page, axe()) == []
            _shot(page, "silo-job-desktop-light")
            page.get_by_label("Your name, for ledger and audit log").first.fill("Petra")
            page.get_by_role("button", name="Approve one-hot").click()
            expect(page.get_by_role("status")).to_contain_text("approved")
            for name in ("silo-1", "silo-2"):
                config = tmp_path / f"{name}.yaml"
                done = run_cli("silo", "approve", "--config", config, "--by", "Otto", "--yes", job_id)
                assert done.returncode == 0, done.stderr
            expect(watched.get_by_role("row", name="evaluate")).to_be_visible()
            page.get_by_role("link", name="Jobs at silo-0").click()
            expect(page.get_by_role("row", name="train")).to_have_count(2)
            assert serious(page, axe()) == []
            _shot(page, "silo-jobs-desktop-light")
            page.emulate_media(color_scheme="dark")
            page.set_viewport_size(PHONE)  # type: ignore[arg-type]
            assert serious(page, axe()) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            _shot(page, "silo-jobs-phone-dark")
            page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
            federation.submit(rounds=3)
            waits = page.get_by_role("row", name="waits for approval")
            wait_until(
                lambda: page.reload() is not None and waits.count() == 1,
                "the second job",
                seconds=20.0,
                detail=lambda: page.inner_text("main"),
            )
            waits.get_by_role("link").click()
            _shot(page, "silo-job-desktop-dark")
            page.get_by_label("Your name, for ledger and audit log").last.fill("Petra")
            page.get_by_label("Reason").fill("the ethics board <b>meets</b> in May")
            page.get_by_role("button", name="Reject one-hot").click()
            expect(page.get_by_role("status")).to_contain_text("rejected")
            watched.goto(console.url)
            watched.get_by_role("row", name="one-hot").first.get_by_role("link").click()
            expect(watched.locator("main")).to_contain_text("the ethics board <b>meets</b> in May")
        assert person.said + operator.said == []
        assert federation.services["silo-0-page"].stop() == 0
