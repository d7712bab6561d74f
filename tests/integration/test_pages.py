"""Every page as a listener and a reader on a phone meet it, in Debian's Chromium.

SCREENSHOTS names a folder for pictures of each in four looks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from client.analysis.described import DescribedResults
from tests.support.browser import DESKTOP, PHONE, chromium, serious, visit
from tests.support.described import by_sex
from tests.support.gallery import gallery
from tests.support.node import axe
from web.report.analysis import analysis_page

SHOTS = os.environ.get("SCREENSHOTS")
LOOKS = [(device, scheme) for device in ("desktop", "phone") for scheme in ("light", "dark")]
# what a screen reader lists of a page: landmarks, headings, tables, pictures and what it speaks by itself
HEARD = re.compile(
    r"^ *- '?((?:banner|main|navigation|region|form|heading|table|img|status)"
    r"(?: \"(?:[^\"\\]|\\.)*\")?(?: \[level=\d\])?)",
    re.MULTILINE,
)
TOP = ["banner", "main"]
JOB_HEAD = [*TOP, 'navigation "Breadcrumb"', "heading NAME [level=1]", "status"]
PHASES = ['region "Phases"', 'table "Phases, the newest first"']
JOB_END = ['heading "The job as it was signed" [level=2]', 'heading "Downloads" [level=2]']
JOBS, SILOS = 'heading "Jobs" [level=2]', 'heading "Silos" [level=2]'
SILO_JOBS = [
    *TOP,
    'heading "Jobs at north" [level=1]',
    'heading "What was asked" [level=2]',
    'region "Jobs"',
    'table "Jobs, those that wait first"',
    'heading "Privacy budget" [level=2]',
    'region "Privacy budget"',
    'table "Epsilon by data set"',
    'heading "What was sent" [level=2]',
]
REFUSED = 'heading "What was refused, and why" [level=2]'
SCREEN = [*JOB_HEAD, 'region "What the job would do here"']
REJECT = ['heading "Reject" [level=2]', 'form "Reject"']
LOGIN = [*TOP, 'heading "Log in" [level=1]']
CHARTS = ['heading "Accuracy" [level=2]', "img CHART", 'heading "Loss" [level=2]', "img CHART"]
RUNNING = [
    *JOB_HEAD,
    'heading "Waited for" [level=2]',
    *CHARTS,
    'heading "The newest 25 of 500 phases" [level=2]',
    *PHASES,
    *JOB_END,
    'heading "Cancel" [level=2]',
]
LISTENED = {
    "login-without-certificate": LOGIN,
    "login": LOGIN,
    "login-refused": LOGIN,
    "overview-empty": [*TOP, 'heading "Federation test" [level=1]', JOBS, SILOS],
    "overview": [
        *TOP,
        'heading "Federation test" [level=1]',
        JOBS,
        'region "Jobs"',
        'table "Jobs, the newest first"',
        SILOS,
        'region "Silos"',
        'table "Silos, those away first"',
    ],
    "job-running": RUNNING,
    "job-others": RUNNING,
    "rounds": [*TOP, 'navigation "Breadcrumb"', 'heading "Phases of one" [level=1]', *PHASES],
    "job-failed": [*JOB_HEAD, 'heading "Phases" [level=2]', *PHASES, *JOB_END],
    "job-done": [*JOB_HEAD, 'heading "Phases" [level=2]', *JOB_END],
    "proof": [
        *TOP,
        'navigation "Breadcrumb"',
        'heading "What is proved of one" [level=1]',
        'heading "What could not be checked" [level=2]',
        'heading "What is not here" [level=2]',
    ],
    "lost": [*TOP, 'heading "Not found" [level=1]'],
    "silo-refused": [*TOP, 'heading "Silo north" [level=1]'],
    "silo-jobs-nothing-sent": [*SILO_JOBS, REFUSED],
    "silo-job-waiting": [*SCREEN, 'heading "Approve" [level=2]', 'form "Approve"', *REJECT],
    "silo-jobs": [
        *SILO_JOBS,
        'region "Sums"',
        'table "Sums, the newest first"',
        REFUSED,
        'region "Refusals"',
        'table "Refusals, the newest first"',
    ],
    "silo-job-approved": [*SCREEN, *REJECT],
}
OUT_OF_ORDER = "[...document.querySelectorAll('[tabindex]')].filter((e) => e.tabIndex > 0).length"
BETWEEN = (640, 700, 960, 1280)  # of what an institution approves by, no cell is out of sight
CUT = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"


def _heard(page: Page) -> list[str]:
    """Names of jobs and figures of charts are left out."""
    heard = HEARD.findall(page.locator("body").aria_snapshot())
    named = [re.sub(r'heading ".* [0-9a-f]{12}"', "heading NAME", each) for each in heard]
    return [re.sub(r'img ".* of the model after each round.*"', "img CHART", each) for each in named]


@pytest.mark.gate
def test_pages_are_heard_in_order_and_nothing_is_cut(tmp_path: Path) -> None:
    """In the order of headings and landmarks; light and dark; on a phone without a way to the side."""
    seen = set()
    with chromium() as browser, visit(browser, "") as person:
        page = person.page
        for shown in gallery(tmp_path):
            shown.open(page)
            assert _heard(page) == LISTENED[shown.name], shown.name
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.id") == "main"
            assert page.evaluate(OUT_OF_ORDER) == 0  # Tab goes as the page is read
            for device, scheme in LOOKS:
                page.set_viewport_size(DESKTOP if device == "desktop" else PHONE)  # type: ignore[arg-type]
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), shown.name
                if SHOTS:
                    person.screenshot(Path(SHOTS) / f"{shown.name}-{device}-{scheme}.png")
            # on a phone, in the dark: nothing has to be moved to be read, and tables are tables still
            assert page.evaluate(CUT) == 0, shown.name
            assert _heard(page) == LISTENED[shown.name], shown.name
            assert serious(page, axe()) == [], shown.name
            for width in BETWEEN if shown.name.startswith("silo-job-") else ():
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate(CUT) == 0, (shown.name, width)  # at 700 the ends of its lines were
            page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
            page.emulate_media(color_scheme="light")
            seen.add(shown.name)
    assert seen == LISTENED.keys()


@pytest.mark.gate
def test_results_of_an_analysis_are_heard_as_a_table_and_fit_a_phone(tmp_path: Path) -> None:
    path = tmp_path / "results.html"
    path.write_text(analysis_page(DescribedResults.of(*by_sex())))
    with chromium() as browser, visit(browser, "") as person:
        page = person.page
        page.goto(path.as_uri())
        for device, scheme in LOOKS:
            page.set_viewport_size(DESKTOP if device == "desktop" else PHONE)  # type: ignore[arg-type]
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert _heard(page) == [
                "main",
                'heading "Chorale: table-one" [level=1]',
                'region "Table 1"',
                'table "Table 1. table-one by sex: 172 records of 3 silos at most"',
                'heading "age (years)" [level=2]',
                'img "age (years): percent of records by part"',
                'heading "pain" [level=2]',
                'img "pain: percent of records by part"',
                'heading "What was shared" [level=2]',
            ]
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.evaluate(CUT) == 0
            assert serious(page, axe()) == []
        assert person.said == []
