"""SIGTERM: exit code 0, and the job resumes when the process comes back. Source: docs/protocol.md 8."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import MakeFederation
from tests.support import one_hot
from tests.support.history import check_finished
from tests.support.processes import wait_until

VICTIM = "silo-1"


def test_silos_come_back_when_the_coordinator_was_stopped_and_started(
    make_federation: MakeFederation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    federation = make_federation(env={one_hot.GATE: str(gate)})
    federation.start()
    job_id = federation.submit()
    federation.hub.wait_for(lambda line: line.get("state") == "waiting" and line["round"] == 1)

    assert federation.hub.stop() == 0, federation.hub.tail()

    assert "stopped" in [line["event"] for line in federation.hub.records()]
    gate.unlink()
    federation.start_coordinator()
    history = check_finished(federation, job_id)
    assert history.cohorts() == [federation.names, federation.names]


def test_job_goes_on_when_a_silo_was_stopped_while_training(
    make_federation: MakeFederation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    federation = make_federation(env={one_hot.GATE: str(gate)})
    federation.start()
    job_id = federation.submit()
    federation.hub.wait_for(lambda line: line.get("state") == "waiting" and line["round"] == 1)

    assert federation.services[VICTIM].stop() == 0, federation.services[VICTIM].tail()

    gate.unlink()
    federation.start_silo(VICTIM)
    history = check_finished(federation, job_id)
    assert history.cohorts() == [federation.names, federation.names]


def test_coordinator_and_silos_stop_cleanly_when_nothing_runs(make_federation: MakeFederation) -> None:
    federation = make_federation(silos=3)
    federation.start()
    federation.wait_connected()
    codes = {service.name: service.stop() for service in federation.services.values()}
    assert codes == dict.fromkeys(federation.services, 0)


@pytest.mark.parametrize("is_required", [False, True])  # loaded by a thread, or by another process
def test_a_silo_stops_cleanly_while_what_jobs_need_is_loaded(
    make_federation: MakeFederation, tmp_path: Path, is_required: bool
) -> None:
    """Python waits for its threads, and importing torch may take half a minute."""
    silo = {"objective": "tests.support.one_hot:unloadable_objective"}
    policy = {"privacy": {"required": is_required}}
    federation = make_federation(silos=3, silo=silo, policy=policy, env={one_hot.RECORD: str(tmp_path)})
    federation.start_coordinator()
    service = federation.start_silo(VICTIM)
    wait_until((tmp_path / one_hot.LOADING).exists, "the objective", detail=service.tail)
    assert federation.scrape(VICTIM)["chorale_silo_connected"] == 1
    others = psutil.Process(service.process.pid).children(recursive=True)

    assert service.stop() == 0, service.tail()

    assert service.records()[-1]["event"] == "stopped"
    assert len(others) > 0 or not is_required
    psutil.wait_procs(others, 60)
    assert [each for each in others if each.is_running()] == []
