"""`chorale doctor` against a running coordinator: one fault is planted, and it alone is found, with its fix.

The machine's own facts that a test cannot change (clock, disk, GPU, torch) are given to it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import pytest
import yaml
from prometheus_client import start_http_server

from chorale.runtime.audit import AuditLog
from chorale.transport.line_probe import Trouble
from cli.doctor import credentials
from cli.doctor.command import diagnose
from cli.doctor.findings import Finding, Findings, State
from cli.doctor.line import FIXES
from cli.doctor.machine import Machine
from crypto.errors import ConfigError
from crypto.identity.certificates import Role
from silo_agent.metrics import SiloMetrics
from silo_agent.training.machine.torch_build import TorchBuild
from tests.support.ceremony import stranger
from tests.support.federation import COORDINATOR, OPERATOR, LocalFederation
from tests.support.processes import run_cli

SILO, REVOKED, EXPIRED, FOREIGN = "silo-0", "left", "old", "foreign"
GB = 10**9
CPU_BUILD = TorchBuild(version="2.13.0", cuda=None, gpus=0)
HEALTHY = Machine(
    now=lambda: datetime.now(UTC),
    is_clock_kept=lambda: True,
    free_bytes=lambda path: 50 * GB,
    size_bytes=lambda path: 100 * GB,
    file_system=lambda path: "ext4",
    has_nvidia_driver=lambda: False,
    torch_build=lambda: CPU_BUILD,
)
Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ward:
    """A party's valid settings; each test spoils one thing."""

    federation: LocalFederation
    folder: Path

    def write(self, name: str, values: Values) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(values, explicit_end=True))
        return path

    def identity(self, role: Role, name: str, **changes: Path) -> Values:
        ceremony = self.federation.ceremony
        paths = {
            "certificate": ceremony.path_of(role, name, "crt"),
            "key": ceremony.path_of(role, name, "key"),
        }
        return {which: str(path) for which, path in (paths | changes).items()}

    def membership(self, role: Role, name: str) -> Values:
        ceremony = self.federation.ceremony
        own = {"federation": ceremony.federation, "authority": str(ceremony.certificate_path)}
        return own | {"identity": self.identity(role, name)}

    def silo(self, name: str = SILO, **changes: Any) -> Path:
        settings = {
            **self.membership(Role.SILO, name),
            "name": name,
            "coordinator": self.federation.endpoint["grpc"],
            "directory": str(self.folder / "state"),
            "policy": str(self.policy()),
            "data": {"format": "digits"},
        }
        return self.write("silo.yaml", settings | changes)

    def policy(self, **changes: Any) -> Path:
        return self.write("policy.yaml", {"federation": "test", **changes})

    def coordinator(self, **changes: Any) -> Path:
        settings = {
            **self.membership(Role.COORDINATOR, COORDINATOR),
            "listen": "127.0.0.1:0",
            "roster": str(self.federation.ceremony.roster_path),
            "directory": str(self.folder / "hub"),
        }
        return self.write("coordinator.yaml", settings | changes)

    def operator(self, name: str = OPERATOR, **changes: Any) -> Path:
        settings = {**self.membership(Role.OPERATOR, name), "coordinator": self.federation.endpoint["grpc"]}
        return self.write("operator.yaml", settings | changes)

    def copy(self, path: Path, *, mode: int = 0o600) -> Path:
        copied = self.folder / path.name
        copied.write_bytes(path.read_bytes())
        copied.chmod(mode)
        return copied


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """A coordinator alone: no agent runs. On its roster are three silos and one operator."""
    with LocalFederation(folder=tmp_path_factory.mktemp("federation"), silos=3) as federation:
        ceremony = federation.ceremony
        ceremony.enroll(Role.SILO, EXPIRED, days=1, now=datetime.now(UTC) - timedelta(days=4))
        ceremony.enroll(Role.SILO, REVOKED)
        ceremony.enroll(Role.OPERATOR, REVOKED)
        ceremony.enroll(Role.COORDINATOR, REVOKED)
        ceremony.publish(without=(REVOKED,))
        other = stranger(Role.SILO, FOREIGN, now=datetime.now(UTC))
        ceremony.adopt(other.key, other.certificate)
        federation.start_coordinator()
        yield federation


