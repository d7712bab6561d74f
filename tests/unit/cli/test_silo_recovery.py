"""`chorale silo ledger --recover`: what is charged is never less than what may have left."""

from __future__ import annotations

import dataclasses
import fcntl
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from chorale.job import Job
from chorale.privacy.accountant import epsilon
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import releases_from_json
from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.policy.policy import load_policy
from simulation.engine import unsigned_job
from tests.unit.cli.conftest import Calls, Desk
from tests.unit.cli.test_silo_accounts import start, table

PRIVATE = {
    "records": {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1},
    "statistics_noise_multiplier": 4.0,
}
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def offered(desk: Desk, name: str, **changes: Any) -> tuple[Job, Any]:
    """A job as it is signed, and its first state."""
    from silo_agent.training.models.starting import initial_state

    path = desk.job(**{"name": name, "privacy": PRIVATE, "not_after": "2099-12-31T00:00:00Z"} | changes)
    spec = JobSpec.from_yaml(path.read_bytes(), source=path.name)
    state = initial_state(spec)
    return unsigned_job(spec, state), state


def test_recovery_charges_whole_plans_and_a_round_for_each_restart(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="draws a first state: needs the extra silo")
    config = desk.silo(data={"format": "digits", "name": "digits", "account": "ward"})
    before, state = offered(desk, "before")
    after, _ = offered(desk, "after", rounds=7)
    over, _ = offered(desk, "over", not_after="2026-11-23T00:00:00Z")
    open_job, _ = offered(desk, "unapproved")
    plain, _ = offered(desk, "plain", privacy=None)
    path = desk.folder / "silo-0" / "ledger.sqlite"
    start(config)
    with closing(Ledger(path, clock=lambda: NOW)) as ledger:
        for job in (before, over, plain):
            ledger.record_job(job, is_approved=True)
        ledger.record_job(open_job, is_approved=False)
        budget = ledger.budget(policy=load_policy(desk.folder / "policy.yaml"), data_set="ward")
        key = PhaseKey(job_digest=before.digest, round=0, phase="enrollment.0", attempt=1)
        budget.reserve(before, key, state, members=3).spend()
    (desk.folder / "after.yaml").write_bytes(after.signed.spec_bytes)

    options = ["--recover", "--restarts", "3", "--ran", desk.folder / "after.yaml"]
    ended = chorale("silo", "ledger", "--config", config, *options)

    assert ended.code == 0, ended.err
    charged: dict[bytes, Counter[Any]] = {}
    with closing(Ledger(path)) as ledger, ledger._database.transaction() as connection:
        rows = connection.execute(
            "SELECT job_digest, data_set, status, releases FROM releases"
            " LEFT JOIN costs ON digest = cost_digest WHERE phase = 'recovery'"
        ).fetchall()
        decisions = dict(connection.execute("SELECT job_digest, decision FROM jobs").fetchall())
    for digest, data_set, status, text in rows:
        assert (data_set, status) == ("ward", "spent")
        charged[digest] = Counter(releases_from_json(text) if text else ())
    assert charged.keys() == {before.digest, after.digest, plain.digest}  # a job that is over cannot have run
    assert not charged[plain.digest]  # counts as an input without noise
    for job in (before, after):
        one_round = dataclasses.replace(job, spec=job.spec.model_copy(update={"rounds": 1})).spec
        expected = JobReleases(job.spec, state).planned()
        for release, count in JobReleases(one_round, state).planned().items():
            expected[release] += 3 * count
        assert charged[job.digest] == expected
    assert {decisions[job.digest] for job in (before, after, plain)} == {Decision.REJECTED}
    assert (decisions[over.digest], decisions[open_job.digest]) == (Decision.APPROVED, Decision.OFFERED)


def test_recovery_charges_the_account_of_the_settings(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="draws a first state: needs the extra silo")
    wards = table(desk, "wards", range(10))
    start(desk.silo(data=[wards]))
    job, state = offered(desk, "ran")
    (desk.folder / "ran.yaml").write_bytes(job.signed.spec_bytes)
    config = desk.silo(data=[wards | {"name": "stations", "account": "wards"}])
    options = ["--recover", "--restarts", "0", "--ran", desk.folder / "ran.yaml"]

    with (desk.folder / "silo-0" / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another agent is running" in chorale("silo", "ledger", "--config", config, *options).err
    ended = chorale("silo", "ledger", "--config", config, *options)

    assert ended.code == 0, ended.err
    assert "its whole plan charged to account wards; rejected" in ended.out
    start(config)
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        budget = ledger.budget(policy=load_policy(desk.folder / "policy.yaml"), data_set="wards")
        planned = epsilon(JobReleases(job.spec, state).planned(), budget.balance().delta)
        assert budget.balance().spent >= planned > 1.0


def test_recovery_charges_every_account_for_a_data_set_that_nobody_knows(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="draws a first state: needs the extra silo")
    config = desk.silo(data=[table(desk, name, range(10)) | {"account": name} for name in ("wards", "trial")])
    start(config)
    job, _ = offered(desk, "ran", data="of-march")
    (desk.folder / "ran.yaml").write_bytes(job.signed.spec_bytes)
    options = ["--recover", "--restarts", "0", "--ran", desk.folder / "ran.yaml"]
    ended = chorale("silo", "ledger", "--config", config, *options)
    assert ended.code == 0, ended.err
    assert "its whole plan charged to accounts wards, trial; rejected" in ended.out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: ward\n", "expected the signed text of a job, got {path}: federation, "),
        (None, "expected the signed text of a job, got a job as it was written"),
    ],
)
def test_a_job_as_it_was_written_is_no_job_that_ran(
    desk: Desk, chorale: Calls, text: str | None, expected: str
) -> None:
    """A field that `job submit` fills in was asked for, under the digest of a job that does not exist."""
    path = desk.job(not_after="2099-12-31T00:00:00Z")
    if text is not None:
        path.write_text(text)
    config = desk.silo()
    (desk.folder / "silo-0").mkdir()
    Ledger(desk.folder / "silo-0" / "ledger.sqlite").close()
    ended = chorale("silo", "ledger", "--config", config, "--recover", "--restarts", "1", "--ran", str(path))
    assert ended.code == 2
    assert f"--ran {path}: {expected.format(path=path)}" in ended.err
    assert "chorale job submit --save FILE" in ended.err


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--recover"], "--recover: expected --restarts with it"),
        # It charged whole plans for good although a check was asked for.
        (["--check", "--recover", "--restarts", "1"], "--check: expected without --recover: one at a time"),
        (["--delta", "d", "1e-6", "--check"], "--check: expected without --delta"),
        (["--restarts", "1"], "--restarts: expected --recover with it"),
        (["--ran", "job.yaml"], "--ran: expected --recover with it"),
        (["--init", "model.safetensors"], "--init: expected --recover with it"),
        (["--recover", "--restarts", "0", "--ran", "nowhere.yaml"], "nowhere.yaml: no such file"),
    ],
)
def test_mistakes_are_one_sentence(desk: Desk, chorale: Calls, options: list[str], expected: str) -> None:
    config = desk.silo()
    (desk.folder / "silo-0").mkdir()
    Ledger(desk.folder / "silo-0" / "ledger.sqlite").close()
    ended = chorale("silo", "ledger", "--config", config, *options)
    assert ended.code == 2
    assert expected in ended.err
