"""The first process of the lab's namespaces: starts every program of the node and ends with none of them.

python -m tests.cluster.lab.node FOLDER, by `Lab.up` alone.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.cluster.lab.images import archives, import_image
from tests.cluster.lab.settings import CONTAINERD, NAME, NODE, PODS, RUN, SERVICES, cgroup
from tests.cluster.lab.steps import say

LIFE_SECONDS = 2 * 3600.0  # a lab that nobody ends, ends itself
ETCD = "http://127.0.0.1:2379"


def main(folder: Path) -> None:
    os.chdir(folder)
    node = Node(folder)
    node.surroundings()
    node.control_plane()
    node.containers()
    node.node()
    node.reap(until=time.monotonic() + LIFE_SECONDS)


class Node:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[int, str] = {}

    def surroundings(self) -> None:
        """One end of a pair has the node's address, the other is there so that it is up."""
        for words in (
            "mount --make-rshared /",
            "mount -t tmpfs -o mode=0755 tmpfs /run",
            "ip link set lo up",
            "ip link add node0 type veth peer name node1",
            f"ip address add {NODE}/24 dev node0",
            "ip link set node0 up",
            "ip link set node1 up",
            "ip route add default via 10.10.0.254 dev node0",
        ):
            subprocess.run(words.split(), check=True)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        RUN.mkdir()  # on a file system of its own, so that a lab leaves nothing in the machine's
        # a kubelet removes there what is not its own, also of another lab
        for place in (Path("/var/log/pods"), Path("/var/log/containers")):
            own = self._folder / "log" / place.name
            for each in (own, place):
                each.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--bind", own, place], check=True)

    def control_plane(self) -> None:
        self._start(
            "etcd",
            "etcd",
            "--data-dir=etcd",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
        )
        self._kubernetes(
            "kube-apiserver",
            f"--etcd-servers={ETCD}",
            "--cert-dir=certificates",
            f"--bind-address={NODE}",
            f"--advertise-address={NODE}",
            "--secure-port=6443",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={SERVICES}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=service-accounts.key",
            "--service-account-signing-key-file=service-accounts.key",
            "--allow-privileged=true",
            "--enable-admission-plugins=NodeRestriction",
        )
        _wait_for("the API server", _is_api_ready)
        self._kubernetes(
            "kube-controller-manager",
            "--kubeconfig=admin.conf",
            "--service-account-private-key-file=service-accounts.key",
            "--root-ca-file=certificates/apiserver.crt",
            "--leader-elect=false",
        )
        self._kubernetes("kube-scheduler", "--kubeconfig=admin.conf", "--leader-elect=false")

    def containers(self) -> None:
        self._start("containerd", "containerd", "--config=containerd.toml")
        _wait_for("containerd", lambda: _succeeds("ctr", "--address", str(CONTAINERD), "version"))
        for archive in archives(self._folder):
            import_image(self._folder, archive)

    def node(self) -> None:
        top = Path("/sys/fs/cgroup")
        is_unified = (top / "cgroup.controllers").exists()
        for controller in [top] if is_unified else top.iterdir():
            if controller.is_dir() and not controller.is_symlink():
                Path(f"{controller}{cgroup(self._folder)}").mkdir(exist_ok=True)
        self._start("dns", sys.executable, "-m", "tests.cluster.lab.dns", str(self._folder))
        self._kubernetes(
            "kubelet",
            "--kubeconfig=kubelet.conf",
            "--config=kubelet.yaml",
            f"--root-dir={self._folder / 'kubelet'}",
            "--cert-dir=certificates/kubelet",
            f"--hostname-override={NAME}",
            f"--node-ip={NODE}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{CONTAINERD}",
        )
        self._kubernetes(
            "kube-proxy",
            "--kubeconfig=admin.conf",
            "--proxy-mode=iptables",
            f"--hostname-override={NAME}",
            f"--cluster-cidr={PODS}",
            "--conntrack-max-per-core=0",
        )

    def reap(self, *, until: float) -> None:
        """Processes whose parent ended become this one's; which of its own ended is said."""
        while time.monotonic() < until:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                time.sleep(0.2)
            elif pid in self._names:
                say(f"{self._names.pop(pid)} ended, status {status}")

    def _kubernetes(self, name: str, *options: str) -> None:
        self._start(name, str(self._folder / "bin" / name), *options)

    def _start(self, name: str, *words: str) -> None:
        with Path("log", f"{name}.log").open("ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._names[process.pid] = name


def _wait_for(what: str, is_there: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not is_there():
        if time.monotonic() > until:
            raise RuntimeError(f"{what} does not answer within 120 s; see log/")
        time.sleep(0.5)
    say(f"{what} answers")


def _is_api_ready() -> bool:
    request = urllib.request.Request(
        f"https://{NODE}:6443/readyz", headers={"Authorization": "Bearer admintoken"}
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it made its certificate just now
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return bool(answer.read() == b"ok")
    except OSError:
        return False


def _succeeds(*words: str) -> bool:
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
