"""`chorale model`: what becomes of a model after its job."""

from __future__ import annotations

from pathlib import Path

import click

from chorale.spec.model_file import described_job, read_model
from client.errors import require_extra
from crypto.errors import ConfigError
from strategies.base import MODEL


@click.group()
def model() -> None:
    """Use a fetched or personal model elsewhere."""


@model.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.safetensors")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for weights, script and ONNX file."
)
@click.option(
    "--base-models",
    type=click.Path(path_type=Path),
    help="Folder of the weights that the job's adapters were put beside, as at a silo.",
)
@click.option(
    "--run-code-of",
    metavar="NAME==VERSION",
    help="Distribution whose code builds the model, where it is not Chorale's: read it first.",
)
def export(file: Path, out: Path, base_models: Path | None, run_code_of: str | None) -> None:
    """Write plain weights, a script that loads them, and ONNX where torch can.

    FILE is of `job fetch`, of `simulate` or of `silo personal`. The script load.py is run here, and has to
    give what the model of the federation gives. A model of another distribution is built by that
    distribution's code, which runs here with your rights and the options in FILE: name it with --run-code-of.
    It runs if its installed files are those that FILE pins.
    """
    require_extra("silo", "torch", what="model export, which builds the model,")
    from silo_agent.training.models.export import ONNX, PREPROCESSING, SCRIPT, WEIGHTS
    from silo_agent.training.models.export import export as export_model

    arrays, facts = read_model(file)
    spec = described_job(facts, source=str(file))
    source = spec.model.source
    if source is not None and source != run_code_of:
        raise ConfigError(
            f"{file}: code of {source} builds its model, with the options {spec.model.options}; "
            f"--run-code-of {source} lets it run here"
        )
    if not any(name.startswith(MODEL) for name in arrays):
        raise ConfigError(f"{file}: it is exported already: its arrays have the names of the author's module")
    missing = export_model(spec, arrays, facts, out, base_models=base_models)
    click.echo(f"{out}: {WEIGHTS}, {SCRIPT}, {PREPROCESSING}" + ("" if missing else f", {ONNX}"))
    if missing:
        click.echo(missing, err=True)
