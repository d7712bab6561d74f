"""The console's application with a coordinator that says what a test wants, and browsers without a screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import yaml
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from chorale.job import SignedJob
from chorale.v1 import operations_pb2 as pb
from chorale.v1.records_pb2 import JobSummary, PhaseRecord
from client.evidence.verify import Verified
from client.history import JobHistory
from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony
from web.console.app import Console, application
from web.console.coordinator import Coordinator, Overview, Watched
from web.console.logins import CertificateLogins
from web.console.server import IDLE_SECONDS, LONGEST_SECONDS
from web.console.settings import ConsoleSettings
from web.console.under_way import LoginsUnderWay
from web.shared.serving import CERTIFICATE
from web.shared.sessions import Sessions

URL = "https://console.example:8443"
SPEC = yaml.safe_dump({"name": "one", "strategy": {"name": "fedavg"}, "silos": ["north"]}).encode()
DIGEST = SignedJob(spec_bytes=SPEC, signature=b"", operator_certificate=b"").digest
JOB = f"/jobs/{DIGEST.hex()}"


def summary(**fields: Any) -> JobSummary:
    """A job of operator olga that runs."""
    defaults: dict[str, Any] = {"name": "one", "status": "running", "state": "running", "operator": "olga"}
    return JobSummary(
        job_digest=DIGEST,
        **{**defaults, "rounds": 3, "silos": ["north"], "main_figure": "accuracy", **fields},
    )


def record(round: int, **fields: Any) -> PhaseRecord:
    defaults = {"phase": "train", "result": "applied", "cohort": ["north"], "figures": {"accuracy": 0.5}}
    return PhaseRecord(job_digest=DIGEST, round=round, **{**defaults, **fields})


@dataclass(kw_only=True)
class ToldCoordinator:
    """Says what it was given. cancelled: what it was asked to cancel."""

    own_name: str = "olga"
    silos: list[pb.SiloStatus] = field(default_factory=lambda: [pb.SiloStatus(name="north")])
    summary: JobSummary = field(default_factory=summary)
    spec: bytes = SPEC
    has_jobs: bool = True
    records: list[PhaseRecord] = field(default_factory=lambda: [record(1)])
    cancelled: list[bytes] = field(default_factory=list)
    held: Verified | None = None  # what evidence proves

    async def overview(self) -> Overview:
        return Overview(
            silos=pb.ListSilosReply(silos=self.silos), jobs=(self.summary,) * self.has_jobs, seen={}
        )

    async def job(self, job_id: str) -> JobSummary | None:
        return self.summary if job_id == self.summary.job_digest.hex() else None

    @asynccontextmanager
    async def watched(self, digest: bytes) -> AsyncIterator[Watched]:
        signed = SignedJob(spec_bytes=self.spec, signature=b"", operator_certificate=b"")
        yield Watched(
            digest=signed.digest,
            history=JobHistory(signed=signed, summary=self.summary, records=self.records),
        )

    async def cancel(self, digest: bytes) -> JobSummary:
        self.cancelled.append(digest)
        return self.summary

    async def evidence(self, digest: bytes) -> bytes:
        return b"evidence"

    async def proof(self, digest: bytes) -> Verified:
        assert self.held is not None
        return self.held

    async def model(self, digest: bytes) -> AsyncIterator[bytes]:
        async def parts() -> AsyncIterator[bytes]:
            yield b"model"

        return parts()


class Showing:
    """The application behind a connection that showed this certificate."""

    def __init__(self, app: Any, der: bytes | None) -> None:
        self._app = app
        self.der = der

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "state": {CERTIFICATE: self.der}}
        await self._app(scope, receive, send)


@dataclass(kw_only=True)
class Pages:
    """A console in this process: operators olga and petra, an admin ada, and a clock that a test moves."""

    folder: Path
    coordinator: ToldCoordinator = field(default_factory=ToldCoordinator)
    seconds: float = 0.0
    now: datetime | None = None

    def __post_init__(self) -> None:
        self.ceremony = Ceremony(folder=self.folder)
        self.certificates = {
            name: self.ceremony.enroll(Role.OPERATOR, name).certificate_der
            for name in ("olga", "petra", "ada")
        }
        self.certificates["north"] = self.ceremony.enroll(Role.SILO, "north").certificate_der
        self.ceremony.publish(admins=("ada",))
        identity = {"certificate": "none", "key": "none"}
        self.settings = ConsoleSettings.model_validate(
            {
                "federation": self.ceremony.federation,
                "coordinator": "127.0.0.1:1",
                "identity": identity,
                "tls": identity,
                "authority": self.ceremony.certificate_path,
                "roster": self.ceremony.roster_path,
                "url": URL,
            }
        )
        self.sessions: Sessions[Any] = Sessions(
            clock=lambda: self.seconds,
            idle_seconds=IDLE_SECONDS,
            longest_seconds=LONGEST_SECONDS,
            cookie="__Host-chorale",
        )
        self.console = Console(
            settings=self.settings,
            coordinator=cast(Coordinator, self.coordinator),
            certificates=CertificateLogins(
                federation=self.ceremony.federation,
                authority=self.ceremony.certificate_path,
                roster=self.ceremony.roster_path,
                clock=lambda: self.now or datetime.now(UTC),
            ),
            provider=None,
            sessions=self.sessions,
            under_way=LoginsUnderWay(clock=lambda: self.seconds),
            stopping=asyncio.Event(),
        )
        self.app = application(self.console)

    def browser(self, name: str | None = None, *, url: str = URL) -> TestClient:
        """A browser that shows the certificate of this member; it is not logged in."""
        shown = Showing(self.app, None if name is None else self.certificates[name])
        return TestClient(shown, base_url=url, follow_redirects=False)

    def logged_in(self, name: str) -> TestClient:
        browser = self.browser(name)
        assert browser.post("/login/certificate", headers={"origin": URL}).status_code == 303
        return browser


def csrf(browser: TestClient, path: str = "/") -> str:
    """The token of the forms on a page."""
    return browser.get(path).text.partition('name="csrf" value="')[2].partition('"')[0]
