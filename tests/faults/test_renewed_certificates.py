"""New certificates, keys and authorities in the files of processes that run: no restart, no round lost.

Files are replaced as Kubernetes replaces those of a mounted Secret. Source: docs/protocol.md 1.6, 8.8.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from chorale.runtime.files import write_atomic
from client.history import left_out_facts
from crypto.identity.certificates import Role, fingerprint, key_to_pem, load_certificate
from tests.faults.conftest import MakeFederation
from tests.support import one_hot
from tests.support.federation import COORDINATOR, OPERATOR, LocalFederation
from tests.support.history import check_finished
from tests.support.processes import run_cli, wait_until

LAST = "silo-3"  # every round waits for it
REFUSED = "certificate files refused, the former stay in use"

pytestmark = pytest.mark.gate  # 15 s each


class Renewing:
    """A federation of four silos with the authority's own folder, and a job whose rounds begin one by one."""

    def __init__(self, federation: LocalFederation, *, rounds: int) -> None:
        self.federation = federation
        self._folder = federation.folder
        self._gate = federation.folder / "gate"
        self._generation = 0
        write_atomic(self.authority / "authority.key", key_to_pem(federation.ceremony.key))
        for role, name in federation.ceremony.members:
            self._mount(role, name)
        self.command("authority", "renew")  # the folder is one of this release from here on
        self._close(round=1)
        federation.start_coordinator()
        for name in federation.names:
            federation.start_silo(name, env={one_hot.GATE: str(self._gate)} if name == LAST else {})
        self.pids = {name: service.process.pid for name, service in federation.services.items()}
        self.job_id = federation.submit(rounds=rounds)
        self._rounds = rounds

    @property
    def authority(self) -> Path:
        return self.federation.ceremony.folder

    def command(self, *words: str | Path) -> str:
        done = run_cli(*words, "--directory", self.authority)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def wait_in_round(self, round: int) -> None:
        """Until the round waits for its last silo alone."""
        self.federation.hub.wait_for(
            lambda record: record.get("state") == "advertise" and record["round"] == round
        )

    def let_pass(self, round: int) -> None:
        """The round ends, and the next one waits."""
        self._close(round=round + 1)
        if round < self._rounds:
            self.wait_in_round(round + 1)

    def certificate(self, role: Role, name: str) -> Path:
        """A key and a certificate that the authority makes by its commands, in a folder of their own."""
        self._generation += 1
        folder = self._folder / f"{name}-{self._generation}"
        host = ["--host", "127.0.0.1"] if role is Role.COORDINATOR else []
        csr = run_cli(role.value, "csr", "--name", name, "--federation", "test", *host, "--out", folder)
        assert csr.returncode == 0, csr.stderr
        self.command("authority", "sign", folder / f"{name}.csr", "--valid-days", "3")
        return folder

    def renew(self, role: Role, *names: str) -> None:
        """Files first, then the roster that lists them."""
        made = [self.certificate(role, name) for name in names]
        for name, folder in zip(names, made, strict=True):
            self.put(role, name, folder / f"{name}.crt", folder / f"{name}.key")
            self.read_again(name)
        self.command(
            "authority", "roster", *(one / f"{name}.crt" for name, one in zip(names, made, strict=True))
        )

    def read_again(self, name: str) -> None:
        """Until the process has taken the newest files over."""
        path = self.federation.ceremony.path_of(self._role(name), name, "crt")
        shown = fingerprint(load_certificate(path.read_bytes())).hex()[:12]
        self.federation.services[name].wait_for(lambda record: record.get("certificate") == shown)

    def put(self, role: Role, name: str, certificate: Path, key: Path) -> None:
        """Both files change in one step: `..data` is a link to the folder that holds them."""
        self._generation += 1
        secret = self._folder / f"{name}-secret"
        made = secret / f"..{self._generation}"
        made.mkdir(parents=True)
        write_atomic(made / "tls.crt", certificate.read_bytes())
        write_atomic(made / "tls.key", key.read_bytes())
        following = secret / "..data_tmp"
        following.symlink_to(made.name)
        os.replace(following, secret / "..data")

    def check_whole(self) -> None:
        """Every round counted every silo at its first attempt, and every process is that of the start."""
        history = check_finished(self.federation, self.job_id, rounds=self._rounds)
        records = [history.record(round) for round in range(1, self._rounds + 1)]
        why = [
            (each, self.federation.services[each["silo"]].tail())
            for one in records
            for each in left_out_facts(one)
        ]
        assert history.cohorts() == [self.federation.names] * self._rounds, why
        assert {one.attempts for one in records} == {1}
        assert {name: service.process.pid for name, service in self.federation.services.items()} == self.pids

    def shown(self) -> bytes:
        """SHA-256 of the certificate that the coordinator shows a client that dials now."""
        host, port = self.federation.endpoint["grpc"].split(":")
        pem = ssl.get_server_certificate((host, int(port)))
        return fingerprint(x509.load_pem_x509_certificate(pem.encode()))

    def _mount(self, role: Role, name: str) -> None:
        files = {ending: self.federation.ceremony.path_of(role, name, ending) for ending in ("crt", "key")}
        self.put(role, name, files["crt"], files["key"])
        for ending, path in files.items():
            path.unlink()
            path.symlink_to(self._folder / f"{name}-secret" / "..data" / f"tls.{ending}")

    def _role(self, name: str) -> Role:
        return Role.COORDINATOR if name == COORDINATOR else Role.SILO

    def _close(self, *, round: int) -> None:
        write_atomic(self._gate, str(round).encode())


