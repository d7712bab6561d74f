"""Runs a schedule: begins each fault when its moment comes, ends it in time, and waits for the job's end."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

from tests.support.federation import COORDINATOR
from tests.support.processes import POLL_SECONDS, Record, Service
from tests.support.schedules.federation import ScheduledFederation
from tests.support.schedules.machine import full
from tests.support.schedules.schedule import OF_LINES, Fault, Kind

PATIENCE_SECONDS = 300.0
SETTLING_SECONDS = 40.0  # until silos that are away have dialed again
RELAUNCH_SECONDS = 1.0
DATABASES = {COORDINATOR: "coordinator.sqlite"}
LEDGER = "ledger.sqlite"
# a process may end by itself where its clock is wrong, or where it starts while its disk or database is not
# to be had
MAY_END = frozenset({Kind.SKEWED_CLOCK, Kind.FULL_DISK, Kind.BUSY_DATABASE})


class Director:
    """Of one run. coordinator_log: its records so far, over all its lives. ended: processes that ended by
    themselves, with the last they said. away: silos that were not connected when the job ended."""

    def __init__(self, federation: ScheduledFederation) -> None:
        self.federation = federation
        self.coordinator_log: list[Record] = []
        self.ended: list[tuple[str, str]] = []
        self.begun: list[Fault] = []
        self.away: set[str] = set()
        self._read_bytes = 0
        self._pending = list(federation.schedule.faults)
        self._under_way: dict[Fault, tuple[float, ExitStack]] = {}
        self._relaunch_at: dict[str, float] = {}
        self._stages: dict[Fault, int] = {}  # the line of the log at which its stage was reached
        self._passed: dict[Fault, int] = {}  # what had passed its line then
        self._has_ended = False

    def run(self) -> None:
        """Until the job has ended and every fault is over. Raises AssertionError."""
        limit = time.monotonic() + PATIENCE_SECONDS
        try:
            while not (self._has_ended and self._is_whole()):
                assert time.monotonic() < limit, f"the job does not end\n{self.federation.hub.tail()}"
                self._step()
                time.sleep(POLL_SECONDS)
        finally:
            for _, stack in self._under_way.values():
                stack.close()

    def __str__(self) -> str:
        begun = [f"begun: {fault.kind.value} of {fault.target}" for fault in self.begun]
        ended = [f"{name} ended by itself: {words.splitlines()[-1]}" for name, words in self.ended]
        return "\n".join([*begun, *ended])

    def settle(self) -> None:
        """Every silo that was told of the job's end has heard it, then every process is stopped."""
        self.away = self._silos_away()
        limit = time.monotonic() + SETTLING_SECONDS
        while waiting := set(self.federation.names) - self.away - self._silos_told():
            assert time.monotonic() < limit, f"{sorted(waiting)} did not hear of the job's end"
            time.sleep(POLL_SECONDS)
        for service in self.federation.services.values():
            _stop(service)

    def _step(self) -> None:
        self._read_log()
        now = time.monotonic()
        for fault, (until, stack) in list(self._under_way.items()):
            if now >= until:
                del self._under_way[fault]
                stack.close()
        busy = self._in_use() | {n for n, each in self.federation.services.items() if not each.is_running}
        for fault in list(self._pending):
            process = self.federation.process_name(fault.target)
            if not self._has_ended and process not in busy and self._has_come(fault):
                busy.add(process)
                self._pending.remove(fault)
                self._begin(fault)
        self._tend()

    def _begin(self, fault: Fault) -> None:
        self.begun.append(fault)
        stack = ExitStack()
        stack.enter_context(_FAULTS[fault.kind](self, fault))
        self._under_way[fault] = (time.monotonic() + fault.seconds, stack)

    def _has_come(self, fault: Fault) -> bool:
        reached = self._stages.get(fault)
        if reached is None:
            place = next((n for n, line in enumerate(self.coordinator_log) if _is_at(line, fault)), None)
            if place is None:
                return False
            reached = self._stages[fault] = place
        if len(self.coordinator_log) <= reached + fault.lines:
            return False
        if fault.kind not in OF_LINES:
            return True
        passed = self.federation.lines[fault.target].passed_bytes
        return passed >= self._passed.setdefault(fault, passed) + fault.line_bytes

    def _tend(self) -> None:
        """Start again what ended by itself, where it may; else the test fails."""
        busy = self._in_use()
        for name, service in list(self.federation.services.items()):
            if service.is_running or name in busy:
                continue
            now = time.monotonic()
            if name not in self._relaunch_at:
                assert self._may_end(name), f"{name} ended by itself\n{service.tail()}"
                self.ended.append((name, service.tail()))
                self._relaunch_at[name] = now + RELAUNCH_SECONDS
            elif now >= self._relaunch_at[name]:
                del self._relaunch_at[name]
                self.federation.launch(name)

    def _is_whole(self) -> bool:
        """No fault is under way and every process runs."""
        return not self._under_way and all(each.is_running for each in self.federation.services.values())

    def _in_use(self) -> set[str]:
        """Processes that a fault has hold of."""
        return {self.federation.process_name(fault.target) for fault in self._under_way}

    def _may_end(self, name: str) -> bool:
        """A clock of the coordinator that is wrong ends every silo."""
        causes = {(each.kind, self.federation.process_name(each.target)) for each in self.begun}
        causes = {(kind, process) for kind, process in causes if kind in MAY_END}
        return any(process == name for _, process in causes) or (Kind.SKEWED_CLOCK, COORDINATOR) in causes

    def _read_log(self) -> None:
        with self.federation.hub.log.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_bytes += len(line)
                if line.startswith(b"{"):
                    self.coordinator_log.append(json.loads(line))
                    self._has_ended |= self.coordinator_log[-1]["event"] == "job ended"

    def _silos_away(self) -> set[str]:
        """Silos that were not connected when the job ended."""
        self._read_log()
        connected: set[str] = set()
        for line in self.coordinator_log:
            if line["event"] == "listening":
                connected.clear()
            elif line["event"] == "silo connected":
                connected.add(line["silo"])
            elif line["event"] == "silo disconnected":
                connected.discard(line["silo"])
            elif line["event"] == "job ended":
                break
        return set(self.federation.names) - connected

    def _silos_told(self) -> set[str]:
        logs = (self.federation.services[name].records() for name in self.federation.schedule.processes)
        return {line["silo"] for log in logs for line in log if line["event"] == "job ended"}


