"""Settings files of every party in a test's folder, and commands run in this process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import run
from crypto.identity.certificates import Anchors, Role
from crypto.identity.roster import Roster, open_roster, roster_from_file_bytes
from tests.support.ceremony import Ceremony

Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Calls = Callable[..., Ended]  # `chorale` in this process


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A federation's files, all valid: each test spoils one of them."""

    folder: Path
    ceremony: Ceremony
    taken_address: str  # something else listens there
    stack: ExitStack  # what is held until the test ends

    def identity(self, role: Role, name: str) -> Settings:
        paths = {what: self.ceremony.path_of(role, name, what) for what in ("crt", "key")}
        return {"certificate": str(paths["crt"]), "key": str(paths["key"])}

    def write(self, name: str, settings: Settings) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(settings, explicit_end=True))
        return path

    def operator(self, **changes: Any) -> Path:
        settings = {
            "federation": "test",
            "coordinator": "127.0.0.1:1",  # nothing listens on port 1
            "identity": self.identity(Role.OPERATOR, "ops"),
            "authority": str(self.ceremony.certificate_path),
        }
        return self.write("operator.yaml", settings | changes)

    def coordinator(self, **changes: Any) -> Path:
        settings = {
            "federation": "test",
            "listen": "127.0.0.1:0",
            "identity": self.identity(Role.COORDINATOR, "hub"),
            "authority": str(self.ceremony.certificate_path),
            "roster": str(self.ceremony.roster_path),
            "directory": str(self.folder / "hub"),
        }
        return self.write("coordinator.yaml", settings | changes)

    def silo(self, **changes: Any) -> Path:
        settings = {
            "name": "silo-0",
            "federation": "test",
            "coordinator": "127.0.0.1:1",
            "identity": self.identity(Role.SILO, "silo-0"),
            "authority": str(self.ceremony.certificate_path),
            "directory": str(self.folder / "silo-0"),
            "policy": str(self.write("policy.yaml", {"federation": "test"})),
            "data": {"format": "digits"},
        }
        return self.write("silo.yaml", settings | changes)

    def job(self, **changes: Any) -> Path:
        settings = {
            "name": "digits",
            "federation": "test",
            "silos": ["silo-0", "silo-1", "silo-2"],
            "rounds": 1,
            "model": {"name": "mlp"},
            "classes": 10,
            "input_shape": [1, 8, 8],
            "training": {"learning_rate": 0.1},
        }
        return self.write("job.yaml", settings | changes)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    ceremony = Ceremony(folder=tmp_path / "members")
    ceremony.enroll(Role.COORDINATOR, "hub")
    ceremony.enroll(Role.OPERATOR, "ops")
    ceremony.enroll(Role.SILO, "silo-0")
    ceremony.publish()
    with socket.create_server(("127.0.0.1", 0)) as taken, ExitStack() as stack:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        yield Desk(folder=tmp_path, ceremony=ceremony, taken_address=address, stack=stack)


@pytest.fixture
def chorale(capsys: pytest.CaptureFixture[str]) -> Calls:
    """Runs one command in this process."""

    def call(*arguments: str | Path) -> Ended:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code=int(code), out=captured.out, err=captured.err)

    return call


@pytest.fixture
def founded(tmp_path: Path, chorale: Calls) -> Path:
    """A folder with an authority, a coordinator and three silos, all signed."""
    assert chorale("authority", "init", "--federation", "fed", "--directory", tmp_path / "ca").code == 0
    for name in ("a", "b", "c"):
        make_request(chorale, tmp_path, "silo", name)
    make_request(chorale, tmp_path, "coordinator", "hub", "--host", "127.0.0.1")
    requests = [tmp_path / f"{name}.csr" for name in ("a", "b", "c", "hub")]
    assert chorale("authority", "sign", *requests, "--directory", tmp_path / "ca").code == 0
    return tmp_path


def make_request(chorale: Calls, folder: Path, role: str, name: str, *more: str, code: int = 0) -> Ended:
    ended = chorale(role, "csr", "--name", name, "--federation", "fed", "--out", folder, *more)
    assert ended.code == code, ended.err
    return ended


def signed_again(chorale: Calls, folder: Path, name: str) -> Path:
    new = folder / "new"
    new.mkdir()
    ended = chorale("authority", "sign", folder / f"{name}.csr", "--directory", folder / "ca", "--out", new)
    assert ended.code == 0, ended.err
    return new / f"{name}.crt"


def newest_roster(ca: Path) -> Roster:
    return open_file(ca / "roster.json", ca)


def open_file(path: Path, ca: Path) -> Roster:
    authority = Anchors.load((ca / "authority.crt").read_bytes())
    signed = roster_from_file_bytes(path.read_bytes())
    return open_roster(signed, authority=authority, federation="fed", now=datetime.now(UTC))
