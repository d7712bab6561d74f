"""What writes settings files and jobs, for `chorale init` and `chorale demo`: the fields that are given, each
under its model's own sentence, and the names of the rest.

There is no second text: a description that is wrong in a file is wrong in the model.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from chorale.runtime import plain_yaml
from chorale.spec.settings_file import END, check_values
from cli.authority.folder import CERTIFICATE
from cli.schema import model_of
from crypto.errors import ConfigError

WIDTH = 100
TITLES = {
    "coordinator": "Settings of the coordinator: chorale coordinator run --config coordinator.yaml",
    "silo": "Settings of a silo agent: chorale silo run --config silo.yaml",
    "policy": "What may leave this silo; it has the last word.",
    "operator": "Settings of an operator: chorale job ... --config operator.yaml",
    "job": "A job: chorale job submit job.yaml --config operator.yaml",
}
LATER = {"job": {"not_after": "9999-12-31T00:00:00Z"}}  # which `job submit` fills in


def settings_file(kind: str, values: Mapping[str, Any]) -> bytes:
    """A file of a kind of cli.schema, in YAML. values: by name, of the fields that are given; a mapping for a
    part with fields of its own. Raises ConfigError for a value that is not allowed."""
    model = model_of(kind)
    check_values(model, {**LATER.get(kind, {}), **values}, source=f"{kind}.yaml")
    head = (
        TITLES[kind],
        "An unknown field is an error. Paths are relative to the folder that the command is called in. "
        "The last line says that the file is whole.",
    )
    others = ", ".join(key for key, _ in _keys(model) if key not in values)
    rest = f"Further fields, each with a default that `chorale schema {kind}` explains: {others}."
    lines = [line for text in head for line in _sentence(text, indent="")]
    lines += [*_fields(model, values, indent=""), "", *_sentence(rest, indent=""), END.decode()]
    return ("\n".join(lines) + "\n").encode()


def own_files(folder: Path, name: str, *, authority: Path) -> dict[str, Any]:
    """Where a member's own key and certificates lie. authority: folder of the federation's certificate."""
    identity = {"certificate": str(folder / f"{name}.crt"), "key": str(folder / f"{name}.key")}
    return {"identity": identity, "authority": str(authority / CERTIFICATE)}


def _keys(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    return ((field.alias or name, field) for name, field in model.model_fields.items())


def _fields(model: type[BaseModel], values: Mapping[str, Any], *, indent: str) -> Iterator[str]:
    """Raises ConfigError for a value under another name than the file's, which no line would hold."""
    if others := sorted(values.keys() - {key for key, _ in _keys(model)}):
        raise ConfigError(f"{others[0]}: expected the field's name in a file of {model.__name__}")
    for key, field in _keys(model):
        if key not in values:
            continue
        yield from [""] if indent == "" else []
        yield from _sentence(_described(field), indent=indent)
        part = _part(field.annotation)
        if part is not None and isinstance(values[key], Mapping):
            yield f"{indent}{key}:"
            yield from _fields(part, values[key], indent=f"{indent}  ")
        else:
            yield f"{indent}{key}: {_written(values[key])}"


def _described(field: FieldInfo) -> str:
    """The field's own sentence, or that of the part it is."""
    part = _part(field.annotation)
    description = field.description or (part.__doc__ if part is not None else "") or ""
    return " ".join(description.split())


def _part(annotation: Any) -> type[BaseModel] | None:
    """The model among what a field may be; none of a mapping, whose names somebody chose."""
    if get_origin(annotation) is dict:
        return None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_part(each) for each in get_args(annotation))
    return next((each for each in found if each is not None), None)


def _sentence(text: str, *, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_on_hyphens=False,  # of an option's name
    )


def _written(value: Any) -> str:
    """A value in one line of YAML."""
    return plain_yaml.dump(_plain(value), in_one_line=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value
