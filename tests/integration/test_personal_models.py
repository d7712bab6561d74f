"""Personal models through real processes: who has them, who learns what of them, how to get at one's own.

The federation is of processes; the commands that read what it left run in this one, which is faster.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from cli.main import run
from silo_agent.training.objective import Objective, PersonalModel, Work
from strategies.base import Array
from tests.integration.test_demo_strategies import report_of
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.one_hot import HOLDOUT, OneHot

SECRET = 0.123456789  # in every personal model, in nothing else


class FineTuned(OneHot):
    """A personal model of the silo's place and a number that must not leave; 10 + place of 20 are right."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        if work.phase_kind != "fine-tune":
            return super().compute(work)
        place = work.spec.silos.index(work.silo)
        work.keep_personal(
            PersonalModel(
                arrays={"model/votes": np.array([place, SECRET], np.float32)},
                tuned="full",
                epochs=1,
                learning_rate=0.1,
                tested=HOLDOUT,
                score_before=0.5,
                score=(10 + place) / HOLDOUT,
            )
        )
        accuracy = (10 + place) / HOLDOUT
        return {
            "personal_accuracy": np.array(accuracy),
            "personal_accuracy_square": np.array(accuracy**2),
            "personal_silos": np.array(1),
        }


def objective() -> Objective:
    return FineTuned()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalFederation, str, dict[str, Any]]:
    """A federation whose only job is done, stopped; its job's id and report."""
    own = {"objective": "tests.integration.test_personal_models:objective"}
    federation = LocalFederation(folder=tmp_path_factory.mktemp("personal"), silos=3, silo=own)
    with federation:
        federation.start()
        job_id = federation.submit(strategy={"preset": "fedavg_ft"}, rounds=1)
        assert federation.finish()["status"] == "done"
        report = federation.report(job_id)
        for service in reversed(federation.services.values()):
            assert service.stop() == 0
    return federation, job_id, report


@pytest.fixture
def personal(capsys: pytest.CaptureFixture[str]) -> Any:
    """`chorale silo personal` of a silo: its exit code and the lines of stdout and stderr."""

    def call(folder: Path, silo: str, *arguments: str | Path) -> tuple[int, list[str], list[str]]:
        config = folder / f"{silo}.yaml"
        code = run(["silo", "personal", "--config", str(config), *map(str, arguments)])
        captured = capsys.readouterr()
        return int(code), captured.out.splitlines(), captured.err.splitlines()

    return call


def test_the_report_has_mean_and_deviation_and_nothing_of_a_single_silo(finished: Any) -> None:
    """0.5, 0.55 and 0.6: the deviation is 0.05 sqrt(2/3)."""
    _, _, report = finished
    assert report["personal_accuracy"] == pytest.approx(0.55, abs=1e-3)
    assert report["personal_accuracy_deviation"] == pytest.approx(0.05 * math.sqrt(2 / 3), abs=1e-2)
    assert report["personal_silos"] == 3
    assert [phase["phase"] for phase in report["phases"]] == [
        "enrollment.0",
        "train",
        "evaluate.0",
        "fine-tune.0",
    ]
    names = {"personal_accuracy", "personal_accuracy_deviation", "personal_silos"}
    assert set(report["phases"][-1]["figures"]) == names


def test_each_silo_finds_its_own_model_and_the_coordinator_none(
    finished: Any, personal: Any, tmp_path: Path
) -> None:
    federation, job_id, _ = finished
    for place, silo in enumerate(federation.names):
        out = tmp_path / f"{silo}.safetensors"
        code, lines, _ = personal(federation.folder, silo, job_id, "--out", out)
        accuracies = f"accuracy {(10 + place) / 20:.2f} (95 %: "
        assert code == 0
        assert lines[0].startswith(f"{job_id}  one-hot  fedavg_ft  {accuracies}")
        assert ", 20 tested), the global model 0.50 (95 %: " in lines[0]
        assert lines[1].endswith(", the one that the other silos had")
        assert Path(lines[2].strip()).parent == federation.folder / silo / "personal"
        kept = safetensors.numpy.load_file(out)["model/votes"]
        np.testing.assert_array_equal(kept, np.array([place, SECRET], np.float32))
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        assert personal(federation.folder, silo)[1] == lines[:3]  # all jobs: the only one
        (model,) = json.loads("\n".join(personal(federation.folder, silo, "--json")[1]))["models"]
        assert (model["job"][:12], model["file"], model["is_confirmed"]) == (job_id, lines[2].strip(), True)
        assert model["facts"]["accuracy"] == f"{(10 + place) / 20:.6f}"
    secret = np.float32(SECRET).tobytes()
    files = [path for path in (federation.folder / COORDINATOR).rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret in path.read_bytes()]


def test_mistakes_are_told_in_a_sentence(finished: Any, personal: Any, tmp_path: Path) -> None:
    federation, job_id, _ = finished
    for arguments, why in (
        (["0000"], f"expected one personal model of a job 0000, got 0; there are: {job_id}"),
        (["--out", tmp_path / "x"], "--out: expected JOB with it"),
    ):
        code, out, err = personal(federation.folder, "silo-0", *arguments)
        assert (code, out) == (2, [])
        assert why in err[-1]
    assert not (tmp_path / "x").exists()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_demo_shows_the_personal_models_of_its_silos(personal: Any, tmp_path: Path) -> None:
    report = report_of("fedavg_ft", "--rounds", "3", out=tmp_path / "out")
    assert report["personal_silos"] == 4
    assert report["personal_accuracy"] > 0.8
    accuracies = []
    for silo in report["silo_names"]:
        _, (line, *_), _ = personal(tmp_path / "out" / "federation" / silo, "silo")
        accuracies.append(float(line.partition(", the global model")[0].rpartition(" ")[2]))
    assert report["personal_accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-3)
    assert report["personal_accuracy_deviation"] == pytest.approx(np.std(accuracies), abs=1e-2)
