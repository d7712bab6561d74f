"""The commands of docs/deploy-kubernetes.md, done one after the other as a reader would do them.

`chorale` runs as it stands. What needs a cluster (helm, kubectl) is rendered by the real programs and
then done to `Cluster`: the charts' own objects become folders and processes of this machine.
"""

from __future__ import annotations

import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from chorale.spec.model_file import read_model
from tests.deployment import helm
from tests.deployment.cluster import Cluster, Pod, chorale
from tests.support import programs
from tests.support.ports import free_ports
from tests.support.processes import environment, wait_until

GUIDE = (helm.ROOT / "docs" / "deploy-kubernetes.md").read_text()
EXAMPLES = helm.ROOT / "docs" / "examples"
HUB, SILOS = "hub", ("clinic-a", "clinic-b", "clinic-c")
# where the guide says that every hospital does what is shown for one
EVERYWHERE = ("A silo", "The first job")
TABLE = "age,lead0,lead1,lead2,sex,pain,trestbps,chol,num\n"
RECORDS = 40
ROUNDS = 2


def steps() -> Iterator[tuple[str, list[str]]]:
    """Every `$ command` of the guide under its section; of a pipe the first half."""
    for section in GUIDE.split("\n## ")[1:]:
        for line in re.findall(r"^\$ (.+)$", section, re.MULTILINE):
            yield section.partition("\n")[0], shlex.split(line.partition(" | ")[0])


def files() -> dict[str, str]:
    """The files that the guide shows, by name."""
    return dict(re.findall(r"^`([\w.-]+\.yaml)`:\n\n```yaml\n(.*?)```$", GUIDE, re.MULTILINE | re.DOTALL))


def test_every_command_is_marked_as_one_and_every_pipe_applies_what_it_makes() -> None:
    assert {command[0] for _, command in steps()} == {"chorale", "docker", "helm", "kubectl"}
    assert not re.findall(r"^(?:chorale|docker|helm|kubectl) ", GUIDE, re.MULTILINE)
    made = "--dry-run=client --output=yaml"
    applied = "kubectl --namespace heart apply --filename=-"
    assert GUIDE.count(" | kubectl ") == GUIDE.count(f"{made} | {applied}\n") == GUIDE.count(made)


