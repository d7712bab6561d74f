"""docs/tutorials, done as they stand: their files written, their commands run in their order."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import run
from tests.support.processes import REPOSITORY, run_cli
from tests.support.shared_data import shared_folder
from tools.examples import installed

pytestmark = [pytest.mark.gate, pytest.mark.timeout(300)]
PAGES = REPOSITORY / "docs" / "tutorials"
HEART = REPOSITORY / "docs" / "examples" / "heart-disease"
NOT_RUN = ("demo --dp records",)  # tests/integration/test_private_demo.py has a shorter one


Call = Callable[[list[str]], tuple[int, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A command in this process, which loads torch and solves for noise once."""
    monkeypatch.chdir(tmp_path)

    def call(arguments: list[str]) -> tuple[int, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return int(code), captured.out + captured.err

    return call


def apart(folder: Path, path: str = str(REPOSITORY)) -> Call:
    """A command as a process of its own."""

    def call(arguments: list[str]) -> tuple[int, str]:
        ended = run_cli(*arguments, folder=folder, extra_env={"PYTHONPATH": path}, seconds=200)
        return ended.returncode, ended.stdout + ended.stderr

    return call


def done(page: str, folder: Path, call: Call) -> list[str]:
    """What each command of the page printed. Every file that it shows, `# NAME` first, is written before."""
    text = (PAGES / f"{page}.md").read_text()
    for name, body in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(body)
    every = []
    for line in re.findall(r"^\$ chorale (.*)$", text, re.MULTILINE):
        if line.startswith(NOT_RUN):
            continue
        code, output = call(shlex.split(line))
        assert code == 0, f"{line}\n{output}"
        every.append(output)
    return every


def final(output: str) -> dict[str, object]:
    """The last line of a simulation."""
    document: dict[str, object] = json.loads(
        [line for line in output.splitlines() if line.startswith('{"closing"')][-1]
    )
    return document


def test_label_skew(tmp_path: Path, here: Call) -> None:
    fedavg, spherefed, allowed = done("label-skew", tmp_path, here)
    assert (tmp_path / "runs" / "fedavg" / "rounds.jsonl").exists()
    assert "calibrate" in str(final(spherefed)["closing"])
    assert [final(output)["model_after_round"] for output in (fedavg, spherefed, allowed)] == [10, 10, 10]
    (tmp_path / "policy.yaml").write_text("federation: tutorial\n...\n")
    code, refused = here(["simulate", "spherefed.yaml", "--policy", "policy.yaml"])
    assert code == 3, refused
    assert "class_statistics" in refused


@pytest.mark.soak  # test_private_demo.py has a shorter one
def test_private_job(tmp_path: Path, here: Call) -> None:
    alone, allowed = done("private-job", tmp_path, here)
    for output in (alone, allowed):
        assert len([line for line in output.splitlines() if line.startswith("privacy: ")]) == 4
        assert final(output)["intervals"]["final_accuracy"]["noise"] is not None


def test_own_model(tmp_path: Path) -> None:
    rows = "".join(f"{40 + row % 50},{100 + row % 80},{row % 2}\n" for row in range(300))
    (tmp_path / "table.csv").write_text(f"age,pressure,ill\n{rows}")
    author, site = tmp_path / "author", tmp_path / "site"
    text = (PAGES / "own-model.md").read_text()
    author.mkdir()
    for name, body in re.findall(r"^```\w+\n# (pyproject.toml|pressure.py)\n(.*?)^```", text, re.M | re.S):
        (author / name).write_text(body)
    installed(author, site)
    outputs = done("own-model", tmp_path, apart(tmp_path, f"{REPOSITORY}:{site}"))
    assert [final(each)["model_after_round"] for each in outputs] == [3, 3]


@pytest.mark.soak  # test_four_hospitals.py and test_demo_of_a_job.py do each of its steps
def test_four_hospitals(tmp_path: Path) -> None:
    for file in (*HEART.glob("*.yaml"), *shared_folder("heart_disease").glob("processed.*.data")):
        shutil.copy(file, tmp_path)
    simulated, demonstrated, verified = done("four-hospitals", tmp_path, apart(tmp_path))
    assert final(simulated)["model_after_round"] == 12
    assert "final accuracy" in demonstrated
    assert "entries" in verified or "records" in verified
