"""`chorale evidence verify` and `chorale silo evidence` as people call them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.evidence import SiloStatement, open_statement
from chorale.runtime.audit import AuditLog
from cli.errors import ExitCode
from cli.evidence import lines
from cli.main import run
from client.evidence.contents import MODEL_CARD
from client.evidence.pages import pages_of
from client.evidence.verify import verify_archive
from tests.support.evidence import SILOS, Lab
from tests.unit.cli.conftest import Calls, Desk
from tests.unit.cli.test_approval import offered


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(folder=tmp_path_factory.mktemp("lab"))


def test_verify_says_what_held_on_what_it_rests_and_who_said_nothing(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, model = tmp_path / "evidence.zip", tmp_path / "model.safetensors"
    archive.write_bytes(lab.archive)
    model.write_bytes(lab.model)
    own = str(lab.certificate_path)
    assert run(["evidence", "verify", str(archive), "--authority", own, "--model", str(model)]) == 0
    output = capsys.readouterr().out
    weakest = (
        "the weakest phase is round 0 enrollment.0: 3 of 4 named silos signed (not clinic-d) under roster 1: "
        "withstands 1 colluders of the job's 4 silos, 1 needed"
    )
    assert output.startswith(f"{archive}: all of it holds; {weakest}\n")
    assert f"Statements of silos: {', '.join(SILOS[:3])}; missing: {SILOS[3]}" in output
    assert "By the coordinator's word alone: done, figures, times, who was left out" in output
    assert "your own" in output
    assert run(["evidence", "verify", str(archive), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not document["authority_is_given"]
    assert document["facts"]["epsilon"]["planned"] == pytest.approx(0.534, abs=1e-3)


def test_the_share_of_class_rows_is_told_beside_what_the_coordinator_says_alone(
    lab: Lab, tmp_path: Path
) -> None:
    held = verify_archive(lab.archive, authority=lab.anchors)
    assert not [line for line in lines(tmp_path, held) if "class rows" in line]
    first, second, *others = held.statement.phases
    figures = {"classes": 10.0, "class_rows_by_default": 4.0}
    phases = (
        first.model_copy(update={"figures": figures}),
        second.model_copy(update={"figures": {"soft_label_rows": 3.0}}),
        *others,
    )
    statement = held.statement.model_copy(update={"phases": phases})
    sentence = "class rows: 30% of them in a round's sum; by the default policy 4 of 10 are sent"
    assert f"  {sentence}" in lines(tmp_path, replace(held, statement=statement))
    assert sentence in pages_of(held.facts, statement, (), ())[MODEL_CARD].decode()
    assert "class rows" not in pages_of(held.facts, held.statement, (), ())[MODEL_CARD].decode()


def test_verify_ends_with_five_and_the_file_and_place_of_what_does_not_fit(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "evidence.zip"
    archive.write_bytes(lab.archive.replace(b"rounds: 3", b"rounds: 2"))
    assert run(["evidence", "verify", str(archive)]) == ExitCode.MISMATCH == 5
    assert capsys.readouterr().err.startswith(f"chorale: error: {archive}: archive: it was damaged")


def test_verify_of_no_file_is_a_mistake_and_no_mismatch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["evidence", "verify", str(tmp_path / "none.zip")]) == ExitCode.USAGE
    assert "no such file" in capsys.readouterr().err


def test_silo_writes_what_it_says_of_one_job_and_nothing_of_others(desk: Desk, chorale: Calls) -> None:
    """A reason to refuse, and another job, are the institution's own."""
    job, config, out = offered(desk), desk.silo(), desk.folder / "own.json"
    log = AuditLog(desk.folder / "silo-0" / "audit.jsonl")
    for digest in (job.digest, b"o" * 32):
        log.append("job_approved", job=digest, by="Ada")
        log.append("refused", job=digest, code="data", reason="column age: 3 of 211,403 rows are empty")
        log.append("spent", job=digest, round=0, phase="enrollment.0", releases=None)
    log.close()
    ended = chorale("silo", "evidence", job.id, "--config", config, "--out", out)
    assert ended.code == 0, ended.err
    assert ended.out == f"{out}: job {job.id}, 2 audit entries, bound of epsilon: 0\n"
    said = open_statement(out.read_bytes(), SiloStatement).statement
    entries = said.audit.entries_of_job()
    assert [(each["entry"], each["event"]) for each in entries] == [(1, "job_approved"), (3, "spent")]
    assert said.audit.entries == 6
    assert b"211,403" not in out.read_bytes()
    assert (b"o" * 32).hex().encode() not in out.read_bytes()
    assert (said.silo, said.job, said.decision) == ("silo-0", job.digest.hex(), "offered")


def test_silo_evidence_of_no_job_and_of_a_broken_log_is_one_sentence(desk: Desk, chorale: Calls) -> None:
    job, config, out = offered(desk), desk.silo(), desk.folder / "own.json"
    log = desk.folder / "silo-0" / "audit.jsonl"
    log.write_text('{"entry": 2}\n')
    broken = chorale("silo", "evidence", job.id, "--config", config, "--out", out)
    assert (broken.code, out.exists()) == (2, False)
    assert broken.err.splitlines()[-1] == f"chorale: error: {log}: entry 1: not an entry of an audit log"
    unknown = chorale("silo", "evidence", "beef", "--config", config, "--out", out)
    assert unknown.code == 2
    assert "job beef: expected the id of one job that was offered here, none begins with it" in unknown.err
