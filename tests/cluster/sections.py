"""What happens around each section of the guide, and what must hold after it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import yaml

from tests.cluster import adaptations, jobs, plain
from tests.cluster.page import HUB, PAGE, SILOS, steps
from tests.cluster.walk import Walk, namespace, pod_name
from tests.deployment import helm

BACK_UP = next(step for step in steps(PAGE.read_text()) if " coordinator backup " in step.text)
Around = Callable[[Walk], AbstractContextManager[None]]


@contextmanager
def the_coordinator(walk: Walk) -> Iterator[None]:
    yield
    walk.wait_ready(HUB)
    walk.report.passed("the coordinator is ready, and so says its chart's test")


@contextmanager
def a_silo(walk: Walk) -> Iterator[None]:
    yield
    walk.wait_ready(*SILOS)
    walk.report.passed("three silos are ready; policy and data are checked in their pods")


@contextmanager
def the_first_job(walk: Walk) -> Iterator[None]:
    """The guide's own: training on tables."""
    since = {member: walk.logs.mark(member) for member in (HUB, *SILOS)}
    yield
    jobs.finish(walk, "the guide's job", walk.job_id, since, is_one_hot=False)
    assert (walk.folder / "exported" / "model.safetensors").exists(), list(walk.folder.glob("exported/*"))
    walk.report.passed("its model was fetched and exported")


@contextmanager
def what_runs(walk: Walk) -> Iterator[None]:
    yield
    with jobs.during(walk, "coordinator deleted in UNMASK", at="unmask"):
        delete(walk, HUB)
    with jobs.during(walk, "silo deleted by force", at="train", held=SILOS[1]):
        delete(walk, SILOS[0], "--force", "--grace-period=0")


@contextmanager
def upgrade(walk: Walk) -> Iterator[None]:
    """The coordinator's settings change and the silos' do not; the rollback then restarts it again."""
    before = {member: walk.uid(member) for member in (HUB, *SILOS)}
    chart = walk.folder / "helm" / "chorale-silo" / "Chart.yaml"
    chart.write_text(chart.read_text().replace("version: ", "version: 9", 1))
    walk.values[HUB]["settings"] = {**walk.values[HUB]["settings"], "max_jobs": 9}
    walk.write_values(HUB)
    with jobs.during(walk, "upgrade and rollback", at="train"):
        yield
        walk.wait_ready(HUB, *SILOS)
    after = {member: walk.uid(member) for member in (HUB, *SILOS)}
    assert after[HUB] != before[HUB]
    assert [after[silo] for silo in SILOS] == [before[silo] for silo in SILOS]
    walk.report.passed(
        "a newer chart with the same image leaves the pods alone; new settings replaced theirs"
    )
    settings = walk.get(HUB, "configmap", "hub-chorale-coordinator-settings")["data"]
    assert "max_jobs: 9" not in json.dumps(settings), settings
    walk.report.passed("the rollback took the settings back")
    earlier_values(walk, SILOS[0])
    after[SILOS[0]] = walk.uid(SILOS[0])
    with jobs.during(walk, "upgrade of a silo with changes", at="unmask"):
        for silo in SILOS:
            walk.values[silo]["policy"] = {**walk.values[silo]["policy"], "approval": "automatic"}
            walk.write_values(silo)
            walk.shell(
                f"helm upgrade {silo} helm/chorale-silo --namespace {silo} --values {silo}.yaml"
                f" --values lab/{silo}.yaml --disable-openapi-validation"
            )
        walk.wait(
            lambda: all(walk.uid_or_none(silo) not in (after[silo], None) for silo in SILOS),
            "new pods of the silos",
        )
        walk.wait_ready(*SILOS)


def earlier_values(walk: Walk, silo: str) -> None:
    """A release of a chart that lacked all values that may be absent, and then this chart with its values."""
    chart = walk.folder / "former" / "chorale-silo"
    shutil.copytree(walk.folder / "helm" / "chorale-silo", chart, dirs_exist_ok=True)
    given = yaml.safe_load((walk.folder / f"{silo}.yaml").read_text())
    given["networkPolicy"] = {"metricsPods": [], **given.get("networkPolicy", {})}  # the checks require it
    (chart / "values.yaml").write_text(yaml.safe_dump(helm.least_values(chart, given)))
    before = walk.uid(silo)
    command = f"helm upgrade {silo} --namespace {silo} --disable-openapi-validation"
    walk.shell(f"{command} {chart} --values {silo}.yaml --values lab/{silo}.yaml")
    walk.wait(lambda: walk.uid_or_none(silo) not in (before, None), f"a new pod of {silo}")
    walk.wait_ready(silo)
    before = walk.uid(silo)
    walk.shell(f"{command} helm/chorale-silo --reuse-values")
    assert walk.uid(silo) == before
    walk.report.passed("values of a chart that lacked the newest ones were reused, and left the pod alone")


