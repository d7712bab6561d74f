"""Commands that a person waits for load nothing that trains or computes what noise costs, where they need
none of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chorale.job import Job, SignedJob
from chorale.spec.job_spec import JobSpec
from client.submission import prepared, read_spec
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.settings import load_silo_settings
from tests.support.processes import REPOSITORY, environment
from tests.unit.cli.conftest import Calls, Desk

HEAVY = ("torch", "dp_accounting", "scipy", "numba", "pandas", "matplotlib", "sklearn", "PIL", "jax")
CODE = """
import json, sys
from cli.main import run
found = {}
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    found[" ".join(arguments[:2])] = [code, [each for each in json.loads(sys.argv[2]) if each in sys.modules]]
print(json.dumps(found))
"""
PRIVACY = {
    "epsilon": 8.0,
    "records": {"clip_norm": 1.0, "sample_rate": 0.1},
}


def loaded_by(*commands: Sequence[str | Path]) -> dict[str, tuple[int, list[str]]]:
    """Of one process that runs them one after the other, by command: exit code, and what is loaded then."""
    given = json.dumps([[str(each) for each in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", CODE, given, json.dumps(HEAVY)],
        cwd=REPOSITORY,
        env=environment({}),
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: (code, heavy) for name, (code, heavy) in json.loads(done.stdout.splitlines()[-1]).items()}


def offered(desk: Desk, job: Path) -> tuple[Path, str]:
    """The silo's settings and the id of a job that waits in its ledger, as its agent writes it."""
    config = desk.silo()
    settings = load_silo_settings(config)
    settings.directory.mkdir(exist_ok=True)
    ready = prepared(read_spec(job), source="job", federation="test", now=datetime.now(UTC))
    signed = SignedJob(spec_bytes=ready.spec.to_yaml(), signature=b"", operator_certificate=b"")
    spec = JobSpec.from_yaml(signed.spec_bytes, source="job")
    with closing(Ledger(settings.ledger_path)) as ledger:
        ledger.record_job(Job(spec=spec, signed=signed, operator="ops"), is_approved=False)
    return config, signed.id


def test_nobody_waits_for_torch_or_an_accountant_that_a_job_does_not_need(desk: Desk) -> None:
    job = desk.job()
    config, waiting = offered(desk, job)
    at_silo = ("--config", config)
    found = loaded_by(
        ("job", "plan", job),
        ("silo", "show", *at_silo),
        ("silo", "show", waiting, *at_silo),
        ("silo", "approve", waiting, "--yes", *at_silo),
        ("silo", "reject", waiting, "--reason", "not now", *at_silo),
        ("silo", "ledger", *at_silo),
        ("silo", "policy", *at_silo),
        ("silo", "check", *at_silo),
        ("job", "--help"),
        ("silo", "--help"),
    )
    assert found == dict.fromkeys(found, (0, []))


@pytest.mark.parametrize(("group", "wrong", "meant"), [("job", "plna", "plan"), ("silo", "chekc", "check")])
def test_a_wrong_name_is_told_what_it_may_have_meant(
    group: str, wrong: str, meant: str, chorale: Calls
) -> None:
    ended = chorale(group, wrong)
    assert (ended.code, f"'{meant}'" in ended.err) == (2, True), ended.err


def test_who_approves_decides_by_what_is_computed_then(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config, waiting = offered(desk, desk.job(privacy=PRIVACY))
    show = ("silo", "show", waiting, "--config", config)
    approve = ("silo", "approve", waiting, "--yes", "--config", config)
    assert loaded_by(show)["silo show"][0] == 0
    assert "dp_accounting" in loaded_by(approve)["silo approve"][1]


def test_nobody_waits_twice_for_what_a_private_job_costs(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = desk.job(privacy=PRIVACY)
    config, waiting = offered(desk, job)
    show = ("silo", "show", waiting, "--config", config)
    first = loaded_by(("job", "plan", job), show)
    assert [code for code, _ in first.values()] == [0, 0]
    assert "dp_accounting" in first["job plan"][1]

    again = loaded_by(("job", "plan", job), show)

    assert again == dict.fromkeys(again, (0, []))
