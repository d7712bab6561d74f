"""The restricted Pod Security standard, and what the charts promise beyond it.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/, baseline and restricted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Spec = dict[str, Any]

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"}
VOLUMES |= {"secret"}
PROFILES = ("RuntimeDefault", "Localhost")  # of seccomp, which has to be named, and of AppArmor
SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")


def violations(spec: Spec) -> list[str]:
    """What the restricted standard refuses of a pod; empty for a pod that it admits."""
    return [
        *_of_pod(spec),
        *(found for container in _containers(spec) for found in _of_container(container, spec)),
    ]


def lapses(spec: Spec) -> list[str]:
    """What the standard lets pass and the charts do not."""
    found = []
    if spec.get("automountServiceAccountToken") is not False:
        found.append("a service account's token is mounted")
    if spec.get("enableServiceLinks") is not False:
        found.append("services become variables of the environment")
    for container in _containers(spec):
        name = container["name"]
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            found.append(f"{name}: the root file system can be written")
        if not isinstance(_effective(container, spec, "runAsUser"), int):
            found.append(f"{name}: the user is not a number")
        resources = container.get("resources", {})
        if not {"cpu", "memory"} <= set(resources.get("requests", {})) or "memory" not in resources.get(
            "limits", {}
        ):
            found.append(f"{name}: requests or the limit of memory are missing")
    return found


def _containers(spec: Spec) -> list[Spec]:
    return [*spec["containers"], *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]


def _of_pod(spec: Spec) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field} is set"
    for volume in spec.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']}: {', '.join(sorted(kinds))} is not allowed"
    context = spec.get("securityContext", {})
    if context.get("sysctls"):  # the standard lets some pass; the charts need none
        yield "sysctls are set"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess is set"


def _of_container(container: Spec, spec: Spec) -> Iterator[str]:
    name, context = container["name"], container.get("securityContext", {})
    if context.get("privileged"):
        yield f"{name}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: privilege escalation is not forbidden"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities are not dropped"
    if context.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    if _effective(container, spec, "runAsNonRoot") is not True:
        yield f"{name}: it may run as root"
    if _effective(container, spec, "runAsUser") == 0:
        yield f"{name}: its user is root"
    if (_effective(container, spec, "seccompProfile") or {}).get("type") not in PROFILES:
        yield f"{name}: no seccomp profile"
    if (_effective(container, spec, "appArmorProfile") or {"type": PROFILES[0]}).get("type") not in PROFILES:
        yield f"{name}: AppArmor is off"
    labels = _effective(container, spec, "seLinuxOptions") or {}
    if labels.get("type", "") not in SELINUX_TYPES or labels.get("user") or labels.get("role"):
        yield f"{name}: SELinux's user, role or type is changed"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{name}: hostPort"


def _effective(container: Spec, spec: Spec, field: str) -> Any:
    """A container's own value counts before its pod's."""
    own = container.get("securityContext", {}).get(field)
    return spec.get("securityContext", {}).get(field) if own is None else own
