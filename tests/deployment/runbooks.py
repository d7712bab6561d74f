"""The runbooks of docs/operations.md, and a federation of processes to which their commands are done.

`chorale` commands run as they stand. helm and kubectl are done to processes and files of this machine.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runtime.files import write_atomic
from chorale.spec.state import state_to_bytes
from crypto.identity.certificates import Role, key_to_pem
from silo_agent.settings import ENV_PREFIX
from tests.deployment import helm
from tests.support import one_hot
from tests.support.ceremony import Ceremony
from tests.support.federation import COORDINATOR, OPERATOR, LocalFederation
from tests.support.halting import Halt
from tests.support.processes import run_cli
from tests.support.schedules.machine import Clock

PAGE = (helm.ROOT / "docs" / "operations.md").read_text()
NAMES = ("clinic-a", "clinic-b", "clinic-c", "clinic-d")
ROSTER = "roster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    """One alarm's. commands: each `$` line, of a pipe the first half. queries: asked of Prometheus."""

    text: str
    commands: tuple[str, ...]
    queries: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Runbook:
        asked = re.findall(r"^```promql\n(.*?)```$", text, re.MULTILINE | re.DOTALL)
        return cls(
            text=text,
            commands=tuple(line.partition(" | ")[0] for line in re.findall(r"^\$ (.+)$", text, re.MULTILINE)),
            queries=tuple(query for block in asked for query in block.splitlines()),
        )


def runbooks() -> dict[str, Runbook]:
    """By alarm, in the order of the page."""
    sections = re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]
    parts = (section.partition("\n") for section in sections)
    return {name: Runbook.of(text) for name, _, text in parts if name.startswith("Chorale")}


