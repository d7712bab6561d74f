"""kill -9 of a silo around what its privacy ledger writes.

Killed between reservation and spend, nothing has left and the next process gives it back. Killed
after the spend, bytes may have left and it stays. Source: docs/protocol.md 6.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest

from chorale.privacy.accountant import epsilon
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.privacy_filter import filter_epsilon
from chorale.privacy.releases import releases_from_json
from crypto.session.cohort import default_colluders
from silo_agent.disclosure.ledger.costs import BudgetBalance
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import Policy
from strategies.base import TOTAL
from tests.faults.conftest import MakeFederation
from tests.faults.test_silo_killed import INPUT_READY, VICTIM
from tests.support.federation import LocalFederation
from tests.support.halting import Halt
from tests.support.history import check_logs, read_history
from tests.support.processes import run_cli
from tests.support.soak import cases

PRIVACY = {
    "sums": {"clip_norm": 0.5, "noise_multiplier": 8.0},
    "statistics_noise_multiplier": 20.0,
}
DELTA = 1e-5
NOTE = "silo_agent.rounds.inputs.open_data:_note_spend"
SPEND = "silo_agent.disclosure.ledger.budget:Charge.spend"
Rows = list[tuple[int, str, str]]  # round, phase, status

# point in the code; whether round 1 of the victim is spend in the end
MOMENTS = {
    "input ready, nothing spent": (Halt(at=INPUT_READY), False),
    "about to spend": (
        Halt(at=INPUT_READY, call=SPEND, when="before"),
        False,
    ),
    "spent, not noted": (
        Halt(at=INPUT_READY, call=NOTE, when="before"),
        True,
    ),
    "spent, no byte sent": (
        Halt(at=INPUT_READY, call=SPEND),
        True,
    ),
}


@contextmanager
def ledger_of(federation: LocalFederation, name: str = VICTIM) -> Iterator[Ledger]:
    with closing(Ledger(federation.folder / name / "ledger.sqlite")) as ledger:
        yield ledger


def rows_of(federation: LocalFederation) -> Rows:
    columns = "SELECT round, phase, status FROM releases ORDER BY written_unix_seconds"
    with ledger_of(federation) as ledger, ledger._database.transaction() as connection:
        return [tuple(row) for row in connection.execute(columns)]


def balance_of(federation: LocalFederation) -> BudgetBalance:
    policy = Policy(federation=federation.ceremony.federation)
    with ledger_of(federation) as ledger:
        return ledger.budget(policy=policy, data_set="data").balance()


def from_scratch(federation: LocalFederation) -> float:
    """Epsilon of what is spent, read with plain SQL: in a filter, or at most that of the first job's plan."""
    spent = (
        "SELECT costs.releases FROM releases JOIN costs ON costs.digest = cost_digest WHERE status = 'spent'"
    )
    with ledger_of(federation) as ledger, ledger._database.transaction() as connection:
        texts = [row["releases"] for row in connection.execute(spent)]
    releases = [release for one in texts for release in releases_from_json(one)]
    spec = federation.job_spec(privacy=PRIVACY)
    state = {"model/votes": np.zeros(4, np.float32), TOTAL: np.array(400)}
    plan = JobReleases(spec, state, colluders=default_colluders(len(spec.silos))).planned()
    assert len(releases) <= plan.total()
    filtered = filter_epsilon(releases, DELTA, sides_are_fixed=True)
    return min(filtered, epsilon(plan, DELTA, sides_are_fixed=True))


@pytest.mark.parametrize("halt, is_spent", cases(MOMENTS, always=["about to spend", "spent, no byte sent"]))
def test_a_killed_silo_keeps_its_spend_and_gets_back_the_rest(
    make_federation: MakeFederation, halt: Halt, is_spent: bool
) -> None:
    federation = make_federation(policy={"privacy": {"partial_jobs": "allow"}})
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, halt=halt if name == VICTIM else None)
    federation.submit(privacy=PRIVACY)
    victim = federation.services[VICTIM]
    victim.wait_halted()
    victim.kill()
    status = "spent" if is_spent else "reserved"
    assert rows_of(federation)[-1] == (1, "train", status)

    federation.start_silo(VICTIM)
    assert federation.finish()["status"] == "done"
    check_logs(federation)
    history = read_history(federation)

    cohort = [name for name in federation.names if name != VICTIM]
    is_in = VICTIM in history.cohorts()[0]  # a silo killed before it adverted may come back in time
    assert history.cohorts()[0] == (federation.names if is_in else cohort)
    if is_spent:
        assert not is_in
    first = [row for row in rows_of(federation) if row[:2] == (1, "train")]
    assert first == [(1, "train", "spent")] * (is_spent or is_in)
    assert all(status == "spent" for _, _, status in rows_of(federation))
    balance = balance_of(federation)
    assert balance.spent == balance.held == pytest.approx(from_scratch(federation))
    checked = run_cli("silo", "ledger", "--check", "--config", federation.folder / f"{VICTIM}.yaml")
    assert checked.returncode == 0, checked.stderr
    spends = len(rows_of(federation))
    assert f"{spends} spends agree" in checked.stdout
    assert "lacks" not in checked.stdout
