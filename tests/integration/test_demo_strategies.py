"""`chorale demo --strategy`: every preset through real processes, and what its report says was summed.

One method runs every time, with a phase before its rounds and class statistics; the others under `make soak`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strategies.presets import PRESETS
from tests.support.processes import run_demo

pytestmark = pytest.mark.timeout(900)

# of every method: enrollment, the update, the evaluation, values that did not fit
COMMON = {"silos", "samples", "delta", "weight", "correct", "tested", "loss_sum", "clipped"}
PRESENCE, CALIBRATION = {"class_presence"}, {"gram", "moment"}
PERSONAL = {"personal_accuracy", "personal_accuracy_square", "personal_silos"}
BESIDE: dict[str, set[str]] = {
    "fedavg": set(),
    "fedavg_ft": PERSONAL,
    "fedexp": {"update_sq_norm"},
    "fedopt": set(),
    "fednova": {"normalizer"},
    "scaffold": {"control_delta"},
    "feddw": PRESENCE | {"soft_labels", "class_counts"},
    "feddistill_plus": PRESENCE | {"soft_labels", "class_counts"},
    "fedcsd": PRESENCE | {"prototypes"},
    "fedprox": set(),
    "moon": set(),
    "fedgkd": set(),
    "fedntd": set(),
    "fedetf": set(),
    "fedgela": set(),
    "dot_regression": set(),
    "feddr_plus": set(),
    "feddr_plus_ft": PERSONAL,
    "fedbabu": set(),
    "fedbabu_ft": PERSONAL,
    "spherefed": CALIBRATION,
    "spherefed_ft": CALIBRATION | PERSONAL,
    "spherefed_fedprox": CALIBRATION,
    "spherefed_fednova": CALIBRATION | {"normalizer"},
    "spherefed_fedopt": CALIBRATION,
    "fedper": PERSONAL,
    "fedrep": PERSONAL,
    "ditto": PERSONAL,
    "per_fedavg": PERSONAL,
    "fedsol": set(),
    "ccvr": PRESENCE | {"class_counts", "class_feature_sums", "class_feature_products"},
    "local_only": PERSONAL,
    "fedproto": PRESENCE | PERSONAL | {"feature_sums", "class_counts"},
    "lg_fedavg": PERSONAL,
    "fedbn": PERSONAL,
    "fedala": PERSONAL,
}
# where silos train alone they sum no update, and test no common model; who sums nothing clips nothing
ALONE = {"delta", "correct", "tested", "loss_sum"}
LEFT_OUT = {"local_only": ALONE | {"clipped"}, "fedproto": ALONE}
# the global model has an untrained head or body
OWN_PARTS = ("fedper", "fedrep", "local_only", "fedproto", "lg_fedavg", "fedbn")
ALWAYS = "fedcsd"
RUNS = [ALWAYS, *(pytest.param(preset, marks=pytest.mark.soak) for preset in PRESETS if preset != ALWAYS)]


@pytest.mark.parametrize("preset", RUNS)
def test_demo_of_a_method_ends_and_reports_what_was_summed(preset: str, tmp_path: Path) -> None:
    report = report_of(preset, "--rounds", "2", "--silos", "3", out=tmp_path / "out")
    assert (report["status"], report["strategy"], report["rounds_completed"]) == ("done", preset, 2)
    assert set(report["quantities"]) == (COMMON | BESIDE[preset]) - LEFT_OUT.get(preset, set())
    assert report["secure_aggregation"] is True
    assert (report["sums_verified"], report["verified_by"]) == (True, 3)
    opened = {
        "class_statistics": "allow",
        "drawn_rounds": "with_statistics",
        "local_state": "allow",
        "min_class_holders": 2,
    }
    assert report["policy"] == opened
    assert {phase["result"] for phase in report["phases"]} == {"applied"}
    assert report["dropped"] == []
    figure = "personal_accuracy" if preset in OWN_PARTS else "final_accuracy"
    assert report[figure] > 0.5  # chance is 0.1
    assert (report["final_accuracy"] is None) == (preset in LEFT_OUT)


def test_every_preset_has_its_sums_written_down_here() -> None:
    assert sorted(BESIDE) == sorted(PRESETS)


def report_of(preset: str, *options: str, out: Path) -> dict[str, Any]:
    done = run_demo(out, "--strategy", preset, *options)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report
