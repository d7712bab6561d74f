"""One archive of wheels installs a party without a network, and nothing that its builder did not sign."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.host.page import PAGE
from tests.host.walk import build_wheel
from tests.support import programs
from tools.release import air_gap, archives, statement
from tools.release.errors import ReleaseError

VERSION = "1.0.0"
SECTION = PAGE.read_text().partition("\n## Without a network\n")[2].partition("\n## ")[0]
(COMMANDS,) = re.findall(r"^```sh\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
ONE_INTERFACE = 'test "$(tail --lines +3 /proc/net/dev | cut --delimiter : --fields 1 | xargs)" = lo'


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this tree's wheel and a pair of keys."""
    folder = tmp_path_factory.mktemp("release")
    (folder / f"chorale-{VERSION}-py3-none-any.whl").write_bytes(build_wheel(VERSION))
    pair = ["-p", str(folder / "chorale.pub"), "-s", str(folder / "chorale.key")]
    subprocess.run([programs.needed("minisign"), "-G", "-W", *pair], capture_output=True, check=True)
    return folder


def pack(release: Path, out: Path, party: str) -> Path:
    """As the module's command does."""
    command = [
        sys.executable,
        "-m",
        "tools.release.air_gap",
        str(release),
        "--party",
        party,
        "--out",
        str(out),
    ]
    # PyPI's torch for CPUs, or what this machine's pip is configured with
    command += ["--torch-index-url", "https://pypi.org/simple", "--key", str(release / "chorale.key")]
    command += ["--python", f"{sys.version_info.major}.{sys.version_info.minor}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (archive,) = out.glob("*.tar")
    return archive


def install(archive: Path, machine: Path) -> subprocess.CompletedProcess[str]:
    """The page's commands in a network namespace of their own, with their folders below `machine`."""
    if os.geteuid() != 0:
        programs.missing("a network namespace needs root")
    page = COMMANDS.replace(f"chorale-silo-{VERSION}-python3.11", archive.stem)
    page = page.replace("/srv", f"{machine}/srv").replace("/opt", f"{machine}/opt")
    lines = ["set -eu", ONE_INTERFACE, f"{sys.executable} -m venv {machine}/opt/chorale", page]
    lines.append(f"{machine}/opt/chorale/bin/chorale --version")
    # nothing of this machine's pip: what it is configured with could serve as an index
    given = {"PATH": os.environ["PATH"], "HOME": str(machine), "PIP_CONFIG_FILE": os.devnull}
    command = [programs.needed("unshare"), "--net", "bash", "-c", "\n".join(lines)]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False)


def machine_with(archive: Path, release: Path, folder: Path) -> Path:
    (folder / "srv").mkdir(parents=True)
    shutil.copy(release / "chorale.pub", folder / "srv")
    shutil.copy(archive, folder / "srv")
    return folder


def repacked(archive: Path, folder: Path, change: str, wheel: str) -> Path:
    """The archive after a change on its way to the machine."""
    shutil.unpack_archive(archive, folder)
    inside = folder / archive.stem
    (found,) = inside.glob(f"{wheel}-*.whl")
    if change == "wheel":
        found.write_bytes(found.read_bytes() + b" ")
    if change == "pin":
        with (inside / air_gap.REQUIREMENTS).open("a") as file:
            file.write("other==1\n")
    if change == "newer":
        shutil.copy(found, inside / found.name.replace(found.name.split("-")[1], "99.0"))
    out = folder / archive.name
    archives.pack(inside.parent, out, epoch=0)
    return out


@pytest.mark.gate
@pytest.mark.timeout(600)
def test_coordinator_is_installed_without_a_network_and_without_what_was_changed(
    release: Path, tmp_path: Path
) -> None:
    archive = pack(release, tmp_path / "out", "coordinator")
    expected = {
        "newer": "",  # a file that nothing pins is not looked at
        "wheel": "THESE PACKAGES DO NOT MATCH THE HASHES",
        "pin": "Signature verification failed",
    }
    for change, sentence in expected.items():
        changed = repacked(archive, tmp_path / change / "made", change, "click")
        done = install(changed, machine_with(changed, release, tmp_path / change / "machine"))
        assert (done.returncode == 0) is (change == "newer"), done.stderr
        assert done.stdout.endswith(f"\nchorale {VERSION}\n") is (change == "newer")
        assert sentence in done.stderr


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_silo_is_installed_without_a_network(release: Path, tmp_path: Path) -> None:
    archive = pack(release, tmp_path / "out", "silo")
    machine = machine_with(archive, release, tmp_path / "machine")
    done = install(archive, machine)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"chorale {VERSION}"), done.stderr
    training = [f"{machine}/opt/chorale/bin/python", "-c", "import torch, silo_agent.agent"]
    subprocess.run(training, check=True, cwd=machine)


def test_archive_of_no_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="expected the wheel of one release, got 0"):
        air_gap.gather(tmp_path, tmp_path, party="silo", python="3.11", torch_index_url="")


def test_signature_is_of_the_file_that_it_names(release: Path, tmp_path: Path) -> None:
    (tmp_path / air_gap.REQUIREMENTS).write_text("click==1\n")
    statement.sign(tmp_path, release / "chorale.key", said="x", password="", name=air_gap.REQUIREMENTS)
    command = ["minisign", "-V", "-Q", "-p", str(release / "chorale.pub"), "-m", air_gap.REQUIREMENTS]
    assert subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout == b"x\n"
