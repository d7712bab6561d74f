"""Every page of console and silo page in every state, shown by a browser without a server.

What a browser asks for is answered by the application in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route
from starlette.testclient import TestClient

from chorale.runtime.audit import AuditLog
from chorale.v1 import operations_pb2 as pb
from chorale.v1.records_pb2 import Awaited, LeftOut, PhaseRecord
from client.evidence.verify import examine
from research.attacks.forged.scene import Scene
from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT
from tests.support import desk, large_federation, pages
from tests.support.desk import Desk
from tests.support.pages import JOB, Pages, ToldCoordinator, summary

LONG = "the-" + "very-" * 11 + "long"  # as long as a name may be: 63
SILOS, ROUNDS = 50, 500


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A page as a person comes to it. name: of its picture. status: of the answer."""

    name: str
    browser: TestClient
    path: str
    status: int = 200

    def open(self, page: Page) -> None:
        """In a browser, whose context is asked for nothing else."""
        origin = str(self.browser.base_url).rstrip("/")

        def answer(route: Route) -> None:
            if "text/event-stream" in route.request.headers.get("accept", ""):
                return route.fulfill(status=204)  # no news, and no reconnection
            parts = urlsplit(route.request.url)
            got = self.browser.get(f"{parts.path}?{parts.query}")
            return route.fulfill(status=got.status_code, headers=dict(got.headers), body=got.content)

        page.context.unroute_all()
        page.context.route("**/*", answer)
        got = page.goto(origin + self.path)
        assert got is not None
        assert got.status == self.status, (self.name, got.status)


def gallery(folder: Path) -> Iterator[Shown]:
    """All pages. folder: an empty one for their files."""
    yield from _console(folder / "console")
    yield from _silo(folder / "silo")


def _console(folder: Path) -> Iterator[Shown]:
    folder.mkdir(parents=True)
    coordinator = ToldCoordinator()
    console = Pages(folder=folder, coordinator=coordinator)
    nobody, olga = console.browser(), console.logged_in("olga")
    yield Shown(name="login-without-certificate", browser=nobody, path="/login")
    yield Shown(name="login", browser=console.browser("olga"), path="/login")
    yield Shown(name="login-refused", browser=console.browser("north"), path="/login", status=403)
    coordinator.silos, coordinator.has_jobs = [], False
    yield Shown(name="overview-empty", browser=olga, path="/")
    coordinator.has_jobs = True
    coordinator.silos = [*large_federation.silos().silos, pb.SiloStatus(name=LONG)]
    coordinator.summary = summary(
        silos=large_federation.NAMES,
        rounds=ROUNDS + 20,
        rounds_completed=ROUNDS,
        state="waiting for hospital-07, hospital-31",
        progress=f"round {ROUNDS + 1}, train: masked, 48 of 50",
        awaited=[Awaited(silo="hospital-07", why="loading torch"), Awaited(silo=LONG, why="connection")],
        submitted_unix_seconds=1_790_000_000.0,
        strategy="fedavg",
        float32_bytes=180_000,
        model_round=ROUNDS,
    )
    coordinator.records = [large_federation.record(pages.DIGEST, round) for round in range(1, ROUNDS + 1)]
    yield Shown(name="overview", browser=olga, path="/")
    yield Shown(name="job-running", browser=olga, path=JOB)
    yield Shown(name="job-others", browser=console.logged_in("ada"), path=JOB)
    yield Shown(name="rounds", browser=olga, path=f"{JOB}/rounds")
    refused = [
        LeftOut(silo=LONG, stage="waiting", reason="rejected", text="the ethics board meets in May " * 6),
        LeftOut(silo="south", stage="waiting", reason="policy", rule="max_rounds"),
    ]
    coordinator.records = [
        PhaseRecord(phase="enrollment.0", result="used-up", reason="refused", attempts=5, left_out=refused)
    ]
    reason = f"refused by silos: {LONG} (rejected), south (policy: max_rounds)"
    coordinator.summary = summary(
        name=LONG, status="failed", state="failed", reason=reason, silos=[LONG, "south"], operator=LONG
    )
    yield Shown(name="job-failed", browser=olga, path=JOB)
    coordinator.summary, coordinator.records = summary(status="done", state="done", model_round=3), []
    held = examine(Scene(folder / "scene").honest().archive())
    coordinator.held = replace(held, notes=(f"silo {LONG} revealed round 3 train, which is called used-up",))
    yield Shown(name="job-done", browser=olga, path=JOB)
    yield Shown(name="proof", browser=olga, path=f"{JOB}/proof")
    yield Shown(name="lost", browser=olga, path="/nowhere", status=404)


def _silo(folder: Path) -> Iterator[Shown]:
    folder.mkdir(parents=True)
    silo = Desk(folder)
    browser = silo.logged_in()
    yield Shown(name="silo-refused", browser=silo.browser(), path="/", status=403)
    yield Shown(name="silo-jobs-nothing-sent", browser=browser, path="/")
    yield Shown(name="silo-job-waiting", browser=browser, path=silo.job)
    with closing(AuditLog(silo.settings.audit_path)) as log:
        for round in range(1, 121):
            about = {"job": silo.digest.hex(), "round": round, "phase": "train"}
            log.append(REVEALED_EVENT, **about, survivors=["north", "south", LONG])
            if round % 40 == 0:
                log.append("refused", **about, code="budget", reason="epsilon 8.1 of 8 would be spent")
    form = silo.form(browser, by="Petra")
    assert browser.post(f"{silo.job}/approve", data=form, headers={"origin": desk.URL}).status_code == 303
    yield Shown(name="silo-jobs", browser=browser, path="/")
    yield Shown(name="silo-job-approved", browser=browser, path=silo.job)