@contextmanager
def stop_and_start(walk: Walk) -> Iterator[None]:
    with jobs.during(walk, "scale to 0 and back, drain and uncordon", at="unmask"):
        before = walk.uid(SILOS[0])
        yield
        walk.wait_ready(HUB, *SILOS)
        assert walk.uid(SILOS[0]) != before, "the drain left a pod on the node"


@contextmanager
def a_new_roster(walk: Walk) -> Iterator[None]:
    version = roster_version(walk, HUB)
    with jobs.during(walk, "a new roster", at="train"):
        yield
        wait_for_roster(walk, version + 1)
    walk.report.passed(
        f"the renewed roster reached coordinator and silos without a restart: {version + 1:.0f}"
    )


@contextmanager
def rotate_a_key(walk: Walk) -> Iterator[None]:
    version, before, pod = roster_version(walk, HUB), fingerprint(walk, SILOS[0]), walk.uid(SILOS[0])
    with jobs.during(walk, "a key is rotated", at="train"):
        since = walk.logs.mark(SILOS[0])
        yield
        wait_for_roster(walk, version + 1)
        walk.logs.wait(
            SILOS[0],
            lambda line: line["event"] == "new certificate in use",
            "the new certificate in use",
            since=since,
        )
        walk.wait_ready(*SILOS)
    assert fingerprint(walk, SILOS[0]) != before
    assert walk.uid(SILOS[0]) == pod
    for silo in SILOS:
        check_no_key_in_annotations(walk, silo)
    walk.report.passed("a key was rotated without a restart, and no annotation holds one")


@contextmanager
def revoke(walk: Walk) -> Iterator[None]:
    version = roster_version(walk, HUB)
    yield
    wait_for_roster(walk, version + 2, *SILOS[:2])
    walk.wait_ready(*SILOS[:2])
    walk.wait_ready(SILOS[2], is_ready=False)
    walk.report.passed(
        "clinic-c was revoked, stays out after the next weekly roster, and clinic-a's newer key in"
    )


@contextmanager
def come_back(walk: Walk) -> Iterator[None]:
    version = roster_version(walk, HUB)
    yield
    wait_for_roster(walk, version + 1)
    walk.wait_ready(*SILOS)
    with jobs.during(walk, "after revocation and return", at="train"):
        pass


@contextmanager
def a_larger_volume(walk: Walk) -> Iterator[None]:
    grown = next(step.text for step in steps(PAGE.read_text()) if " --set persistence.size=" in step.text)
    assert "no upgrade makes it 20Gi" in refusal(walk, grown)
    walk.report.passed("another size of the volume is refused in one sentence before it is grown")
    before = {silo: walk.uid(silo) for silo in SILOS}
    with jobs.during(walk, "a larger volume", at="train"):
        yield
    assert {silo: walk.uid(silo) for silo in SILOS} == before
    for silo in SILOS:
        claim = walk.get(silo, "persistentvolumeclaim", f"state-{pod_name(silo)}")
        (template,) = walk.get(silo, "statefulset", f"{silo}-chorale-silo")["spec"]["volumeClaimTemplates"]
        asked = [each["spec"]["resources"]["requests"]["storage"] for each in (claim, template)]
        assert asked == ["20Gi"] * 2, asked
    walk.report.passed("claim and StatefulSet have the new size, and no pod was restarted")


@contextmanager
def back_up(walk: Walk) -> Iterator[None]:
    yield
    mode = (walk.folder / "hub.tar").stat().st_mode & 0o777
    assert mode == 0o600, oct(mode)
    with tarfile.open(walk.folder / "hub.tar") as backup:
        assert not [name for name in backup.getnames() if name.endswith(".key")]
    walk.report.passed("the coordinator was backed up while it ran, without a key")


