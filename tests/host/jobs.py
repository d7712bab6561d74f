"""Jobs over the three machines with silos, and whether these are connected."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import yaml

from tests.cluster.jobs import job
from tests.cluster.page import SILOS
from tests.host.page import OFFICE
from tests.host.walk import Walk

CONFIG = "--config olga/operator.yaml"


def all_are_connected(walk: Walk) -> None:
    wait_connected(walk)
    walk.report.passed("coordinator and silos run, and every silo is connected")


def wait_connected(walk: Walk) -> None:
    for silo in SILOS:
        walk.wait(partial(_is_connected, walk, silo), f"{silo} to be connected")


def a_job_ends(walk: Walk, *, name: str) -> str:
    """With numba's loops, which MemoryDenyWriteExecute could keep from being compiled. Returns its id."""
    job_id = submit(walk, name)
    approve(walk, job_id, SILOS)
    finish(walk, job_id)
    return job_id


def submit(walk: Walk, name: str) -> str:
    """Returns once every silo was offered it."""
    wanted = {**job(name), "model": {"name": "mlp"}, "rounds": 2}
    walk.machines[OFFICE].write("/srv/job.yaml", yaml.safe_dump(wanted))
    job_id = walk.do(OFFICE, f"chorale job submit /srv/job.yaml {CONFIG}").split()[0]
    for silo in SILOS:
        walk.wait(partial(_is_offered, walk, silo, job_id), f"the offer at {silo}")
    return job_id


def approve(walk: Walk, job_id: str, silos: tuple[str, ...]) -> None:
    commands = [
        f"runuser --user chorale-{silo} -- chorale silo approve "
        f"--config /etc/chorale-{silo}/silo.yaml {job_id} --yes"
        for silo in silos
    ]
    with ThreadPoolExecutor(len(silos)) as pool:
        list(pool.map(walk.do, silos, commands))


def finish(walk: Walk, job_id: str) -> None:
    walk.do(OFFICE, f"timeout 300 chorale job watch {job_id} {CONFIG}")
    walk.do(OFFICE, f"chorale job fetch {job_id} {CONFIG} --out {job_id}.safetensors")
    walk.report.passed("a job of two rounds came to its end")


def _is_connected(walk: Walk, silo: str) -> bool:
    """As its probe says."""
    machine = walk.machines[silo]
    endpoint = machine.run(f"cat /var/lib/chorale-{silo}/endpoint.json", check=False)
    if not endpoint:
        return False
    address = json.loads(endpoint)["metrics"]
    ask = "curl --silent --output /dev/null --write-out '%{http_code}'"
    return "200" in machine.run(f"{ask} http://{address}/readyz", check=False)


def _is_offered(walk: Walk, silo: str, job_id: str) -> bool:
    return job_id in walk.log(silo)
