"""`chorale model`: what becomes of a model after its job."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from chorale.runtime.files import read_limited, write_atomic
from chorale.runtime.software import own_software
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import (
    RECALIBRATED,
    CalibrationLine,
    described_job,
    line_of,
    read_model,
    with_facts,
)
from chorale.spec.samples.column_specs import ColumnSpec
from chorale.spec.samples.computed_columns import with_computed
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from chorale.spec.state import state_parts
from cli.keys import check_new
from client.errors import printable, require_extra, with_hint
from crypto.errors import ConfigError
from silo_agent.training.data.settings import DataSettings
from strategies.base import MODEL, Arrays
from strategies.tasks.temperature import TEMPERATURE

OUTS = (".csv", ".parquet")
SHOWN = 12  # columns and classes in a line

FILE = click.argument("file", type=click.Path(path_type=Path), metavar="FILE.safetensors")
CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The silo's settings file, or its `data` alone: how DATA is written, or what is read without it.",
)
DATA_SET = click.option("--data-set", help="Name of the data set in --config, where it has several.")
BASE_MODELS = click.option(
    "--base-models",
    type=click.Path(path_type=Path),
    help="Folder of the weights that the job's adapters were put beside, as at a silo.",
)
RUN_CODE_OF = click.option(
    "--run-code-of",
    metavar="NAME==VERSION",
    help="Distribution whose code builds the model, where it is not Chorale's: read it first.",
)


@click.group()
def model() -> None:
    """Use a fetched or personal model elsewhere."""


@model.command()
@FILE
def show(file: Path) -> None:
    """Say what a model was trained on, and what it takes and gives."""
    spec, _, facts = _described(file)
    for line in _shown(spec, facts, line_of(facts, source=str(file))):
        click.echo(printable(line))


@model.command()
@FILE
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for weights, script and ONNX file."
)
@BASE_MODELS
@RUN_CODE_OF
def export(file: Path, out: Path, base_models: Path | None, run_code_of: str | None) -> None:
    """Write plain weights, a script that loads them, and ONNX where torch can.

    FILE is of `job fetch`, of `simulate` or of `silo personal`. Beside ONNX lies predict.py, which answers
    for rows of a csv file with onnxruntime alone. Both scripts are run here, and have to give what the model
    of the federation gives. A model of another distribution is built by that distribution's code, which runs
    here with your rights and the options in FILE: name it with --run-code-of.
    It runs if its installed files are those that FILE pins.
    """
    require_extra("silo", "torch", what="model export, which builds the model,")
    from silo_agent.training.exporting.export import export as export_model

    spec, arrays, facts = _opened(file, run_code_of)
    names, missing = export_model(spec, arrays, facts, out, base_models=base_models)
    click.echo(f"{out}: {', '.join(names)}")
    if missing:
        click.echo(missing, err=True)


@model.command()
@FILE
@click.argument("data", type=click.Path(path_type=Path), required=False)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="File for the answers, .csv or .parquet; masks go into the folder `masks` beside it.",
)
@CONFIG
@DATA_SET
@BASE_MODELS
@RUN_CODE_OF
def predict(
    file: Path,
    data: Path | None,
    out: Path,
    config: Path | None,
    data_set: str | None,
    base_models: Path | None,
    run_code_of: str | None,
) -> None:
    """Answer for each row or image of DATA, which needs no labels.

    DATA is a csv or parquet file, an .npz file, an image, or a folder of images. It is read as training read
    it: columns, categories and classes are those of the model's metadata. Each input has its row, in its
    order, also where it cannot be read; `remarks` says why.
    """
    require_extra("silo", "torch", what="model predict, which builds the model,")
    from silo_agent.training.models.state import loaded_model
    from silo_agent.training.predicting.answers import THRESHOLD, kind_of
    from silo_agent.training.predicting.inputs import inputs_in
    from silo_agent.training.predicting.predict import MASKS, predictions, write_columns

    if out.suffix not in OUTS:
        raise ConfigError(f"--out: expected a file {' or '.join(OUTS)}, got {out}")
    for each in (out, out.with_suffix(".json")) if out.suffix == ".csv" else (out,):
        check_new(each, what="a file")
    spec, arrays, facts = _opened(file, run_code_of)
    if spec.method.task.word == "segmentation":
        check_new(out.parent / MASKS, what="a folder")
    settings = _data_set(config, data, data_set)
    try:
        inputs = inputs_in(settings, spec)
    except ConfigError as error:
        if config is None:
            hint = "--config FILE says how a file is written: its dialect, values, units"
            raise with_hint(error, hint) from None
        raise
    for note in inputs.notes:
        click.echo(note, err=True)
    model = loaded_model(spec, arrays, base_models=base_models)

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{done} of {total}", err=True, nl=done == total)

    line = line_of(facts, source=str(file))
    columns = predictions(model, inputs, spec, masks=out.parent / MASKS, line=line, tell=tell)
    origin = {
        "model": {"file": file.name, "sha256": _digest(file), **_of_model(facts)},
        "inputs": [{"file": name, "sha256": _digest(each)} for name, each in _files(settings.path)],
        "answers": kind_of(spec, line),
        "line": None if line is None else line.model_dump(),
        "threshold": THRESHOLD if spec.method.task.word == "multi-label" else None,
        "chorale": own_software().version,
    }
    write_columns(columns, origin, out)
    unread = len(inputs.unread)
    click.echo(f"{out}: {len(inputs.names) - unread} answers, {unread} inputs that cannot be read")
    if unread and unread == len(inputs.names):
        raise ConfigError(f"{out}: no input can be read, its remarks say why")


@model.command()
@FILE
@click.argument("data", type=click.Path(path_type=Path), required=False)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File for the model.")
@CONFIG
@DATA_SET
@click.option(
    "--slope", type=float, help="With --intercept and no data: `calibration_slope` of a job's report."
)
@click.option("--intercept", type=float, help="`calibration_intercept` of that report.")
@BASE_MODELS
@RUN_CODE_OF
def recalibrate(
    file: Path,
    data: Path | None,
    out: Path,
    config: Path | None,
    data_set: str | None,
    slope: float | None,
    intercept: float | None,
    base_models: Path | None,
    run_code_of: str | None,
) -> None:
    """Fit a classifier's log odds to labeled records of your own, none of which trained it.

    Of two classes the answers' log odds become intercept + slope x the network's, of more they are divided by
    a temperature. Nothing leaves this machine. --out has the network of FILE and that line, in the place of
    what FILE has; it is no job's own model any more, and evidence of the job does not fit it.
    """
    check_new(out, what="a file")
    spec, arrays, facts = _opened(file, run_code_of)
    if spec.method.task.word != "classification":
        word = spec.method.task.word
        raise ConfigError(
            f"{file}: expected the task classification, whose answers have log odds, got {word}"
        )
    if slope is not None or intercept is not None:
        if None in (slope, intercept) or data is not None or config is not None or spec.classes != 2:
            raise ConfigError("--slope and --intercept: expected both, no data and a model of two classes")
        given = {"slope": slope, "intercept": intercept, "model": _digest(file)}
        line = check_values(
            CalibrationLine, given, source="", options={"slope": "--slope", "intercept": "--intercept"}
        )
    else:
        require_extra("silo", "torch", what="model recalibrate, which builds the model,")
        from silo_agent.training.models.state import loaded_model
        from silo_agent.training.predicting.recalibrating import fitted_line, logits_of

        settings = _data_set(config, data, data_set)
        outputs, targets, problems = logits_of(
            loaded_model(spec, arrays, base_models=base_models), settings, spec
        )
        for problem in problems:
            click.echo(problem, err=True)
        before = line_of(facts, source=str(file))
        line, found = fitted_line(outputs, targets, before=before, model=_digest(file))
        click.echo("\n".join(found))
    facts = {name: text for name, text in facts.items() if name != TEMPERATURE}
    facts[RECALIBRATED] = line.model_dump_json(exclude_none=True)
    write_atomic(out, b"".join(with_facts(state_parts(arrays), facts)))
    click.echo(f"{out}: written")


def _opened(file: Path, run_code_of: str | None) -> tuple[JobSpec, Arrays, Mapping[str, str]]:
    """Raises ConfigError for a model that code of others builds, unless that is named."""
    spec, arrays, facts = _described(file)
    source = spec.model.source
    if source is not None and source != run_code_of:
        raise ConfigError(
            f"{file}: code of {source} builds its model, with the options {spec.model.options}; "
            f"--run-code-of {source} lets it run here"
        )
    if not any(name.startswith(MODEL) for name in arrays):
        raise ConfigError(f"{file}: it is exported already: its arrays have the names of the author's module")
    return spec, arrays, facts


def _described(file: Path) -> tuple[JobSpec, Arrays, Mapping[str, str]]:
    """What a model's file says, with mean and scale of its inputs where silos computed them."""
    arrays, facts = read_model(file)
    described = described_job(facts, source=str(file))
    spec = with_computed(described, arrays)
    if spec is not described:
        facts = {**facts, "columns": json.dumps(spec.model_dump(mode="json")["columns"])}
    return spec, arrays, facts


