"""The guide's reader: a folder where files are passed on, and one cluster for every institution."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import adaptations
from tests.cluster.lab import Lab
from tests.cluster.page import HUB, SILOS, Step
from tests.cluster.pod_logs import PodLogs
from tests.cluster.recording import POD
from tests.cluster.report import Report
from tests.deployment import helm
from tests.support.processes import wait_until

# records by silo: rounded down to tens they are 100, 100 and 200 to train on, so shares are powers of two
RECORDS = {"clinic-a": 125, "clinic-b": 125, "clinic-c": 250}
HEADING = "age,sex,chol,num\n"


class Walk:
    """silo_image: its repository. is_resumed: folder and cluster are as a former walk left them."""

    def __init__(self, lab: Lab, report: Report, *, silo_image: str, is_resumed: bool = False) -> None:
        self.lab, self.report = lab, report
        self.folder = lab.folder / "walk"
        self.job_id = ""
        self._mask = "umask 022"
        self.logs = PodLogs(folder=lab.folder / "log" / "pods", members=(HUB, *SILOS))
        self.values = {member: adaptations.values(member, silo_image=silo_image) for member in (HUB, *SILOS)}
        self.volumes = adaptations.volume_folders(self.folder)
        if is_resumed:
            for member in self.values:
                self.values[member] = yaml.safe_load((self.folder / "lab" / f"{member}.yaml").read_text())
        else:
            self._begin()

    def _begin(self) -> None:
        """An empty folder, and what the cluster needs before the page begins."""
        report = self.report
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        adaptations.copy_charts(self.folder, report)
        for path in self.volumes.values():
            path.mkdir(parents=True)
        manifests = adaptations.storage(self.volumes)
        report.adapted("each claim is bound to a folder of the node, in a StorageClass that allows expansion")
        self.lab.run("kubectl", "apply", "--filename=-", input=manifests)
        self.lab.alias(adaptations.ADDRESS, "hub-chorale-coordinator.heart")
        report.adapted(f"the node's DNS says where {adaptations.ADDRESS} is")
        for silo, count in RECORDS.items():
            table = self.volumes[f"{silo}.patients"] / "heart" / "patients.csv"
            table.parent.mkdir()
            table.write_text(records(count, seed=silo))
        (self.folder / "lab").mkdir()
        for member in self.values:
            self.write_values(member)
        self._write_programs()

    def close(self) -> None:
        self.logs.close()

    def do(self, step: Step) -> None:
        """Write the file, or run the command. Raises AssertionError for a command that fails."""
        if step.name:
            (self.folder / step.name).write_text(adaptations.file(step.text, self.report))
            return
        if step.text.startswith("umask "):  # of the reader's shell, from here on
            self._mask = step.text
            return
        if step.text.endswith(f"create --filename={HUB}-claim.yaml"):
            self._provide_another_volume()
        text = step.text.replace("NODE", adaptations.NODE)
        if " silo approve " in text or " silo show " in text:  # the offer takes a heartbeat
            self.wait_for_offer(next(silo for silo in SILOS if silo in text), self.job_id)
        text = text.replace(" ID", f" {self.job_id}")
        command = adaptations.command(text, self.report)
        if not command:
            return
        self.report.say(f"$ {text}")
        with self.report.progress(" ".join(text.split()[:4])):
            out = self.shell(command)
        if text.startswith("chorale job submit"):
            self.job_id = out.split()[0]

    def shell(self, command: str) -> str:
        """A line of bash inside the lab, as the guide's reader types it."""
        address = self._operator_address() if command.startswith("chorale job") else []
        script = f"cd {shlex.quote(str(self.folder))} && {self._mask} && {command}"
        path = f"PATH={self.folder / 'bin'}:{os.environ['PATH']}:/usr/sbin"
        return self.lab.run("env", path, *address, "bash", "-euo", "pipefail", "-c", script)

    def write_values(self, member: str) -> None:
        (self.folder / "lab" / f"{member}.yaml").write_text(yaml.safe_dump(self.values[member]))

    def diagnosis(self) -> str:
        """What the server knows of pods and volumes, its last events, and the end of each log."""
        asked = (
            ("get", "pods,persistentvolumeclaims", "--all-namespaces", "--output=wide"),
            ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
        )
        said = [self.lab.run("kubectl", *each, check=False)[-6000:] for each in asked]
        return "\n".join([*said, *(f"-- {member}\n{self.logs.tail(member)}" for member in (HUB, *SILOS))])

    # objects

    def get(self, member: str, *what: str) -> dict[str, Any]:
        """An object of the member's namespace, as the server has it."""
        out = self.lab.run("kubectl", "--namespace", namespace(member), "get", *what, "--output=json")
        return dict(json.loads(out))

    def pod(self, member: str) -> dict[str, Any]:
        return self.get(member, "pod", pod_name(member))

    def uid(self, member: str) -> str:
        return str(self.pod(member)["metadata"]["uid"])

    def uid_or_none(self, member: str) -> str | None:
        """None while there is no pod."""
        found = self.get(member, "pods")["items"]
        uids = [each["metadata"]["uid"] for each in found if each["metadata"]["name"] == pod_name(member)]
        return str(uids[0]) if uids else None

    def metric(self, member: str, name: str) -> float:
        """A series without labels, as the process tells it now; NaN while it cannot be asked."""
        place = f"{pod_name(member)}:{9463 if member == HUB else 9464}/proxy/metrics"
        path = f"/api/v1/namespaces/{namespace(member)}/pods/{place}"
        output = self.lab.run("kubectl", "get", "--raw", path, check=False)
        (value,) = re.findall(rf"^{name} (\S+)$", output, re.MULTILINE) or ["nan"]
        return float(value)

    def state(self, member: str) -> Path:
        """The volume of the member's state."""
        return self.volumes[f"{namespace(member)}.state-{pod_name(member)}"]

    def wait(self, is_done: Callable[[], bool], what: str, *, seconds: float = 120.0) -> None:
        with self.report.progress(f"waiting for {what}"):
            wait_until(is_done, what, seconds=seconds)

    def wait_ready(self, *members: str, is_ready: bool = True) -> None:
        for member in members:
            self.wait(
                partial(lambda member: self._is_ready(member) is is_ready, member),
                f"{member} to be {'ready' if is_ready else 'out'}",
            )

    def _is_ready(self, member: str) -> bool:
        out = self.lab.run(
            *("kubectl", "--namespace", namespace(member), "get", "pod", pod_name(member)),
            *("--ignore-not-found", '--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'),
        )
        return out.strip() == "True"

    def _provide_another_volume(self) -> None:
        """For the coordinator's claim, empty, as another node would have it."""
        claim = f"state-{pod_name(HUB)}"
        path = self.folder / "volumes" / f"another.{claim}"
        path.mkdir()
        made = adaptations.volume(path.name, path, namespace=namespace(HUB), claim=claim)
        self.lab.run("kubectl", "create", "--filename=-", input=yaml.safe_dump(made))
        self.volumes[f"{namespace(HUB)}.{claim}"] = path
        self.report.adapted("the other node is this one with another, empty folder for the claim")

    def wait_for_offer(self, silo: str, job_id: str) -> None:
        offer = {"event": "job offered", "job": job_id}
        self.logs.wait(silo, lambda line: offer.items() <= line.items(), "the job's offer")

    def _operator_address(self) -> list[str]:
        address = self.lab.run(
            *("kubectl", "--namespace", namespace(HUB), "get", "service", "hub-chorale-coordinator"),
            "--output=jsonpath={.spec.clusterIP}",
        )
        self.report.adapted(f"{adaptations.ADDRESS} is the Service's own address for the operator")
        variables = {"COORDINATOR": f"{address.strip()}:7443", "COORDINATOR_NAME": adaptations.ADDRESS}
        return [f"CHORALE_OPERATOR_{name}={value}" for name, value in variables.items()]

    def _write_programs(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "helm").symlink_to(helm.installed())
        chorale = programs / "chorale"
        chorale.write_text(
            f'#!/bin/sh\nPYTHONPATH={adaptations.ROOT} exec {sys.executable} -m cli.main "$@"\n'
        )
        chorale.chmod(0o755)


def namespace(member: str) -> str:
    return "heart" if member == HUB else member


def pod_name(member: str) -> str:
    return f"{member}-chorale-coordinator-0" if member == HUB else f"{member}{POD}"


def records(count: int, *, seed: str) -> str:
    """Made-up rows under the heading that the guide names."""
    draw = random.Random(seed)
    rows = [
        f"{draw.randint(30, 80)},{draw.choice('fm')},{draw.randint(150, 350)},{draw.randint(0, 1)}\n"
        for _ in range(count)
    ]
    return HEADING + "".join(rows)
