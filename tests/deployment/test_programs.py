"""Tests that need a program are not skipped in silence where CI runs them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.deployment import helm
from tests.support import programs

CI = (helm.ROOT / ".ci" / "run").read_text()


def test_ci_installs_every_program_and_requires_them_all() -> None:
    (listed,) = re.findall(r'^PROGRAMS="(.+)"$', CI, re.MULTILINE)
    assert dict(pair.split(":") for pair in listed.split()) == programs.PACKAGES
    assert re.search(rf"^export {programs.VARIABLE}={programs.REQUIRED}\b", CI, re.MULTILINE)
    assert not programs.VARIABLE.startswith("CHORALE_")  # tests/conftest.py drops those


def test_a_missing_program_skips_at_a_desk_and_fails_where_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SYSTEM", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    with pytest.raises(
        pytest.skip.Exception, match="promtool is not there; Debian's package prometheus has it"
    ):
        programs.needed("promtool")
    monkeypatch.setenv(programs.VARIABLE, programs.REQUIRED)
    with pytest.raises(pytest.fail.Exception, match="promtool is not there; .*, and TEST_PROGRAMS=required"):
        programs.needed("promtool")


STUB = '#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLS"\n'


@pytest.mark.parametrize("is_root", [True, False])
def test_ci_installs_what_is_missing_and_stops_its_daemons(tmp_path: Path, is_root: bool) -> None:
    """The function of .ci/run with stubs in place of the machine's programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    there = [name for name, package in programs.PACKAGES.items() if not package.startswith("prometheus")]
    for name in ("apt-get", "service", *there):
        (folder / name).write_text(STUB)
    (folder / "id").write_text(f"#!/bin/sh\necho {0 if is_root else 1000}\n")
    (folder / "sudo").write_text(STUB + 'exec "$@"\n')
    (folder / "env").write_text('#!/bin/sh\necho "env $*" >> "$CALLS"\nshift\nexec "$@"\n')
    (folder / "basename").write_text('#!/bin/sh\necho "${1##*/}"\n')
    for each in folder.iterdir():
        each.chmod(0o755)
    start, end = CI.index("PROGRAMS="), CI.index("export OMP_NUM_THREADS")
    script = CI[start:end].replace(":/usr/sbin:/sbin", "")
    calls = tmp_path / "calls"
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", f"{script}\ninstall_programs"],
        env={"PATH": str(folder), "CALLS": str(calls)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    made = [line for line in calls.read_text().splitlines() if not line.startswith(("sudo", "env"))]
    assert made[0] == "apt-get update"
    packages = "prometheus prometheus prometheus-alertmanager"
    assert made[1] == f"apt-get install -y --no-install-recommends {packages}"
    assert set(made[2:]) == {"service prometheus stop", "service prometheus-alertmanager stop"}
    assert ("sudo apt-get update" in calls.read_text()) is not is_root
    assert "env DEBIAN_FRONTEND=noninteractive apt-get install" in calls.read_text()
    assert os.access(helm.ROOT / ".ci" / "run", os.X_OK)
