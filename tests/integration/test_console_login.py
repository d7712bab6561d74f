"""Login by an OpenID Connect provider: npm's oidc-provider, on loopback, with people of four kinds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.support import programs
from tests.support.browser import chromium, visit
from tests.support.console import ConsoleProcess
from tests.support.federation import OPERATOR, LocalFederation
from tests.support.large_federation import large_federation
from tests.support.node import WANTED, modules
from tests.support.ports import free_ports

CLIENT = "chorale-console"


@contextmanager
def _provider(port: int, redirect: str, log: Path) -> Iterator[None]:
    """Until it says that it serves."""
    command = [programs.needed("node"), WANTED / "provider.mjs", modules(), str(port), CLIENT, redirect]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            assert process.stdout is not None
            assert b"provider serves" in process.stdout.readline(), log.read_text()
            yield
        finally:
            process.kill()
            process.communicate()


def _log_in(page: Page, console: ConsoleProcess, subject: str) -> None:
    page.goto(console.url)
    page.get_by_role("link", name="Log in with your institution's account").click()
    page.locator("input[name=login]").fill(subject)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Continue").click()


@pytest.mark.gate
def test_provider_says_who_comes_in_and_roles_what_they_may(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    federation = LocalFederation(folder=tmp_path, silos=3)
    oidc = {
        "issuer": f"http://127.0.0.1:{port}",
        "client_id": CLIENT,
        "scope": "openid profile",
        "roles": {"chorale-operators": "operator", "chorale-viewers": "viewer"},
        "operators": {"sub-olga": OPERATOR},
    }
    console = ConsoleProcess(federation=federation, settings={"roster": None, "oidc": oidc})
    with federation, large_federation(federation) as job, chromium() as browser:
        console.start()
        with _provider(port, f"{console.url}/login/oidc/callback", tmp_path / "provider.log"):
            with visit(browser, console.url) as olga:
                _log_in(olga.page, console, "sub-olga")
                expect(olga.page.get_by_text("Olga O., operator")).to_be_visible()
                olga.page.get_by_role("link", name=job.name).click()
                expect(olga.page.get_by_text("Cancel this job")).to_be_visible()
                used = urlsplit(olga.page.url)
            with visit(browser, console.url) as vera:
                _log_in(vera.page, console, "sub-vera")
                expect(vera.page.get_by_text("Vera V., viewer")).to_be_visible()
                vera.page.goto(console.url + used.path)
                expect(vera.page.get_by_role("status")).to_be_visible()
                assert vera.page.get_by_text("Cancel this job").count() == 0
            with visit(browser, console.url) as nobody:
                _log_in(nobody.page, console, "sub-nobody")
                expect(nobody.page.locator("main")).to_contain_text("your login has no role here")
                nobody.page.goto(console.url)
                assert nobody.page.url == f"{console.url}/login?next=/"
            with visit(browser, console.url) as thief:  # a way back that this browser did not begin
                thief.page.goto(f"{console.url}/login/oidc/callback?code=abc&state=abc")
                expect(thief.page.locator("main")).to_contain_text("No login was begun here")
                thief.page.goto(f"{console.url}/login")
                thief.page.get_by_role("link", name="Log in with your institution's account").click()
                thief.page.goto(f"{console.url}/login/oidc/callback?code=abc&state=of-another")
                expect(thief.page.locator("main")).to_contain_text("mismatching_state")
        # the provider's own pages lack an icon and load a font from elsewhere
        others = (f"127.0.0.1:{port}/", "fonts.googleapis.com")
        assert [line for line in olga.said + vera.said if not any(each in line for each in others)] == []