@contextmanager
def restore(walk: Walk) -> Iterator[None]:
    """The backup is of the middle of a job, of which nothing is summed before the volume is lost."""
    with jobs.during(walk, "restore onto another volume", at="train"):
        walk.do(BACK_UP)
        yield
        walk.wait_ready(HUB, *SILOS)


@contextmanager
def uninstall(walk: Walk) -> Iterator[None]:
    with jobs.during(walk, "uninstall and install again over kept volumes", at="unmask"):
        yield
        walk.wait_ready(*SILOS)
    with jobs.during(walk, "a cluster that died whole", at="train"):
        walk.lab.down()
        walk.report.say("kill -9 of the cluster's first process; starting it again")
        with walk.report.progress("starting Kubernetes again"):
            walk.lab.up()
        walk.wait_ready(HUB, *SILOS)
    since, job_id = jobs.submit(walk, "whole numbers")
    evidence = jobs.finish(walk, "whole numbers", job_id, since)
    there, here = jobs.final_digest(evidence), plain.final_digest(walk)
    assert there == here, (there, here)
    walk.report.passed(f"the same job without Kubernetes ends in the same state: {here[:16]}")


@contextmanager
def the_end(walk: Walk) -> Iterator[None]:
    yield
    for silo in SILOS:
        walk.wait(
            partial(lambda silo: claims_and_pods(walk, silo) == ["patients"], silo),
            f"{silo} to be gone",
        )
    walk.report.passed("nothing is left of the silos but their data")


AROUND: dict[str, Around] = {
    "Verify the release": lambda walk: nullcontext(),
    "The images": lambda walk: nullcontext(),
    "A mirror, or no network": lambda walk: nullcontext(),
    "Code of your own": lambda walk: nullcontext(),
    "The authority": lambda walk: nullcontext(),
    "The coordinator": the_coordinator,
    "A silo": a_silo,
    "When a silo does not connect": lambda walk: nullcontext(),
    "Platforms": lambda walk: nullcontext(),
    "The first job": the_first_job,
    "What runs": what_runs,
    "Upgrade": upgrade,
    "Stop and start": stop_and_start,
    "A new roster": a_new_roster,
    "Rotate a key": rotate_a_key,
    "Revoke": revoke,
    "Return": come_back,
    "A larger volume": a_larger_volume,
    "Back up": back_up,
    "Restore the coordinator onto another node": restore,
    "Uninstall, and install again": uninstall,
    "The end": the_end,
    "Watching": lambda walk: nullcontext(),
}


def claims_and_pods(walk: Walk, member: str) -> list[str]:
    return [each["metadata"]["name"] for each in walk.get(member, "persistentvolumeclaims,pods")["items"]]


def refusal(walk: Walk, command: str) -> str:
    """What a command says that fails. Raises AssertionError for one that does not."""
    try:
        walk.shell(adaptations.command(command, walk.report))
    except RuntimeError as error:
        return str(error)
    raise AssertionError(f"{command}: not refused")


def delete(walk: Walk, member: str, *options: str) -> None:
    """And wait for the pod in its place."""
    before = walk.uid(member)
    walk.lab.run("kubectl", "--namespace", namespace(member), "delete", "pod", pod_name(member), *options)
    walk.wait(lambda: walk.uid_or_none(member) not in (before, None), f"another pod of {member}")
    walk.wait_ready(member)


def roster_version(walk: Walk, member: str) -> float:
    name = "chorale_coordinator_roster_version" if member == HUB else "chorale_silo_roster_version"
    return walk.metric(member, name)


def wait_for_roster(walk: Walk, version: float, *silos: str) -> None:
    for member in (HUB, *(silos or SILOS)):
        walk.wait(
            partial(lambda member: roster_version(walk, member) == version, member),
            f"roster {version} at {member}",
        )


def fingerprint(walk: Walk, silo: str) -> str:
    data = walk.get(silo, "secret", f"{silo}-identity")["data"]
    return hashlib.sha256(data["tls.crt"].encode()).hexdigest()


def check_no_key_in_annotations(walk: Walk, member: str) -> None:
    """Of any object of the namespace that can hold one."""
    for found in walk.get(member, "secrets,configmaps,statefulsets,pods")["items"]:
        held = json.dumps(found["metadata"].get("annotations", {}))
        assert not [word for word in ("tls.key", "PRIVATE KEY") if word in held], found["metadata"]["name"]
