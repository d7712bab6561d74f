"""The operators' console in Debian's Chromium, over a federation of real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from chorale.spec.model_file import read_model
from crypto.identity.certificates import Role
from tests.support.browser import DESKTOP, PHONE, chromium, serious, visit
from tests.support.console import CONSOLE, ConsoleProcess
from tests.support.federation import LocalFederation
from tests.support.large_federation import large_federation
from tests.support.node import axe
from tests.support.processes import run_cli

PAINT = os.environ.get("PAINT")
LOOKS = [
    ("desktop", "light", DESKTOP),
    ("desktop", "dark", DESKTOP),
    ("phone", "light", PHONE),
    ("phone", "dark", PHONE),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def _log_in(page: Page, console: ConsoleProcess, name: str) -> None:
    page.goto(console.url)
    page.get_by_role("button", name=f"Log in as operator {name}").click()
    expect(page.get_by_role("heading", name="Federation test")).to_be_visible()


def _federation(folder: Path, **fields: Any) -> LocalFederation:
    federation = LocalFederation(folder=folder, silos=3, **fields)
    for name in ("petra", "late"):
        past = datetime.now(UTC) - timedelta(days=9)
        when = {"now": past, "days": 2} if name == "late" else {}
        federation.ceremony.enroll(Role.OPERATOR, name, **when)
    federation.ceremony.publish()
    return federation


def test_operator_sees_a_job_from_submission_to_its_end(tmp_path: Path, browser: Browser) -> None:
    """Without a reload, and with nothing on the browser's console."""
    with _federation(tmp_path) as federation:
        federation.start()
        federation.wait_connected()
        console = ConsoleProcess(federation=federation)
        console.start()
        with visit(browser, console.url, certificate=console.files_of("ops")) as person:
            page = person.page
            _log_in(page, console, "ops")
            expect(page.get_by_role("row", name="silo-2 connected")).to_be_visible()
            job_id = federation.submit(rounds=4)
            page.get_by_role("row", name=f"one-hot {job_id}").get_by_role("link").click()
            expect(page.get_by_role("row", name="evaluate")).to_be_visible()
            expect(page.get_by_role("status")).to_contain_text("done")
            expect(page.locator("svg.curve").first).to_be_visible()
            with page.expect_download() as loading:
                page.get_by_role("link", name="model.safetensors").click()
            assert "model/votes" in read_model(loading.value.path())[0]
            with page.expect_download() as loading:
                page.get_by_role("link", name="evidence.zip").click()
            assert run_cli("evidence", "verify", loading.value.path()).returncode == 0
            assert serious(page, axe()) == []
            page.get_by_role("link", name="What it proves").click()
            expect(page.locator("main")).to_contain_text("6, in order and without a gap")
            expect(page.locator("main")).to_contain_text("which chain and agree with the phases")
        assert person.said == []
        assert federation.services[CONSOLE].stop() == 0


@pytest.mark.gate
def test_operator_cancels_and_sees_a_silo_go_and_come_back(tmp_path: Path, browser: Browser) -> None:
    with _federation(tmp_path) as federation:
        federation.start()
        federation.wait_connected()
        console = ConsoleProcess(federation=federation)
        console.start()
        with (
            visit(browser, console.url, certificate=console.files_of("ops")) as own,
            visit(browser, console.url, certificate=console.files_of("petra")) as other,
        ):
            _log_in(own.page, console, "ops")
            federation.services["silo-1"].kill()
            expect(own.page.get_by_role("row", name="silo-1 away")).to_be_visible()
            job_id = federation.submit(rounds=2)
            path = f"{console.url}/jobs/"
            own.page.get_by_role("link", name="one-hot").click()
            expect(own.page.locator("#live")).to_contain_text("silo-1")  # who is waited for
            _log_in(other.page, console, "petra")
            other.page.goto(own.page.url)
            assert other.page.url.startswith(path + job_id)
            assert other.page.get_by_text("Cancel this job").count() == 0
            federation.start_silo("silo-1")
            expect(own.page.get_by_role("row", name="evaluate")).to_be_visible()
            federation.services["silo-2"].kill()
            federation.services["silo-1"].kill()
            federation.submit(rounds=3)
            own.page.goto(console.url)
            own.page.get_by_role("row", name="running").get_by_role("link").click()
            own.page.get_by_text("Cancel this job").click()
            own.page.get_by_role("button", name="Cancel one-hot").click()
            expect(own.page.get_by_role("status")).to_contain_text("cancelled")
        assert own.said + other.said == []