def test_new_certificates_take_no_restart_and_lose_no_round(make_federation: MakeFederation) -> None:
    """silo-1 lost its line with the new roster, and stayed out until somebody restarted it."""
    made = Renewing(make_federation(), rounds=3)
    federation, silo = made.federation, made.federation.services["silo-1"]
    made.wait_in_round(1)
    before = made.shown()

    stranger = made.certificate(Role.SILO, "silo-9")
    own = federation.ceremony.path_of(Role.SILO, "silo-1", "crt").read_bytes()
    (stranger / "own.crt").write_bytes(own)
    for wrong, reason in (
        ("silo-9.crt", "expected a certificate of silo silo-1, got silo-9"),
        ("own.crt", "the key does not belong to the certificate"),
    ):
        made.put(Role.SILO, "silo-1", stranger / wrong, stranger / "silo-9.key")
        refused = silo.wait_for(lambda line, reason=reason: reason in line.get("reason", ""))
        assert refused["event"] == REFUSED
    assert federation.scrape("silo-1")["chorale_silo_credentials_refused"] == 1

    made.renew(Role.SILO, "silo-1")
    made.renew(Role.COORDINATOR, COORDINATOR)
    silo.wait_for(lambda record: record["event"] == "new certificate in use")
    certificate = load_certificate(federation.ceremony.path_of(Role.SILO, "silo-1", "crt").read_bytes())
    metrics = federation.scrape("silo-1")
    assert metrics["chorale_silo_credentials_refused"] == 0
    expires = metrics["chorale_silo_certificate_expiry_timestamp_seconds"]
    assert expires == certificate.not_valid_after_utc.timestamp()
    assert made.shown() != before
    for round in (1, 2, 3):
        made.let_pass(round)

    made.check_whole()


def test_a_job_goes_on_while_the_authority_changes_its_key(make_federation: MakeFederation) -> None:
    """With one pinned certificate no order of steps kept a federation together."""
    made = Renewing(make_federation(), rounds=4)
    federation = made.federation
    made.wait_in_round(1)
    made.let_pass(1)

    made.command("authority", "rotate")
    for service in federation.services.values():
        service.wait_for(lambda record: record.get("authorities") == 2)
    made.command("authority", "renew")  # with the old key still
    made.command("authority", "rotate", "--switch")
    made.command("authority", "renew")
    made.renew(Role.SILO, "silo-0", LAST)
    made.let_pass(2)

    made.renew(Role.COORDINATOR, COORDINATOR)
    made.renew(Role.SILO, "silo-1", "silo-2")
    made.let_pass(3)
    waiting = run_cli("authority", "rotate", "--finish", "--directory", made.authority)
    assert f"certificates of the old key: operator {OPERATOR}" in waiting.stderr
    made.let_pass(4)
    made.check_whole()

    folder = made.certificate(Role.OPERATOR, OPERATOR)  # its job is over
    made.put(Role.OPERATOR, OPERATOR, folder / f"{OPERATOR}.crt", folder / f"{OPERATOR}.key")
    made.command("authority", "roster", folder / f"{OPERATOR}.crt")
    made.command("authority", "rotate", "--finish")
    for service in federation.services.values():
        service.wait_for(lambda record: record.get("authorities") == 1)
    again = federation.submit(rounds=1, name="after")
    wait_until(lambda: "done" in federation.cli("job", "list").stdout.split(again)[1][:80], "the second job")
    assert {name: service.process.pid for name, service in federation.services.items()} == made.pids
