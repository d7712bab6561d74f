"""A silo's directory that is put back from a snapshot, in a federation of real processes.

Before, the silo served on: its ledger and its audit log agreed with one another, and what had left could be
spent again.
"""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

from crypto.errors import Refusal
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.policy.policy import Policy
from tests.faults.conftest import MakeFederation
from tests.support.federation import LocalFederation
from tests.support.history import check_logs
from tests.support.processes import run_cli

VICTIM = "silo-1"
PRIVACY = {"sums": {"clip_norm": 0.5, "noise_multiplier": 8.0}, "statistics_noise_multiplier": 20.0}


def spent(federation: LocalFederation, name: str = VICTIM) -> float:
    with closing(Ledger(federation.folder / name / "ledger.sqlite")) as ledger:
        policy = Policy(federation=federation.ceremony.federation)
        return ledger.budget(policy=policy, data_set="data").balance().spent


def ended(federation: LocalFederation, job_id: str) -> str:
    record = federation.hub.wait_for(
        lambda line: line.get("event") == "job ended" and line.get("job") == job_id, seconds=60.0
    )
    return str(record["status"])


def run_job(federation: LocalFederation, place: int) -> tuple[str, str]:
    """Its id and how it ended."""
    job_id = federation.submit(rounds=1, privacy=PRIVACY, name=f"job-{place}")
    return job_id, ended(federation, job_id)


@pytest.mark.gate
def test_a_silo_that_was_put_back_refuses_at_its_next_phase_and_recovers(
    make_federation: MakeFederation,
) -> None:
    federation = make_federation(silos=3)
    federation.start()
    federation.wait_connected()
    assert run_job(federation, 1)[1] == "done"
    federation.services[VICTIM].stop()
    directory, copy = federation.folder / VICTIM, federation.folder / "copy"
    shutil.copytree(directory, copy)
    federation.start_silo(VICTIM)  # the control: a restart alone
    lost_job, status = run_job(federation, 2)
    assert status == "done"
    truth = spent(federation)
    with closing(Ledger(directory / "ledger.sqlite")) as ledger:
        lost_text = next(job.spec_bytes for job in ledger.jobs() if job.id == lost_job)

    federation.services[VICTIM].stop()
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)
    victim = federation.start_silo(VICTIM)
    assert spent(federation) < truth
    refused_job, status = run_job(federation, 3)
    assert status == "failed"  # of three silos two are too few
    refusal = victim.wait_for(lambda line: line.get("code") == Refusal.LEDGER)
    assert "the ledger does not; put the newest ledger back, or charge what may be missing" in str(
        refusal["reason"]
    )
    assert spent(federation) < truth  # nothing left for the third job
    refused = federation.cli("job", "watch", refused_job)
    assert f"{VICTIM} (ledger)" in refused.stderr

    victim.stop()
    again = federation.start_silo(VICTIM)
    assert again.process.wait(timeout=60) != 0
    assert "ledger: it was put back from a snapshot" in again.tail()

    config = federation.folder / f"{VICTIM}.yaml"
    (federation.folder / "lost.yaml").write_bytes(lost_text or b"")
    options = ("--recover", "--restarts", "2", "--ran", federation.folder / "lost.yaml")
    weights = federation.folder / "initial.safetensors"
    without = run_cli("silo", "ledger", *options, "--config", config)
    assert without.returncode != 0
    assert "its plan is not known here: model custom is not built in; name its starting" in without.stderr
    recovered = run_cli("silo", "ledger", *options, "--init", weights, "--config", config)
    assert recovered.returncode == 0, recovered.stderr
    assert f"{lost_job}: its whole plan charged to account data; rejected" in recovered.stdout
    assert spent(federation) > truth
    with closing(Ledger(directory / "ledger.sqlite")) as ledger:
        assert {job.decision for job in ledger.jobs()} == {Decision.REJECTED}

    federation.start_silo(VICTIM)
    assert run_job(federation, 4)[1] == "done"
    check_logs(federation)
    checked = run_cli("silo", "ledger", "--check", "--config", config)
    assert checked.returncode == 0, checked.stderr
