from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorale.runtime.files import make_private, read_limited, write_atomic, write_hashed
from crypto.errors import ConfigError


def test_write_atomic_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "state"
    target.write_bytes(b"old")
    write_atomic(target, [b"new ", b"bytes"])
    assert target.read_bytes() == b"new bytes"
    assert os.listdir(tmp_path) == ["state"]


def test_write_atomic_keeps_the_old_file_when_the_source_fails(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the source is gone")

    target = tmp_path / "state"
    target.write_bytes(b"old")
    with pytest.raises(OSError, match="the source is gone"):
        write_atomic(target, failing())
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


def test_write_hashed_names_the_file_by_what_it_holds(tmp_path: Path) -> None:
    digest = write_hashed(tmp_path, [b"new ", memoryview(b"bytes")], suffix=".part")
    assert digest == hashlib.sha256(b"new bytes").digest()
    assert os.listdir(tmp_path) == [f"{digest.hex()}.part"]
    assert (tmp_path / f"{digest.hex()}.part").read_bytes() == b"new bytes"


def test_write_hashed_leaves_nothing_when_the_source_fails(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        write_hashed(tmp_path, failing(), suffix=".part")
    assert os.listdir(tmp_path) == []


def test_write_atomic_makes_files_of_this_user_alone(tmp_path: Path) -> None:
    write_atomic(tmp_path / "key", b"secret")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_read_limited_takes_a_file_of_exactly_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_limited(tmp_path / "file", 4) == b"1234"


def test_read_limited_refuses_a_larger_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(ConfigError, match="file: expected at most 4 bytes, got more"):
        read_limited(tmp_path / "file", 4)


@pytest.mark.parametrize(("name", "reason"), [("missing", "no such file"), (".", "is a directory")])
def test_read_limited_says_why_a_file_cannot_be_read(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_limited(tmp_path / name, 4)


def test_read_limited_names_the_folder_that_a_relative_path_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_limited(Path("missing"), 4)
    assert caught.value.__notes__ == [
        f"paths are relative to the folder the command runs in, here {tmp_path}"
    ]


def test_write_atomic_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        write_atomic(tmp_path / "nowhere" / "file", b"x")
    assert missing.value.filename == str(tmp_path / "nowhere" / "file")
    with pytest.raises(IsADirectoryError) as folder:
        write_atomic(tmp_path, b"x")
    assert (folder.value.filename, folder.value.filename2) == (str(tmp_path), None)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("folder", "left"), [(0o755, 0o700), (0o777, 0o700), (0o2775, 0o2770), (0o2770, 0o2770)]
)
def test_own_folder_is_closed_to_others_and_left_to_the_group_of_a_volume(
    tmp_path: Path, folder: int, left: int
) -> None:
    for own in (tmp_path / "new", tmp_path / "used"):
        own.mkdir()
        own.chmod(folder)
    (own / "audit.jsonl").touch()
    for own in (tmp_path / "new", tmp_path / "used"):
        make_private(own, known_by="audit.jsonl")
        assert oct(mode_of(own)) == oct(left)


def test_folder_that_others_use_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """`directory: /var/lib` would have taken every other service's rights away."""
    own = tmp_path / "lib"
    (own / "other").mkdir(parents=True)
    own.chmod(0o755)
    with pytest.raises(ConfigError, match=r"mode 0755.: run chmod o= .*/lib, or name a folder of its own"):
        make_private(own, known_by="audit.jsonl")
    assert [mode_of(each) for each in (own, own / "other")] == [0o755, 0o755]


def test_folder_of_another_user_that_all_may_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path, mode: int) -> None:
        raise PermissionError

    tmp_path.chmod(0o2777)
    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ConfigError, match=f"other users can enter it .mode 2777.: run chmod o= {tmp_path}"):
        make_private(tmp_path, known_by="audit.jsonl")
