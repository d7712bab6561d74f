"""`chorale demo` as a person runs it: real processes, real data, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from chorale.spec.model_file import read_model
from tests.support.processes import INSTALLED, REPOSITORY, environment, run_cli, wait_until
from tools.sizes import closure

pytestmark = pytest.mark.timeout(300)
Demo = subprocess.Popen[str]


def _hear_interrupts() -> None:
    """A shell starts background commands, and so perhaps this test, deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _demo(out: Path, *options: str, **variables: str) -> Iterator[Demo]:
    command = [INSTALLED, "demo", "--out", str(out), *options]
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_interrupts,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.gate
def test_demo_learns_the_digits_in_ten_rounds_and_loses_nobody(tmp_path: Path) -> None:
    report, lines = _run_to_its_end(tmp_path / "demo", rounds=10)
    assert report["final_accuracy"] >= 0.95
    assert (report["dropped"], report["silos"]) == ([], 4)
    _compare_with_readme(lines, tmp_path / "demo")


MASK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.gate
def test_demo_runs_with_the_packages_of_its_extra_alone(tmp_path: Path) -> None:
    """All other packages of this environment are hidden from it and from the processes that it starts."""
    there = {_canonical(name) for name in closure(("demo",))} | {"chorale"}
    brought = metadata.packages_distributions().items()
    hidden = {name for name, by in brought if not {_canonical(each) for each in by} & there}
    assert {"numba", "torchvision", "pytest"} <= hidden
    (tmp_path / "sitecustomize.py").write_text(MASK.format(names=sorted(hidden)))
    path = f"{tmp_path}{os.pathsep}{REPOSITORY}"
    with _demo(tmp_path / "out", "--rounds", "1", PYTHONPATH=path) as demo:
        _, stderr = demo.communicate()
    assert demo.returncode == 0, stderr


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _compare_with_readme(lines: list[str], out: Path) -> None:
    """Line by line, numbers aside; where the README has an ellipsis lines may lie between.

    It showed columns that the demo did not print.
    """
    section = (REPOSITORY / "README.md").read_text().partition("\n## Try it\n")[2].partition("\n## ")[0]
    (sample,) = re.findall(r"```\n(demo: .*?)\n```", section, re.DOTALL)
    shown = [_without_numbers(line) for line in sample.replace("runs/demo", str(out)).splitlines()]
    # what is waited for is told where it takes long, and that differs between machines
    printed = [_without_numbers(line) for line in lines if not line.startswith("now: ")]
    printed = printed[: printed.index("try next:")]  # its hints are for who has run it
    first, rest = shown[: shown.index("...")], shown[shown.index("...") + 1 :]
    assert printed[: len(first)] == first
    assert printed[len(printed) - len(rest) :] == rest


def _without_numbers(line: str) -> str:
    return re.sub(r"(?<![\w-])\d[\d.:]*", "0", re.sub(r"\S*/chorale ", "chorale ", line))


def test_demo_survives_the_silos_it_kills_and_leaves_its_results(tmp_path: Path) -> None:
    report, _ = _run_to_its_end(tmp_path / "out", "--drop", "1", rounds=3)
    second = next(phase for phase in report["phases"] if (phase["round"], phase["phase"]) == (2, "train"))
    # it shared its keys and was killed before any envelope left: its masks were recovered
    assert second["cohort"] == ["silo-1", "silo-2", "silo-3"]
    assert second["attempts"] == 1
    assert report["dropped"][0] == {
        "round": 2, "silo": "silo-4", "stage": "masked", "reason": "disconnected",
        "words": "connection lost during its upload",
    }  # fmt: skip
    assert {entry["round"] for entry in report["dropped"]} == {2, 3}


def _run_to_its_end(out: Path, *options: str, rounds: int) -> tuple[dict[str, Any], list[str]]:
    """The report, once it was compared with what else the demo left and said, and all lines it printed."""
    with _demo(out, "--rounds", str(rounds), *options) as demo:
        stdout, stderr = demo.communicate()
    assert demo.returncode == 0, stderr
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    assert report["accuracy_by_round"][-1] == report["final_accuracy"]
    assert (report["rounds_completed"], len(report["accuracy_by_round"])) == (rounds, rounds)
    assert (
        report["float32_bytes"] <= report["upload_bytes_per_silo_round"] <= report["float32_bytes"] + 20_000
    )
    assert report["sums_verified"] is True
    page = (out / "report.html").read_text()
    assert "<svg" in page
    assert f"was checked by {report['verified_by']} silos or more" in page
    model, _ = read_model(out / "model.safetensors")
    assert (
        sum(array.nbytes for name, array in model.items() if name.startswith("model/"))
        == report["float32_bytes"]
    )
    assert stdout.startswith(f"final accuracy {report['final_accuracy']:.3f} (95 %: ")
    assert len([line for line in stdout.splitlines() if line.startswith("  ")]) == 3  # what to try next
    assert len([line for line in stderr.splitlines() if line.startswith("round ")]) == rounds
    assert "\x1b" not in stderr
    _check_evidence(out, report)
    return report, [*stderr.splitlines(), *stdout.splitlines()]


def _check_evidence(out: Path, report: dict[str, Any]) -> None:
    """The archive holds, with the model beside it, and not once a byte of it is another."""
    archive, model = out / "evidence.zip", out / "model.safetensors"
    checked = run_cli("evidence", "verify", archive, "--model", model, "--json")
    assert checked.returncode == 0, checked.stderr
    found = json.loads(checked.stdout)
    assert found["facts"]["job"] == report["job"]
    assert (found["model_is_compared"], found["authority_is_given"]) == (True, False)
    assert found["facts"]["missing"] == {}
    assert found["facts"]["states_signed_by_silos"] == report["rounds_completed"] + 1  # and the enrollment
    assert set(found["silos_with_a_statement"]) | {each["silo"] for each in report["dropped"]} == set(
        report["silo_names"]
    )
    changed = out / "changed.zip"
    changed.write_bytes(archive.read_bytes().replace(b"rounds: ", b"rounds:9"))
    refused = run_cli("evidence", "verify", changed)
    assert refused.returncode == 5
    assert refused.stderr.startswith(f"chorale: error: {changed}: archive: ")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_interrupted_demo_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    with _demo(tmp_path / "out", "--rounds", "1000", "--silos", "3") as demo:
        children = _running_children(demo, tmp_path / "out")
        demo.send_signal(number)
        _, stderr = demo.communicate(timeout=30)
        assert demo.returncode == 130
        assert "Traceback" not in stderr
        assert [child for child in children if child.is_running()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_killed_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    with _demo(tmp_path / "out", "--rounds", "1000", "--silos", "3") as demo:
        children = _running_children(demo, tmp_path / "out")
        demo.kill()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []


def _running_children(demo: Demo, out: Path) -> list[psutil.Process]:
    """Coordinator and three silos, once they train."""
    log = out / "federation" / "logs" / "hub.log"
    wait_until(
        lambda: demo.poll() is not None or (log.exists() and b'"phase": "train"' in log.read_bytes()),
        "the first round",
    )
    children = [child for child in psutil.Process(demo.pid).children(recursive=True) if _is_service(child)]
    assert len(children) == 4
    assert all(os.getsid(child.pid) == child.pid for child in children)
    return children


def _is_service(child: psutil.Process) -> bool:
    """Not `job submit`, which may still be telling its operator something when the first round begins."""
    try:
        return "run" in child.cmdline()
    except psutil.NoSuchProcess:
        return False