class Walk:
    """The federation of the guide: a folder where files are passed on, and a cluster of each institution."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clusters = {name: Cluster(folder=folder / f"at-{name}") for name in (HUB, *SILOS)}
        self.job_id = ""
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        for name, text in files().items():
            (folder / name).write_text(text)
        for silo in SILOS[1:]:
            text = files()[f"{SILOS[0]}.yaml"]
            (folder / f"{silo}.yaml").write_text(text.replace(SILOS[0], silo))
        shutil.copy(EXAMPLES / "operator.yaml", folder)
        job = yaml.safe_load((EXAMPLES / "job-csv.yaml").read_text())
        (folder / "job.yaml").write_text(yaml.safe_dump({**job, "rounds": ROUNDS}))

    def close(self) -> None:
        for cluster in self.clusters.values():
            cluster.close()

    def do(self, command: list[str]) -> None:
        """Raises AssertionError for a command that fails, or that cannot be run here."""
        command = [self.job_id if part == "ID" else part for part in command]
        if command[0] == "chorale":
            self._chorale(command)
        elif command[0] == "helm":
            self._helm(command[1:])
        elif command[0] == "kubectl":
            self._kubectl(command)
        else:
            assert command[0] == "docker"  # test_images.py

    def pod(self, name: str) -> Pod:
        return self.clusters[name].pods[stateful(name)]

    def metric(self, name: str, metric: str) -> float:
        """A series without labels, as its process tells it now."""
        with urlopen(f"http://{self.pod(name).endpoint['metrics']}/metrics", timeout=30) as answer:
            done = answer.read().decode()
        (value,) = re.findall(rf"^{metric} (\S+)$", done, re.MULTILINE)
        return float(value)

    # chorale

    def _chorale(self, command: list[str]) -> None:
        out = chorale(command, folder=self.folder, variables=self._as_operator)
        if command[1] != "job":
            return
        if command[2] == "submit":
            self.job_id = out.split()[0]
        elif command[2] == "watch":
            assert f"{self.job_id}  done  {ROUNDS} rounds" in out
        else:
            assert any(name.startswith("model/") for name in read_model(self.folder / command[-1])[0])

    # helm

    def _helm(self, command: list[str]) -> None:
        verb, release, *rest = command
        cluster, name = self.clusters[release], stateful(release)
        if verb in ("install", "upgrade"):
            cluster.apply(self._rendered(release, rest))
            if verb == "upgrade":
                cluster.stop(name)
            self._start(release)
            return
        assert rest == ["--namespace", "heart"]
        if verb == "test":
            self._test(release)
        else:
            assert verb == "uninstall"
            cluster.stop(name)
            assert (self._claim(release) / "state" / "ledger.sqlite").exists()

    def _rendered(self, release: str, rest: list[str]) -> tuple[helm.Object, ...]:
        chart, *options = rest
        assert options == ["--namespace", "heart", "--values", f"{release}.yaml"]
        version = ("--kube-version", f"{helm.KUBERNETES[-1]}.0")
        values = self.folder / f"{release}.yaml"
        done = helm.run("template", release, helm.ROOT / chart, *version, *options[:2], "--values", values)
        assert done.returncode == 0, done.stderr
        return helm.parsed(done.stdout)

    def _test(self, release: str) -> None:
        """The command of the chart's test pod, with the address of this machine."""
        pod = self.clusters[release].find("Pod", f"{stateful(release)}-test-readyz")
        _, *command, url = pod["spec"]["containers"][0]["command"]
        here = re.sub(r"//[^/]+", f"//{self.pod(release).endpoint['metrics']}", url)
        assert self._run([sys.executable, *command, here]).strip() == "ok"

    # kubectl

    def _kubectl(self, command: list[str]) -> None:
        name = next((silo for silo in SILOS if re.search(rf"\b{silo}\b", shlex.join(command))), HUB)
        words = [part for part in command[1:] if part not in ("--namespace", "heart")]
        done: dict[str, Callable[[str, list[str]], None]] = {
            "create": lambda at, _: self._create(at, command),
            "label": self._label,
            "rollout": self._rollout,
            "exec": self._exec,
            "scale": self._scale,
            "wait": self._wait,
            "delete": self._delete,
        }
        assert words[0] in done, shlex.join(command)
        done[words[0]](name, words[1:])

    def _create(self, name: str, command: list[str]) -> None:
        if command[-1].startswith("--filename="):
            return self._take_snapshot(name, command[-1].removeprefix("--filename="))
        plain = [part for part in command[1:] if not part.startswith(("--dry-run", "--output"))]
        made = self._run([programs.needed("kubectl"), *plain, "--dry-run=client", "--output=yaml"])
        self.clusters[name].apply([yaml.safe_load(made)])

    def _label(self, _: str, words: list[str]) -> None:
        assert words == ["namespace", "pod-security.kubernetes.io/enforce=restricted"]

    def _rollout(self, name: str, words: list[str]) -> None:
        assert words[1] == f"statefulset/{stateful(name)}"
        if words[0] == "restart":
            self.clusters[name].stop(stateful(name))
            self._start(name)
        self.pod(name).wait()

    def _exec(self, name: str, words: list[str]) -> None:
        pod, dashes, *command = words
        assert (pod, dashes) == (f"{stateful(name)}-0", "--")
        if command[2] == "policy":
            assert "olga" in self.pod(name).execute(command)
        elif command[2] == "check":
            assert "all is well; nothing was sent" in self.pod(name).execute(command)
        elif command[-1] == self.job_id:
            assert "is approved" in self.pod(name).execute(command)
        else:
            wait_until(lambda: self.job_id in self.pod(name).execute(command), "the offer of the job")

    def _scale(self, name: str, words: list[str]) -> None:
        assert words[0] == f"statefulset/{stateful(name)}"
        if words[1] == "--replicas=0":
            self.clusters[name].stop(stateful(name))
        else:
            self._start(name)

    def _take_snapshot(self, name: str, file: str) -> None:
        """While nothing runs: a snapshot, the loss of the volume, and the snapshot put back."""
        asked = yaml.safe_load((self.folder / file).read_text())
        assert asked["kind"] == "VolumeSnapshot"
        assert asked["spec"] == {"source": {"persistentVolumeClaimName": f"state-{stateful(name)}-0"}}
        assert stateful(name) not in self.clusters[name].pods
        snapshot = self.folder / asked["metadata"]["name"]
        self._claim(name).rename(snapshot)
        shutil.copytree(snapshot, self._claim(name))

    def _wait(self, name: str, words: list[str]) -> None:
        (kind, _, waited), condition, _ = words[0].partition("/"), words[1], words[2]
        if kind == "pod":
            assert (waited, condition) == (f"{stateful(name)}-0", "--for=delete")
            assert stateful(name) not in self.clusters[name].pods
        else:
            assert (kind, condition) == ("volumesnapshot", "--for=jsonpath={.status.readyToUse}=true")
            assert (self.folder / waited).is_dir()

    def _delete(self, name: str, words: list[str]) -> None:
        assert words == ["persistentvolumeclaim", f"state-{stateful(name)}-0"]
        (template,) = self.clusters[name].find("StatefulSet", stateful(name))["spec"]["volumeClaimTemplates"]
        assert words[1].startswith(f"{template['metadata']['name']}-")
        shutil.rmtree(self._claim(name))

    # what stands behind them

    def _start(self, name: str) -> None:
        table = self.clusters[name].folder / f"{stateful(name)}-0" / "data" / "heart" / "patients.csv"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text(records(seed=name))
        self.clusters[name].start(stateful(name), self._addresses(name))

    def _addresses(self, name: str) -> dict[str, str]:
        """This machine's in place of the cluster's, and a model that needs no torch."""
        if name == HUB:
            variables = {"LISTEN": self.address, "METRICS_LISTEN": "127.0.0.1:0", "HEARTBEAT_SECONDS": "0.5"}
            return {f"CHORALE_COORDINATOR_{key}": value for key, value in variables.items()}
        variables = {
            "COORDINATOR": self.address,
            "COORDINATOR_NAME": "coordinator.example.org",
            "METRICS_LISTEN": "127.0.0.1:0",
            "OBJECTIVE": "tests.support.one_hot:objective",
        }
        return {f"CHORALE_SILO_{key}": value for key, value in variables.items()}

    def _claim(self, name: str) -> Path:
        return self.clusters[name].folder / f"{stateful(name)}-0" / "var" / "lib" / "chorale"

    @property
    def _as_operator(self) -> dict[str, str]:
        variables = {"COORDINATOR": self.address, "COORDINATOR_NAME": "coordinator.example.org"}
        return {f"CHORALE_OPERATOR_{key}": value for key, value in variables.items()}

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment({}),
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
        return done.stdout


