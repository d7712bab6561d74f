"""Two agents run as one silo: the pod was deleted by force while its node was only unreachable.

The second one begins on a copy of the state, as on a volume that was attached elsewhere.
Source: docs/operations.md, a dead node.
"""

from __future__ import annotations

import pytest

from tests.faults.conftest import MakeFederation
from tests.support.halting import Halt
from tests.support.history import check_finished, statements
from tests.support.processes import run_cli

TWICE, COPY = "silo-1", "silo-1-copy"
ROUNDS = 6


@pytest.mark.soak
def test_no_round_counts_a_silo_twice_that_two_agents_run_as(make_federation: MakeFederation) -> None:
    federation = make_federation(coordinator={"reconnect_grace_seconds": 2.0})
    federation.start_coordinator()
    halt = Halt(at={"event": "input ready", "round": 1, "phase": "train"}, sent="shares")
    for name in federation.names:
        federation.start_silo(name, halt=halt if name == TWICE else None)
    federation.wait_connected()
    job_id = federation.submit(rounds=ROUNDS)
    federation.services[TWICE].wait_halted()  # the node is unreachable
    federation.start_copy(TWICE, COPY)
    federation.services[COPY].wait_for(lambda record: record["event"] == "connected")
    federation.services[TWICE].thaw()  # and back

    # the copy stays; before, each displaced the other several times a second, and nothing said why
    federation.hub.wait_for(lambda record: record["event"] == f"two agents use the certificate of {TWICE}")
    check_finished(federation, job_id, rounds=ROUNDS)
    for agent in (TWICE, COPY):
        service = federation.services[agent]
        service.wait_for(lambda record: record["event"].startswith("two agents use this silo's certificate"))
        service.kill()
        config = federation.folder / f"{agent}.yaml"
        checked = run_cli("silo", "ledger", "--check", "--config", config)
        assert checked.returncode == 0, (
            checked.stderr
        )  # each agrees with its own audit log, and lacks the other's
    signed = [set(statements(federation, agent)) for agent in (TWICE, COPY)]
    assert signed[0] - signed[1] or signed[1] - signed[0]
