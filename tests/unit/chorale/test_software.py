"""What a process says that it runs is what a release says of its wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from chorale.runtime.software import Software, check_own_digest, own_software, told_digest
from crypto.errors import ConfigError, RemoteProtocolError
from tools.release.components import software_sha256

ROOT = Path(__file__).parents[3]
TELL = (
    "from chorale.runtime.software import own_software as o; s = o(); print(s.version, s.sha256, s.why_none)"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the files that git keeps, as a fresh clone builds it."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    kept = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in kept.stdout.splitlines():
        with suppress(FileNotFoundError, IsADirectoryError):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, check=True)
    return next(out.glob("*.whl"))


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """A folder that the wheel is installed in, beside links to what it requires."""
    own = tmp_path / "own"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(own)
    others = tmp_path / "others"
    others.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "chorale" not in path.name:
            (others / path.name).symlink_to(path)
    return own


def run(own: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A process that finds the installed wheel and no checkout."""
    path = f"{own}:{own.parent / 'others'}"
    return subprocess.run(
        [sys.executable, "-S", *command],
        cwd=own.parent,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_installed_wheel_has_the_digest_that_its_release_tells(wheel: Path, installed: Path) -> None:
    expected = f"1.0.0 {software_sha256(wheel)} \n"
    assert run(installed, "-c", TELL).stdout == expected
    with (installed / "silo_agent" / "agent.py").open("a") as file:
        file.write("# changed\n")
    changed = run(installed, "-c", TELL).stdout
    assert changed.startswith("1.0.0 ")
    assert len(changed) == len(expected)
    assert changed != expected


def test_installed_wheel_with_a_file_that_it_does_not_list_has_no_digest(installed: Path) -> None:
    (installed / "crypto" / "more.py").write_text("")
    said = run(installed, "-c", TELL).stdout
    assert "crypto/more.py lies in its package and is none of its files" in said


def test_checkout_has_no_digest_and_says_why() -> None:
    software = own_software()
    assert software.sha256 == ""
    assert software.why_none


@pytest.mark.gate
def test_agent_starts_with_the_software_that_its_site_approved_alone(wheel: Path, installed: Path) -> None:
    """Whatever somebody had put into an image ran."""
    settings = installed.parent / "silo.yaml"
    settings.write_text(
        "name: clinic-a\nfederation: heart\ncoordinator: 127.0.0.1:9\nidentity: {certificate: a, key: b}\n"
        "authority: ca.crt\ndirectory: state\npolicy: policy.yaml\ndata: {format: digits}\n"
        f"software_digest: {software_sha256(wheel)}\n"
    )
    start = ("-c", f"from cli.main import main; main(['silo', 'run', '--config', {str(settings)!r}])")
    done = run(installed, *start)
    assert "software_digest" not in done.stderr
    assert "ca.crt" in done.stderr  # it went on to its files
    (installed / "cli" / "__init__.py").write_text("# changed\n")
    done = run(installed, *start)
    assert done.returncode != 0
    assert f"chorale: error: software_digest: expected {software_sha256(wheel)}, got " in done.stderr


def test_own_digest_is_compared_where_the_site_names_one() -> None:
    check_own_digest(Software(version="1", sha256="ab"), expected=None)
    check_own_digest(Software(version="1", sha256="ab"), expected="ab")
    with pytest.raises(ConfigError, match="expected cd, got none: an editable install"):
        check_own_digest(Software(version="1", why_none="an editable install"), expected="cd")


def test_digest_of_a_peer_is_32_bytes_or_none() -> None:
    assert told_digest(b"") == ""
    assert told_digest(b"\0" * 32) == "00" * 32
    for size in (1, 31, 33, 64):
        with pytest.raises(RemoteProtocolError, match=f"expected none or 32 bytes, got {size}"):
            told_digest(b"\0" * size)
