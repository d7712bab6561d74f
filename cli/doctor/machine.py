"""What a party's machine must have: room on a local disk, a clock that is kept right, torch, its GPUs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from chorale.runtime import disk
from cli.doctor.findings import Findings
from crypto.errors import ConfigError
from silo_agent.settings import SiloSettings
from silo_agent.training.machine.settings import first_gpu
from silo_agent.training.machine.torch_build import TorchBuild, torch_build

LEAST_FREE_BYTES = 1 << 30
SCARCE = 0.1  # of a disk, as the alert ChoraleCoordinatorDiskNearlyFull
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "ceph", "glusterfs", "lustre"}
MOUNTS = Path("/proc/self/mounts")
NVIDIA = Path("/proc/driver/nvidia/version")  # of the driver, whether or not this process may use a GPU
TIME_ERROR = 5  # linux/timex.h: nothing keeps the clock right
TIMEX_BYTES = 208  # struct timex; larger than on any architecture does no harm
TORCH = "pip install '.[silo]', with a build of torch that docs/install.md names"


def _file_system(path: Path) -> str:
    """Type of the file system that holds a path; empty where the kernel does not say."""
    try:
        lines = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return ""
    real = path.resolve()
    holding = [(point, kind) for point, kind in lines if real.is_relative_to(point)]
    return max(holding, key=lambda one: len(one[0]))[1] if holding else ""


def _is_clock_kept() -> bool:
    """Whether the kernel says that something, such as chrony, keeps its clock right; True where it says
    nothing."""
    if sys.platform != "linux":
        return True
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    return adjtimex is None or adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)) != TIME_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a doctor asks of the machine it runs on."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    is_clock_kept: Callable[[], bool] = _is_clock_kept
    free_bytes: Callable[[Path], int] = disk.free_bytes
    size_bytes: Callable[[Path], int] = disk.size_bytes
    file_system: Callable[[Path], str] = _file_system
    has_nvidia_driver: Callable[[], bool] = NVIDIA.exists
    torch_build: Callable[[], TorchBuild] = torch_build


def check_clock(machine: Machine, findings: Findings) -> None:
    utc_time = f"{machine.now():%Y-%m-%d %H:%M:%S} UTC"
    if machine.is_clock_kept():
        findings.fine("clock", utc_time)
    else:
        findings.warn(
            "clock", f"{utc_time}, and nothing keeps it right", fix="run a time service here, such as chrony"
        )


def check_directory(directory: Path, machine: Machine, findings: Findings) -> None:
    """The folder that a party writes to, or where it would be made."""
    there = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if not there.is_dir():
        findings.problem(
            "directory", f"{there} is a file, expected a folder", fix="name another folder in directory"
        )
        return
    kind = machine.file_system(there)
    if kind in NETWORK_FILE_SYSTEMS:
        findings.problem(
            "directory",
            f"{directory} is on a network file system ({kind}), where locks and flushed writes do not hold",
            fix="set directory to a folder on a local disk",
        )
    free, size = machine.free_bytes(there), machine.size_bytes(there)
    message = f"{directory}: {free / 1e9:.1f} of {size / 1e9:.1f} GB are free"
    fix = f"make room on the disk of {directory}, or move it to a larger one"
    if free < LEAST_FREE_BYTES:
        findings.problem("disk", f"{message}, expected at least {LEAST_FREE_BYTES / 1e9:.1f}", fix=fix)
    elif free < SCARCE * size:
        findings.warn("disk", message, fix=fix)
    else:
        findings.fine("disk", message)


def check_torch(settings: SiloSettings, machine: Machine, findings: Findings) -> None:
    """The build of torch against the settings' device, and against the GPUs that the machine has."""
    if missing := [name for name in ("torch", "dp_accounting") if find_spec(name) is None]:
        findings.problem("torch", f"the extra 'silo' is missing (no {', '.join(missing)} here)", fix=TORCH)
        return
    try:
        build = machine.torch_build()
    except ConfigError as error:
        findings.problem("torch", str(error), fix=TORCH)
        return
    findings.fine("torch", build.description)
    if build.gpus == 0 and settings.asks_gpu:
        fix = (
            "set device: auto or cpu"
            if build.cuda
            else "install a build of torch for CUDA, or set device: cpu"
        )
        findings.problem("device", f"device: {settings.device} is set, and torch finds no GPU", fix=fix)
    elif 0 < build.gpus < first_gpu(settings.device) + settings.devices and settings.device != "cpu":
        message = f"device: {settings.device} and devices: {settings.devices} are set, and torch finds"
        findings.problem("device", f"{message} {build.gpus} GPUs", fix="ask for those that are there")
    elif build.gpus == 0 and settings.device == "auto" and machine.has_nvidia_driver():
        findings.warn(
            "device",
            "this machine has an NVIDIA driver, and torch finds no GPU: training runs on the CPU",
            fix="install a build of torch for CUDA, or set device: cpu",
        )
    else:
        uses_gpu = build.gpus > 0 and settings.device != "cpu"
        findings.fine("device", f"{settings.device}: training runs on the {'GPU' if uses_gpu else 'CPU'}")