@pytest.mark.gate
def test_who_may_not_log_in_is_told_why(tmp_path: Path, browser: Browser) -> None:
    with _federation(tmp_path) as federation:
        federation.start_coordinator()
        federation.ceremony.enroll(Role.OPERATOR, "unlisted")
        unlisted = ConsoleProcess(federation=federation, operator="unlisted").start()
        assert unlisted.stop() == 0
        (refusal,) = [
            each for each in unlisted.records() if each["event"] == "coordinator refuses this console"
        ]
        assert "does not list this certificate of operator unlisted" in refusal["reason"]
        unlisted.log.unlink()
        console = ConsoleProcess(federation=federation)
        listed = console.start()
        assert [each["event"] for each in listed.records()] == ["console serves"]  # the control
        with visit(browser, console.url, certificate=console.files_of("late")) as late:
            late.page.goto(console.url)
            expect(late.page.locator("main")).to_contain_text("your certificate expired on")
            assert late.page.get_by_role("button").count() == 0
        with visit(browser, console.url) as nobody:
            nobody.page.goto(console.url)
            expect(nobody.page.locator("main")).to_contain_text("This browser showed no certificate")
            assert serious(nobody.page, axe()) == []
        assert nobody.said == []
        # the browser itself tells of the page's status 403
        assert [line for line in late.said if "403" not in line] == []


@pytest.mark.soak
def test_pages_are_read_without_scripts_on_a_phone_and_in_the_dark(tmp_path: Path, browser: Browser) -> None:
    """Of 50 silos and 500 rounds. PAINT names a file for when each page was first painted; test_pages.py has
    pictures."""
    figures: list[str] = []
    with _federation(tmp_path) as federation, large_federation(federation) as job:
        console = ConsoleProcess(federation=federation)
        console.start()
        path = f"{console.url}/jobs/{job.job_digest.hex()}"
        for device, scheme, size in LOOKS:
            files = console.files_of("ops")
            with visit(browser, console.url, certificate=files, scheme=scheme, size=size) as person:
                page = person.page
                _log_in(page, console, "ops")
                for name, address in (("overview", console.url), ("job", path), ("rounds", f"{path}/rounds")):
                    page.goto(address)
                    if name == "job":
                        expect(page.locator("svg.curve").first).to_be_visible()
                    figures.append(f"{name}, {device}, {scheme}: first paint after {_paint(page):.0f} ms")
                    assert serious(page, axe()) == [], (name, device, scheme)
                    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert person.said == []
        if PAINT:
            Path(PAINT).write_text("\n".join(figures) + "\n")
        with visit(browser, console.url, certificate=files, has_scripts=False) as reader:
            _log_in(reader.page, console, "ops")
            expect(reader.page.get_by_role("row", name="hospital-49")).to_be_visible()
            reader.page.get_by_role("link", name="heart-mlp").click()
            expect(reader.page.get_by_role("status")).to_contain_text("waiting for hospital-07, hospital-31")
            reader.page.get_by_role("link", name="All 500 phases").click()
            expect(reader.page.get_by_role("row", name="round 1/520")).to_be_visible()


def _paint(page: Page) -> float:
    """Milliseconds from the request to the first content on the screen."""
    return float(
        page.evaluate(
            """() => new Promise((tell) => new PerformanceObserver((list) => {
                const [paint] = list.getEntriesByName("first-contentful-paint");
                if (paint) tell(paint.startTime);
            }).observe({type: "paint", buffered: true}))"""
        )
    )
