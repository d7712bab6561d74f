"""What real engines make of deploy/: layers by buildah, and services by Podman on a machine with systemd."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.lab import images as lab
from tests.cluster.walk import records
from tests.deployment.dockerfile import read
from tests.host.machine import Machine
from tests.host.page import PAGE
from tests.support import programs
from tests.support.processes import wait_until
from tools.release import build, contents, images
from tools.release.archives import Layout

MEGABYTE = 10**6
OWN_MEGABYTES = 20  # 3.5 on 2026-11-28, where torch's layer had 226 and that of the lock 227
VERSION = "1.0.0"
UNITS = contents.ROOT / "deploy" / "podman"
MEMBERS = {"coordinator": "hub", "silo": "clinic-a"}
SECTION = PAGE.read_text().partition("\n## With Podman\n")[2].partition("\n## ")[0]
SHOWN = [block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)]
INIT = {
    "coordinator": "--federation heart --host coordinator.example.org --out /etc/chorale-hub",
    "silo": "--federation heart --coordinator coordinator.example.org:7443 --name clinic-a --format csv"
    " --path /srv/clinic-a/patients.csv --out /etc/chorale-clinic-a",
}
# this machine's limits are those of a container itself, and its second version of cgroups has no controllers
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
pids_limit = 0
[engine]
runtime = "runc"
"""
each_party = pytest.mark.parametrize("party", MEMBERS)


# what the files say


def quadlet(party: str) -> dict[str, list[str]]:
    """What each key of [Container] is set to."""
    text = (UNITS / f"chorale-{party}@.container").read_text()
    section = text.partition("\n[Container]\n")[2].partition("\n[")[0]
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line:
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def podman_run(party: str) -> tuple[list[str], list[str]]:
    """The options of `podman run` in the unit, and its image with what that is called with."""
    text = (UNITS / f"chorale-{party}@.service").read_text().replace("\\\n", "")
    (line,) = re.findall(r"^ExecStart=/usr/bin/podman run (.+)$", text, re.MULTILINE)
    words = shlex.split(line)
    options = [word for word in words if word.startswith("--") and word != "--config"]
    return options, words[len(options) :]


# of a key of quadlet, by podman-systemd.unit(5)
OPTIONS: dict[str, Callable[[str], str]] = {
    "ContainerName": "--name={}".format,
    "Pull": "--pull={}".format,
    "Notify": {"yes": "--sdnotify=container"}.__getitem__,
    "PodmanArgs": str,
    "ReadOnly": {"yes": "--read-only"}.__getitem__,
    "DropCapability": "--cap-drop={}".format,
    "NoNewPrivileges": {"yes": "--security-opt=no-new-privileges"}.__getitem__,
    "Network": "--network={}".format,
    "Volume": "--volume={}".format,
    "HealthCmd": "--health-cmd={}".format,
}
# what quadlet gives by itself
ALWAYS = {"--replace", "--rm", "--detach", "--cgroups=split", "--log-driver=passthrough"}


@each_party
def test_quadlet_runs_what_the_unit_runs(party: str) -> None:
    keys = quadlet(party)
    user, group, image, words = (keys.pop(key)[0] for key in ("User", "Group", "Image", "Exec"))
    expected = {OPTIONS[key](value) for key, values in keys.items() for value in values}
    options, command = podman_run(party)
    assert set(options) == expected | ALWAYS | {f"--user={user}:{group}"}
    assert command == [image, *words.split()]
    user_of_image = read(contents.ROOT / "deploy" / f"{party}.Dockerfile").stage(-1, "USER")[-1].text
    assert f"{user}:{group}" == user_of_image


@each_party
def test_quadlet_is_restarted_as_the_unit_is(party: str) -> None:
    service, container = (
        (UNITS / f"chorale-{party}@.{kind}").read_text() for kind in ("service", "container")
    )
    for key in (
        "TimeoutStartSec",
        "WatchdogSec",
        "Restart",
        "RestartSec",
        "StartLimitIntervalSec",
        "WantedBy",
    ):
        values = [re.findall(rf"^{key}=(.*)$", text, re.MULTILINE) for text in (service, container)]
        assert values[0] == values[1] != [], key


