"""What is done before and after a section of the page, and what must hold on the machines then."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from tests.cluster.page import HUB
from tests.host import moving
from tests.host.jobs import a_job_ends, all_are_connected
from tests.host.page import MEMBERS
from tests.host.runbooks import runbooks_are_done
from tests.host.walk import RELEASES, Walk

Check = Callable[[Walk], None]
MOST_EXPOSED = 2.0  # systemd-analyze security, of 10
ENDED = MEMBERS[:2]  # of them the coordinator and a silo


def units_are_closed(walk: Walk) -> None:
    for member in MEMBERS:
        machine, unit = walk.machines[member], f"chorale-{member}"
        for each in (unit, f"{unit}-backup") if member == HUB else (unit,):
            machine.run(f"systemd-analyze verify {each}.service")
            figure = exposure(walk, member, each)
            assert figure < MOST_EXPOSED, (each, figure)
            walk.report.passed(f"systemd-analyze security of {each}: {figure}")
        mode = machine.run(f"stat --format '%a %U' /var/lib/{unit}").strip()
        assert mode == f"700 {unit}", mode


def a_first_job_ends(walk: Walk) -> None:
    walk.ended = a_job_ends(walk, name="on-services")


def a_killed_service_comes_back(walk: Walk) -> None:
    end_and_wait(walk, "KILL")
    walk.report.passed("coordinator and silo were killed, and started again")


def a_stopped_loop_is_restarted(walk: Walk) -> None:
    """SIGSTOP: the process is there, and its event loop turns no more."""
    end_and_wait(walk, "STOP")
    for member in ENDED:
        assert "Watchdog timeout" in walk.log(member)
    walk.report.passed("the watchdog of coordinator and silo fired")


def members_run_the_newer_release(walk: Walk) -> None:
    for member in MEMBERS:
        assert RELEASES[1] in walk.machines[member].run("chorale --version"), member
    all_are_connected(walk)


def audit_logs_have_two_files(walk: Walk) -> None:
    for member in MEMBERS:
        said = walk.machines[member].run(f"chorale audit verify /var/lib/chorale-{member}/audit.jsonl")
        assert re.search(r"entries in [2-9] files, chain intact", said), said
    walk.report.passed("every audit log was continued in another file")


def a_backup_was_made(walk: Walk) -> None:
    hub = walk.machines[HUB]
    found = hub.run(f"find /var/lib/chorale-{HUB}-backups -name '*.tar' -perm 600").split()
    assert len(found) == 1, found
    timers = hub.run("systemctl list-timers --no-pager")
    assert f"chorale-{HUB}-backup.timer" in timers, timers
    walk.report.passed("a backup was made and brought back")


def nothing_is_left(walk: Walk) -> None:
    for name, machine in walk.machines.items():
        left = machine.run("find /etc /var/lib /run /opt /usr/local/bin -name '*chorale*'")
        assert not left, (name, left)
        assert "chorale" not in machine.run("getent passwd; systemctl list-units --all --no-pager"), name
    walk.report.passed("nothing is left but the data of the hospitals, and the office's files")


BEFORE: Mapping[str, tuple[Check, ...]] = {
    "Signatures": (moving.requests_go_to_the_authority,),
    "The coordinator": (moving.nothing_is_open,),
    "A new machine": (moving.the_coordinators_machine_is_lost,),
}
AFTER: Mapping[str, tuple[Check, ...]] = {
    "Signatures": (moving.certificates_go_to_their_members, moving.keys_are_where_they_were_made),
    "The coordinator": (moving.the_coordinators_port_alone_is_open,),
    "A silo": (
        all_are_connected,
        units_are_closed,
        a_first_job_ends,
        a_killed_service_comes_back,
        a_stopped_loop_is_restarted,
        all_are_connected,
    ),
    "Update": (members_run_the_newer_release,),
    "Rotate": (audit_logs_have_two_files, all_are_connected, runbooks_are_done),
    "Back up and restore": (a_backup_was_made, all_are_connected),
    "A new machine": (moving.the_coordinator_goes_on,),
    "Remove": (nothing_is_left,),
}


def exposure(walk: Walk, member: str, unit: str) -> float:
    said = walk.machines[member].run(f"systemd-analyze security --no-pager {unit}.service")
    return float(said.rpartition(f"{unit}.service: ")[2].split()[0])


def end_and_wait(walk: Walk, number: str) -> None:
    """A signal to the coordinator and a silo; systemd starts another process of each."""
    before = {member: walk.property(member, "MainPID") for member in ENDED}
    for member, process in before.items():
        walk.machines[member].run(f"kill -{number} {process}")
    for member, process in before.items():
        walk.wait(partial(has_another, walk, member, process), f"another process of {member}")


def has_another(walk: Walk, member: str, before: str) -> bool:
    is_active = walk.property(member, "ActiveState") == "active"
    return is_active and walk.property(member, "MainPID") not in (before, "0")
