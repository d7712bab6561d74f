"""The demo's files: who is who, one settings file a party, the job. Everything lies under one folder.

The ceremony runs the same commands that a real federation runs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import check_values
from cli.demo.processes import run_commands
from crypto.errors import ConfigError
from crypto.session.cohort import CohortRule
from silo_agent.policy.privacy_policy import CEILING
from strategies.methods import strategy_for

FEDERATION, COORDINATOR, OPERATOR = "demo", "hub", "you"
HOSTS = ["--host", "127.0.0.1", "--host", "localhost"]
MARKER = ".chorale-demo"  # what says that a folder's content is ours to replace
PARTIES, ROSTER = "federation", "roster.json"
RESULTS = ("report.json", "report.html", "model.safetensors")
# so that few silos can show every method; report.json says so
OPEN_POLICY: dict[str, Any] = {
    "class_statistics": "allow",
    "local_state": "allow",
    "min_class_holders": 2,
}
# of SGD: over cosines, and behind a random head that stays small, gradients are small (docs/methods.md);
# every other method takes the first
RATE = 0.05
RATES = {
    "fedbabu": 0.5,
    "fedbabu_ft": 0.5,
    "fedgela": 0.1,
    "dot_regression": 0.5,
    "feddr_plus": 0.5,
    "feddr_plus_ft": 0.5,
    "spherefed": 0.5,
    "spherefed_ft": 0.5,
    "spherefed_fedprox": 0.5,
    "spherefed_fednova": 0.5,
    "spherefed_fedopt": 0.5,
}
# behind a frozen head silos train at ten times RATE; the head itself would not bear that
OPTIONS: dict[str, dict[str, float]] = {"fedbabu_ft": {"fine_tune_learning_rate": RATE}}
# --dp: what digits at the default number of silos and rounds bear best (docs/privacy.md, "Trying it")
EPSILONS = {"records": 8.0, "sums": 4.0}
SAMPLE_RATE, RECORDS_RATE = 0.2, 1.0
PRIVACY = {"records": {"clip_norm": 1.0, "sample_rate": SAMPLE_RATE}, "sums": {"clip_norm": 0.5}}
PRIVATE_OPTIONS: dict[str, dict[str, float]] = {"fedcsd": {"logit_clip": 10.0}}  # what --dp makes necessary
TRAIN_RECORDS = 1438  # of all silos together: digits without the hold-outs
HOLD_SECONDS = 1.0  # so that --drop hits between the last shares and their relay
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """What was asked for, checked."""

    silos: int
    rounds: int
    strategy: str
    drop: int
    out: Path
    seed: int
    dp: str | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError that names the option and what is allowed."""
        rule = CohortRule.for_members(self.silos)
        largest = self.silos - rule.min_survivors
        if not 0 <= self.drop <= largest:
            raise ConfigError(
                f"--drop: expected 0 to {largest}, as {self.silos} silos must keep the "
                f"{rule.min_survivors} that a sum needs, got {self.drop}"
            )
        if self.drop and self.rounds < 2:
            raise ConfigError("--drop: silos are killed in round 2, so --rounds is at least 2")
        strategy_for(self.strategy, {})
        self._check_privacy()

    def _check_privacy(self) -> None:
        if self.dp is None:
            if self.epsilon is not None:
                raise ConfigError("--epsilon: expected --dp records or --dp sums with it, got neither")
            return
        if self.dp not in EPSILONS:
            raise ConfigError(f"--dp: expected {' or '.join(EPSILONS)}, got {self.dp}")
        if not 0 < self.budget <= CEILING:
            raise ConfigError(
                f"--epsilon: expected more than 0 and at most {CEILING:g}, all that a silo's policy lets a "
                f"data set spend, got {self.budget:g}"
            )
        # a method that cannot be private says so before anything is started
        not_after = datetime.now(UTC) + timedelta(days=1)  # `job submit` has its own
        check_values(JobSpec, {**_job_settings(self), "not_after": not_after}, source="--dp")

    @property
    def budget(self) -> float:
        """Epsilon of the job, and of each silo's data set; of no use without --dp."""
        return EPSILONS[self.dp or "records"] if self.epsilon is None else self.epsilon

    @property
    def names(self) -> list[str]:
        return [f"silo-{number}" for number in range(1, self.silos + 1)]

    @property
    def doomed(self) -> list[str]:
        """Those that --drop kills."""
        return self.names[self.silos - self.drop :]

    @property
    def parties(self) -> Path:
        return self.out / PARTIES

    def folder(self, party: str) -> Path:
        return self.parties / party

    @property
    def signed_job(self) -> Path:
        """The job as its operator signed it."""
        return self.folder(OPERATOR) / "signed-job.yaml"


