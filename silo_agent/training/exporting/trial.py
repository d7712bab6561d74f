"""predict.py of an exported folder, tried before it is given away: on ten made-up rows, as a process that has
no Chorale, against the answers of the federation's model.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import CalibrationLine
from crypto.errors import ConfigError
from silo_agent.training.data.settings import DataFormat, DataSettings
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.predicting.answers import PREDICTION, Columns
from silo_agent.training.predicting.inputs import inputs_in
from silo_agent.training.predicting.predict import REMARKS, predictions

PREDICT = "predict.py"
PREDICTED = ("classification", "multi-label", "regression")  # tasks whose answers it writes
ROWS = 10
NEAR = 1e-4  # of answers: ONNX Runtime adds up in an order of its own
RUN_SECONDS = 600


class ExportFailed(ConfigError):
    """The folder was not written: what was exported does not load, or gives something else."""


def is_predicted(spec: JobSpec) -> bool:
    return spec.method.task.word in PREDICTED and spec.input_type == "float32"


def made_up_rows(spec: JobSpec, folder: Path) -> Path:
    """A table with the job's columns, the first of its rows without a value; or an array of inputs."""
    generator = np.random.default_rng(0)
    if spec.columns is None:
        np.savez(folder / "rows.npz", x=generator.standard_normal((ROWS, *spec.input_shape), np.float32))
        return folder / "rows.npz"
    cells = [
        [column.categories[each % len(column.categories)] for each in range(ROWS)]
        if column.categories is not None
        else [f"{column.mean + column.scale * each:.6g}" for each in generator.standard_normal(ROWS)]
        for column in spec.inputs
    ]
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(column.name for column in spec.inputs)
        writer.writerow("" for _ in spec.inputs)
        writer.writerows(zip(*cells, strict=True))
    return folder / "rows.csv"


def answers_of_rows(
    spec: JobSpec, model: FederatedModel, rows: Path, line: CalibrationLine | None
) -> Columns:
    form = DataFormat.NPZ if rows.suffix == ".npz" else DataFormat.CSV
    inputs = inputs_in(DataSettings(format=form, path=rows), spec)
    found = predictions(model, inputs, spec, masks=rows.parent, line=line)
    return {heading: values for heading, values in found.items() if heading != REMARKS}


def check_predict(script: Path, rows: Path, expected: Columns) -> None:
    """Raises ExportFailed where the script, without Chorale, does not give these answers."""
    out = rows.with_name("answers.csv")
    command = [sys.executable, "-I", str(script.resolve()), str(rows), str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    if ran.returncode != 0:
        why = (ran.stderr.strip().splitlines() or ["no word"])[-1]
        raise ExportFailed(f"{script}: it does not run: {why}")
    with out.open(encoding="utf-8", newline="") as file:
        headings, *found = csv.reader(file)
    if headings != [*expected]:
        raise ExportFailed(f"{script}: it gives {headings}, the federation's model {[*expected]}")
    for values, (heading, own) in zip(zip(*found, strict=True), expected.items(), strict=True):
        if heading == PREDICTION and isinstance(own[0], str):
            continue  # the best of the numbers beside it, of which two may be as good
        if [*values] != own and not _are_near(values, own):
            raise ExportFailed(f"{script}: {heading}: it gives other answers than the federation's model")


def _are_near(values: Sequence[str], own: Sequence[object]) -> bool:
    if not all(isinstance(each, float) for each in own):
        return False
    numbers = [float(each) for each in values], [float(str(each)) for each in own]
    return np.allclose(*numbers, rtol=NEAR, atol=NEAR)
