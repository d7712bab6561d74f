"""A Debian machine with systemd as its first process, in namespaces of this one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy

BOOT = Path(__file__).with_name("boot.sh")
PACKAGES = Path(numpy.__file__).parents[1]
HOME = "/root"  # of a machine: where the page's commands are done
START_SECONDS = 60.0
NAMESPACES = "--mount --uts --ipc --net --pid --cgroup"


class Machine:
    """Its root file system is an overlay over this machine's, in memory; its network is loopback alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first = 0  # the process of its systemd
        self._is_off = False

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"chorale-host-{self.name}-")
        self._cgroup = cgroup_root() / Path(self._folder.name).name
        self._cgroup.mkdir()
        self._log = Path(self._folder.name).with_suffix(".log")
        join = f"echo $$ > {self._cgroup}/cgroup.procs; exec unshare {NAMESPACES} --fork --kill-child"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f"{join} bash {BOOT} {self._folder.name} {PACKAGES} {self.name}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_up(self) -> None:
        """Returns once systemd has started every service. Raises RuntimeError where it does not get so."""
        began = time.monotonic()
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > began + START_SECONDS:
                raise RuntimeError(
                    f"systemd has not started:\n{self._log.read_text(errors='replace')[-3000:]}"
                )
            time.sleep(0.2)

    def down(self) -> None:
        """As when its power is cut."""
        if self._is_off:
            return
        self._is_off = True
        if self.first:
            with suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGKILL)
            self._process.wait()
        for each in sorted(self._cgroup.rglob("*"), reverse=True):
            if each.is_dir():
                each.rmdir()
        self._cgroup.rmdir()
        self._log.unlink()
        self._folder.cleanup()

    def run(self, command: str, *, check: bool = True) -> str:
        """Standard output of a line of bash, by root on the machine. Raises RuntimeError where it fails."""
        script = f"cd {HOME} && {command}"
        done = subprocess.run(
            [*self._inside(), "bash", "-euo", "pipefail", "-c", script],
            check=False,
            capture_output=True,
            text=True,
        )
        if check and done.returncode:
            raise RuntimeError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def read(self, path: str) -> bytes:
        return subprocess.run([*self._inside(), "cat", path], check=True, capture_output=True).stdout

    def write(self, path: str, text: str | bytes) -> None:
        """A file of the machine, with the folders that it needs."""
        data = text.encode() if isinstance(text, str) else text
        place = shlex.quote(path)
        script = f'mkdir -p "$(dirname {place})" && cat > {place}'
        subprocess.run([*self._inside(), "bash", "-c", script], input=data, check=True)

    @property
    def command_line(self) -> str:
        """What a person types to look inside."""
        return shlex.join([*self._inside(), "bash"])

    def _inside(self) -> list[str]:
        variables = [f"HOME={HOME}", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        return ["nsenter", "--target", str(self.first), "--all", "env", "-i", *variables]

    def _is_up(self) -> bool:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        if not self.first:
            try:
                found = children.read_text().split()
            except OSError:
                return False
            if not found or Path("/proc", found[0], "comm").read_text().strip() != "systemd":
                return False
            self.first = int(found[0])
        return self.run("systemctl is-system-running", check=False).strip() in ("running", "degraded")


def cgroup_root() -> Path:
    """Where the second version is mounted, alone or beside the first."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return next(Path(fields[1]) for fields in lines if fields[2] == "cgroup2")