def test_the_coordinators_files_differ_from_a_silos_by_its_name_and_the_data() -> None:
    for kind in ("service", "container"):
        silo, coordinator = (
            (UNITS / f"chorale-{party}@.{kind}").read_text() for party in ("silo", "coordinator")
        )
        lines = [line for line in silo.splitlines()[1:] if "/srv/%i" not in line]
        assert [line.replace("silo", "coordinator") for line in lines] == coordinator.splitlines()[1:]


# what engines make


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[..., Path]]:
    """Builds an image of HEAD as a release does, once: its archive. A machine has a /tmp of its own."""
    for each in ("buildah", "mmdebstrap"):
        programs.needed(each)
    if os.geteuid() != 0:
        programs.missing("an image is built by root")
    folder = Path(tempfile.mkdtemp(prefix="chorale-engines-", dir="/var/tmp"))
    buildah = lab.Buildah(folder=folder, log=folder / "log" / "images.log")
    try:
        yield maker(folder, buildah)
    finally:
        subprocess.run([*buildah.words, "rmi", "--all", "--force"], check=False, capture_output=True)
        subprocess.run(["umount", folder / "storage" / "overlay"], check=False, capture_output=True)
        shutil.rmtree(folder)


def maker(folder: Path, buildah: lab.Buildah) -> Callable[..., Path]:
    (folder / "images").mkdir()
    builder = images.Builder(
        command=shlex.join(buildah.words),
        options=shlex.join(buildah.options()),
        arguments=lab.arguments(lab.base(folder / "images", buildah)),
    )
    commit = build.commit_of(contents.ROOT, "HEAD")

    def make(name: str, *, fix: str = "", number: int = 0) -> Path:
        """fix: a line more in our code, by another commit an hour later."""
        of = build.Commit(sha="f" * 40, epoch=commit.epoch + 3600) if fix else commit
        archive = folder / f"{name}-{number}.oci.tar"
        if archive.exists():
            return archive
        with tempfile.TemporaryDirectory(dir=folder) as source:
            build.export(contents.ROOT, commit, Path(source))
            with (Path(source) / "crypto" / "prg.py").open("a") as file:
                file.write(fix)
            builder.build(Path(source), name, archive, commit=of, version=VERSION)
        return archive

    return make


@pytest.mark.soak
@pytest.mark.timeout(3600)
@each_party
def test_fix_of_ours_changes_one_small_layer(make: Callable[..., Path], party: str) -> None:
    """torch was in one layer with our code: a fix of a line was 1.1 GB for every institution."""
    first, fixed = make(party), make(party, fix="# a fix\n", number=1)
    before, after = Layout(first).layers, Layout(fixed).layers
    changed = [place for place, layer in enumerate(before) if layer != after[place]]
    own = len(before) - 2  # the last one is the empty folder of the state
    assert changed == [own]
    sizes = layer_sizes(first)
    assert sizes[own] < OWN_MEGABYTES * MEGABYTE
    assert max(sizes) > sizes[own]
    assert not re.search(r"/(torch|numpy|grpc)/", "\n".join(paths_of(first, before[own])))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_builds_of_a_commit_are_one_image(make: Callable[..., Path]) -> None:
    assert Layout(make("coordinator", number=2)).digest == Layout(make("coordinator")).digest


def layer_sizes(archive: Path) -> list[int]:
    with tarfile.open(archive) as tar:
        names = [f"blobs/sha256/{layer.removeprefix('sha256:')}" for layer in Layout(archive).layers]
        return [tar.getmember(name).size for name in names]


def paths_of(archive: Path, layer: str) -> list[str]:
    with tarfile.open(archive) as tar:
        blob = tar.extractfile(f"blobs/sha256/{layer.removeprefix('sha256:')}")
        with tarfile.open(fileobj=blob, mode="r|*") as entries:
            return [f"/{entry.name}" for entry in entries]


