"""The level of each process's log: of its settings from the start, by SIGUSR1 while it runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.processes import Record, Service


def test_debug_is_turned_on_and_off_while_a_process_runs(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3, silo={"log_level": "warning"}) as federation:
        federation.start()
        federation.wait_connected()
        hub, silo = federation.services[COORDINATOR], federation.services[federation.names[0]]
        assert of_level(hub, "info")
        assert not of_level(silo, "info")

        for service in (hub, silo):
            signalled(service, chosen="debug")
        federation.submit(rounds=1)
        federation.finish()
        for service in (hub, silo):
            # the job may be over before one is sent
            service.wait_for(lambda record: record.get("kind") == "heartbeat")
            debug = of_level(service, "debug")
            assert {"heartbeat", "task"} <= {each["kind"] for each in debug if "message" in each["event"]}
            assert all(each.keys() <= {*NAMES} for each in debug), debug
        assert "transferred" in [each["event"] for each in of_level(silo, "debug")]

        for service, chosen in ((hub, "info"), (silo, "warning")):
            signalled(service, chosen=chosen)
            before = service.log.read_bytes()
            assert service.stop() == 0
            assert b'"debug"' not in service.log.read_bytes().removeprefix(before)


NAMES = ("time", "level", "logger", "event", "silo", "kind", "moved_bytes", "error", "reason")


def of_level(service: Service, level: str) -> list[Record]:
    own = "chorale.log"  # of the change itself, which is always written
    return [each for each in service.records() if each["level"] == level and each["logger"] != own]


def signalled(service: Service, *, chosen: str) -> None:
    os.kill(service.process.pid, signal.SIGUSR1)
    service.wait_for(lambda record: record["event"] == "log level" and record["chosen"] == chosen)