@dataclass(kw_only=True)
class Site(LocalFederation):
    """Named as on the page. It stands in for all institutions' clusters and for the authority's machine.

    metrics: where each process serves them. job_id: what the page calls ID. clock: of clinic-b.
    """

    metrics: Mapping[str, str]
    job_id: str = ""
    jobs: int = 0
    clock: Clock = field(init=False)
    first_roster: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.ceremony = Ceremony(folder=self.folder / "authority", federation="heart", authority_days=400)
        for role, name in ((Role.COORDINATOR, COORDINATOR), (Role.OPERATOR, OPERATOR)):
            self.ceremony.enroll(role, name)
        for name in NAMES:
            self.ceremony.enroll(Role.SILO, name)
        self.ceremony.publish()
        write_atomic(self.ceremony.folder / "authority.key", key_to_pem(self.ceremony.key))
        self.first_roster = self.ceremony.roster_path.read_bytes()
        self.apply_roster(self.first_roster)
        self.coordinator = {
            **self.coordinator,
            "roster": str(self._mounted_roster),
            "metrics_listen": self.metrics[COORDINATOR],
        }
        self.clock = Clock(self.folder / "clock")

    @property
    def names(self) -> list[str]:
        return list(NAMES)

    @property
    def _mounted_roster(self) -> Path:
        return self.folder / "mounted" / ROSTER

    def _gate(self, name: str) -> Path:
        return self.folder / f"{name}.gate"

    @contextmanager
    def slow(self, name: str) -> Iterator[None]:
        """No training of the silo ends while the block runs."""
        self._gate(name).touch()
        try:
            yield
        finally:
            self._gate(name).unlink()

    def launch(self, name: str, halt: Halt | None = None, address: str | None = None) -> None:
        """Start a silo. address: what it dials in place of the coordinator."""
        env = {
            f"{ENV_PREFIX}METRICS_LISTEN": self.metrics[name],
            one_hot.GATE: str(self._gate(name)),
            **(self.clock.environment if name == "clinic-b" else {}),
        }
        self.start_silo(name, env=env, halt=halt, address=address)

    def offer(self, **fields: Any) -> None:
        """Submit a job that the page's ID is from now on.

        Each starts from another model: silos give no two sums over one that differ by a single silo.
        """
        self.jobs += 1
        state = self.folder / "initial.safetensors"
        state.write_bytes(state_to_bytes({"model/votes": np.full(len(NAMES), 1000 * self.jobs, np.float32)}))
        self.job_id = self.submit_spec(self.job_spec(**fields), state)

    def apply_roster(self, content: bytes) -> None:
        self._mounted_roster.parent.mkdir(exist_ok=True)
        write_atomic(self._mounted_roster, content, mode=0o644)

    # commands of the page

    def do(self, line: str) -> str:
        """Raises AssertionError for a command that fails, or that cannot be done here."""
        command = [self.job_id if part == "ID" else part for part in shlex.split(line)]
        if command[0] == "chorale":
            return self._chorale(command[1:])
        place = command.index("--namespace")
        words = command[1:place] + command[place + 2 :]
        done: dict[str, Callable[[list[str]], str]] = {
            "get": self._get,
            "logs": self._logs,
            "exec": self._exec,
            "create": self._create,
            "rollout": self._rollout,
            "upgrade": self._upgrade,
        }
        assert words[0] in done, line
        return done[words[0]](words[1:])

    def _chorale(self, arguments: list[str]) -> str:
        """The coordinator's host and the operator's name are those of this machine."""
        self.operator_file()
        here = [
            part.replace("coordinator.example.org", "127.0.0.1").replace("olga", OPERATOR)
            for part in arguments
        ]
        done = run_cli(*here, folder=self.folder)
        is_over = "so there is nothing to approve" in done.stderr  # the job ended before a person came to it
        assert done.returncode == 0 or is_over, f"{shlex.join(arguments)}: {done.stderr}"
        return str(done.stderr if is_over else done.stdout)

    def _get(self, words: list[str]) -> str:
        assert words[0] == "pods"
        return "\n".join(
            f"{name}  {'Running' if service.is_running else 'CrashLoopBackOff'}"
            for name, service in self.services.items()
        )

    def _logs(self, words: list[str]) -> str:
        pod, tail = words
        lines = self.services[_release(pod)].log.read_text().splitlines()
        return "\n".join(lines[-int(tail.removeprefix("--tail=")) :])

    def _exec(self, words: list[str]) -> str:
        pod, dashes, program, *arguments = words
        assert dashes == "--"
        mounted = {
            f"/etc/chorale/settings/{kind}.yaml": str(self.folder / f"{_release(pod)}.yaml")
            for kind in ("silo", "coordinator")
        } | {
            "/var/lib/chorale/state": str(self.folder / _release(pod)),
        }
        for path, here in mounted.items():
            arguments = [part.replace(path, here) for part in arguments]
        if ">" in arguments:  # as a shell redirects what comes to it
            *arguments, stream, _, out = arguments
            assert stream == "-"
            arguments.append(str(self.folder / out))
        if program == "chorale":
            return self._chorale(arguments)
        assert program == "du"
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout

    def _create(self, words: list[str]) -> str:
        kind, *rest = [part for part in words if not part.startswith(("--dry-run", "--output"))]
        if kind == "configmap":
            assert rest == ["heart-roster", f"--from-file={ROSTER}"]
            self.apply_roster((self.folder / ROSTER).read_bytes())
            return ""
        assert (kind, rest[0]) == ("secret", "tls")
        name = rest[1].removesuffix("-identity")
        role = Role.COORDINATOR if name == COORDINATOR else Role.SILO
        for option, ending in zip(rest[2:], ("crt", "key"), strict=True):
            content = (self.folder / option.partition("=")[2]).read_bytes()
            write_atomic(self.ceremony.path_of(role, name, ending), content)
        return ""

    def _rollout(self, words: list[str]) -> str:
        verb, what = words
        assert verb == "restart"
        return self._restart(_release(what.removeprefix("statefulset/")))

    def _upgrade(self, words: list[str]) -> str:
        release, chart, *options = words
        assert (chart, options) == ("helm/chorale-silo", ["--values", f"{release}.yaml"])
        return self._restart(release)

    def _restart(self, name: str) -> str:
        if self.services[name].is_running:
            self.services[name].stop()
        if name == COORDINATOR:
            self.start_coordinator()
        else:
            self.launch(name)
        return ""


def _release(pod: str) -> str:
    return pod.partition("-chorale-")[0]
