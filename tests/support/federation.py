"""A federation of real processes on loopback: mutual TLS, real stores, one-hot silos or real training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

import numpy as np
import yaml

from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import read_model
from chorale.spec.state import state_to_bytes
from cli.job.following import follow
from cli.output.report import document
from client import operations
from client.settings import operator_settings
from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony
from tests.support.halting import SENT, Halt
from tests.support.ports import free_ports
from tests.support.processes import Record, Service, run_cli, wait_until

COORDINATOR = "hub"
OPERATOR = "ops"
Settings = dict[str, Any]


def _own_address() -> str:
    """No port that the system may give away while the coordinator is down: it listens where silos dial."""
    return f"127.0.0.1:{free_ports(1)[0]}"


@dataclass(kw_only=True)
class LocalFederation:
    """silos: how many. `coordinator`, `policy`, `silo` override fields of the files of each kind.

    halt: where a process stops itself (tests.support.halting).
    records_sent: each silo writes down the session messages it sent, in `<silo>.sent`.
    coordinator_module: what runs the coordinator, where it is not the product's own entry point.
    executed: processes that get an interpreter of their own (tests.support.fork_server).
    coordinator_limits: what it is started by, as of tests.support.limits.
    """

    folder: Path
    silos: int = 4
    coordinator: Settings = field(default_factory=dict)
    policy: Settings = field(default_factory=dict)
    silo: Settings = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    records_sent: bool = False
    coordinator_module: str = "cli.main"
    executed: Collection[str] = ()
    coordinator_limits: Sequence[str] = ()
    services: dict[str, Service] = field(default_factory=dict)
    listen: str = field(default_factory=_own_address)

    def __post_init__(self) -> None:
        self.ceremony = Ceremony(folder=self.folder / "members")
        self.ceremony.enroll(Role.COORDINATOR, COORDINATOR)
        self.ceremony.enroll(Role.OPERATOR, OPERATOR)
        for name in self.names:
            self.ceremony.enroll(Role.SILO, name)
        self.ceremony.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for service in self.services.values():
            if service.is_running:
                service.kill()

    @property
    def names(self) -> list[str]:
        return [f"silo-{place}" for place in range(self.silos)]

    @property
    def hub(self) -> Service:
        return self.services[COORDINATOR]

    # starting and stopping

    def start(self) -> None:
        """Coordinator, then every silo."""
        self.start_coordinator()
        for name in self.names:
            self.start_silo(name)

    def start_coordinator(self, *, halt: Halt | None = None) -> Service:
        endpoint = self.folder / COORDINATOR / "endpoint.json"
        endpoint.unlink(missing_ok=True)
        path = self._write(f"{COORDINATOR}.yaml", self._coordinator_settings())
        service = self._spawn(COORDINATOR, ["coordinator", "run", "--config", str(path)], halt=halt)
        wait_until(
            lambda: endpoint.exists() or not service.is_running,
            "the coordinator's endpoint",
            detail=service.tail,
        )
        assert endpoint.exists(), service.tail()
        self.endpoint = json.loads(endpoint.read_text())
        return service

    def start_silo(
        self,
        name: str,
        *,
        address: str | None = None,
        env: Mapping[str, str] | None = None,
        halt: Halt | None = None,
    ) -> Service:
        policy = self._write(f"{name}-policy.yaml", self._policy())
        settings = self._silo_settings(name, policy, address or self.endpoint["grpc"])
        path = self._write(f"{name}.yaml", settings)
        return self._spawn(name, ["silo", "run", "--config", str(path)], env, halt=halt)

    def start_copy(self, name: str, copy: str) -> Service:
        """A second agent of a silo that runs, on a copy of its state as it is now."""
        directory = self.folder / copy
        shutil.copytree(self.folder / name, directory)
        policy = self._write(f"{copy}-policy.yaml", self._policy())
        settings = self._silo_settings(name, policy, self.endpoint["grpc"])
        path = self._write(f"{copy}.yaml", {**settings, "directory": str(directory)})
        return self._spawn(copy, ["silo", "run", "--config", str(path)])

    # jobs

    def submit(self, *, values: int = 4, **fields: Any) -> str:
        """Submit a one-hot job whose model is `values` zeros; returns the job's id."""
        state = self.folder / "initial.safetensors"
        state.write_bytes(state_to_bytes({"model/votes": np.zeros(values, np.float32)}))
        return self.submit_spec(self.job_spec(**fields), state)

    def submit_spec(self, spec: JobSpec, state: Path) -> str:
        """Submit a job as `chorale job submit` does; returns its id."""
        path = self.folder / "job.yaml"
        path.write_bytes(spec.to_yaml())
        done = self.cli("job", "submit", path, "--init", state)
        assert done.returncode == 0, done.stderr
        return str(done.stdout.split()[0])

    def job_spec(self, **fields: Any) -> JobSpec:
        return JobSpec.from_yaml(yaml.safe_dump(self.job(**fields)).encode(), source="job.yaml")

    def job(self, **fields: Any) -> Settings:
        return {
            "name": "one-hot",
            "federation": self.ceremony.federation,
            "silos": self.names,
            **({} if "steps" in fields else {"rounds": 2}),
            "model": {"name": "custom"},
            "classes": 2,
            "input_shape": [2],
            "training": {"learning_rate": 0.1},
            "not_after": (datetime.now(UTC) + timedelta(days=1)).isoformat(),
            **fields,
        }

    def cli(self, *arguments: str | Path) -> Any:
        """A command of the operator."""
        return run_cli(*arguments, "--config", self.operator_file())

    def finish(self, *, seconds: float = 120.0) -> Record:
        """Wait for the job's last record in the coordinator's log."""
        return self.hub.wait_for(lambda record: record.get("event") == "job ended", seconds=seconds)

    def report(self, job_id: str) -> dict[str, Any]:
        """The report of an ended job."""
        with operations.connect(operator_settings(self.operator_file())) as (
            commands,
            _,
        ):
            return document(follow(commands, commands.find(job_id)))

    def scrape(self, name: str = COORDINATOR) -> dict[str, float]:
        """The metrics of the coordinator or a silo, by name and labels as they are written."""
        endpoint = json.loads((self.folder / name / "endpoint.json").read_text())
        with urlopen(f"http://{endpoint['metrics']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        samples = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in samples}

    def wait_connected(self) -> None:
        """Until every silo attends."""
        for name in self.names:
            self.hub.wait_for(
                lambda line, name=name: line["event"] == "silo connected" and line["silo"] == name
            )

    def fetch(self, job_id: str) -> dict[str, Any]:
        """The global state that the job hands out."""
        path = self.folder / "fetched.safetensors"
        done = self.cli("job", "fetch", job_id, "--out", path)
        assert done.returncode == 0, done.stderr
        return read_model(path)[0]

    # files

    def _coordinator_settings(self) -> Settings:
        return {
            "federation": self.ceremony.federation,
            "listen": self.listen,
            "identity": self._identity(Role.COORDINATOR, COORDINATOR),
            "authority": str(self.ceremony.certificate_path),
            "roster": str(self.ceremony.roster_path),
            "directory": str(self.folder / COORDINATOR),
            "heartbeat_seconds": 0.5,
            "reconnect_grace_seconds": 4.0,  # a silo may take so long to start among others
            "stage_deadline_seconds": 8.0,
            **self.coordinator,
        }

    def _silo_settings(self, name: str, policy: Path, address: str) -> Settings:
        return {
            "name": name,
            "federation": self.ceremony.federation,
            "coordinator": address,
            "identity": self._identity(Role.SILO, name),
            "authority": str(self.ceremony.certificate_path),
            "directory": str(self.folder / name),
            "policy": str(policy),
            "data": {"format": "module", "module": "tests.support.one_hot:data", "name": f"{name}-data"},
            "objective": "tests.support.one_hot:objective",
            **self.silo,
        }

    def _policy(self) -> Settings:
        return {
            "federation": self.ceremony.federation,
            "approval": "automatic",
            "initial_state": "given",
            **self.policy,
        }

    def operator_file(self) -> Path:
        return self._write(
            "operator.yaml",
            {
                "federation": self.ceremony.federation,
                "coordinator": self.endpoint["grpc"],
                "identity": self._identity(Role.OPERATOR, OPERATOR),
                "authority": str(self.ceremony.certificate_path),
            },
        )

    def _identity(self, role: Role, name: str) -> Settings:
        paths = {ending: self.ceremony.path_of(role, name, ending) for ending in ("crt", "key")}
        return {"certificate": str(paths["crt"]), "key": str(paths["key"])}

    def _write(self, name: str, settings: Settings) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(settings, explicit_end=True))
        return path

    def _spawn(
        self,
        name: str,
        arguments: list[str],
        env: Mapping[str, str] | None = None,
        *,
        halt: Halt | None = None,
    ) -> Service:
        extra = {**self.env, **(env or {}), **({} if halt is None else halt.environment())}
        if self.records_sent:
            extra[SENT] = str(self.folder / f"{name}.sent")
        is_plain = halt is None and not self.records_sent
        plain_module = self.coordinator_module if name == COORDINATOR else "cli.main"
        self.services[name] = Service(
            name,
            arguments,
            log=self.folder / f"{name}.log",
            extra_env=extra,
            module=plain_module if is_plain else "tests.support.halting",
            is_executed=name in self.executed,
            limits=self.coordinator_limits if name == COORDINATOR else (),
        )
        return self.services[name]
