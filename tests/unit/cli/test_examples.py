"""The files of docs/examples load, name every field of their model, and explain each of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

import jsonschema
import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import check_values, parse_mapping
from cli.schema import MODELS, model_of
from client.settings import OperatorSettings
from coordinator.settings import CoordinatorSettings
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.settings import SiloSettings
from tests.unit.cli.conftest import Calls
from web.console.settings import ConsoleSettings

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
OWN = EXAMPLES / "own"  # tests/integration/test_own_examples.py runs those
FILES: list[tuple[str, type[BaseModel]]] = [
    ("job.yaml", JobSpec),
    ("job-csv.yaml", JobSpec),
    ("job-private.yaml", JobSpec),
    ("job-steps.yaml", JobSpec),
    ("job-head.yaml", JobSpec),
    ("job-own.yaml", JobSpec),
    ("job-search.yaml", JobSpec),
    ("job-images.yaml", JobSpec),
    ("job-scans.yaml", JobSpec),
    ("job-text.yaml", JobSpec),
    ("job-trees.yaml", JobSpec),
    ("analysis.yaml", AnalysisSpec),
    ("analysis-model.yaml", AnalysisSpec),
    ("analysis-noised.yaml", AnalysisSpec),
    ("analysis-cox.yaml", AnalysisSpec),
    ("analysis-correlations.yaml", AnalysisSpec),
    ("analysis-survival.yaml", AnalysisSpec),
    ("policy.yaml", Policy),
    ("silo.yaml", SiloSettings),
    ("silo-data-sets.yaml", SiloSettings),
    ("coordinator.yaml", CoordinatorSettings),
    ("operator.yaml", OperatorSettings),
    ("console.yaml", ConsoleSettings),
]
HOSPITALS: list[tuple[str, type[BaseModel]]] = [
    ("heart-disease/job.yaml", JobSpec),
    ("heart-disease/policy.yaml", Policy),
    ("heart-disease/coordinator.yaml", CoordinatorSettings),
    ("heart-disease/operator.yaml", OperatorSettings),
    ("heart-disease/cleveland.yaml", SiloSettings),
    ("heart-disease/hungarian.yaml", SiloSettings),
    ("heart-disease/switzerland.yaml", SiloSettings),
    ("heart-disease/va.yaml", SiloSettings),
]

SHORT = (
    "job-csv.yaml",
    "job-private.yaml",
    "job-steps.yaml",
    "job-head.yaml",
    "job-own.yaml",
    "job-search.yaml",
    "silo-data-sets.yaml",
    "job-images.yaml",
    "job-scans.yaml",
    "job-text.yaml",
    "job-trees.yaml",
    "analysis-model.yaml",
    "analysis-noised.yaml",
    "analysis-cox.yaml",
    "analysis-correlations.yaml",
    "analysis-survival.yaml",
    "heart-disease/job.yaml",
)  # they explain only what differs from job.yaml, analysis.yaml and silo.yaml


def _values(name: str) -> dict[str, Any]:
    return parse_mapping((EXAMPLES / name).read_bytes(), source=name)


@pytest.mark.parametrize(("name", "model"), [*FILES, *HOSPITALS])
def test_example_loads(name: str, model: type[BaseModel]) -> None:
    values = _values(name)
    if model is JobSpec and "not_after" not in values:  # they leave out what `job submit` fills in
        values["not_after"] = "2099-12-31T00:00:00Z"
    check_values(model, values, source=name)


@pytest.fixture
def validator(chorale: Calls) -> Callable[[type[BaseModel]], jsonschema.Draft202012Validator]:
    """Of the schema that `chorale schema` prints for a model."""

    def of(model: type[BaseModel]) -> jsonschema.Draft202012Validator:
        (kind,) = (kind for kind in MODELS if model_of(kind) is model)
        ended = chorale("schema", kind)
        assert (ended.code, ended.err) == (0, "")
        schema = json.loads(ended.out)
        jsonschema.Draft202012Validator.check_schema(schema)
        return jsonschema.Draft202012Validator(schema)

    return of


def _as_an_editor_reads(name: str) -> dict[str, Any]:
    """JSON has no times: they are texts."""
    values: dict[str, Any] = json.loads(
        json.dumps(yaml.safe_load((EXAMPLES / name).read_text()), default=str)
    )
    return values


@pytest.mark.parametrize(("name", "model"), [*FILES, *HOSPITALS])
def test_example_is_valid_by_the_schema_that_its_first_line_names(
    name: str, model: type[BaseModel], validator: Callable[..., jsonschema.Draft202012Validator]
) -> None:
    (kind,) = (kind for kind in MODELS if model_of(kind) is model)
    first = (EXAMPLES / name).read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema=./{kind}.schema.json"
    validator(model).validate(_as_an_editor_reads(name))


@pytest.mark.parametrize(("name", "model"), [(name, model) for name, model in FILES if "-" not in name])
def test_schema_refuses_a_wrong_file(
    name: str, model: type[BaseModel], validator: Callable[..., jsonschema.Draft202012Validator]
) -> None:
    valid, values = validator(model), _as_an_editor_reads(name)
    with pytest.raises(jsonschema.ValidationError, match="'federaton' was unexpected"):
        valid.validate({**values, "federaton": "heart"})
    with pytest.raises(jsonschema.ValidationError, match="7 is not of type 'string'"):
        valid.validate({**values, "federation": 7})
    with pytest.raises(jsonschema.ValidationError, match="'federation' is a required property"):
        valid.validate({field: value for field, value in values.items() if field != "federation"})


def test_no_file_of_the_folder_goes_unread() -> None:
    found = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.*") if OWN not in path.parents}
    assert found == {name for name, _ in [*FILES, *HOSPITALS]}


@pytest.mark.parametrize(
    ("names", "model"),
    [
        (("job.yaml", *(name for name in SHORT if "job" in name)), JobSpec),
        (("silo.yaml", "silo-data-sets.yaml"), SiloSettings),
        (("analysis.yaml", *(name for name in SHORT if "analysis" in name)), AnalysisSpec),
        *(((name,), model) for name, model in FILES if model not in (JobSpec, SiloSettings, AnalysisSpec)),
    ],
)
def test_examples_name_every_field_and_no_other(names: tuple[str, ...], model: type[BaseModel]) -> None:
    given = set().union(*(_paths(_values(name), model) for name in names))
    assert given == _all_paths(model)


@pytest.mark.parametrize("name", [name for name, _ in FILES if name not in SHORT])
def test_every_field_of_an_example_has_a_comment_above_it(name: str) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    bare = [
        line.strip()
        for before, line in itertools.pairwise(lines)
        if line.strip() and not line.strip().startswith("#") and not before.strip().startswith("#")
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("name", "model", "own"),
    [("policy.yaml", Policy, set()), ("coordinator.yaml", CoordinatorSettings, {"metrics_listen"})],
)
def test_optional_fields_are_written_with_their_defaults(
    name: str, model: type[BaseModel], own: set[str]
) -> None:
    written = check_values(model, _values(name), source=name)
    optional = {field: info for field, info in model.model_fields.items() if not info.is_required()}
    defaults = {field: info.get_default(call_default_factory=True) for field, info in optional.items()}
    differing = {field for field, default in defaults.items() if getattr(written, field) != default}
    assert differing == own


def _paths(values: Any, model: type[BaseModel], prefix: str = "") -> set[str]:
    """Dotted names of the fields that a file gives, as the model nests them."""
    found: set[str] = set()
    for field, value in values.items():
        found.add(prefix + field)
        annotation = _fields_of(model)[field].annotation
        inner = _models_in(annotation)
        if inner and value is not None:
            listed = value.values() if get_origin(annotation) is dict else value
            for item in listed if not isinstance(listed, dict) else [value]:
                kind = next((each for each in inner if item.keys() <= _fields_of(each).keys()), inner[0])
                found |= _paths(item, kind, f"{prefix}{field}.")
    return found


def _all_paths(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for field, info in _fields_of(model).items():
        found.add(prefix + field)
        for inner in _models_in(info.annotation):
            found |= _all_paths(inner, f"{prefix}{field}.")
    return found


def _fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in _models_in(each)]
