"""A silo's own page in this process, beside a ledger with one job that waits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from starlette.testclient import TestClient

from chorale.job import Job
from chorale.spec.job_spec import JobSpec
from cli.silo.screen import screen
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.settings import SiloSettings
from simulation.engine import unsigned_job
from tests.support.pages import csrf
from web.shared.sessions import Sessions
from web.silo_page.app import SiloPage, application

HOST = "127.0.0.1:8080"
URL = f"http://{HOST}"
STATE = {"model/weight": np.zeros(1, np.float32)}


class Desk:
    """A silo whose ledger holds one job that waits."""

    def __init__(self, folder: Path, **policy: Any) -> None:
        self.folder = folder
        self.policy(**policy)
        files = {"certificate": "none", "key": "none"}
        self.settings = SiloSettings.model_validate(
            {
                "name": "north",
                "federation": "test",
                "coordinator": "127.0.0.1:1",
                "identity": files,
                "authority": "none",
                "directory": folder,
                "policy": folder / "policy.yaml",
                "data": {"format": "module", "module": "tests.support.one_hot:data", "name": "north-data"},
                "objective": "tests.support.one_hot:objective",
            }
        )
        spec = JobSpec.model_validate(
            {
                "name": "one",
                "federation": "test",
                "not_after": "2099-12-31T00:00:00Z",
                "silos": ["north", "south", "west"],
                "rounds": 3,
                "model": {"name": "custom"},
                "classes": 2,
                "input_shape": [2],
                "training": {"learning_rate": 0.1},
            }
        )
        made = unsigned_job(spec, STATE)
        self.digest = made.digest
        with closing(Ledger(self.settings.ledger_path)) as ledger:
            ledger.record_job(Job(spec=made.spec, signed=made.signed, operator="olga"), is_approved=False)
        self.seconds = 0.0
        self.silo = SiloPage(
            name=self.settings.name,
            read_settings=lambda: self.settings,
            open_ledger=lambda: Ledger(self.settings.ledger_path),
            screen=screen,
            host=HOST,
            sessions=Sessions(
                clock=lambda: self.seconds,
                idle_seconds=1800.0,
                longest_seconds=8 * 3600.0,
                cookie="chorale-silo-8080",
                is_secure=False,
            ),
        )

    def policy(self, **fields: Any) -> None:
        written = {"federation": "test", "initial_state": "given", **fields}
        (self.folder / "policy.yaml").write_text(yaml.safe_dump(written, explicit_end=True))

    @property
    def job(self) -> str:
        return f"/jobs/{self.digest.hex()}"

    @property
    def decision(self) -> Decision | None:
        with closing(Ledger(self.settings.ledger_path)) as ledger:
            return ledger.decision(self.digest)

    def browser(self, url: str = URL) -> TestClient:
        return TestClient(application(self.silo), base_url=url, follow_redirects=False)

    def logged_in(self) -> TestClient:
        browser = self.browser()
        assert browser.get(self.silo.address).status_code == 303
        return browser

    def form(self, browser: TestClient, **fields: str) -> dict[str, str]:
        """Of the job's page: its token, and what was seen."""
        html = browser.get(self.job).text
        seen = html.partition('name="seen" value="')[2].partition('"')[0]
        return {"csrf": csrf(browser, self.job), "seen": seen, **fields}
