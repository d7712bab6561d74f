"""Starting and stopping an agent, and every reason not to start."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chorale.observability import logs
from chorale.runtime.audit import AuditLog
from crypto.errors import ConfigError
from crypto.identity.certificates import Role
from silo_agent.agent import run_agent
from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT
from silo_agent.settings import SiloSettings
from silo_agent.start import AgentFailed
from tests.support.ceremony import Ceremony
from tests.support.settings import silo_settings

MakeSettings = Callable[..., SiloSettings]


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    """Settings of silo clinic-a, whose coordinator does not run."""
    ceremony = Ceremony(folder=tmp_path / "members")
    for name in ("clinic-a", "clinic-b"):
        ceremony.enroll(Role.SILO, name)
    ceremony.enroll(Role.OPERATOR, "clinic-a")
    policy = tmp_path / "policy.yaml"
    policy.write_text("federation: test\n...\n")

    def make(member: tuple[Role, str] = (Role.SILO, "clinic-a"), **changes: Any) -> SiloSettings:
        files = {"certificate": ceremony.path_of(*member, "crt"), "key": ceremony.path_of(*member, "key")}
        values = {"name": "clinic-a", "identity": files, "authority": ceremony.certificate_path}
        return silo_settings(tmp_path, **values | {"policy": policy} | changes)

    return make


@asynccontextmanager
async def started(settings: SiloSettings) -> AsyncIterator[Path]:
    """An agent that runs, until SIGTERM stops it; where it says its addresses."""
    endpoint = settings.directory / "endpoint.json"
    endpoint.unlink(missing_ok=True)
    running = asyncio.ensure_future(run_agent(settings))
    while not endpoint.exists() and not running.done():
        await asyncio.sleep(0)
    yield endpoint
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.shield(running), 20)


async def test_an_agent_serves_probes_while_it_dials_and_stops_on_sigterm(
    make_settings: MakeSettings,
) -> None:
    async with started(make_settings()) as endpoint:
        address = json.loads(endpoint.read_text())["metrics"]
        assert await asyncio.to_thread(status, f"http://{address}/livez") == 200
        assert await asyncio.to_thread(status, f"http://{address}/readyz") == 503


async def test_a_policy_with_another_delta_than_the_account_is_refused(make_settings: MakeSettings) -> None:
    settings = make_settings()
    for delta in ("1.0e-6", "1.0e-6"):  # the control: a second start with the same one
        settings.policy.write_text(f"federation: test\nprivacy:\n  delta: {delta}\n...\n")
        async with started(settings):
            pass
    settings.policy.write_text("federation: test\n...\n")
    sentence = "expected that of account data, 1e-06, .* got 1e-05: set it back, or change the account's"
    with pytest.raises(ConfigError, match=sentence):
        await run_agent(settings)


async def test_a_directory_in_use_is_refused(make_settings: MakeSettings) -> None:
    settings = make_settings()
    settings.directory.mkdir(mode=0o700)
    with (settings.directory / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AgentFailed, match=f"another agent is running in {settings.directory}"):
            await run_agent(settings)


async def test_more_devices_than_gpus_are_refused_before_any_job(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found out when the first job trained."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ConfigError, match="^devices: 2 are set, torch finds 1 GPUs on this machine$"):
        await run_agent(make_settings(devices=2))


async def test_an_agent_of_several_devices_says_what_private_jobs_use_and_clears_what_a_killed_one_left(
    make_settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings(devices=2, device="cpu")
    settings.directory.mkdir(mode=0o700)
    left = settings.processes_directory / "folder" / "error-0.json"
    left.parent.mkdir(parents=True)
    left.touch()
    logs.configure(silo=settings.name)
    async with started(settings):
        pass
    assert "private jobs train in one process" in capsys.readouterr().err
    assert not settings.processes_directory.exists()


async def test_a_metrics_port_in_use_is_one_clear_line(make_settings: MakeSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AgentFailed, match=f"metrics: cannot listen on {address}"):
            await run_agent(make_settings(metrics_listen=address))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"member": (Role.SILO, "clinic-b")}, "expected a certificate of silo clinic-a, got clinic-b"),
        ({"member": (Role.OPERATOR, "clinic-a")}, "own certificate"),
        ({"federation": "elsewhere"}, "own certificate"),
        ({"authority": Path("nowhere.crt")}, "nowhere.crt"),
        ({"policy": Path("nowhere.yaml")}, "nowhere.yaml"),
    ],
)
async def test_files_that_do_not_fit_are_named_before_anything_is_opened(
    make_settings: MakeSettings, changes: dict[str, Any], words: str
) -> None:

    settings = make_settings(**changes)
    with pytest.raises(ConfigError, match=words):
        await run_agent(settings)
    assert not settings.directory.exists()


async def test_a_policy_of_another_federation_is_refused(make_settings: MakeSettings, tmp_path: Path) -> None:
    policy = tmp_path / "other.yaml"
    policy.write_text("federation: elsewhere\n...\n")
    with pytest.raises(ConfigError, match="federation: expected test, got elsewhere"):
        await run_agent(make_settings(policy=policy))


async def test_a_ledger_that_lost_a_reveal_does_not_serve(make_settings: MakeSettings) -> None:
    settings = make_settings()
    settings.directory.mkdir(mode=0o700)
    log = AuditLog(settings.audit_path)
    log.append(REVEALED_EVENT, job="a" * 64, round=1, phase="train", cohort="c" * 64)
    log.close()
    with pytest.raises(ConfigError, match="was the ledger put back from a backup"):
        await run_agent(settings)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
