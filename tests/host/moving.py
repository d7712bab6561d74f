"""What is moved between machines, what their firewalls let through, and a coordinator that moves itself."""

from __future__ import annotations

from tests.cluster.page import HUB, SILOS
from tests.host.jobs import CONFIG, a_job_ends, wait_connected
from tests.host.machine import HOME
from tests.host.network import open_port
from tests.host.page import MEMBERS, NEW, OFFICE, PAGE, moves
from tests.host.walk import NAME, Walk, newest_backup

PORT = 7443
OPEN, DROPPED = "0", "124"
SETTINGS, BACKUP = "/srv/settings.tar", "/srv/hub.tar"


def requests_go_to_the_authority(walk: Walk) -> None:
    for each in moves(PAGE.read_text()):
        if each.target[0] == OFFICE:
            walk.move(each.file, each.source, each.target)


def certificates_go_to_their_members(walk: Walk) -> None:
    for each in moves(PAGE.read_text()):
        if each.source[0] == OFFICE:
            walk.move(each.file, each.source, each.target)


def keys_are_where_they_were_made(walk: Walk) -> None:
    own = {name: {f"/etc/chorale-{name}/{name}.key"} for name in MEMBERS}
    for name, keys in {**own, OFFICE: {f"{HOME}/authority/authority.key", f"{HOME}/olga/olga.key"}}.items():
        find = f"find /etc {HOME} -maxdepth 2 -name '*.key' -newer /etc/machine-id"
        found = set(walk.machines[name].run(find).split())
        assert found == keys, (name, found)
    walk.report.passed("each private key is on the machine of its member alone")


def nothing_is_open(walk: Walk) -> None:
    assert _answer(walk, SILOS[0], PORT) == DROPPED


def the_coordinators_port_alone_is_open(walk: Walk) -> None:
    open_port(walk.machines[HUB], PORT)
    answers = {port: _answer(walk, SILOS[0], port) for port in (PORT, 22)}
    assert answers == {PORT: OPEN, 22: DROPPED}, answers
    walk.report.passed(f"a silo's machine reaches port {PORT} of the coordinator, and no other")


def the_coordinators_machine_is_lost(walk: Walk) -> None:
    """Another one gets what the page says. Its address, and the number of the service's user, are others."""
    lost = walk.machines.pop(HUB)
    lost.run(f"tar --create --file {SETTINGS} --directory /etc chorale-{HUB}")
    kept = {
        SETTINGS: lost.read(SETTINGS),
        BACKUP: lost.read(f"/var/lib/chorale-{HUB}-backups/{newest_backup(lost)}"),
    }
    lost.down()
    address = walk.add(NEW)
    new = walk.machines[HUB] = walk.machines[NEW]
    walk.section_at("Install", NEW)
    new.run("useradd --system another")
    for path, content in kept.items():
        new.write(path, content)
    new.run(f"tar --extract --file {SETTINGS} --directory /etc")
    open_port(new, PORT)
    walk.name_coordinator(address)


def the_coordinator_goes_on(walk: Walk) -> None:
    wait_connected(walk)
    before = walk.do(OFFICE, f"chorale job list {CONFIG}")
    a_job_ends(walk, name="on-a-new-machine")
    listed = walk.do(OFFICE, f"chorale job list {CONFIG}")
    assert all(name in before for name in ("on-services", "during-alarms")), before
    assert "on-a-new-machine" in listed, listed
    walk.do(HUB, f"systemctl start chorale-{HUB}-backup")
    walk.report.passed("the coordinator goes on from its backup on another machine")


def _answer(walk: Walk, machine: str, port: int) -> str:
    """How a call of the coordinator's port ends."""
    call = f"timeout 2 bash -c 'exec 3<>/dev/tcp/{NAME}/{port}'"
    return walk.machines[machine].run(f"{call} 2> /dev/null || echo $?").strip() or OPEN
