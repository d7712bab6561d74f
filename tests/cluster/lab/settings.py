"""The files that the lab's programs read, written at each start."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import yaml

NODE = "10.10.0.1"  # in a network namespace of its own
PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/16"
NAME = "lab"
RUN = Path("/run/lab")  # on a file system of the mount namespace, gone with it
CONTAINERD = RUN / "containerd.sock"


def write_settings(folder: Path) -> None:
    for each in ("bin", "log", "cni", "images"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "containerd.toml").write_text(_CONTAINERD.format(root=folder, run=RUN, cni=folder / "cni"))
    (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(_network()))
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(folder)))
    tokens = folder / "tokens.csv"
    tokens.write_text("admintoken,admin,1,system:masters\nkubelettoken,system:node:lab,2,system:nodes\n")
    tokens.chmod(0o600)
    for user in ("admin", "kubelet"):
        path = folder / f"{user}.conf"
        path.write_text(yaml.safe_dump(_kubeconfig(f"{user}token")))
        path.chmod(0o600)
    key = folder / "service-accounts.key"
    if not key.exists():
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)


_CONTAINERD = """\
version = 2
root = "{root}/containerd"
state = "{run}/containerd"
[grpc]
  address = "{run}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true # a container's root may lack CAP_SYS_RESOURCE
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"""


def cgroup(folder: Path) -> str:
    """Of a lab's pods. A kubelet takes processor time from pods below its root that are not its own."""
    return f"/lab-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _network() -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": str(RUN / "cni"),
        "ranges": [[{"subnet": PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "lab", "plugins": [bridge]}


def _kubelet(folder: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup(folder),
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "clusterDNS": [NODE],
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        # the machine's disk and memory are not the lab's
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        # a changed ConfigMap or Secret is seen after this time, of 60 s by default
        "syncFrequency": "3s",
    }


def _kubeconfig(token: str) -> dict[str, object]:
    server = {"server": f"https://{NODE}:6443", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": server}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user"}}],
        "current-context": "lab",
    }