def _data_set(config: Path | None, data: Path | None, name: str | None) -> DataSettings:
    """What --config says of the data, with DATA in the place of its file; else what DATA looks like."""
    from silo_agent.training.predicting.inputs import guessed_format

    if config is None:
        if data is None:
            raise ConfigError("DATA: a value is required, or --config")
        return check_values(DataSettings, {"format": guessed_format(data), "path": data}, source="DATA")
    values = parse_mapping(read_limited(config, MAX_BYTES), source=str(config))
    listed = values.get("data", values)
    listed = listed if isinstance(listed, list) else [listed]
    found = [check_values(DataSettings, each, source=f"{config}: data") for each in listed]
    named = [each for each in found if name in (None, each.name)]
    if len(named) != 1:
        raise ConfigError(f"--data-set: expected one of {', '.join(each.name for each in found)}")
    settings = named[0]
    if data is None:
        return settings
    if settings.path is None:
        raise ConfigError(f"DATA: not allowed with data.format {settings.format}, which reads no file")
    return settings.model_copy(update={"path": data})


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(path: Path | None) -> list[tuple[str, Path]]:
    """Each with its path below that one, or its name."""
    if path is None or path.is_file():
        return [] if path is None else [(path.name, path)]
    found = sorted(each for each in path.rglob("*") if each.is_file())
    return [(each.relative_to(path).as_posix(), each) for each in found]


