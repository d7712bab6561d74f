"""Debian's packages that the lab is made of."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.cluster.lab.steps import run_step

GO = Path("/usr/lib/go-1.19/bin/go")
# what shows that a package is there: a program, or a file
PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "socat": "socat",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "openssl": "openssl",
    "kubectl": "kubernetes-client",
    "npm": "npm",
}
TO_BUILD = {str(GO): "golang-1.19-go", "/usr/include/stdio.h": "libc6-dev"}
APT = Path("/etc/apt")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def install(packages: dict[str, str], log: Path) -> None:
    """Those that are missing. Their daemons are not started: the lab starts its own."""
    missing = [name for shown, name in packages.items() if shutil.which(shown, os.F_OK, PATH) is None]
    if missing:
        run_step("apt-get update", "apt-get", "update", log=log)
        run_step(
            f"apt-get install {' '.join(missing)}",
            *("apt-get", "install", "--yes", "--no-install-recommends", *missing),
            log=log,
            environment={"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"},
        )


def apt_archives() -> list[Path]:
    """The files that name this machine's archives of packages, in either of apt's forms."""
    named = [APT / "sources.list", *sorted((APT / "sources.list.d").glob("*"))]
    return [path for path in named if path.suffix in (".list", ".sources") and path.is_file()]