def stateful(release: str) -> str:
    return f"{release}-chorale-{'coordinator' if release == HUB else 'silo'}"


def records(*, seed: str) -> str:
    """Made-up rows under the headings of docs/examples/job-csv.yaml."""
    draw = random.Random(seed)
    rows = [
        f"{draw.randint(30, 80)},{draw.gauss(0, 1)},{draw.gauss(0, 1)},{draw.gauss(0, 1)},"
        f"{draw.choice('fm')},"
        f"{draw.choice(['none', 'atypical', 'typical'])},{draw.randint(90, 180)},{draw.randint(150, 350)},"
        f"{draw.randint(0, 1)}\n"
        for _ in range(RECORDS)
    ]
    return TABLE + "".join(rows)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    helm.installed()
    programs.needed("kubectl")
    with ExitStack() as stack:
        started = Walk(tmp_path)
        stack.callback(started.close)
        yield started


def check_new_roster(walk: Walk, version: int, *, silos: tuple[str, ...] = SILOS[1:]) -> None:
    wait_until(lambda: walk.metric(HUB, "chorale_coordinator_roster_version") == version, "the new roster")
    for silo in silos:
        wait_until(
            lambda silo=silo: walk.metric(silo, "chorale_silo_roster_version") == version,  # type: ignore[misc]
            f"{silo} to have the new roster",
        )


@pytest.mark.timeout(300)
def test_the_guide_leads_from_nothing_to_a_federation_and_to_its_end(walk: Walk) -> None:
    before = ""
    for section, command in [*steps(), ("", [])]:
        if section != before:
            checked = CHECKS.get(before)
            if checked is not None:
                checked(walk)
            before = section
        if not command:
            break
        silos = SILOS if section in EVERYWHERE and SILOS[0] in shlex.join(command) else SILOS[:1]
        for silo in silos:
            walk.do([part.replace(SILOS[0], silo) for part in command])
    assert walk.job_id


def after_rotation(walk: Walk) -> None:
    assert [walk.pod(silo).is_ready for silo in SILOS] == [True] * 3
    check_new_roster(walk, 3)


def after_revocation(walk: Walk) -> None:
    """By then the weekly command was done too: clinic-c stays out, and clinic-a's newer certificate in."""
    check_new_roster(walk, 5, silos=SILOS[:2])
    walk.pod("clinic-c").wait(is_ready=False)
    assert [walk.pod(silo).is_ready for silo in SILOS] == [True, True, False]


def after_backup(walk: Walk) -> None:
    walk.pod(HUB).wait()
    for silo in SILOS[:2]:
        walk.pod(silo).wait()


# by the section that has just been done
CHECKS: dict[str, Callable[[Walk], None]] = {
    "A new roster": lambda walk: check_new_roster(walk, 2),
    "Rotate a key": after_rotation,
    "Revoke": after_revocation,
    "Back up": after_backup,
}
