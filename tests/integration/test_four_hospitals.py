"""The commands of docs/heart-disease.md, run as they stand: its own files, real records, real processes.

Only the coordinator's port is changed, through the environment, because another may have it here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chorale.spec.model_file import read_model
from tests.support import readme
from tests.support.processes import REPOSITORY
from tests.support.readme import instead, run, service
from tests.support.shared_data import shared_folder

pytestmark = pytest.mark.timeout(300)
EXAMPLE = REPOSITORY / "docs" / "examples" / "heart-disease"
SHOWN, *OTHERS = HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
ROUNDS = 12
TESTED = 90 + 80 + 30 + 60  # hold-outs cut to a multiple of 10
MAJORITY = (41 + 29 + 29 + 45) / TESTED  # are ill: what a model that calls every patient ill would have


def test_four_hospitals_train_together_from_their_own_files(tmp_path: Path) -> None:
    data = shared_folder("heart_disease")
    for file in (*EXAMPLE.glob("*.yaml"), *data.glob("processed.*.data")):
        shutil.copy(file, tmp_path)
    commands = readme.commands("heart-disease.md", "Run it")
    with ExitStack() as running:
        _found(commands, tmp_path)
        hub = {"CHORALE_COORDINATOR_LISTEN": "127.0.0.1:0"}
        running.enter_context(service(next(commands), tmp_path, hub))
        address = f"127.0.0.1:{readme.port_of(tmp_path / 'hub' / 'state')}"
        silo_run = next(commands)
        for hospital in HOSPITALS:
            command, where = instead(silo_run, SHOWN, hospital), {"CHORALE_SILO_COORDINATOR": address}
            running.enter_context(service(command, tmp_path, where))
        operator = {"CHORALE_OPERATOR_COORDINATOR": address}
        output = run(next(commands), tmp_path, operator)
        job_id = output.split()[0]
        fetched = run(instead(next(commands), "ID", job_id), tmp_path, operator)
    assert next(commands, None) is None, "a command of the page was not run"
    assert f"{job_id}  done  {ROUNDS} rounds" in output
    assert f"after round {ROUNDS} of {ROUNDS}" in fetched
    model, _ = read_model(tmp_path / "model.safetensors")
    assert sum(array.size for name, array in model.items() if name.startswith("model/")) == 258
    assert _accuracy(output) > MAJORITY + 0.1


def _found(commands: Iterator[list[str]], folder: Path) -> None:
    """From `authority init` to the roster."""
    for _ in range(3):
        run(next(commands), folder)
    silo_csr = next(commands)
    for hospital in HOSPITALS:
        run(instead(silo_csr, SHOWN, hospital), folder)
    for _ in range(2):
        run(next(commands), folder)


def _accuracy(output: str) -> float:
    found = re.search(r"accuracy (0\.\d+)", output)
    assert found, output
    return float(found[1])
