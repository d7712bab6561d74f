"""Workers that are actors of Ray: on this machine, or on all those of a cluster.

Silos' data, and the state of a phase, lie in Ray's object store, once on each machine that asks for them.
Security: who reaches a cluster's ports with its token runs code on it, so it is trusted with what is
simulated there. Nothing of a federation is ever on one.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from chorale.job import Job
from chorale.runtime.distributions import Running
from crypto.errors import ChoraleError, ConfigError
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.objective import Objective
from simulation.pool import Computing, Load, Phase, Pool, given
from simulation.results import SimulationFailed
from simulation.silos import Answer, Compute
from strategies.base import Arrays

START_SECONDS = 300.0  # for all workers to be there: a cluster may start machines for them
CONNECT_SECONDS = 10.0
COMPARED = ("chorale", "torch", "numpy")  # of another version, a worker's numbers may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """Where workers are. address: of a cluster, `HOST:PORT` or `auto`; None: a Ray of this machine that ends
    with us. workers: 0: as many as there is room for. gpus: of each, such as 0.25: four share one.
    """

    address: str | None = None
    workers: int = 0
    gpus: float = 0.0


class RayPool(Pool["Actor"]):
    """description: how many workers there are, on how many machines, and where Ray shows them, if it does."""

    def __init__(
        self,
        job: Job,
        data: Mapping[str, SiloData],
        *,
        policy: Policy,
        objective: Objective | None,
        compute: Compute,
        on: Ray,
    ) -> None:
        super().__init__({name: len(each.train) for name, each in data.items()})
        self._ray, dashboard = connected(on)
        try:
            silos = {name: self._ray.put(each) for name, each in data.items()}
            load = Load(job=job, policy=policy, compute=compute, objective=objective)
            workers = min(room(self._ray.cluster_resources(), on), len(data))
            self._workers = [Actor(self._ray, on.gpus, load, silos) for _ in range(workers)]
            machines = self._checked()
        except BaseException:
            self.close()
            raise
        self.description = (
            f"ray: {workers} worker{'s' * (workers > 1)} on {machines} machine{'s' * (machines > 1)}"
        )
        self.description += f"; dashboard {dashboard}" if dashboard else ""

    def ready(self, busy: Sequence[Actor]) -> list[Actor]:
        done, _ = self._ray.wait([worker.reply for worker in busy])
        return [worker for worker in busy if worker.reply in done]

    def close(self) -> None:
        self._workers = []
        self._ray.shutdown()

    def _checked(self) -> int:
        """On how many machines they are, once all are there."""
        replies = [worker.reply for worker in self._workers]
        done, _ = self._ray.wait(replies, num_returns=len(replies), timeout=START_SECONDS)
        if len(done) < len(replies):
            raise SimulationFailed(
                f"ray: {len(done)} of {len(replies)} workers started in {START_SECONDS:.0f} s; "
                "the cluster is busy: ask for fewer with --parallel"
            )
        return same_versions([worker.welcome() for worker in self._workers])


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What a worker says of itself. machine: Ray's id of the node that it is on."""

    machine: str
    versions: Mapping[str, str]


class Actor:
    """One worker, seen from here. reply: to what it was asked last."""

    def __init__(self, ray: Any, gpus: float, load: Load, silos: Mapping[str, Any]) -> None:
        self._ray = ray
        made = ray.remote(RayWorker).options(num_cpus=1, num_gpus=gpus)
        self._actor = made.remote(Running())  # before anything that may be of its classes
        self.reply = self._actor.begin.remote(load, silos)
        self._stored_phase: tuple[Phase, Any] | None = None

    def welcome(self) -> Welcome:
        welcome: Welcome = self._received()
        return welcome

    def ask(self, phase: Phase, silo: str, kept: Arrays) -> None:
        if self._stored_phase is None or self._stored_phase[0] is not phase:
            self._stored_phase = phase, self._ray.put(phase)
        self.reply = self._actor.answer.remote(self._stored_phase[1], silo, kept)

    def answer(self) -> Answer:
        return given(self._received())

    def _received(self) -> Any:
        try:
            return self._ray.get(self.reply)
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[-1]
            raise SimulationFailed(f"ray: a worker is gone: {type(error).__name__}: {first}") from None


class RayWorker:
    """The actor itself, in a process of its own."""

    def __init__(self, running: Running) -> None:
        self._computing: Computing | None = None

    def begin(self, load: Load, silos: Mapping[str, Any]) -> Welcome:
        import ray

        self._computing = Computing(load, InStore(silos))
        return Welcome(machine=ray.get_runtime_context().get_node_id(), versions=versions())

    def answer(self, phase: Phase, silo: str, kept: Arrays) -> Answer | ChoraleError:
        assert self._computing is not None
        return self._computing.answer(phase, silo, kept)


class InStore(Mapping[str, SiloData]):
    """Silos' data in the object store, looked up when they are wanted; this machine then has them."""

    def __init__(self, references: Mapping[str, Any]) -> None:
        self._references = references

    def __getitem__(self, silo: str) -> SiloData:
        import ray

        data: SiloData = ray.get(self._references[silo])
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(self._references)

    def __len__(self) -> int:
        return len(self._references)


def connected(on: Ray) -> tuple[Any, str]:
    """Ray's module, connected, and the link to its dashboard. Raises ConfigError."""
    if on.address not in (None, "auto"):
        _check_answers(on.address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report each use to its makers
    import ray

    here = {} if on.address else {"num_cpus": on.workers or os.cpu_count()}
    try:
        context = ray.init(
            address=on.address or "local", logging_level=logging.ERROR, log_to_driver=False, **here
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        where = "--engine ray: no Ray starts here" if on.address is None else f"--address: {on.address}"
        raise ConfigError(f"{where}: {first}") from None
    url = context.dashboard_url
    return ray, f"http://{url}" if url else ""


def _check_answers(address: str) -> None:
    """Ray itself tries an address for many minutes where nothing answers. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ConfigError(f"--address: expected HOST:PORT of a cluster, or auto, got {address}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--address: no Ray answers at {address}: {error}") from None


def room(resources: Mapping[str, float], on: Ray) -> int:
    """How many workers a cluster has room for in all. Raises ConfigError for more than that."""
    most = int(resources.get("CPU", 0))
    if on.gpus:
        of_gpus = resources.get("GPU", 0)  # a share is of one GPU
        most = min(most, int(of_gpus) * int(1 / on.gpus) if on.gpus < 1 else int(of_gpus / on.gpus))
    if not most or on.workers > most:
        has = ", ".join(f"{resources.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU"))
        wants = f"{on.workers or 1} of 1 CPU and {on.gpus:g} GPUs each"
        raise ConfigError(f"--parallel: expected at most {most} workers on a Ray with {has}; got {wants}")
    return on.workers or most


def same_versions(welcomes: Sequence[Welcome]) -> int:
    """On how many machines workers are. Raises ConfigError where one has other versions than are here."""
    mine = versions()
    for each in welcomes:
        odd = next((name for name in mine if each.versions[name] != mine[name]), None)
        if odd is not None:
            raise ConfigError(
                f"ray: the worker on {each.machine} has {odd} {each.versions[odd]}, expected {mine[odd]} "
                "as here: another version gives other numbers"
            )
    return len({each.machine for each in welcomes})


def versions() -> dict[str, str]:
    """Of what decides a worker's numbers."""
    found = {"python": platform.python_version()}
    for name in COMPARED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found
