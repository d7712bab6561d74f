"""`chorale coordinator backup` and `restore` as typed: files, folders, pipes and mistakes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from chorale.runtime.audit import AuditLog, read_entries
from cli.main import run
from coordinator.storage.store import Store
from tests.support.federation import LocalFederation
from tests.support.processes import REPOSITORY, environment


@pytest.fixture
def federation(tmp_path: Path) -> LocalFederation:
    """Its coordinator ran once, and does not now."""
    made = LocalFederation(folder=tmp_path)
    Store(tmp_path / "hub" / "coordinator.sqlite").close()
    (tmp_path / "hub" / "audit.jsonl").touch()
    return made


@pytest.fixture
def config(federation: LocalFederation) -> str:
    return str(federation._write("hub.yaml", federation._coordinator_settings()))


def code_and_output(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Exit code, and what was printed."""
    code = run(["coordinator", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_a_folder_gets_a_file_named_by_federation_and_time(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    code, printed = code_and_output(capsys, "backup", "--config", config, "--out", folder)
    (made,) = folder.iterdir()
    assert (code, printed.startswith("backed up 2 files")) == (0, True)
    assert made.name.startswith("chorale-test-")
    assert str(made) in printed
    assert made.stat().st_mode & 0o777 == 0o600

    code, printed = code_and_output(capsys, "backup", "--config", config, "--out", made)
    assert (code, "it exists already, and a backup overwrites nothing" in printed) == (2, True)
    assert len(list(folder.iterdir())) == 1


def test_closed_files_of_the_audit_log_are_backed_up_and_come_back(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "hub" / "audit.jsonl"
    with closing(AuditLog(log)) as audit:
        audit.append("a")
        closed = audit.rotate()
    assert code_and_output(capsys, "backup", "--config", config, "--out", tmp_path / "a.tar")[0] == 0
    restore = ("restore", "--config", config, "--from", tmp_path / "a.tar", "--set-aside")
    code, printed = code_and_output(capsys, *restore)
    assert (code, closed.exists()) == (0, True), printed
    assert [entry["event"] for entry in read_entries(log)] == ["a", "audit.continued", "restored"]


def test_a_folder_keeps_the_newest_backups_of_its_federation(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    names = [f"chorale-test-2026010{day}T030000Z.tar" for day in (1, 2, 3)]
    others = ["chorale-test-b-20260101T030000Z.tar", "chorale-test-20260101T030000Z.tar.gpg", "note"]
    for name in (*names, *others):
        (folder / name).touch()
    code, printed = code_and_output(capsys, "backup", "--config", config, "--out", folder, "--keep", "2")
    assert code == 0, printed
    left = {path.name for path in folder.iterdir()} - set(others)
    assert names[2] in left
    assert len(left) == 2
    assert set(others) <= {path.name for path in folder.iterdir()}

    code, printed = code_and_output(
        capsys, "backup", "--config", config, "--out", folder / "new.tar", "--keep", "2"
    )
    assert (code, "--keep: expected a folder as --out, got" in printed) == (2, True)
    assert not (folder / "new.tar").exists()


def test_a_backup_goes_through_a_pipe_to_another_machine(config: str, tmp_path: Path) -> None:
    # `-` was looked up as a path: not permitted where the service's user may not enter the working folder
    (tmp_path / "here" / "-").mkdir(parents=True)
    settings = Path(config).read_text()
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(settings.replace(str(tmp_path / "hub"), str(tmp_path / "new")))

    def command(verb: str, *arguments: str, data: bytes = b"") -> bytes:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", "coordinator", verb, *arguments],
            input=data,
            capture_output=True,
            cwd=tmp_path / "here",
            env=environment({}),
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    data = command("backup", "--config", config, "--out", "-")
    command("restore", "--config", str(elsewhere), "--from", "-", data=data)

    with closing(Store(tmp_path / "new" / "coordinator.sqlite")) as store:
        assert store.jobs() == []


def test_a_refused_restore_reads_its_input_to_the_end(config: str) -> None:
    # `kubectl exec --stdin` waited for ever after the refusal, because nobody read what it sent
    restoring = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "coordinator", "restore", "--config", config, "--from", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env=environment({}),
    )
    assert restoring.stdin is not None
    assert restoring.stderr is not None
    with restoring.stdin as sent:
        sent.write(bytes(1 << 20))  # more than a pipe holds: a broken pipe where nobody reads on
    with restoring.stderr as told_by_it:
        assert b"expected an empty directory" in told_by_it.read()
    assert restoring.wait(60) == 2


def test_mistakes_are_told_in_a_sentence(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.tar"
    assert code_and_output(capsys, "restore", "--config", config, "--from", missing) == (
        2,
        f"chorale: error: {missing}: no such file or directory\n",
    )
    missing.write_bytes(b"something else")
    code, printed = code_and_output(capsys, "restore", "--config", config, "--from", missing)
    assert (code, "expected an empty directory, got" in printed) == (2, True)
    assert "--set-aside moves what is there" in printed
    code, printed = code_and_output(capsys, "restore", "--config", config, "--from", missing, "--set-aside")
    assert (code, f"{missing}: not a backup of a coordinator" in printed) == (2, True)
    assert (tmp_path / "hub" / "coordinator.sqlite").exists()
    code, printed = code_and_output(
        capsys, "backup", "--config", config, "--out", tmp_path / "no" / "such.tar"
    )
    assert (code, "no such file or directory" in printed.lower()) == (1, True)
