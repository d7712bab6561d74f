"""Debian's Chromium, driven by Playwright: pages that must say nothing on their console, and pass axe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.support.programs import needed

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
SECONDS = 30.0


@dataclass(kw_only=True)
class Visit:
    """A browser of one person, and what its console said."""

    context: BrowserContext
    page: Page
    said: list[str] = field(default_factory=list)

    def listen(self) -> None:
        def hear(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.said.append(f"{message.type}: {message.text} at {message.location}")

        self.page.on("console", hear)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def screenshot(self, path: Path) -> None:
        self.page.screenshot(path=path, full_page=True)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=needed("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(
    browser: Browser,
    origin: str,
    *,
    certificate: tuple[Path, Path] | None = None,
    scheme: str = "light",
    size: dict[str, int] = DESKTOP,
    has_scripts: bool = True,
) -> Iterator[Visit]:
    """A person with this certificate and key, who trusts the page's own certificate."""
    shown: dict[str, Any] = {}
    if certificate is not None:
        paths = {"certPath": certificate[0], "keyPath": certificate[1]}
        shown["client_certificates"] = [{"origin": origin, **paths}]
    context = browser.new_context(
        ignore_https_errors=True,
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport=size,  # type: ignore[arg-type]
        java_script_enabled=has_scripts,
        **shown,
    )
    context.set_default_timeout(SECONDS * 1000)
    try:
        made = Visit(context=context, page=context.new_page())
        made.listen()
        yield made
    finally:
        context.close()


def serious(page: Page, axe: str) -> list[str]:
    """What axe-core finds on a page that is serious or critical. axe: its source."""
    page.evaluate(axe)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['help']} at {each['nodes'][0]['target']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
