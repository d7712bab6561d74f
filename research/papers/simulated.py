"""How a printed job is run: data, cut and the whole `chorale simulate` command, on the lines above it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from chorale.spec.job_spec import JobSpec
from research.papers.cells import Cell
from silo_agent.training.data.settings import PartitionSettings
from strategies.phases.enrollment import CLASS_PRESENCE

JOB, DATA, FOLDER = "job.yaml", "data.yaml", "FOLDER"
NUMBERS = ("alpha", "shards_per_silo")  # of a cut, which `chorale simulate` has options for


def job_file(cell: Cell) -> bytes:
    """The job file, below comments that say how it is run."""
    spec = cell.spec()
    lines = [
        f"In a clone of the repository, with this file as {JOB} and the data in {FOLDER} (docs/papers.md):",
        shlex.join(command(cell, spec)),
    ]
    for name, values in settings_files(cell).items():
        lines.append(f"{name} is one line: {json.dumps(values)}")
    return "".join(f"# {line}\n" for line in lines).encode() + spec.to_yaml()


def command(cell: Cell, spec: JobSpec) -> list[str]:
    """Words of the command that simulates the job."""
    files, cut = settings_files(cell), cell.federation.partition
    words = ["chorale", "simulate", JOB]
    if cell.federation.data.of_silos:
        for name in files:
            words += ["--silo", name]
    elif files:
        words += ["--data", *files]
    else:
        data = cell.federation.data
        words += ["--data", data.form, "--path", f"{FOLDER}/{data.place}", "--partition", str(cut["kind"])]
        for name in NUMBERS:
            if name in cut:
                words += [f"--{name.replace('_', '-')}", f"{cut[name]:g}"]
        if cut["kind"] == "dirichlet":
            words += ["--min-samples", str(PartitionSettings.model_fields["min_samples"].default)]
    if CLASS_PRESENCE in spec.method.opening:
        words.append("--all-class-rows")
    return words


def settings_files(cell: Cell) -> Mapping[str, Mapping[str, Any]]:
    """Files that the command needs beside the job: settings of silos with data of their own, or data settings
    that say more than the command's options can."""
    data, cut = cell.federation.data, cell.federation.partition
    source: dict[str, Any] = {"format": data.form, "name": data.key, "path": f"{FOLDER}/{data.place}"}
    if data.holdout is not None:
        source["holdout"] = data.holdout
    if data.of_silos:
        path = source["path"]
        return {
            f"{name}.yaml": {"name": name, "data": {**source, "path": f"{path}/{name}.npz"}}
            for name in data.of_silos
        }
    if data.holdout is None and set(cut) <= {"kind", *NUMBERS}:
        return {}
    return {DATA: {**source, "partition": {**cut, "silos": cell.federation.silos, "index": 0}}}
