"""One lab: its folder, its start, commands inside it, its end."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.lab import kubernetes
from tests.cluster.lab.images import ROOT, archives
from tests.cluster.lab.settings import NAME, write_settings
from tests.cluster.lab.steps import say

READY_SECONDS = 180.0


def default_folder() -> Path:
    """CHORALE_LAB, or in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("CHORALE_LAB") or cache / "chorale-cluster").absolute()


class Lab:
    """What a cluster stores is in its folder and outlives its processes: etcd's data, volumes, images."""

    version = kubernetes.VERSION

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pid = folder / "pid"

    def reserve(self) -> None:
        """For this process, until it ends. Raises RuntimeError where another process has the lab."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._reserved = os.open(self.folder / "reserved", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._reserved, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"{self.folder}: another process tests in this lab; wait, or set CHORALE_LAB to another one"
            ) from None

    @property
    def is_built(self) -> bool:
        return kubernetes.is_built(self.folder) and all(path.exists() for path in archives(self.folder))

    def up(self) -> None:
        """Returns once the node is ready. Raises RuntimeError where it does not get so."""
        if not self.is_built:
            raise RuntimeError(f"{self.folder}: no lab was built here; run build and images first")
        write_settings(self.folder)
        began = time.monotonic()
        namespaces = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
        with (self.folder / "log" / "node.log").open("ab") as log:
            process = subprocess.Popen(
                ["unshare", *namespaces, sys.executable, "-m", "tests.cluster.lab.node", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        self._pid.write_text(str(process.pid))
        while not self._is_ready():
            if process.poll() is not None or time.monotonic() > began + READY_SECONDS:
                end = (self.folder / "log" / "node.log").read_text(errors="replace").splitlines()[-10:]
                self.down()
                raise RuntimeError("\n".join(["the node is not ready, the end of log/node.log:", *end]))
            time.sleep(1)
        say(f"Kubernetes {self.version} is ready after {time.monotonic() - began:.0f} s")

    def down(self) -> None:
        """Kill the first process of the namespaces: everything inside ends at once, as in a power failure."""
        first = self._first()
        if first is not None:
            os.kill(first, signal.SIGKILL)
            while Path("/proc", str(first)).exists() and self._first() is not None:
                time.sleep(0.1)
        self._pid.unlink(missing_ok=True)

    def wipe(self) -> None:
        """Remove what the cluster stored; the next start is that of a new one. Imported images stay."""
        for name in ("etcd", "kubelet", "certificates", "home", "log"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "aliases.json").unlink(missing_ok=True)

    def load(self, archive: Path) -> None:
        """Import an archive of images, as a node would fetch them from its registry."""
        self.run(
            "env",
            f"PYTHONPATH={ROOT}",
            sys.executable,
            "-m",
            "tests.cluster.lab.images",
            str(self.folder),
            str(archive),
        )

    def alias(self, host: str, service: str) -> None:
        """Further name of a Service, which is NAME.NAMESPACE."""
        path = self.folder / "aliases.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, host: f"{service}.svc.cluster.local"}))

    def command(self, *words: str) -> list[str]:
        """What runs these words inside the lab, in the caller's working directory."""
        first = self._first()
        if first is None:
            raise RuntimeError(f"{self.folder}: no lab is running; run up first")
        inside = ["nsenter", "--target", str(first), "--net", "--mount", "--pid", f"--wd={Path.cwd()}"]
        settings = {"KUBECONFIG": self.folder / "admin.conf", "HOME": self.folder / "home"}
        return [*inside, "env", *(f"{name}={value}" for name, value in settings.items()), *words]

    def run(self, *words: str, input: str | None = None, check: bool = True) -> str:
        """Standard output of a command inside. Raises RuntimeError with what it said where it fails."""
        done = subprocess.run(self.command(*words), check=False, input=input, capture_output=True, text=True)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _is_ready(self) -> bool:
        """The kubelet answers; what the API server says of the node may be of an earlier start."""
        if self._first() is None:
            return False
        kubelet = self.run("kubectl", "get", "--raw", f"/api/v1/nodes/{NAME}/proxy/healthz", check=False)
        return kubelet == "ok" and " Ready" in self.run("kubectl", "get", "nodes", check=False)

    def _first(self) -> int | None:
        """The first process inside, as it is called outside; None where no lab runs."""
        if not self._pid.exists():
            return None
        parent = self._pid.read_text().strip()
        try:
            children = Path("/proc", parent, "task", parent, "children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None
