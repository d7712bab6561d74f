"""Whatever a person gets wrong ends in one clear line, last on stderr, and the right exit code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from chorale.runtime.audit import AuditLog
from chorale.spec.state import state_to_bytes
from crypto.identity.certificates import Role
from silo_agent.disclosure.ledger.ledger import Ledger
from tests.support.ceremony import Ceremony
from tests.support.processes import run_cli
from tests.unit.cli.conftest import Calls, Desk, Ended


@dataclass(frozen=True)
class Mistake:
    """What a person typed, and what was wrong with it.

    {folder} is the test's own, {silo}, {operator}, {coordinator} and {job} are files written there with
    `settings` or `job`, sound otherwise. `file` is written last, `prepare` is called first.
    """

    command: str
    expected: str
    code: int = 2
    settings: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    file: tuple[str, str | bytes] | None = None
    prepare: Callable[[Desk], object] = lambda desk: None

    def typed(self, desk: Desk) -> list[str]:
        self.prepare(desk)
        places = {"folder": str(desk.folder), "taken": desk.taken_address}
        settings = {name: _filled(value, places) for name, value in self.settings.items()}
        for name in ("silo", "operator", "coordinator"):
            if f"{{{name}}}" in self.command:
                places[name] = str(getattr(desk, name)(**settings))
        if "{job}" in self.command:
            places["job"] = str(desk.job(**self.job))
        if self.file is not None:
            name, content = self.file
            (desk.folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return [word.format_map(places) for word in shlex.split(self.command)]


def _filled(value: Any, places: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(inner, places) for name, inner in value.items()}
    return value.format_map(places) if isinstance(value, str) else value


def _expired(role: Role, name: str) -> Callable[[Desk], object]:
    long_ago = datetime.now(UTC) - timedelta(days=9)
    return lambda desk: desk.ceremony.enroll(role, name, days=1, now=long_ago)


def _roster_of_another_authority(desk: Desk) -> None:
    Ceremony(folder=desk.folder / "other").publish()


def _empty_ledger(desk: Desk) -> None:
    (desk.folder / "silo-0").mkdir()
    Ledger(desk.folder / "silo-0" / "ledger.sqlite").close()


def _coordinator_runs_there(desk: Desk) -> None:
    (desk.folder / "hub").mkdir()
    desk.stack.enter_context(closing(AuditLog(desk.folder / "hub" / "audit.jsonl")))


def _authority_is_founded(desk: Desk) -> None:
    founded = run_cli("authority", "init", "--federation", "f", "--directory", desk.folder / "ca")
    assert founded.returncode == 0


WEIGHTS = state_to_bytes({"model/weight": np.zeros(4, np.float32)})
HERE = {
    "missing field": Mistake(
        "silo run --config {folder}/silo.yaml",
        r"silo\.yaml: federation, .*, data: values are required",
        file=("silo.yaml", "name: silo-0\n"),
    ),
    "missing file": Mistake(
        "silo run --config {folder}/nowhere.yaml", r"nowhere\.yaml: no such file or directory"
    ),
    "folder for a file": Mistake("silo policy --config {folder}", r": is a directory"),
    "invalid yaml": Mistake(
        "silo run --config {folder}/silo.yaml",
        r"silo\.yaml: line 2: expected ',' or ']'",
        file=("silo.yaml", "name: [silo-0\n"),
    ),
    "missing policy": Mistake(
        "silo policy --config {silo}",
        r"nowhere\.yaml: no such file or directory",
        settings={"policy": "{folder}/nowhere.yaml"},
    ),
    "policy out of range": Mistake(
        "silo policy --config {silo}",
        r"policy\.yaml: min_silos: expected at least 3, got 2",
        file=("policy.yaml", "federation: test\nmin_silos: 2\n...\n"),
    ),
    "objective is no function": Mistake(
        "silo policy --config {silo}",
        r"objective: expected package\.module:function, got 'os\.system'",
        settings={"objective": "os.system"},
    ),
    "out folder cannot be made": Mistake(
        "demo --out {folder}/taken/out",
        r"--out: cannot make .*/taken/out: not a directory",
        file=("taken", ""),
    ),
    "expired certificate": Mistake(
        "job list --config {operator}",
        r"\.crt: own certificate: expired on ",
        prepare=_expired(Role.OPERATOR, "ops"),
    ),
    "certificate of another authority": Mistake(
        "job list --config {operator}",
        r"it was not issued by this federation's authority",
        settings={"authority": "{folder}/other/authority.crt"},
        prepare=_roster_of_another_authority,
    ),
    "key of another certificate": Mistake(
        "job list --config {operator}",
        r"the key does not belong to the certificate",
        settings={
            "identity": {
                "certificate": "{folder}/members/operator-ops.crt",
                "key": "{folder}/members/silo-silo-0.key",
            }
        },
    ),
    "silo as operator": Mistake(
        "job list --config {operator}",
        r"own certificate: expected role operator, got silo",
        settings={
            "identity": {
                "certificate": "{folder}/members/silo-silo-0.crt",
                "key": "{folder}/members/silo-silo-0.key",
            }
        },
    ),
    "settings are not given": Mistake(
        "job list", r"environment: federation, .*, authority: values are required"
    ),
    # it was found out once the coordinator had answered
    "tracker is no address": Mistake(
        "job export abc --config {operator} --mlflow ftp://nowhere",
        r"--mlflow: expected http://HOST:PORT or https://HOST:PORT, got ",
    ),
    "coordinator is not there": Mistake(
        "job list --config {operator}", r"coordinator is unreachable", code=1
    ),
    "unknown strategy": Mistake(
        "job submit {job} --config {operator}",
        r"job\.yaml: strategy\.preset: expected one of .*fedavg.*, got fedmagic",
        job={"strategy": {"preset": "fedmagic"}},
    ),
    "unknown demo strategy": Mistake(
        "demo --strategy fedmagic --out {folder}/out",
        r"strategy\.preset: expected one of .*fedavg.*, got fedmagic",
    ),
    "two silos in a job": Mistake(
        "job submit {job} --config {operator}",
        r"job\.yaml: silos: .* at least 3",
        job={"silos": ["silo-0", "silo-1"]},
    ),
    "job is over": Mistake(
        "job submit {job} --init {folder}/state.safetensors --config {operator}",
        r"job\.yaml: job digits: not_after: 2001-01-01T00:00:00\+00:00 has passed",
        job={"not_after": "2001-01-01T00:00:00Z", "model": {"name": "custom"}},
        file=("state.safetensors", WEIGHTS),
    ),
    "state is no safetensors": Mistake(
        "job submit {job} --init {folder}/state.safetensors --config {operator}",
        r"state\.safetensors: this is no safetensors file, or only a part of one$",
        file=("state.safetensors", b"\x80\x04pickled"),
    ),
    "drops too many": Mistake(
        "demo --silos 4 --drop 2 --out {folder}/out",
        r"--drop: expected 0 to 1, as 4 silos must keep the 3 that a sum needs, got 2",
    ),
    "drops in a round that is not": Mistake(
        "demo --rounds 1 --drop 1 --out {folder}/out",
        r"--drop: silos are killed in round 2, so --rounds is at least 2",
    ),
    "too few silos": Mistake("demo --silos 2", r"'--silos': 2 is not in the range 3<=x<=200"),
    "out folder is somebody else's": Mistake(
        "demo --out {folder}", r"holds files that no demo wrote; choose an empty folder"
    ),
    "unknown option": Mistake("demo --clinics 4", r"no such option '--clinics'"),
    "unknown command": Mistake("trian", r"no such command 'trian'"),
    "missing option": Mistake("silo run", r"missing option '--config'"),
    "audit log is not one": Mistake(
        "audit verify {folder}/audit.jsonl",
        r"audit\.jsonl: entry 1: not an entry of an audit log",
        file=("audit.jsonl", "nonsense\n"),
    ),
    "ledger is not there": Mistake(
        "silo ledger --config {silo}",
        r"silo-0/ledger\.sqlite: no such ledger; the agent makes it when it first runs",
    ),
    "job is not in the ledger": Mistake(
        "silo approve --config {silo} abcdef",
        r"job abcdef: expected the id of one offered job, none begins with it",
        prepare=_empty_ledger,
    ),
    "request is none": Mistake(
        "authority sign {folder}/members/authority.crt --directory {folder}/ca",
        r"\.crt: request: expected a PEM certificate request",
        prepare=_authority_is_founded,
    ),
    "authority is not there": Mistake(
        "authority roster {folder} --directory {folder}/ca",
        r"expected an authority's folder, it has no authority\.crt",
    ),
    "name is not allowed": Mistake(
        "silo csr --name 'Clinic A' --federation f --out {folder}",
        r"--name: expected 1 to 63 lower-case letters, digits and inner hyphens, got 'C",
    ),
    # it said "authority", which is another option's value
    "federation of an authority is not allowed": Mistake(
        "authority init --federation Heart --directory {folder}/ca",
        r"--federation: expected 1 to 63 .*, got 'Heart'",
    ),
    "federation of a request is not allowed": Mistake(
        "silo csr --name a --federation Heart --out {folder}",
        r"--federation: expected 1 to 63 .*, got 'Heart'",
    ),
    # the ledger, which is not there, was looked for first
    "rejected without a reason": Mistake(
        "silo reject --config {silo} abc --reason ' '",
        r"--reason: expected 1 to 200 printable characters on one line, got 0",
    ),
    "page listens nowhere": Mistake(
        "silo page --config {silo} --listen foo", r"--listen: expected host:port .*, got 'foo'"
    ),
    "page listens for all": Mistake(
        "silo page --config {silo} --listen 0.0.0.0:8000",
        r"--listen: expected an address of this machine alone .*, got 0\.0\.0\.0:8000",
    ),
    # the coordinator, which is not there, was asked first
    "model has no folder": Mistake(
        "job fetch abc --config {operator} --out {folder}/none/model.safetensors",
        r"--out: .*/none: no such folder",
    ),
    "model is a folder": Mistake(
        "job fetch abc --config {operator} --out {folder}", r"--out: .* is a folder, expected a file"
    ),
    "evidence has no folder": Mistake(
        "job evidence abc --config {operator} --out {folder}/none/e.zip", r"--out: .*/none: no such folder"
    ),
    "report folder is a file": Mistake(
        "job report abc --config {operator} --out {folder}/taken/report",
        r"--out: .*/taken is a file, expected a folder",
        file=("taken", ""),
    ),
    "no rounds and no model": Mistake(
        "job submit {job} --config {operator}",
        r"job\.yaml: rounds: 0 evaluates a given model",
        job={"rounds": 0},
    ),
    "distribution is not installed": Mistake(
        "job submit {job} --config {operator}",
        r"job\.yaml: nowhere-models==1\.0\.0: no distribution nowhere-models is",
        job={"model": {"name": "unet", "from": "nowhere-models==1.0.0"}},
    ),
    # the coordinator refused it, after torch had drawn the weights
    "job of another federation": Mistake(
        "job submit {job} --config {operator}",
        r"job\.yaml: federation: expected test, as in the operator's settings, got l",
        job={"federation": "lungs"},
    ),
    # it was passed over
    "cnn has no hidden layers": Mistake(
        "job submit {job} --config {operator}",
        r"job\.yaml: model\.hidden: expected it with mlp alone, got it with cnn",
        job={"model": {"name": "cnn", "hidden": [10]}},
    ),
}
AGENTS = {
    "unknown field": Mistake(
        "coordinator run --config {coordinator}",
        r"coordinator\.yaml: listne: unknown field \(did you mean listen\?\), expected one of ",
        settings={"listne": "127.0.0.1:0"},
    ),
    "wrong type": Mistake(
        "coordinator run --config {coordinator}",
        r"coordinator\.yaml: heartbeat_seconds: expected a number, got 'often'",
        settings={"heartbeat_seconds": "often"},
    ),
    "data is not there": Mistake(
        "silo run --config {silo}",
        r"data\.path: no such file or folder: .*nowhere\.csv",
        settings={"data": {"format": "csv", "path": "{folder}/nowhere.csv"}},
    ),
    "port is none": Mistake(
        "coordinator run --config {coordinator}",
        r"listen: expected host:port with a port up to 65535, got '127\.0\.0\.1:99999'",
        settings={"listen": "127.0.0.1:99999"},
    ),
    "port in use": Mistake(
        "coordinator run --config {coordinator}",
        r"127\.0\.0\.1:\d+",
        code=1,
        settings={"listen": "{taken}"},
    ),
    "metrics port in use": Mistake(
        "coordinator run --config {coordinator}",
        r"127\.0\.0\.1:\d+",
        code=1,
        settings={"metrics_listen": "{taken}"},
    ),
    "coordinator's certificate expired": Mistake(
        "coordinator run --config {coordinator}",
        r"\.crt: own certificate: expired on ",
        prepare=_expired(Role.COORDINATOR, "hub"),
    ),
    "silo's certificate expired": Mistake(
        "silo run --config {silo}",
        r"\.crt: own certificate: expired on ",
        prepare=_expired(Role.SILO, "silo-0"),
    ),
    "roster is none": Mistake(
        "coordinator run --config {coordinator}",
        r"roster\.txt: roster file: expected JSON",
        settings={"roster": "{folder}/roster.txt"},
        file=("roster.txt", "nonsense\n"),
    ),
    "directory in use": Mistake(
        "coordinator run --config {coordinator}",
        r"hub: another coordinator runs there; each has its own directory$",
        code=1,
        prepare=_coordinator_runs_there,
    ),
    "cuda without a GPU": Mistake(
        "silo run --config {silo}",
        r"device: cuda is set but torch finds no GPU; allowed here: auto, cpu$",
        settings={"device": "cuda"},
    ),
    "roster of another authority": Mistake(
        "coordinator run --config {coordinator}",
        r"roster",
        settings={"roster": "{folder}/other/roster.json"},
        prepare=_roster_of_another_authority,
    ),
}


# more than twenty cases: each is a mistake of its own, with a sentence of its own
@pytest.mark.parametrize("mistake", HERE.values(), ids=HERE)
def test_user_error(mistake: Mistake, desk: Desk, chorale: Calls) -> None:
    _check(chorale(*mistake.typed(desk)), mistake.code, mistake.expected)


@pytest.mark.parametrize("mistake", AGENTS.values(), ids=AGENTS)
def test_user_error_of_an_agent(mistake: Mistake, desk: Desk) -> None:
    check_agent(mistake.typed(desk), mistake.code, mistake.expected)


def check_agent(arguments: list[str], code: int, expected: str) -> None:
    """Agents set up logs and signals of their own, so they run as processes."""
    done = run_cli(*arguments)
    _check(Ended(code=done.returncode, out=done.stdout, err=done.stderr), code, expected)


def _check(ended: Ended, code: int, expected: str) -> None:
    lines = ended.err.splitlines()
    errors = [line for line in lines if line.startswith("chorale: error: ")]
    assert len(errors) == 1, ended.err
    assert lines[-1] == errors[0], ended.err
    assert ended.code == code, ended.err
    assert re.search(expected, errors[0]), ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""
