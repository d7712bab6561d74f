from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chorale.runtime.audit import (
    FIRST_PREVIOUS,
    MAX_LINE_BYTES,
    MAX_UNFLUSHED_BYTES,
    AuditInUse,
    AuditLog,
    read_entries,
    verify_file,
)
from crypto.errors import ConfigError, LocalProtocolError

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def write(path: Path, entries: int = 3) -> None:
    log = AuditLog(path, clock=lambda: NOW)
    for number in range(entries):
        log.append("round.applied", round=number)
    log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    with contextlib.closing(AuditLog(path, clock=lambda: NOW)) as log:
        yield log


def test_entries_are_numbered_dated_and_chained(path: Path, log: AuditLog) -> None:
    log.append("job.offered", job=b"\x01" * 32, silos=["a", "b"], note=None)
    head = log.append("job.approved")
    first, second = read_entries(path)
    assert first == {
        "entry": 1,
        "time": "2026-11-21T12:00:00+00:00",
        "event": "job.offered",
        "job": "01" * 32,
        "silos": ["a", "b"],
        "note": None,
        "previous": FIRST_PREVIOUS,
    }
    assert second["entry"] == head.entry == 2
    assert log.head == head


def test_a_log_that_is_opened_again_goes_on_with_the_chain(path: Path) -> None:
    write(path)
    write(path)
    assert verify_file(path) == 6


def test_an_empty_log_is_sound(path: Path) -> None:
    write(path, entries=0)
    assert verify_file(path) == 0


def test_a_second_process_is_excluded(path: Path, log: AuditLog) -> None:
    with pytest.raises(AuditInUse, match=r"audit.jsonl: the audit log is in use by another process"):
        AuditLog(path)
    log.close()
    AuditLog(path).close()


HOLE = (
    b'{"entry":4,' + b"\x00" * 4096 + b'"}\n{"entry":5}\n'
)  # the later page came to disk, the one before did not


@pytest.mark.parametrize("torn", [b"{", b'{"entry":4,"event":"x"}', b"\x00" * 4096, HOLE, HOLE[:-1]])
def test_a_line_cut_short_by_a_crash_is_removed_and_recorded(path: Path, torn: bytes) -> None:
    write(path)
    with path.open("ab") as file:
        file.write(torn)
    with pytest.raises(ConfigError, match="entry 4: (cut short|not an entry)"):
        verify_file(path)
    AuditLog(path, clock=lambda: NOW).close()
    *_, last = read_entries(path)
    assert (last["entry"], last["event"]) == (4, "audit.torn_line_removed")
    assert last["bytes_removed"] == len(torn)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The file's size at each flush."""
    sizes: list[int] = []
    flush = os.fsync

    def counted(handle: int) -> None:
        flush(handle)
        sizes.append(os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fsync", counted)
    return sizes


def test_an_entry_is_flushed_with_the_next_one_that_is(path: Path, log: AuditLog, flushed: list[int]) -> None:
    log.append_unflushed("spent", round=1)
    head = log.append_unflushed("revealed", round=1)
    assert (verify_file(path), flushed) == (2, [])  # another process sees it all the same
    assert log.head == head
    log.append("refused")
    assert flushed == [path.stat().st_size]
    log.flush()  # there is nothing more
    assert len(flushed) == 1
    log.append_unflushed("spent", round=2)
    log.flush()
    log.append_unflushed("revealed", round=2)
    log.close()
    assert len(flushed) == 3
    assert flushed[-1] == path.stat().st_size
    assert verify_file(path) == 5


def test_so_much_and_no_more_is_not_flushed(path: Path, log: AuditLog, flushed: list[int]) -> None:
    while not flushed:
        log.append_unflushed("revealed", survivors=["silo"] * 1000)
        assert path.stat().st_size <= 2 * MAX_UNFLUSHED_BYTES
    assert path.stat().st_size > MAX_UNFLUSHED_BYTES
    assert flushed == [path.stat().st_size]


def test_an_entry_whose_flush_failed_stays_in_the_chain(
    path: Path, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written: an entry that took its number would break the chain."""

    def broken(handle: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            log.append("refused")
    log.append("refused")
    assert verify_file(path) == 2


def test_a_log_of_one_torn_line_begins_again(path: Path) -> None:
    path.write_bytes(b'{"entry":1')
    write(path, entries=1)
    assert [entry["event"] for entry in read_entries(path)] == ["audit.torn_line_removed", "round.applied"]


def test_an_append_that_fails_leaves_no_half_line(
    path: Path, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("round.applied")
    whole = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: whole(handle, data[:5]))
        with pytest.raises(OSError, match="No space left"):
            log.append("round.applied")
    log.append("round.applied")
    assert verify_file(path) == 2


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (
            1,
            lambda line: line.replace(b'"round":1', b'"round":7'),
            "entry 3: the entry before it was changed",
        ),
        (1, lambda line: b"", "entry 2: expected this number, got 3"),
        (1, lambda line: line * 2, "entry 3: expected this number, got 2"),
        (1, lambda line: b"nonsense\n", "entry 2: not an entry of an audit log"),
        (1, lambda line: b"[" * 100_000 + b"\n", "entry 2: not an entry of an audit log"),
        (1, lambda line: b"{}\n", "entry 2: not an entry of an audit log"),
        (0, lambda line: line.replace(b"000", b"111"), "entry 1: the entry before it was changed"),
        (2, lambda line: line[:-1], "entry 3: cut short"),
    ],
)
def test_a_changed_log_is_found_out(path: Path, line: int, change: object, message: str) -> None:
    assert callable(change)
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = change(lines[line])
    path.write_bytes(b"".join(lines))
    with pytest.raises(ConfigError, match=message):
        verify_file(path)


# of the second and third entry OverflowError and RecursionError left, and a process did not say why it ended
@pytest.mark.parametrize("line", [b"damaged", b'{"entry":1e999}', b"[" * 100_000])
def test_a_log_whose_last_entry_is_damaged_is_not_continued(path: Path, line: bytes) -> None:
    write(path)
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ConfigError, match="the last entry of the audit log is damaged"):
        AuditLog(path)


def test_a_missing_log_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit.jsonl: no such file"):
        verify_file(path)
    with pytest.raises(ConfigError, match=r"no such file"):
        AuditLog(path / "deeper")


def test_payloads_and_reserved_fields_are_refused(path: Path, log: AuditLog) -> None:
    with pytest.raises(LocalProtocolError, match="share: expected at most 32 bytes, got 33"):
        log.append("x", share=b"\x00" * 33)
    with pytest.raises(LocalProtocolError, match="the log itself writes previous"):
        log.append("x", previous="y")
    with pytest.raises(LocalProtocolError, match=f"an entry holds less than {MAX_LINE_BYTES} bytes"):
        log.append("x", text="y" * MAX_LINE_BYTES)
    assert verify_file(path) == 0


def test_entries_are_lines_of_json(path: Path) -> None:
    write(path)
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [0, 1, 2]
