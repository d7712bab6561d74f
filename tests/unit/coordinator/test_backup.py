"""A coordinator's directory as a backup and back: whole, checked before it is written, once."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.job import SignedJob
from chorale.runtime import audit
from chorale.runtime.audit import AuditInUse, AuditLog
from chorale.v1 import records_pb2
from coordinator.phase_machine import PhaseState
from coordinator.storage.backup import BackupFailed, Manifest, checkpoint_name, write_backup
from coordinator.storage.checkpoints import Checkpoints
from coordinator.storage.restore import restore_backup
from coordinator.storage.schema import MIGRATIONS
from coordinator.storage.store import Store
from coordinator.storage.sum_files import SumFiles
from crypto.errors import ConfigError
from crypto.session.messages import SignedBody

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = SignedJob(spec_bytes=b"job", signature=b"signature", operator_certificate=b"der")


class Coordinator:
    """What a coordinator does to its directory, phase by phase."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = Store(directory / "coordinator.sqlite")
        self.audit = AuditLog(directory / "audit.jsonl")
        self.checkpoints = Checkpoints(directory / "checkpoints")
        self.store.add_roster(1, SignedBody(body=b"roster", signature=b"s"))
        self.state = self.put(0)
        self.store.add_job(JOB, state_digest=self.state, unix_seconds=1.0)

    def put(self, number: int) -> bytes:
        return self.checkpoints.put(JOB.digest, {"model/w": np.full(64, number, np.float32)})

    def begin(self, round: int) -> int:
        """To UNMASK: masked sum and session are on disk, and the row says so."""
        row = self.store.begin_phase(JOB.digest, round, "train", roster_version=1, unix_seconds=2.0)
        self.store.begin_attempt(row.sequence, 1)
        files = SumFiles(self.directory / "sums", sequence=row.sequence, attempt=1)
        digest = files.store([b"masked" * round], b"session" * round)
        self.store.enter_unmask(row.sequence, session_digest=digest, cohort=["a", "b", "c"], upload_bytes=7)
        return row.sequence

    def end(self, sequence: int, round: int) -> None:
        """The next state, and what no phase needs any more gone, as a runner does it."""
        self.state = self.put(round)
        record = records_pb2.PhaseRecord(round=round, phase="train", state_digest=self.state)
        self.store.end_phase(sequence, state=PhaseState.APPLIED, record=record)
        SumFiles(self.directory / "sums", sequence=sequence, attempt=1).remove(keeps_tagged=False)
        self.audit.append("phase_ended", round=round)
        self.checkpoints.keep_only(JOB.digest, [self.state])

    def close(self) -> None:
        self.audit.close()
        self.store.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Coordinator]:
    with closing(Coordinator(tmp_path / "hub")) as coordinator:
        sequence = coordinator.begin(1)
        coordinator.end(sequence, 1)
        coordinator.begin(2)
        yield coordinator


def backup(directory: Path) -> bytes:
    out = io.BytesIO()
    write_backup(directory, federation="test", now=NOW, out=out)
    return out.getvalue()


def restore(data: bytes, directory: Path, *, federation: str = "test", sets_aside: bool = False) -> Manifest:
    return restore_backup(
        io.BytesIO(data),
        name="backup.tar",
        directory=directory,
        federation=federation,
        now=NOW,
        sets_aside=sets_aside,
    )


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def check_restored(directory: Path) -> int:
    """All that the database goes on from is there; how many phases it knows."""
    with closing(Store(directory / "coordinator.sqlite")) as store:
        (job,) = store.jobs()
        assert (directory / checkpoint_name(job.digest, job.state_digest)).exists()
        rows = store.phases(job.digest)
        for row in rows:
            if row.state is PhaseState.UNMASK:
                files = SumFiles(directory / "sums", sequence=row.sequence, attempt=row.attempt)
                files.read_session(row.session_digest or b"")
                assert files.masked.read_bytes() == b"masked" * row.round
    ended = sum(row.is_ended for row in rows)
    entries = list(audit.read_entries(directory / "audit.jsonl"))
    assert sum(entry["event"] == "phase_ended" for entry in entries) in (ended - 1, ended)
    return len(rows)


def test_what_is_restored_is_what_was_there(running: Coordinator, tmp_path: Path) -> None:
    before = contents(running.directory)
    restore(backup(running.directory), tmp_path / "new")

    after = contents(tmp_path / "new")
    same = {name for name in before if name.startswith(("checkpoints/", "sums/"))}
    assert len(same) == 3
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["audit.jsonl"].startswith(before["audit.jsonl"])
    *_, last = audit.read_entries(tmp_path / "new" / "audit.jsonl")
    assert (last["event"], last["backup_made"]) == ("restored", NOW.isoformat())
    assert check_restored(tmp_path / "new") == 2
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert modes == {0}


