"""An operator's and a silo's commands against a running federation."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chorale.job import Job, SignedJob
from chorale.runtime.audit import AuditLog, read_entries
from chorale.runtime.software import own_software
from chorale.spec.job_spec import JobSpec
from crypto.identity.certificates import Role, fingerprint
from silo_agent.disclosure.ledger.ledger import Ledger
from tests.support.federation import OPERATOR, LocalFederation
from tests.support.processes import run_cli


def _lines(done: Any) -> list[str]:
    assert done.returncode == 0, done.stderr
    return list(done.stdout.splitlines())


def test_job_is_paused_resumed_listed_and_cancelled(tmp_path: Path) -> None:
    """No silo is there, so the job stands still where the commands find it."""
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        federation.start_coordinator()
        job_id = federation.submit()
        for command, status in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
            assert _lines(federation.cli("job", command, job_id)) == [f"{job_id}  {status}"]
            (listed,) = _lines(federation.cli("job", "list"))
            state = "waiting for silos: 0 of 3 connected" if status == "running" else status
            assert listed.startswith(f"{job_id}  {state}  0/2 rounds")
        watched = federation.cli("job", "watch", job_id)
        assert (watched.returncode, watched.stdout) == (1, "")
        assert watched.stderr.splitlines()[-1].startswith(f"chorale: error: job {job_id}: cancelled")
        resumed = federation.cli("job", "resume", job_id)
        assert resumed.returncode == 4
        assert resumed.stderr.splitlines()[-1].startswith("chorale: error: coordinator refused: ")


def test_job_that_nobody_submitted_is_named(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        federation.start_coordinator()
        done = federation.cli("job", "fetch", "abc", "--out", tmp_path / "model.safetensors")
    assert done.returncode == 2
    expected = "chorale: error: job abc: expected the id of one job, none begins with it"
    assert done.stderr.splitlines()[-1] == expected
    assert not (tmp_path / "model.safetensors").exists()


def test_operator_who_left_the_roster_is_refused_by_the_coordinator(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        federation.ceremony.publish(without=(OPERATOR,))
        federation.start_coordinator()
        done = federation.cli("job", "list")
    assert done.returncode == 4
    assert "does not list this certificate of operator ops" in done.stderr.splitlines()[-1]


def test_silos_of_the_roster_are_listed_with_certificate_and_connection(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        federation.start_coordinator()
        federation.start_silo("silo-1")
        federation.hub.wait_for(lambda line: line["event"] == "silo connected")
        silos = federation.cli("job", "silos")
        listed = _lines(silos)
        document = json.loads(federation.cli("job", "silos", "--json").stdout)
    certificates = [federation.ceremony.members[Role.SILO, name] for name in federation.names]
    until = f"{certificates[1].not_valid_after_utc:%Y-%m-%d}"
    software = own_software()
    runs = f"{software.version}, sha256:{software.sha256 or 'none'}"
    states = ["away", f"connected, certificate until {until}, runs {runs}", "away"]
    sha256 = [fingerprint(certificate).hex() for certificate in certificates]
    assert listed == [
        f"roster version 1, the coordinator runs {runs}",
        *(f"silo-{place}  {sha256[place][:16]}  {states[place]}" for place in range(3)),
    ]
    assert "the digits after a name begin its certificate's SHA-256" in silos.stderr
    assert ("sha256:none: that program runs from a folder" in silos.stderr) == (not software.sha256)
    assert document == {
        "roster_version": 1,
        "software": runs,
        "silos": [
            {
                "name": f"silo-{place}",
                "connected": place == 1,
                "two_agents": False,
                "certificate": sha256[place],
                "expires": until if place == 1 else None,
                "software": runs if place == 1 else None,
            }
            for place in range(3)
        ],
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> LocalFederation:
    """A federation whose only job is done, stopped."""
    federation = LocalFederation(folder=tmp_path_factory.mktemp("finished"), silos=3)
    with federation:
        federation.start()
        federation.submit()
        federation.finish()
        for service in reversed(federation.services.values()):
            assert service.stop() == 0
    return federation


def test_submit_with_watch_stays_until_the_job_is_done(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        federation.start()
        first = federation.submit(rounds=1)
        state, job, saved = (tmp_path / name for name in ("initial.safetensors", "job.yaml", "signed.yaml"))
        done = federation.cli("job", "submit", job, "--init", state, "--save", saved, "--watch")
    submitted, ended = _lines(done)
    assert submitted.split()[0] != first  # a fresh nonce keeps two equal jobs apart
    assert ended.startswith(f"{submitted.split()[0]}  done  1 rounds")
    words = [line.split()[0] for line in done.stderr.splitlines()]
    warned, saved_at, *steps = [word for word in words if word != "now:"]
    assert (warned, saved_at) == ("--init:", f"{saved}:")
    assert hashlib.sha256(saved.read_bytes()).hexdigest().startswith(submitted.split()[0])
    assert steps == ["enrollment", "round", "evaluate"]


def test_silo_shows_its_ledger_and_compares_it_with_its_audit_log(finished: LocalFederation) -> None:
    config = finished.folder / "silo-0.yaml"
    version, job, data_set, by_job, warning = _lines(run_cli("silo", "ledger", "--config", config))
    assert version == "newest roster: version 1"
    # ", over" as soon as the coordinator's word of the end is there
    assert job.replace(", over", "").split()[1:] == ["approved", "2", "rounds", "ops", "one-hot"]
    assert data_set == "data set silo-0-data (account data): epsilon 0 of 10 spent, 10 left (delta 1e-05)"
    assert by_job.split()[1:] == ["not", "private", "4", "inputs", "one-hot"]
    assert warning.strip().startswith("4 inputs left without noise: ")
    (checked,) = _lines(run_cli("silo", "ledger", "--config", config, "--check"))
    # enrollment, two rounds, evaluation
    assert checked.endswith(": 4 reveals and 4 spends agree with the audit log")


def test_ledger_check_tells_of_an_audit_log_that_was_cut_short(
    finished: LocalFederation, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    shutil.copytree(finished.folder / "silo-0", state)
    log = state / "audit.jsonl"
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    config, override = finished.folder / "silo-0.yaml", {"CHORALE_SILO_DIRECTORY": str(state)}
    agreeing, *cut = _lines(run_cli("silo", "ledger", "--config", config, "--check", extra_env=override))
    assert agreeing.endswith(": 0 reveals and 0 spends agree with the audit log")
    for line, what in zip(cut, ("reveals", "spends"), strict=True):
        assert line.startswith(f"{log}: lacks 4 {what} of the ledger")


def test_silo_without_waiting_jobs_says_so(finished: LocalFederation) -> None:
    for command in ("approve", "show"):
        done = run_cli("silo", command, "--config", finished.folder / "silo-0.yaml")
        assert _lines(done) == ["no job waits for approval"]


def test_institution_grants_a_job_more_cohort_changes(finished: LocalFederation, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(finished.folder / "silo-0", state)
    config, override = finished.folder / "silo-0.yaml", {"CHORALE_SILO_DIRECTORY": str(state)}
    job = _lines(run_cli("silo", "ledger", "--config", config, extra_env=override))[1].split()[0]
    with closing(Ledger(state / "ledger.sqlite")) as ledger:
        (over,) = ledger.jobs()
        assert (over.is_over, over.spec_bytes is not None) == (True, True)
        spec = JobSpec.from_yaml(over.spec_bytes, source="job")
        signed = SignedJob(spec_bytes=over.spec_bytes, signature=b"", operator_certificate=b"")
        ledger.record_job(Job(spec=spec, signed=signed, operator="ops"), is_approved=False)  # offered again
    option = ("--more-cohort-changes", "3")
    approve = ("silo", "approve", "--config", config)
    *shown, approved, granted = _lines(run_cli(*approve, job, *option, "--yes", extra_env=override))
    assert shown[0] == f"job {job}  one-hot: approved here"
    assert approved == f"{job}: one-hot by ops is approved"
    assert granted == f"{job}: 3 more cohort changes on data set silo-0-data"
    alone = run_cli(*approve, *option, extra_env=override)
    assert "expected JOB with it" in alone.stderr
    with closing(AuditLog(state / "audit.jsonl")) as log, closing(Ledger(state / "ledger.sqlite")) as ledger:
        ledger.decisions().tell(log)
    entry = list(read_entries(state / "audit.jsonl"))[-1]
    assert entry["event"] == "cohort changes granted"
    assert (entry["job"][:12], entry["data_set"], entry["changes"]) == (job, "data", 3)


@pytest.mark.parametrize("party", ["silo-0", "hub"])
def test_audit_log_of_each_side_is_whole_until_somebody_edits_it(
    finished: LocalFederation, party: str, tmp_path: Path
) -> None:
    log = finished.folder / party / "audit.jsonl"
    (whole,) = _lines(run_cli("audit", "verify", log))
    assert whole.endswith("entries, chain intact")
    edited = tmp_path / "audit.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    edited.write_bytes(b"".join([lines[0].replace(b'"entry":1', b'"entry":1,"x":1'), *lines[1:]]))
    done = run_cli("audit", "verify", edited)
    assert done.returncode == 2
    assert (
        done.stderr.splitlines()[-1]
        == f"chorale: error: {edited}: entry 2: the entry before it was changed, or is missing"
    )


def test_policy_is_shown_with_what_it_refuses(finished: LocalFederation) -> None:
    shown = "\n".join(_lines(run_cli("silo", "policy", "--config", finished.folder / "silo-0.yaml")))
    assert "approval: automatic" in shown
    assert "This silo refuses:" in shown


def test_coordinator_is_not_run_with_the_certificate_of_a_silo(finished: LocalFederation) -> None:
    config = finished.folder / "hub.yaml"
    paths = {ending: finished.ceremony.path_of(Role.SILO, "silo-0", ending) for ending in ("crt", "key")}
    override = {
        "CHORALE_COORDINATOR_IDENTITY__CERTIFICATE": str(paths["crt"]),
        "CHORALE_COORDINATOR_IDENTITY__KEY": str(paths["key"]),
    }
    done = run_cli("coordinator", "run", "--config", config, extra_env=override)
    assert done.returncode == 2
    message = f"{paths['crt']}: own certificate: its extended key usage is not that of a coordinator"
    assert done.stderr.splitlines()[-1] == f"chorale: error: {message}"


def test_what_a_silo_shows_is_there_for_programs_too(finished: LocalFederation) -> None:
    config = finished.folder / "silo-0.yaml"
    ledger, policy, audit = (
        json.loads("\n".join(_lines(run_cli(*command, "--json"))))
        for command in (
            ("silo", "ledger", "--config", config),
            ("silo", "policy", "--config", config),
            ("audit", "verify", finished.folder / "silo-0" / "audit.jsonl"),
        )
    )
    (job,), data_set = ledger["jobs"], ledger["data_sets"]["silo-0-data"]
    assert (job["name"], job["operator"], job["decision"]) == ("one-hot", "ops", "approved")
    assert (data_set["epsilon_spent"], data_set["inputs_without_noise"]) == (0, 4)
    assert [(each["job"], each["inputs"], each["epsilon"]) for each in data_set["jobs"]] == [
        (job["job"], 4, None)
    ]
    data_set_policy = policy["data_sets"]["silo-0-data"]
    assert (data_set_policy["policy"]["initial_state"], data_set_policy["policy"]["max_rounds"]) == (
        "given",
        1000,
    )
    assert "jobs of more than 1000 rounds" in data_set_policy["refuses"]
    assert audit["is_intact"]
    assert audit["entries"] > 4
    checked = json.loads(run_cli("silo", "check", "--config", config, "--json").stdout)
    assert checked["problems"] == sum(each["state"] == "problem" for each in checked["findings"])
    assert checked["findings"][0]["what"] == "settings"
