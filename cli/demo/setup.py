"""The demo's files: who is who, one settings file a party, the job. Everything lies under one folder.

The ceremony runs the same commands that a real federation runs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.demo.plan import AUTHORITY, COORDINATOR, OPERATOR, Plan, Settings
from cli.demo.processes import run_commands
from cli.settings_files import own_files, settings_file
from crypto.errors import ConfigError

HOSTS = ["--host", "127.0.0.1", "--host", "localhost"]
MARKER = ".chorale-demo"  # what says that a folder's content is ours to replace
ROSTER = "roster.json"
RESULTS = ("report.json", "report.html", "model.safetensors")


@contextmanager
def clean_folder(plan: Plan) -> Iterator[None]:
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


def hold_ceremony(plan: Plan) -> None:
    """Found the federation, make every party's key where it lives, sign, publish the roster."""
    authority = str(plan.folder(AUTHORITY))
    members = [("coordinator", COORDINATOR), ("operator", OPERATOR), *(("silo", name) for name in plan.names)]
    run_commands([["authority", "init", "--federation", plan.federation, "--directory", authority]])
    requests = {}
    for role, name in members:
        folder = str(plan.folder(name))
        csr = [role, "csr", "--name", name, "--federation", plan.federation, "--out", folder]
        requests[f"{folder}/{name}.csr"] = csr + (HOSTS if role == "coordinator" else [])
    run_commands(list(requests.values()))
    run_commands([["authority", "sign", *requests, "--directory", authority]])
    certificates = [str(plan.folder(name) / f"{name}.crt") for _, name in members]
    roster = str(plan.parties / ROSTER)
    run_commands([["authority", "roster", *certificates, "--directory", authority, "--out", roster]])


def write_coordinator(plan: Plan) -> Path:
    settings = {
        **_membership(plan, COORDINATOR),
        "listen": "127.0.0.1:0",
        "roster": str(plan.parties / ROSTER),
        "directory": str(plan.folder(COORDINATOR) / "state"),
        "heartbeat_seconds": 0.5,
        "reconnect_grace_seconds": 1.0,
    }
    return _write(plan.folder(COORDINATOR), "coordinator", settings)


def write_silo(plan: Plan, name: str, *, coordinator: str) -> Path:
    """Settings and policy of one silo."""
    folder = plan.folder(name)
    settings = {
        **_membership(plan, name),
        "name": name,
        "coordinator": coordinator,
        "directory": str(folder / "state"),
        "policy": str(_write(folder, "policy", plan.policy)),
        **plan.silos[name],
    }
    return _write(folder, "silo", settings)


def write_operator(plan: Plan, *, coordinator: str) -> Path:
    settings = {**_membership(plan, OPERATOR), "coordinator": coordinator}
    return _write(plan.folder(OPERATOR), "operator", settings)


def write_job(plan: Plan) -> Path:
    """The operator's job file."""
    return _write(plan.folder(OPERATOR), "job", plan.job)


def _membership(plan: Plan, name: str) -> Settings:
    own = own_files(plan.folder(name), name, authority=plan.folder(AUTHORITY))
    return {"federation": plan.federation, **own}


def _write(folder: Path, kind: str, settings: Settings) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.yaml"
    path.write_bytes(settings_file(kind, settings))
    os.chmod(path, 0o600)
    return path