@pytest.fixture
def ward(federation: LocalFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ward:
    monkeypatch.setattr(credentials, "SOON_DAYS", 1)  # the ceremony's certificates are of five days
    return Ward(federation=federation, folder=tmp_path)


def found(config: Path, machine: Machine = HEALTHY, job: Path | None = None) -> list[Finding]:
    findings = Findings(lambda finding: None)
    diagnose(config, job, machine, findings)
    return findings.found


def ails(config: Path, machine: Machine = HEALTHY, job: Path | None = None) -> list[Finding]:
    findings = found(config, machine, job)
    return [each for each in findings if each.state not in (State.OK, State.LEFT_OUT)]


@pytest.mark.parametrize("party", ["silo", "coordinator", "operator"])
def test_nothing_is_found_where_nothing_is_wrong(ward: Ward, party: str) -> None:
    """The control of every test below."""
    findings = found(getattr(ward, party)())
    assert [each for each in findings if each.state is not State.OK] == []
    roster = [each.message for each in findings if each.check == "roster"]
    assert len(roster) == 1
    assert "version 2" in roster[0]


def _unknown_field(ward: Ward) -> Path:
    return ward.silo(coordinater="hub:7443")


def _open_key(ward: Ward) -> Path:
    key = ward.copy(ward.federation.ceremony.path_of(Role.SILO, SILO, "key"), mode=0o644)
    return ward.silo(identity=ward.identity(Role.SILO, SILO, key=key))


def _no_key(ward: Ward) -> Path:
    return ward.silo(identity=ward.identity(Role.SILO, SILO, key=ward.folder / "none.key"))


def _key_of_another(ward: Ward) -> Path:
    other = ward.federation.ceremony.path_of(Role.SILO, "silo-1", "key")
    return ward.silo(identity=ward.identity(Role.SILO, SILO, key=other))


def _signed_by_another(ward: Ward) -> Path:
    return ward.silo(FOREIGN)


def _expired(ward: Ward) -> Path:
    return ward.silo(EXPIRED)


def _no_coordinator(ward: Ward) -> Path:
    return ward.silo(coordinator="127.0.0.1:1")


def _unknown_host(ward: Ward) -> Path:
    return ward.silo(coordinator="hub.invalid:7443")


def _other_host(ward: Ward) -> Path:
    return ward.silo(coordinator_name="hub.example.org")


def _off_the_roster(ward: Ward) -> Path:
    return ward.silo(REVOKED)


def _old_for_the_policy(ward: Ward) -> Path:
    config = ward.silo()
    ward.policy(max_roster_age_days=1e-9)
    return config


def _policy_of_another(ward: Ward) -> Path:
    config = ward.silo()
    ward.policy(federation="elsewhere")
    return config


def _no_data(ward: Ward) -> Path:
    return ward.silo(data={"format": "csv", "path": str(ward.folder / "none.csv")})


def _no_module(ward: Ward) -> Path:
    return ward.silo(data={"format": "module", "module": "tests.nowhere:data"})


def _taken_port(ward: Ward) -> Path:
    return ward.coordinator(listen=ward.federation.endpoint["grpc"])


def _stale_roster(ward: Ward) -> Path:
    ceremony = replace(ward.federation.ceremony, folder=ward.folder / "later", authority_days=10)
    config = ward.coordinator(
        roster=str(ceremony.roster_path),
        authority=str(ceremony.certificate_path),
        identity={
            "certificate": str(ceremony.path_of(Role.COORDINATOR, COORDINATOR, "crt")),
            "key": str(ceremony.path_of(Role.COORDINATOR, COORDINATOR, "key")),
        },
    )
    ceremony.enroll(Role.COORDINATOR, COORDINATOR)
    ceremony.publish(issued=datetime.now(UTC) - timedelta(days=8))
    return config


def _no_roster(ward: Ward) -> Path:
    return ward.coordinator(roster=str(ward.folder / "none.json"))


def _unlisted_coordinator(ward: Ward) -> Path:
    return ward.coordinator(identity=ward.identity(Role.COORDINATOR, REVOKED))


def _changed_audit_log(ward: Ward) -> Path:
    directory = ward.folder / "state"
    directory.mkdir()
    with closing(AuditLog(directory / "audit.jsonl")) as log:
        for spent in (1, 2):
            log.append("spent", epsilon=spent)
    file = directory / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"epsilon":1', b'"epsilon":0'))
    return ward.silo()


def _unlisted_operator(ward: Ward) -> Path:
    return ward.operator(REVOKED)


Fault: TypeAlias = tuple[Callable[[Ward], Path], str, str]
FAULTS: list[Fault] = [
    (_unknown_field, "settings", "chorale schema silo"),
    (_open_key, "key", "chmod 600 "),
    (_no_key, "key", "chorale silo csr --name silo-0 --federation test"),
    (_key_of_another, "certificate", "put the certificate that was signed for"),
    (_signed_by_another, "certificate", "have the authority of"),
    (_expired, "certificate", "chorale silo csr --name old"),
    (_no_coordinator, "line", "correct coordinator, or let outgoing TCP"),
    (_unknown_host, "line", "correct the host name"),
    (_other_host, "line", "set coordinator_name"),
    (_off_the_roster, "roster", "chorale authority roster"),
    (_old_for_the_policy, "roster", "chorale authority renew"),
    (_policy_of_another, "policy", "chorale schema policy"),
    (_no_data, "data.path", "correct data.path"),
    (_no_module, "data.module", "correct data.module"),
    (_taken_port, "listen", "a free port"),
    (_stale_roster, "roster", "chorale authority renew"),
    (_no_roster, "roster", "put the authority's roster.json at"),
    (_unlisted_coordinator, "roster", "chorale authority roster left.crt"),
    (_changed_audit_log, "audit", "find out who wrote to it"),
    (_unlisted_operator, "roster", "chorale authority roster"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0].__name__.strip("_"))
def test_planted_fault_is_found_with_its_fix(ward: Ward, fault: Fault) -> None:
    plant, check, fix = fault
    (finding,) = ails(plant(ward))
    assert (finding.check, finding.state) == (check, State.PROBLEM), finding
    assert fix in finding.fix


def test_one_bad_file_hides_no_fault_of_another_and_what_is_left_out_is_named(ward: Ward) -> None:
    """A bad key ended the look at certificate, authority and line, and no line said so; a missing
    authority.crt that at the certificate. The key's fix stood there twice."""
    line = "line: not looked at: the way to the coordinator and its roster: that needs the "
    own_key = "certificate: not looked at: whether the key belongs to it: that needs the key"
    signer = "certificate: not looked at: who signed it: that needs the authority.crt"
    listed = "roster: not looked at: whether it lists this coordinator: that needs the certificate"
    none = ward.folder / "none"
    unreadable = ward.identity(Role.OPERATOR, OPERATOR, key=none)
    unsigned = ward.identity(Role.COORDINATOR, COORDINATOR, certificate=none)
    for plant, problems, fine, left_out in (
        (
            lambda: _open_key(ward),
            ["key"], {"certificate", "authority", "directory", "torch"}, [own_key, f"{line}key"],
        ),
        (
            lambda: ward.silo(authority=str(none)),
            ["authority"], {"certificate"}, [signer, f"{line}authority.crt"],
        ),
        (
            lambda: ward.silo(EXPIRED, authority=str(none)),
            ["authority", "certificate"], set(), [f"{line}authority.crt and the certificate"],
        ),
        (lambda: ward.operator(identity=unreadable), ["key"], {"certificate"}, [own_key, f"{line}key"]),
        (lambda: ward.coordinator(identity=unsigned), ["certificate"], {"roster", "listen"}, [listed]),
    ):  # fmt: skip
        findings = found(plant())
        by_state = {state: [each for each in findings if each.state is state] for state in State}
        assert [each.check for each in by_state[State.PROBLEM]] == problems
        assert fine <= {each.check for each in by_state[State.OK]}
        assert [f"{each.check}: {each.message}" for each in by_state[State.LEFT_OUT]] == left_out
        assert not [each for each in by_state[State.PROBLEM] if "chmod" in each.message]  # the fix says it


def _cannot_load() -> TorchBuild:
    raise ConfigError("torch and torchvision cannot be loaded: undefined symbol")


def _later(**passed: int) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + timedelta(**passed)


MACHINES: list[tuple[str, dict[str, Any], Values, State, str, str]] = [
    ("clock behind", {"now": _later(days=-1)}, {}, State.PROBLEM, "clock", "set this machine's clock"),
    ("clock ahead", {"now": _later(minutes=10)}, {}, State.PROBLEM, "clock", "set this machine's clock"),
    # it advised a new key alone
    (
        "a year ahead",
        {"now": _later(days=400)},
        {},
        State.PROBLEM,
        "certificate",
        "else set this machine's clock",
    ),
    ("clock not kept", {"is_clock_kept": lambda: False}, {}, State.WARNING, "clock", "chrony"),
    ("disk full", {"free_bytes": lambda path: GB // 100}, {}, State.PROBLEM, "disk", "make room on the disk"),
    ("network disk", {"file_system": lambda path: "nfs4"}, {}, State.PROBLEM, "directory", "a local disk"),
    ("no torch", {"torch_build": _cannot_load}, {}, State.PROBLEM, "torch", "pip install '.[silo]'"),
    ("no GPU", {}, {"device": "cuda"}, State.PROBLEM, "device", "install a build of torch for CUDA"),
    ("unused GPU", {"has_nvidia_driver": lambda: True}, {}, State.WARNING, "device", "torch for CUDA"),
]


@pytest.mark.parametrize("case", MACHINES, ids=lambda case: case[0])
def test_fault_of_the_machine_is_found_with_its_fix(
    ward: Ward, case: tuple[str, dict[str, Any], Values, State, str, str]
) -> None:
    _, facts, settings, state, check, fix = case
    (finding,) = ails(ward.silo(**settings), replace(HEALTHY, **facts))
    assert (finding.check, finding.state) == (check, state), finding
    assert fix in finding.fix


@contextmanager
def proxy_that_asks_for_a_login() -> Iterator[str]:
    """Its address; it refuses every connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

        thread = Thread(target=refuse)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_proxy_that_refuses_the_login_is_found_with_its_fix(ward: Ward) -> None:
    login = ward.folder / "login"
    login.write_text("olga:word\n")
    login.chmod(0o600)
    with proxy_that_asks_for_a_login() as address:
        (finding,) = ails(ward.silo(proxy=address, proxy_credentials=str(login)))
    assert (finding.check, finding.state) == ("line", State.PROBLEM)
    assert "does not accept the login" in finding.message
    assert finding.fix == "correct the login in the file of proxy_credentials"


def test_login_that_others_may_read_is_found_with_its_fix(ward: Ward) -> None:
    login = ward.folder / "login"
    login.write_text("olga:word\n")
    login.chmod(0o644)
    (finding,) = ails(ward.silo(proxy="127.0.0.1:1", proxy_credentials=str(login)))
    assert (finding.check, f"chmod 600 {login}" in finding.fix) == ("proxy", True)


def test_cell_that_does_not_fit_a_job_is_found_with_its_fix(ward: Ward) -> None:
    pytest.importorskip("torch", reason="tries a job for real: needs the extra silo")
    table = ward.folder / "ward.csv"
    table.write_text("age,sick\n" + "60,1\n40,0\n" * 30 + "old,0\n")
    job = ward.write(
        "job.yaml",
        {
            "name": "ages",
            "federation": "test",
            "silos": ["silo-0", "silo-1", "silo-2"],
            "rounds": 1,
            "model": {"name": "mlp"},
            "classes": 2,
            "input_shape": [1],
            "columns": [{"name": "age"}],
            "label_column": "sick",
            "training": {"learning_rate": 0.1},
        },
    )
    (finding,) = ails(ward.silo(data={"format": "csv", "path": str(table)}), job=job)
    assert finding.check == "data"
    assert "line 62, column age: expected a number, got 'old'" in finding.message
    assert finding.fix.startswith("correct this cell, file or label, or leave its record out")
    assert "ask the operator to add it to the job's categories" in finding.fix


def test_table_in_another_dialect_is_found_with_the_line_that_reads_it(ward: Ward) -> None:
    table = ward.folder / "ward.csv"
    table.write_text("age;sick\n" + "60,5;1\n" * 30)
    (finding,) = ails(ward.silo(data={"format": "csv", "path": str(table)}))
    assert (finding.check, finding.state) == ("dialect", State.WARNING)
    assert finding.message.endswith('by its first lines: dialect: {delimiter: ";", decimal: ","}')
    assert finding.fix == "if who wrote the file agrees, put that line into data of the settings"


def test_agent_that_runs_is_asked_and_keeps_its_connection(ward: Ward) -> None:
    """To say hello beside it would end its own stream."""
    federation = ward.federation
    agent = federation.start_silo("silo-1")
    agent.wait_for(lambda record: record["event"] == "connected")
    lines = len(agent.records())
    findings = found(federation.folder / "silo-1.yaml")
    assert [each for each in findings if each.state is not State.OK] == []
    (process,) = [each.message for each in findings if each.check == "process"]
    assert process == "an agent runs here and is connected, with roster version 2"
    assert [record for record in agent.records()[lines:] if record["event"] == "connected"] == []
    assert agent.stop() == 0


def test_agent_that_is_refused_is_found_with_the_reason_and_whom_to_ask(ward: Ward) -> None:
    """Of a revoked silo it was said that the agent is not connected, and to read its log."""
    config, directory = ward.silo(REVOKED), ward.folder / "state"
    directory.mkdir()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=SiloMetrics().registry)
    address = f"127.0.0.1:{server.server_port}"
    (directory / "endpoint.json").write_text(json.dumps({"metrics": address}))
    with closing(AuditLog(directory / "audit.jsonl")):  # as an agent that runs holds it
        process, roster = ails(config)
    server.shutdown()
    server.server_close()
    thread.join()
    assert (process.check, process.message) == (
        "process",
        "an agent runs on this directory, and is not connected",
    )
    expected = (
        f"coordinator refused this silo: roster: version 2 does not list this certificate of silo {REVOKED}"
    )
    assert (roster.check, roster.message) == ("roster", expected)
    assert roster.fix.startswith("ask the authority to list this certificate")
    assert "--readmit NAME if it was revoked" in roster.fix


def test_last_line_that_a_crash_cut_short_is_a_warning(ward: Ward) -> None:
    config = _changed_audit_log(ward)
    with (ward.folder / "state" / "audit.jsonl").open("ab") as log:
        log.write(b'{"entry":')
    (finding,) = ails(config)
    assert (finding.check, finding.state) == ("audit", State.WARNING)


def test_certificate_of_the_last_three_weeks_is_a_warning(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "SOON_DAYS", 21)
    (finding,) = ails(ward.silo())
    assert (finding.check, finding.state) == ("certificate", State.WARNING)
    assert "chorale silo csr --name silo-0" in finding.fix


def test_every_trouble_of_a_line_has_a_fix() -> None:
    assert set(FIXES) == set(Trouble) - {Trouble.NONE}


def test_command_ends_with_one_and_tells_json(ward: Ward) -> None:
    done = run_cli(
        "doctor", "--config", str(ward.silo(coordinator="127.0.0.1:1")), "--json", folder=ward.folder
    )
    assert done.returncode == 1
    assert "chorale: error: 1 problem found" in done.stderr
    document = json.loads(done.stdout)
    assert (document["party"], document["problems"]) == ("silo", 1)
    (line,) = [each for each in document["findings"] if each["check"] == "line"]
    assert line["state"] == "problem"
    assert line["fix"].startswith("see that the coordinator runs, correct coordinator")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"federation": "test", "rounds": 3, "silos": ["a"], "classes": 2}, "no settings of a silo"),
        (
            {"federation": "test", "coordinator": "hub:7443", "authority": "a.crt", "url": "https://hub"},
            "the settings of a console, which the doctor does not look at",
        ),
        ({}, "no settings of a silo"),
    ],
    ids=["job", "console", "empty"],
)
def test_file_that_is_no_settings_file_is_told(ward: Ward, values: Values, expected: str) -> None:
    (finding,) = ails(ward.write("other.yaml", values))
    assert (finding.check, expected in finding.message) == ("settings", True)
    assert "chorale init" in finding.fix
    assert "chorale console --config" in finding.fix


@pytest.mark.parametrize("missing", ["policy", "data", "name", "directory"])
def test_field_that_is_missing_is_told_of_the_silo_that_misses_it(ward: Ward, missing: str) -> None:
    values = yaml.safe_load(ward.silo().read_text())
    del values[missing]
    (finding,) = ails(ward.write("silo.yaml", values))
    assert f"silo.yaml: {missing}: " in finding.message
    assert "chorale schema silo" in finding.fix
