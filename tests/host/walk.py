"""The page's readers: a machine for each member, and what those need."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.cluster.page import HUB, SILOS
from tests.cluster.report import Report
from tests.cluster.walk import records
from tests.host.machine import Machine
from tests.host.network import Network
from tests.host.page import MEMBERS, OFFICE, PAGE, WHO, commands, sections
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[2]
RELEASES = "1.0.0", "1.0.1"  # the page's, and the one after it
WHEEL = "/srv/release/chorale-{}-py3-none-any.whl"
PACKAGES = "/usr/local/lib/packages"  # of boot.sh
RECORDS = 60
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
NAME = "coordinator.example.org"


class Walk:
    """machines: those that are on, by name; that of the hub is where the coordinator runs.

    ended: the first job that came to its end.
    """

    ended: str

    def __init__(self, report: Report, stack: ExitStack) -> None:
        self.report, self.machines = report, dict[str, Machine]()
        self._stack, self._network = stack, Network()
        self._wheels = {WHEEL.format(release): build_wheel(release) for release in RELEASES}
        self.sections = sections(PAGE.read_text())
        self._network.up()
        stack.callback(self._network.down)
        report.adapted(f"the name {NAME} is in /etc/hosts; authority and operator share a machine")
        for name in (OFFICE, *MEMBERS):
            self._start(name)
        addresses = {name: self._join(name) for name in (OFFICE, *MEMBERS)}
        self.name_coordinator(addresses[HUB])
        for silo in SILOS:
            self.machines[silo].write(f"/srv/{silo}/patients.csv", records(RECORDS, seed=silo))

    def add(self, name: str) -> str:
        """Another machine, and its address."""
        self._start(name)
        return self._join(name)

    def name_coordinator(self, address: str) -> None:
        for machine in self.machines.values():
            machine.write("/etc/hosts", f"127.0.0.1 localhost\n{address} {NAME}\n")

    def section(self, name: str) -> None:
        """Its commands on every machine that does it."""
        self.report.say(f"== {name}")
        for group in WHO[name]:
            with ThreadPoolExecutor(len(group)) as pool:
                list(pool.map(lambda machine: self.section_at(name, machine), group))

    def section_at(self, name: str, machine: str) -> None:
        for command in commands(name, self.sections[name], machine):
            self.do(machine, command)

    def do(self, machine: str, command: str) -> str:
        """A command of the page. Raises RuntimeError for one that fails."""
        self.report.say(f"{machine}$ {command}")
        with self.report.progress(f"{machine}: {' '.join(command.split()[:4])}"):
            return self.machines[machine].run(self._adapted(machine, command))

    def move(self, file: str, source: tuple[str, str], target: tuple[str, str]) -> None:
        """From a folder of a machine to one of another, under its own name."""
        path = f"{target[1]}/{Path(file).name}"
        self.report.say(f"{source[0]}:{source[1]}/{file} -> {target[0]}:{path}")
        self.machines[target[0]].write(path, self.machines[source[0]].read(f"{source[1]}/{file}"))

    def wait(self, is_done: Callable[[], bool], what: str, *, seconds: float = 180.0) -> None:
        with self.report.progress(f"waiting for {what}"):
            wait_until(is_done, what, seconds=seconds)

    def log(self, member: str) -> str:
        return self.machines[member].run(f"journalctl --unit chorale-{member} --output cat --no-pager")

    def property(self, member: str, name: str) -> str:
        return self.machines[member].run(f"systemctl show chorale-{member} --property {name} --value").strip()

    def diagnosis(self) -> str:
        last = "journalctl --no-pager --lines=40"
        return "\n".join(f"-- {name}\n{each.run(last, check=False)}" for name, each in self.machines.items())

    def _start(self, name: str) -> None:
        machine = self.machines[name] = Machine(name)
        self._stack.callback(machine.down)
        machine.start()

    def _join(self, name: str) -> str:
        machine = self.machines[name]
        with self.report.progress(f"starting systemd on {name}"):
            machine.wait_up()
        for path, content in self._wheels.items():
            machine.write(path, content)
        return self._network.join(machine)

    def _adapted(self, machine: str, command: str) -> str:
        if command.endswith("/FILE"):
            return command.replace("FILE", newest_backup(self.machines[machine]))
        if "/pip install " not in command:
            return command
        self.report.adapted("pip has no index: the packages that it would bring are this environment's")
        self.report.adapted("the release after 1.0.0 is this tree under another number")
        place = "$(/opt/chorale/bin/python -c 'import site; print(site.getsitepackages()[0])')/packages.pth"
        wheel = WHEEL.format(RELEASES["--upgrade" in command])
        install = f"/opt/chorale/bin/pip install --no-index --no-deps --upgrade {wheel}"
        return f"{install} && echo {PACKAGES} > {place}"


def newest_backup(machine: Machine) -> str:
    """The name of its file."""
    return machine.run(f"ls /var/lib/chorale-{HUB}-backups").split()[-1]


def build_wheel(version: str) -> bytes:
    """Of this tree, as a release has it."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "source"), Path(folder, "out")
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in listed.stdout.splitlines():
            if not name.startswith(("tests/", "docs/", "bench/", "research/")) and (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_bytes((ROOT / name).read_bytes())
        settings = source / "pyproject.toml"
        named = re.sub(
            r'^version = ".+"$', f'version = "{version}"', settings.read_text(), flags=re.MULTILINE
        )
        settings.write_text(named)
        subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=source, check=True, capture_output=True)
        (wheel,) = out.glob("*.whl")
        return wheel.read_bytes()
