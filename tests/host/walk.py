"""The page's reader: every institution's commands on one machine, and what that needs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.cluster.page import HUB, SILOS
from tests.cluster.report import Report
from tests.cluster.walk import records
from tests.host.machine import Machine
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[2]
WHEEL = "/srv/release/chorale-0.1.0-py3-none-any.whl"
PACKAGES = "/usr/local/lib/packages"  # of boot.sh
RECORDS = 60
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"


class Walk:
    def __init__(self, machine: Machine, report: Report) -> None:
        self.machine, self.report = machine, report
        report.adapted("the name coordinator.example.org is in /etc/hosts; every party is on one machine")
        machine.run("echo 127.0.0.1 localhost coordinator.example.org > /etc/hosts")
        for silo in SILOS:
            machine.write(f"/srv/{silo}/patients.csv", records(RECORDS, seed=silo))
        machine.write(WHEEL, build_wheel())

    def do(self, command: str) -> str:
        """A command of the page. Raises RuntimeError for one that fails."""
        self.report.say(f"$ {command}")
        with self.report.progress(" ".join(command.split()[:4])):
            return self.machine.run(self._adapted(command))

    def wait(self, is_done: Callable[[], bool], what: str, *, seconds: float = 180.0) -> None:
        with self.report.progress(f"waiting for {what}"):
            wait_until(is_done, what, seconds=seconds)

    def log(self, unit: str) -> str:
        return self.machine.run(f"journalctl --unit {unit} --output cat --no-pager")

    def property(self, unit: str, name: str) -> str:
        return self.machine.run(f"systemctl show {unit} --property {name} --value").strip()

    def _adapted(self, command: str) -> str:
        if command.endswith("/FILE"):
            return command.replace("FILE", self.machine.run(f"ls /var/lib/chorale-{HUB}-backups").strip())
        if "/pip install " not in command:
            return command
        self.report.adapted("pip has no index: the packages that it would bring are this environment's")
        place = "$(/opt/chorale/bin/python -c 'import site; print(site.getsitepackages()[0])')/packages.pth"
        install = f"/opt/chorale/bin/pip install --no-index --no-deps --force-reinstall {WHEEL}"
        return f"{install} && echo {PACKAGES} > {place}"


def build_wheel() -> bytes:
    """Of this tree, as a release has it."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "source"), Path(folder, "out")
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in listed.stdout.splitlines():
            if not name.startswith(("tests/", "docs/", "bench/", "research/")) and (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_bytes((ROOT / name).read_bytes())
        subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=source, check=True, capture_output=True)
        (wheel,) = out.glob("*.whl")
        return wheel.read_bytes()
