"""The runbooks of docs/operations.md without Kubernetes: each command as the page's table says."""

from __future__ import annotations

import re
import shlex

from tests.cluster.page import HUB, SILOS
from tests.deployment.runbooks import runbooks
from tests.deployment.without_kubernetes import FOREIGN, foreign, rows, translated
from tests.host.jobs import approve, finish, submit, wait_connected
from tests.host.machine import HOME
from tests.host.page import OFFICE
from tests.host.walk import NAME, Walk

ROWS = rows()
SERVED = f"import ssl; print(ssl.get_server_certificate(('{NAME}', 7443)), end='')"


def runbooks_are_done(walk: Walk) -> None:
    """While a job waits. Each command ends well, or RuntimeError is raised.

    What an operator or the authority calls is the same in both worlds; done of it is what the rest needs.
    """
    ended = walk.ended
    waiting = submit(walk, "during-alarms")
    walk.move("roster.json", (OFFICE, HOME), (HUB, HOME))  # the newest
    done = set[str]()
    for alarm, runbook in runbooks().items():
        walk.report.say(f"== {alarm}")
        processes = {member: walk.property(member, "MainPID") for member in (HUB, SILOS[0])}
        inline = [command for command in foreign(runbook) if command not in runbook.commands]
        for command in (*runbook.commands, *inline):
            here = command.replace("clinic-d", SILOS[2])
            if here.startswith(FOREIGN):
                _do_translated(walk, here, ended if "/checkpoints/" in here else waiting, done)
            elif " csr " in here or (here.startswith("chorale authority ") and "olga" not in here):
                _do_and_pass_on(walk, here)
        if alarm in IN_USE:
            member = IN_USE[alarm](walk)
            assert walk.property(member, "MainPID") == processes[member], f"{member} was restarted"
            walk.report.passed(f"{member} has another key and certificate, and was not restarted")
    approve(walk, waiting, SILOS[1:])
    finish(walk, waiting)
    walk.report.passed(f"{len(done)} different commands of the runbooks, as they are without Kubernetes")


def _do_translated(walk: Walk, command: str, job_id: str, done: set[str]) -> None:
    """Commands inside a service's user start Python: each once."""
    walk.report.adapted("what the runbooks do at clinic-d is done at clinic-c")
    (text,) = translated(command, ROWS)
    line = re.sub(r"\bID\b", job_id, text)
    if line in done and line.startswith("runuser "):
        return
    namespace = re.findall(r"--namespace (\S+)", command)[0]
    walk.do(HUB if namespace == "heart" else namespace, line)
    done.add(line)
    if line.startswith("systemctl restart "):
        wait_connected(walk)


def _do_and_pass_on(walk: Walk, command: str) -> None:
    """A request goes to the authority, a certificate back, and a roster to the coordinator."""
    words = shlex.split(command)
    if "csr" in words:
        name, folder = words[words.index("--name") + 1], words[words.index("--out") + 1]
        walk.do(name, command)
        walk.move(f"{folder}/{name}.csr", (name, HOME), (OFFICE, f"{HOME}/{folder}"))
        return
    walk.do(OFFICE, command)
    if "sign" in words:
        folder, _, file = words[words.index("sign") + 1].partition("/")
        name = file.removesuffix(".csr")
        walk.move(f"{folder}/{name}.crt", (OFFICE, HOME), (name, f"{HOME}/{folder}"))
    elif "--out" in words:
        walk.move("roster.json", (OFFICE, HOME), (HUB, HOME))


def _coordinator_shows_its_new_certificate(walk: Walk) -> str:
    made = walk.machines[OFFICE].read(f"{HOME}/{HUB}-2/{HUB}.crt").decode()
    served = f"/opt/chorale/bin/python -c {shlex.quote(SERVED)}"
    walk.wait(lambda: walk.machines[SILOS[0]].run(served) == made, "the coordinator's new certificate")
    return HUB


def _silo_dials_with_its_new_certificate(walk: Walk) -> str:
    walk.wait(lambda: "new certificate in use" in walk.log(SILOS[0]), "the silo's new certificate")
    wait_connected(walk)
    return SILOS[0]


# by alarm: until a member uses its new certificate; its name
IN_USE = {
    "ChoraleCoordinatorCertificateExpiring": _coordinator_shows_its_new_certificate,
    "ChoraleSiloCertificateExpiring": _silo_dials_with_its_new_certificate,
}
