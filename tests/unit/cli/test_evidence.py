"""`chorale evidence verify` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.errors import ExitCode
from cli.main import run
from tests.support.evidence import SILOS, Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(folder=tmp_path_factory.mktemp("lab"))


def test_verify_says_what_held_on_what_it_rests_and_who_said_nothing(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, model = tmp_path / "evidence.zip", tmp_path / "model.safetensors"
    archive.write_bytes(lab.archive)
    model.write_bytes(lab.model)
    own = str(lab.ceremony.certificate_path)
    assert run(["evidence", "verify", str(archive), "--authority", own, "--model", str(model)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{archive}: all of it holds\n")
    assert "4 states, each signed by 3 silos or more of 4" in told
    assert f"statements of silos: {', '.join(SILOS[:3])}; missing: {SILOS[3]}" in told
    assert "by the coordinator's word alone: done, figures, times, who was left out" in told
    assert "your own" in told
    assert run(["evidence", "verify", str(archive), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not document["authority_is_given"]
    assert document["facts"]["epsilon"]["planned"] == pytest.approx(0.534, abs=1e-3)


def test_verify_ends_with_five_and_the_file_and_place_of_what_does_not_fit(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "evidence.zip"
    archive.write_bytes(lab.archive.replace(b"rounds: 3", b"rounds: 2"))
    assert run(["evidence", "verify", str(archive)]) == ExitCode.MISMATCH == 5
    assert capsys.readouterr().err.startswith(f"chorale: error: {archive}: archive: expected a zip file")


def test_verify_of_no_file_is_a_mistake_and_no_mismatch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["evidence", "verify", str(tmp_path / "none.zip")]) == ExitCode.USAGE
    assert "no such file" in capsys.readouterr().err