def _of_model(facts: Mapping[str, str]) -> dict[str, Any]:
    """Which one it is; of a personal model also from which one of all silos."""
    named = ("job", "name", "round", "global_model", "tuned")
    return {name: facts[name] for name in named if name in facts}


def _shown(spec: JobSpec, facts: Mapping[str, str], line: CalibrationLine | None) -> Iterator[str]:
    name, method, version = (facts.get(each, "unknown") for each in ("name", "method", "chorale"))
    yield f"{name}: {method}, after round {facts['round']} of job {facts['job'][:12]}"
    if "global_model" in facts:
        yield f"personal: one silo's own, from the global model {facts['global_model'][:12]}"
    yield f"trained by {facts['silos']} silos with Chorale {version}"
    yield _privacy(facts.get("epsilon"), facts.get("delta"))
    if "search" in facts:
        yield f"search: the model of {facts['search']}"
    if line is not None and RECALIBRATED in facts:
        fit = "given" if line.records is None else f"fitted without noise to {line.records} records"
        origin = (line.model or "unknown")[:12]
        yield f"recalibrated: {line.intercept:g} + {line.slope:g} x the log odds of file {origin}, {fit}"
    elif line is not None:
        yield f"temperature: {1 / line.slope:g}, fitted to the silos' hold-outs"
    yield f"task: {spec.method.task.word}; network: {spec.model.name}; input {list(spec.input_shape)}"
    if spec.class_names or spec.classes:
        yield f"classes: {_some(spec.class_names) if spec.class_names else spec.classes}"
    if spec.columns is not None:
        yield f"label: {_some(spec.label_columns)}"
        fills = not spec.grows_trees
        yield from (f"  {_column(each, fills=fills)}" for each in spec.columns)


def _privacy(epsilon: str | None, delta: str | None) -> str:
    if delta is None:
        return "privacy: no noise; its weights can hold single training records"
    target = "by the noise that its job gives" if epsilon is None else f"epsilon {epsilon}"
    return f"privacy: {target} at delta {delta}, for the whole job"


def _column(column: ColumnSpec, *, fills: bool) -> str:
    """fills: whether something stands for a missing value."""
    if column.categories is not None:
        rare = f"; {_some(column.rare_texts)} read as missing" if column.rare_texts else ""
        return f"{column.name}: one of {_some(column.categories)}{rare}"
    unit = "" if column.unit is None else f" in {column.unit}"
    believed = "" if column.plausible is None else " from {:g} to {:g}".format(*column.plausible)
    # 9 digits: stated in another job, they standardize alike
    scaled = f"{column.mean:.9g} subtracted, divided by {column.scale:.9g}"
    filled = f"; {column.fill:.9g} where it is missing" if fills else ""
    return f"{column.name}: a number{unit}{believed}, {scaled}{filled}"


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