@pytest.fixture
def machine() -> Iterator[Machine]:
    for each in ("podman", "runc", "systemd-analyze"):
        programs.needed(each)
    found = Machine("engines")
    found.start()
    found.wait_up()
    yield found
    found.down()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_page_starts_coordinator_and_silo_by_podman(make: Callable[..., Path], machine: Machine) -> None:
    # its own root file system is an overlay, which holds no other
    machine.run("mkdir --parents /var/lib/containers && mount -t tmpfs tmpfs /var/lib/containers")
    machine.write("/etc/containers/containers.conf", CONTAINERS_CONF)
    machine.write("/etc/hosts", "127.0.0.1 localhost coordinator.example.org\n")
    machine.write("/srv/clinic-a/patients.csv", records(60, seed="clinic-a"))
    for party, member in MEMBERS.items():
        unit = f"chorale-{party}@.service"
        machine.write(f"/srv/release/{unit}", (UNITS / unit).read_text())
        archive = f"/srv/release/chorale-{party}-{VERSION}.image.oci.tar"
        machine.run(f"ln --symbolic {make(party)} {archive}")
        for command in commands(SHOWN[0], party, member):
            machine.run(command)
    sign(machine)
    for party, member in MEMBERS.items():
        for command in commands(SHOWN[1], party, member):
            wait_until(partial(succeeds, machine, command), command, seconds=60)
    for party, member in MEMBERS.items():
        is_run_as_the_unit_says(machine, party, member)
    comes_back_and_goes(machine)


def commands(shown: list[str], party: str, member: str) -> Iterator[str]:
    for line in shown:
        command = line.replace("silo", party).replace("clinic-a", member)
        if "/srv/hub" in command:  # the coordinator has no data
            command = command.replace(" /srv/hub", "")
        yield command.replace("...", INIT[party])


def sign(machine: Machine) -> None:
    """The authority's part, and two more silos, which a roster needs."""
    folders = [f"/etc/chorale-{member}" for member in MEMBERS.values()]
    volumes = " ".join(f"--volume {each}:{each}" for each in ("/srv/authority", *folders))
    chorale = f"podman run --rm --network none --user 0 {volumes} localhost/chorale/coordinator:{VERSION}"
    machine.run(
        f"mkdir /srv/authority && {chorale} authority init --federation heart --directory /srv/authority"
    )
    members = [f"{folder}/{member}" for folder, member in zip(folders, MEMBERS.values(), strict=True)]
    for name in ("clinic-b", "clinic-c"):
        members.append(f"/srv/authority/{name}/{name}")
        machine.run(f"{chorale} silo csr --name {name} --federation heart --out /srv/authority/{name}")
    requests, certificates = (" ".join(f"{each}.{end}" for each in members) for end in ("csr", "crt"))
    machine.run(f"{chorale} authority sign {requests} --directory /srv/authority")
    machine.run(
        f"{chorale} authority roster {certificates} --directory /srv/authority"
        " --out /etc/chorale-hub/roster.json"
    )
    for folder in folders:
        machine.run(f"cp /srv/authority/authority.crt {folder}")


def is_run_as_the_unit_says(machine: Machine, party: str, member: str) -> None:
    name = f"chorale-{member}"
    wait_until(partial(succeeds, machine, f"podman healthcheck run {name}"), f"{member}'s health", seconds=60)
    (found,) = json.loads(machine.run(f"podman inspect {name}"))
    assert found["HostConfig"]["ReadonlyRootfs"]
    assert not found["EffectiveCaps"]
    for path in ("/opt/chorale/x", f"/etc/{name}/x"):
        assert not succeeds(machine, f"podman exec {name} touch {path}")
    assert succeeds(machine, f"podman exec {name} touch /var/lib/{name}/x /tmp/x")
    (image,) = json.loads(machine.run(f"podman image inspect localhost/chorale/{party}:{VERSION}"))
    assert image["Healthcheck"]["Test"][-1] == "/var/lib/chorale/state"  # an OCI manifest has none
    unit = f"chorale-{party}@{member}"
    heard = f"systemctl show --property WatchdogTimestampMonotonic {unit}"
    before = machine.run(heard)
    wait_until(lambda: machine.run(heard) != before, f"another report of {member}'s event loop", seconds=60)


def comes_back_and_goes(machine: Machine) -> None:
    number = "podman ps --quiet --no-trunc --filter name=chorale-hub"
    before = machine.run(number)
    machine.run("podman kill chorale-hub")
    wait_until(lambda: machine.run(number) not in ("", before), "another container of the hub", seconds=120)
    for party, member in MEMBERS.items():
        machine.run(f"systemctl stop chorale-{party}@{member}")
    assert machine.run("podman ps --all --quiet") == ""


def succeeds(machine: Machine, command: str) -> bool:
    try:
        machine.run(command)
    except RuntimeError:
        return False
    return True