def test_every_backup_is_whole_while_phases_end_and_their_files_go(
    running: Coordinator, tmp_path: Path
) -> None:
    """Files opened before or after the database was read, and not at that moment, lack one or the other."""
    stopping = threading.Event()

    def work() -> None:
        sequence, round = 2, 2
        while not stopping.is_set():
            running.end(sequence, round)
            round += 1
            sequence = running.begin(round)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        made = [backup(running.directory) for _ in range(25)]
    finally:
        stopping.set()
        thread.join()
    lengths = []
    for number, data in enumerate(made):
        restore(data, tmp_path / str(number))
        lengths.append(check_restored(tmp_path / str(number)))
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0], "no phase ended meanwhile"


def test_a_job_without_the_file_that_it_goes_on_from_is_not_backed_up(running: Coordinator) -> None:
    name = checkpoint_name(JOB.digest, running.state)
    (running.directory / name).unlink()
    with pytest.raises(BackupFailed, match=f"{name}: a job that has not ended goes on from this file"):
        backup(running.directory)


def test_a_damaged_database_is_not_backed_up(running: Coordinator) -> None:
    running.close()
    path = running.directory / "coordinator.sqlite"
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(os.urandom(4096))
    with pytest.raises(BackupFailed, match="damaged|malformed"):
        backup(running.directory)


def test_a_directory_without_a_database_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"coordinator\.sqlite: there is no such database"):
        backup(tmp_path)


def rebuilt(
    data: bytes, change: Callable[[dict[str, Any]], object], *added: tuple[tarfile.TarInfo, bytes]
) -> bytes:
    """The archive with another manifest, and these files before its own."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for info, content in added:
            new.addfile(info, io.BytesIO(content))
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            content = file.read()
            if member.name == "manifest.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
                member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return out.getvalue()


def refused(data: bytes, directory: Path, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        restore(data, directory)
    assert list(directory.iterdir()) == [], "nothing is left of what was refused"


def test_a_backup_that_was_cut_short_anywhere_leaves_nothing(running: Coordinator, tmp_path: Path) -> None:
    data = backup(running.directory)
    manifest_at = data.index(b"manifest.json")
    for length in [0, 1, 511, 512, 513, *range(1024, manifest_at, 4001), manifest_at, manifest_at + 600]:
        refused(data[:length], tmp_path / "new", "cut short|not a backup")


def test_a_backup_with_a_changed_byte_leaves_nothing(running: Coordinator, tmp_path: Path) -> None:
    data = backup(running.directory)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        places = {member.name: member.offset_data + member.size // 2 for member in archive}
    for name, place in places.items():
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        why = "damaged" if name != "manifest.json" else "damaged|expected|lacks"
        refused(changed, tmp_path / "new", why)


def test_backups_of_others_and_of_newer_releases_are_refused(running: Coordinator, tmp_path: Path) -> None:
    data = backup(running.directory)
    with pytest.raises(ConfigError, match="expected a backup of federation other, got test"):
        restore(data, tmp_path / "new", federation="other")
    refused(rebuilt(data, lambda manifest: manifest.update(format=2)), tmp_path / "new", "newer release")
    with closing(sqlite3.connect(running.directory / "coordinator.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(ConfigError, match="a newer release wrote it"):
        backup(running.directory)


def test_a_newer_database_in_a_backup_is_refused(
    running: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = backup(running.directory)
    monkeypatch.setattr("coordinator.storage.restore.MIGRATIONS", MIGRATIONS[:-1])
    refused(data, tmp_path / "new", f"version {len(MIGRATIONS) - 1} or older, got version {len(MIGRATIONS)}")


def _info(name: str, *, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 4) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "info",
    [
        _info("../outside"),
        _info("/etc/cron.d/evil"),
        _info("checkpoints/../../outside.safetensors"),
        _info("tls.key"),
        _info("audit.jsonl", kind=tarfile.SYMTYPE, target="/etc/passwd"),
        _info("checkpoints", kind=tarfile.SYMTYPE, target="/tmp"),
        _info("coordinator.sqlite", kind=tarfile.CHRTYPE),
        _info("coordinator.sqlite"),  # twice
        _info("sums/1-1.masked"),  # of no manifest
    ],
    ids=lambda info: f"{info.name} {info.type!r}",
)
def test_files_that_no_backup_has_are_refused(
    running: Coordinator, tmp_path: Path, info: tarfile.TarInfo
) -> None:
    bad = rebuilt(backup(running.directory), lambda manifest: None, (info, b"evil"))
    refused(bad, tmp_path / "new", "not a backup of a coordinator|damaged")
    assert not (tmp_path / "outside").exists()


def test_nothing_is_overwritten(running: Coordinator, tmp_path: Path) -> None:
    data = backup(running.directory)
    with pytest.raises(AuditInUse, match="a coordinator runs on it"):
        restore(data, running.directory, sets_aside=True)
    running.close()
    before = contents(running.directory)
    with pytest.raises(ConfigError, match="expected an empty directory, got"):
        restore(data, running.directory)
    assert contents(running.directory) == before
    with pytest.raises(ConfigError, match="cut short"):
        restore(data[:5000], running.directory, sets_aside=True)
    assert contents(running.directory) == before

    restore(data, running.directory, sets_aside=True)

    assert contents(running.directory / "replaced-20260102T030405Z") == before
    assert check_restored(running.directory) == 2
