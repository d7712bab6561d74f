"""What a cluster would make of rendered objects, as folders and processes of this machine.

A pod is a folder with its mounts, filled from Secrets and ConfigMaps as the kubelet fills them, and the
container's own command with those paths mapped into it. Its addresses alone are replaced.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from cli.main import run
from tests.support.processes import Service, wait_until

Object = dict[str, Any]
# a mount's path, not the end of a longer one
_MOUNTED = re.compile(r"(?<![\w./-])/(?=(?:etc/chorale|var/lib/chorale|data|tmp)\b)")


@dataclass(slots=True, kw_only=True)
class Cluster:
    """One institution's. Objects by kind and name; applying one again replaces it."""

    folder: Path
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

    def apply(self, objects: Iterable[Object]) -> None:
        """A ConfigMap changes what a pod that runs has mounted; the rest waits for its restart."""
        for each in objects:
            self.objects[each["kind"], each["metadata"]["name"]] = each
        for pod in self.pods.values():
            pod.mount("roster")

    def find(self, kind: str, name: str) -> Object:
        """Raises AssertionError for an object that was not applied."""
        found = self.objects.get((kind, name))
        assert found is not None, f"no {kind} {name} in {sorted(self.objects)}"
        return found

    def start(self, name: str, environment: Mapping[str, str]) -> Pod:
        """The pod of a StatefulSet, in the folder of the one before: its volumes stay."""
        spec = self.find("StatefulSet", name)["spec"]["template"]["spec"]
        pod = Pod(cluster=self, name=f"{name}-0", spec=spec, environment=environment)
        self.pods[name] = pod
        for volume in pod.mounts:
            pod.mount(volume)
        pod.start()
        return pod

    def stop(self, name: str) -> None:
        """As the kubelet ends a pod: SIGTERM, and it ends well. Raises AssertionError if it does not."""
        pod = self.pods.pop(name)
        assert pod.service.stop() == 0, pod.service.tail()

    def close(self) -> None:
        for pod in self.pods.values():
            pod.service.kill()


@dataclass(slots=True, kw_only=True)
class Pod:
    cluster: Cluster
    name: str
    spec: Object
    environment: Mapping[str, str]
    service: Service = field(init=False)

    @property
    def root(self) -> Path:
        return self.cluster.folder / self.name

    @property
    def container(self) -> Object:
        (found,) = self.spec["containers"]
        return dict(found)

    @property
    def mounts(self) -> dict[str, Path]:
        """Where each volume lies here."""
        paths = {each["name"]: each["mountPath"] for each in self.container["volumeMounts"]}
        return {name: Path(self._mapped(path)) for name, path in paths.items()}

    def mount(self, volume: str) -> None:
        """Fill a volume with what its Secret or ConfigMap holds now; a claim's keeps what it has."""
        if volume not in self.mounts:
            return
        folder = self.mounts[volume]
        sources = [each for each in self.spec["volumes"] if each["name"] == volume]
        files = self._files(sources[0]) if sources else {}
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = folder / f".{name}"
            path.write_bytes(content)
            if (
                "secret" in sources[0]
            ):  # root owns it there, and the pod's group reads it; here its process owns it
                path.chmod(sources[0]["secret"]["defaultMode"] & 0o700)
            path.replace(folder / name)  # at once, as the kubelet turns its link

    def start(self) -> None:
        first, *command = self.container["command"]
        assert first == "chorale"
        variables = {each["name"]: self._mapped(each["value"]) for each in self.container.get("env", [])}
        self._endpoint.unlink(missing_ok=True)
        self.service = Service(
            self.name,
            [self._mapped(part) for part in command],
            log=self.root / "log",
            extra_env={**variables, **self.environment},
        )
        wait_until(
            lambda: self._endpoint.exists() or not self.service.is_running,
            f"{self.name} to listen",
            detail=self.service.tail,
        )
        assert self.service.is_running, self.service.tail()

    def execute(self, command: list[str]) -> str:
        """`kubectl exec`. Raises AssertionError for a command that fails."""
        return chorale(list(map(self._mapped, command)), folder=self.root, variables=self.environment)

    @property
    def endpoint(self) -> dict[str, str]:
        return dict(json.loads(self._endpoint.read_text()))

    @property
    def is_ready(self) -> bool:
        """What its readiness probe finds."""
        path = self.container["readinessProbe"]["httpGet"]["path"]
        with suppress(HTTPError), urlopen(f"http://{self.endpoint['metrics']}{path}", timeout=30) as answer:
            return bool(answer.status == 200)
        return False

    def wait(self, *, is_ready: bool = True) -> None:
        what = f"{self.name} to be {'ready' if is_ready else 'out'}"
        wait_until(lambda: self.is_ready is is_ready, what, detail=self.service.tail)

    @property
    def _endpoint(self) -> Path:
        return self.mounts["state"] / "state" / "endpoint.json"

    def _files(self, volume: Object) -> dict[str, bytes]:
        if "configMap" in volume:
            held = self.cluster.find("ConfigMap", volume["configMap"]["name"])["data"]
            listed = volume["configMap"].get("items")
            items = (
                {item["path"]: item["key"] for item in listed} if listed else {name: name for name in held}
            )
            return {path: self._mapped(held[key]).encode() for path, key in items.items()}
        if "secret" in volume:
            held = self.cluster.find("Secret", volume["secret"]["secretName"])["data"]
            items = {item["path"]: item["key"] for item in volume["secret"]["items"]}
            return {path: base64.b64decode(held[key]) for path, key in items.items()}
        return {}

    def _mapped(self, text: str) -> str:
        return _MOUNTED.sub(f"{self.root}/", text)


def chorale(command: list[str], *, folder: Path, variables: Mapping[str, str]) -> str:
    """A command that ends, run in this process: what it prints. Raises AssertionError if it fails."""
    first, *arguments = command
    assert first == "chorale", command
    out, err = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in variables.items():
            patch.setenv(name, value)
        stack.enter_context(chdir(folder))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        code = run(arguments)
    assert code == 0, f"{shlex.join(command)}: {err.getvalue()}"
    return out.getvalue()
