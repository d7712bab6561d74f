from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chorale.runtime.key_files import read_key
from chorale.transport import tls
from chorale.transport.tls import IdentityFiles
from crypto.errors import ConfigError
from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony

LOOK = """
import ctypes, json, resource, sys
from pathlib import Path
from chorale.runtime.key_files import read_key
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
def look():
    return [ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE)]
before = look()
read_key(Path(sys.argv[1]), 100)
print(json.dumps([before, look()]))
"""


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "a.key"
    path.write_bytes(b"a key")
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_key_of_this_user_alone_is_read(key: Path, mode: int) -> None:
    key.chmod(mode)
    assert read_key(key, 100) == b"a key"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601, 0o640, 0o440, 0o620, 0o610, 0o777])
def test_a_key_that_others_may_use_is_refused(key: Path, mode: int) -> None:
    key.chmod(mode)
    sentence = rf"a\.key: a key that other users can read or write \(mode {mode:04o}\): run chmod 600 {key}$"
    with pytest.raises(ConfigError, match=sentence):
        read_key(key, 100)


@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o640, True), (0o400, True), (0o444, False),
                                               (0o460, False), (0o450, False), (0o441, False)])  # fmt: skip
def test_a_group_may_read_the_key_of_another_user(
    key: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_read: bool
) -> None:
    """As Kubernetes mounts a Secret for a pod with fsGroup: the owner is root, and the process is not."""
    key.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: key.stat().st_uid + 1)
    if is_read:
        assert read_key(key, 100) == b"a key"
        return
    with pytest.raises(ConfigError, match="a key that other users can read or write"):
        read_key(key, 100)


@pytest.mark.parametrize("role", list(Role))
def test_every_member_refuses_such_a_key(tmp_path: Path, role: Role) -> None:
    ceremony = Ceremony(folder=tmp_path)
    ceremony.enroll(role, "one")
    files = IdentityFiles(
        certificate=ceremony.path_of(role, "one", "crt"), key=ceremony.path_of(role, "one", "key")
    )
    assert tls.load_identity(files).member.name == "one"  # the control
    files.key.chmod(0o644)
    with pytest.raises(
        ConfigError, match=r"one\.key: a key that other users can read or write \(mode 0644\)"
    ):
        tls.load_identity(files)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_a_process_that_read_a_key_writes_no_core_dump(key: Path) -> None:
    key.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, key], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = json.loads(done.stdout)
    assert before[0] == 1
    assert after == [0, 0, 0]  # neither dumpable nor with a limit above zero, soft or hard
