"""`chorale schema`: JSON schemas by which an editor checks and explains the files that people write."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pydantic import BaseModel

DRAFT = "https://json-schema.org/draft/2020-12/schema"  # as pydantic writes them
MODELS = {
    "job": "chorale.spec.job_spec:JobSpec",
    "analysis": "chorale.spec.analysis_spec:AnalysisSpec",
    "policy": "silo_agent.disclosure.policy.policy:Policy",
    "silo": "silo_agent.settings:SiloSettings",
    "coordinator": "coordinator.settings:CoordinatorSettings",
    "operator": "client.settings:OperatorSettings",
    "console": "web.console.settings:ConsoleSettings",
}
FILLED_IN = {
    "job": {"not_after", "rounds", "input_shape"},
    "analysis": {"not_after"},
}  # of the signed job; `job submit`, steps or columns give it


@click.command()
@click.argument("file", type=click.Choice(list(MODELS)), metavar="FILE")
def schema(file: str) -> None:
    """Print the JSON schema of a file: job, analysis, policy, silo, coordinator, operator or console.

    An editor with a YAML language server reads it by the first line of each file in docs/examples, which
    expects it next to the file: `chorale schema job > job.schema.json`.
    """
    found = model_of(file).model_json_schema()
    required = [name for name in found.get("required", ()) if name not in FILLED_IN.get(file, ())]
    written = {"$schema": DRAFT, **found, "title": f"Chorale {file}", "required": required}
    click.echo(json.dumps(written, indent=2))


def model_of(file: str) -> type[BaseModel]:
    """The model that reads a kind of file."""
    module, _, name = MODELS[file].partition(":")
    model: type[BaseModel] = getattr(importlib.import_module(module), name)
    return model
