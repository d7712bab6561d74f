"""`chorale model`: what becomes of a model after its job."""

from __future__ import annotations

from pathlib import Path

import click

from chorale.spec.model_file import described_job, read_model
from cli.errors import require_extra
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
def export(file: Path, out: Path, base_models: Path | None) -> None:
    """Write plain weights, a script that loads them, and ONNX where torch can.

    FILE is of `job fetch`, of `simulate` or of `silo personal`. The script load.py is run here, and has to
    give what the model of the federation gives.
    """
    require_extra("silo", "torch", what="model export, which builds the model,")
    from silo_agent.training.models.export import ONNX, PREPROCESSING, SCRIPT, WEIGHTS
    from silo_agent.training.models.export import export as export_model

    arrays, facts = read_model(file)
    spec = described_job(facts, source=str(file))
    if not any(name.startswith(MODEL) for name in arrays):
        raise ConfigError(f"{file}: it is exported already: its arrays have the names of the author's module")
    missing = export_model(spec, arrays, facts, out, base_models=base_models)
    click.echo(f"{out}: {WEIGHTS}, {SCRIPT}, {PREPROCESSING}" + ("" if missing else f", {ONNX}"))
    if missing:
        click.echo(missing, err=True)
