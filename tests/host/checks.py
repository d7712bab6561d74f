"""What must hold on the machine after a section of the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

import yaml

from tests.cluster.jobs import job
from tests.cluster.page import HUB, SILOS
from tests.host.walk import Walk

Check = Callable[[Walk], None]
MOST_EXPOSED = 2.0  # systemd-analyze security, of 10
EVERY = tuple(f"chorale-{member}" for member in (HUB, *SILOS))
ENDED = EVERY[:2]  # of them the coordinator and a silo


def all_are_connected(walk: Walk) -> None:
    for silo in SILOS:
        walk.wait(partial(is_connected, walk, silo), f"{silo} to be connected")
    walk.report.passed("coordinator and silos run, and every silo is connected")


def units_are_closed(walk: Walk) -> None:
    for unit in (*EVERY, f"chorale-{HUB}-backup"):
        walk.machine.run(f"systemd-analyze verify {unit}.service")
        figure = exposure(walk, unit)
        assert figure < MOST_EXPOSED, (unit, figure)
        walk.report.passed(f"systemd-analyze security of {unit}: {figure}")
    for unit in EVERY:
        mode = walk.machine.run(f"stat --format '%a %U' /var/lib/{unit}").strip()
        assert mode == f"700 {unit}", mode


def a_job_ends(walk: Walk) -> None:
    """With numba's loops, which MemoryDenyWriteExecute could keep from being compiled."""
    wanted = {**job("on-services"), "model": {"name": "mlp"}, "rounds": 2}
    walk.machine.write("/srv/job.yaml", yaml.safe_dump(wanted))
    job_id = walk.do("chorale job submit /srv/job.yaml --config olga/operator.yaml").split()[0]
    for silo in SILOS:
        walk.wait(partial(is_offered, walk, silo, job_id), f"the offer at {silo}")
        walk.do(
            f"runuser --user chorale-{silo} -- chorale silo approve "
            f"--config /etc/chorale-{silo}/silo.yaml {job_id} --yes"
        )
    walk.do(f"timeout 300 chorale job watch {job_id} --config olga/operator.yaml")
    walk.do(f"chorale job fetch {job_id} --config olga/operator.yaml --out model.safetensors")
    walk.report.passed("a job of two rounds came to its end")


def a_killed_service_comes_back(walk: Walk) -> None:
    end_and_wait(walk, "KILL")
    walk.report.passed("coordinator and silo were killed, and started again")


def a_stopped_loop_is_restarted(walk: Walk) -> None:
    """SIGSTOP: the process is there, and its event loop turns no more."""
    end_and_wait(walk, "STOP")
    for unit in ENDED:
        assert "Watchdog timeout" in walk.log(unit)
    walk.report.passed("the watchdog of coordinator and silo fired")


def a_backup_was_made(walk: Walk) -> None:
    found = walk.machine.run(f"find /var/lib/chorale-{HUB}-backups -name '*.tar' -perm 600").split()
    assert len(found) == 1, found
    timers = walk.machine.run("systemctl list-timers --no-pager")
    assert f"chorale-{HUB}-backup.timer" in timers, timers
    walk.report.passed("a backup was made and brought back")


def nothing_is_left(walk: Walk) -> None:
    left = walk.machine.run("find /etc /var/lib /run -name '*clinic*'")
    assert not left, left
    assert "clinic" not in walk.machine.run("getent passwd; systemctl list-units --all --no-pager")
    walk.report.passed("nothing is left of the silos but their data")


AFTER: Mapping[str, tuple[Check, ...]] = {
    "A silo": (
        all_are_connected,
        units_are_closed,
        a_job_ends,
        a_killed_service_comes_back,
        a_stopped_loop_is_restarted,
        all_are_connected,
    ),
    "Update": (all_are_connected,),
    "Back up and restore": (a_backup_was_made, all_are_connected),
    "Remove": (nothing_is_left,),
}


def is_connected(walk: Walk, silo: str) -> bool:
    """As its probe says."""
    endpoint = walk.machine.run(f"cat /var/lib/chorale-{silo}/endpoint.json", check=False)
    if not endpoint:
        return False
    address = json.loads(endpoint)["metrics"]
    return "200" in walk.machine.run(
        f"curl --silent --output /dev/null --write-out '%{{http_code}}' http://{address}/readyz", check=False
    )


def is_offered(walk: Walk, silo: str, job_id: str) -> bool:
    return job_id in walk.log(f"chorale-{silo}")


def exposure(walk: Walk, unit: str) -> float:
    said = walk.machine.run(f"systemd-analyze security --no-pager {unit}.service")
    return float(said.rpartition(f"{unit}.service: ")[2].split()[0])


def end_and_wait(walk: Walk, number: str) -> None:
    """A signal to the coordinator and a silo; systemd starts another process of each."""
    before = {unit: walk.property(unit, "MainPID") for unit in ENDED}
    for process in before.values():
        walk.machine.run(f"kill -{number} {process}")
    for unit, process in before.items():
        walk.wait(partial(has_another, walk, unit, process), f"another process of {unit}")


def has_another(walk: Walk, unit: str, before: str) -> bool:
    is_active = walk.property(unit, "ActiveState") == "active"
    return is_active and walk.property(unit, "MainPID") not in (before, "0")