def _is_at(line: Record, fault: Fault) -> bool:
    """The stage of the fault in its round, or anything of a later one."""
    if line["event"] != "stage":
        return False
    is_it = line["round"] == fault.round and line["state"] == fault.stage
    return bool(is_it or line["round"] > fault.round)


def _stop(service: Service) -> None:
    """In order, or before the process has come to hear signals."""
    assert service.stop() in (0, -signal.SIGTERM), f"{service.name}\n{service.tail()}"


# what each kind does: its end is the end of the block


@contextmanager
def _killed(director: Director, fault: Fault) -> Iterator[None]:
    federation, name = director.federation, director.federation.process_name(fault.target)
    federation.services[name].kill()
    yield
    federation.launch(name)


@contextmanager
def _stopped(director: Director, fault: Fault) -> Iterator[None]:
    service = director.federation.process_of(fault.target)
    service.freeze()
    yield
    service.thaw()


@contextmanager
def _restarted(director: Director, fault: Fault) -> Iterator[None]:
    federation, name = director.federation, director.federation.process_name(fault.target)
    _stop(federation.services[name])
    yield
    federation.launch(name)


@contextmanager
def _cut(director: Director, fault: Fault) -> Iterator[None]:
    line = director.federation.lines[fault.target]
    line.cut()
    yield
    line.restore()


@contextmanager
def _delayed(director: Director, fault: Fault) -> Iterator[None]:
    line = director.federation.lines[fault.target]
    line.delay_seconds = fault.amount
    yield
    line.delay_seconds = 0.0


@contextmanager
def _throttled(director: Director, fault: Fault) -> Iterator[None]:
    line = director.federation.lines[fault.target]
    line.bytes_per_second = fault.amount
    yield
    line.bytes_per_second = None


@contextmanager
def _full_disk(director: Director, fault: Fault) -> Iterator[None]:
    with full(director.federation.folder / fault.target):
        yield


@contextmanager
def _busy_database(director: Director, fault: Fault) -> Iterator[None]:
    path = director.federation.folder / fault.target / DATABASES.get(fault.target, LEDGER)
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30.0)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def _skewed_clock(director: Director, fault: Fault) -> Iterator[None]:
    federation, name = director.federation, director.federation.process_name(fault.target)
    federation.clocks[name].set(fault.amount)
    yield
    federation.clocks[name].set(0)


@contextmanager
def _new_certificate(director: Director, fault: Fault) -> Iterator[None]:
    """The authority publishes first, so the agent is refused until it reads the new files."""
    federation, name = director.federation, director.federation.process_name(fault.target)
    federation.publish_renewed(fault.target)
    yield
    federation.take_renewed(fault.target)
    if not federation.services[name].is_running:  # the coordinator's clock may have ended it
        federation.launch(name)


_FAULTS: dict[Kind, Callable[[Director, Fault], AbstractContextManager[Any]]] = {
    Kind.KILL: _killed,
    Kind.STOP: _stopped,
    Kind.RESTART: _restarted,
    Kind.CUT: _cut,
    Kind.DELAY: _delayed,
    Kind.THROTTLE: _throttled,
    Kind.FULL_DISK: _full_disk,
    Kind.BUSY_DATABASE: _busy_database,
    Kind.SKEWED_CLOCK: _skewed_clock,
    Kind.NEW_CERTIFICATE: _new_certificate,
}