@contextmanager
def clean_folder(plan: DemoPlan) -> Iterator[None]:
    """The out folder, emptied of an earlier demo and locked, so that no other demo runs in it.

    Raises ConfigError for a folder that holds anything else.
    """
    marker = plan.out / MARKER
    if plan.out.exists() and not plan.out.is_dir():
        raise ConfigError(f"--out: {plan.out} is a file, expected a folder")
    if plan.out.is_dir() and any(plan.out.iterdir()) and not marker.exists():
        raise ConfigError(f"--out: {plan.out} holds files that no demo wrote; choose an empty folder")
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: cannot make {plan.out}: {(error.strerror or '').lower()}") from error
    with marker.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--out: another demo is running in {plan.out}") from None
        shutil.rmtree(plan.parties, ignore_errors=True)
        for name in RESULTS:
            (plan.out / name).unlink(missing_ok=True)
        plan.parties.mkdir(mode=0o700)
        yield


def hold_ceremony(plan: DemoPlan) -> None:
    """Found the federation, make every party's key where it lives, sign, publish the roster."""
    authority = str(plan.folder("authority"))
    members = [("coordinator", COORDINATOR), ("operator", OPERATOR), *(("silo", name) for name in plan.names)]
    run_commands([["authority", "init", "--federation", FEDERATION, "--directory", authority]])
    requests = {}
    for role, name in members:
        folder = str(plan.folder(name))
        csr = [role, "csr", "--name", name, "--federation", FEDERATION, "--out", folder]
        requests[f"{folder}/{name}.csr"] = csr + (HOSTS if role == "coordinator" else [])
    run_commands(list(requests.values()))
    run_commands([["authority", "sign", *requests, "--directory", authority]])
    certificates = [str(plan.folder(name) / f"{name}.crt") for _, name in members]
    roster = str(plan.parties / ROSTER)
    run_commands([["authority", "roster", *certificates, "--directory", authority, "--out", roster]])


def write_coordinator(plan: DemoPlan) -> Path:
    settings = {
        **_membership(plan, COORDINATOR),
        "listen": "127.0.0.1:0",
        "roster": str(plan.parties / ROSTER),
        "directory": str(plan.folder(COORDINATOR) / "state"),
        "heartbeat_seconds": 0.5,
        "reconnect_grace_seconds": 1.0,
        "hold_before_relay_seconds": HOLD_SECONDS if plan.drop else 0.0,
    }
    return _write(plan.folder(COORDINATOR) / "coordinator.yaml", settings)


def write_silo(plan: DemoPlan, name: str, *, coordinator: str) -> Path:
    """Settings and policy of one silo, and with them its part of the digits."""
    folder = plan.folder(name)
    rules: Settings = {"federation": FEDERATION, "approval": "automatic", **OPEN_POLICY}
    if plan.dp is not None:  # nothing leaves without noise, and the budget is what was asked for
        rules["privacy"] = {"epsilon": plan.budget, "required": True}
    policy = _write(folder / "policy.yaml", rules)
    partition = {
        "kind": "dirichlet",
        "alpha": 0.5,
        "silos": plan.silos,
        "index": plan.names.index(name),
        "seed": plan.seed,
    }
    settings = {
        **_membership(plan, name),
        "name": name,
        "coordinator": coordinator,
        "directory": str(folder / "state"),
        "policy": str(policy),
        "data": {"format": "digits", "name": "digits", "partition": partition},
        "device": "cpu",
    }
    return _write(folder / "silo.yaml", settings)


def write_operator(plan: DemoPlan, *, coordinator: str) -> Path:
    settings = {**_membership(plan, OPERATOR), "coordinator": coordinator}
    return _write(plan.folder(OPERATOR) / "operator.yaml", settings)


def write_job(plan: DemoPlan) -> Path:
    """The operator's job file."""
    return _write(plan.folder(OPERATOR) / "job.yaml", _job_settings(plan))


def _job_settings(plan: DemoPlan) -> Settings:
    """The small network and rates that reach 0.95 in ten rounds; under --dp what noise leaves of it."""
    options = OPTIONS.get(plan.strategy, {})
    training = {"local_epochs": 3, "batch_size": 8, "learning_rate": RATES.get(plan.strategy, RATE)}
    privacy: Settings = {}
    if plan.dp is not None:
        options = options | PRIVATE_OPTIONS.get(plan.strategy, {})
        privacy = {"privacy": {"epsilon": plan.budget, plan.dp: PRIVACY[plan.dp]}}
    if plan.dp == "records":
        expected_batch = max(1, round(SAMPLE_RATE * TRAIN_RECORDS / plan.silos))
        training = {"local_epochs": 1, "batch_size": expected_batch, "learning_rate": RECORDS_RATE}
    return {
        "name": "digits",
        "federation": FEDERATION,
        "silos": plan.names,
        "rounds": plan.rounds,
        "strategy": {"preset": plan.strategy, "options": options},
        "model": {"name": "mlp", "hidden": [128], "seed": plan.seed},
        "classes": 10,
        "input_shape": [1, 8, 8],
        "training": training,
        "seed": plan.seed,
        **privacy,
    }


def _membership(plan: DemoPlan, name: str) -> Settings:
    folder = plan.folder(name)
    return {
        "federation": FEDERATION,
        "identity": {"certificate": str(folder / f"{name}.crt"), "key": str(folder / f"{name}.key")},
        "authority": str(plan.folder("authority") / "authority.crt"),
    }


def _write(path: Path, settings: Settings) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    os.chmod(path, 0o600)
    return path
