"""Validation errors in one line: the field, what is allowed, what was given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from strategies.expected import wrong_value

MAX_NAMED = 3  # unknown fields that are named; a file of another kind has them by the dozen
MAX_ALIKE = 2  # fields that are offered for a misspelled one
REQUIRED = "a value is required"

ONE, MANY = "(one)", "(many)"  # forms of a field that is a mapping or a list of them: no part of its name

Place: TypeAlias = tuple[int | str, ...]

_FIELD = re.compile(
    r"(?P<field>[a-z_][a-z0-9_]*)(?P<rest>(\.\w+)*): "
)  # what a model's own check begins with


def explain(
    error: ValidationError,
    model: type[BaseModel],
    *,
    source: str,
    env_prefix: str = "",
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> str:
    """One line for all errors. A value of the environment is named by its variable, and one of the command
    line by its option: options has it by field, as in {"identity__key": "--key"}."""
    variables = (os.environ if environment is None else environment) if env_prefix else ()
    named = {name.removeprefix(env_prefix).lower(): name for name in variables if name.startswith(env_prefix)}
    named |= options or {}
    missing, messages, unknown = list[str](), list[str](), dict[Place, dict[str, str]]()
    for detail in _details(error):
        place, told = _told(detail, model)
        if detail["type"] == "extra_forbidden":
            unknown.setdefault(place[:-1], {})[str(place[-1])] = _field(place, named)
        elif told == REQUIRED:
            missing.append(_field(place, named))
        else:
            messages.append(f"{_field(place, named)}: {told}" if place else told)
    if missing:
        required = REQUIRED if len(missing) == 1 else "values are required"
        messages.insert(0, f"{', '.join(missing)}: {required}")
    for place, fields in unknown.items():
        more = f" and {len(fields) - MAX_NAMED} more" if len(fields) > MAX_NAMED else ""
        what = "unknown field" if len(fields) == 1 else "unknown fields"
        allowed = _fields_at(model, place)
        alike = _alike(*fields, allowed=allowed) if len(fields) == 1 else ""
        shown = ", ".join([*fields.values()][:MAX_NAMED])
        messages.append(f"{shown}{more}: {what}{alike}, expected one of {', '.join(allowed)}")
    is_none_of_the_file = all(each.startswith(tuple(named.values())) for each in messages)
    return "; ".join(messages) if named and is_none_of_the_file else f"{source}: {'; '.join(messages)}"


def _details(error: ValidationError) -> Iterator[ErrorDetails]:
    """Without lists that are too short only because wrong entries of theirs do not count."""
    details = error.errors(include_url=False)
    inner = {detail["loc"][:-1] for detail in details}
    return (each for each in details if each["type"] != "too_short" or each["loc"] not in inner)


def _told(detail: ErrorDetails, model: type[BaseModel]) -> tuple[Place, str]:
    """The field that an error is of, and what is wrong with it."""
    place = tuple(part for part in detail["loc"] if part not in (ONE, MANY))
    told = wrong_value(detail)
    if detail["type"].startswith("union_tag"):
        return (*place, detail["ctx"]["discriminator"].strip("'")), told
    found = _FIELD.match(told) if detail["type"] == "value_error" else None
    if found is None or found["field"] not in _fields_at(model, place):
        return place, told
    return (*place, found["field"], *found["rest"].split(".")[1:]), told[found.end() :]


def _field(place: Place, named: Mapping[str, str]) -> str:
    """The field's name in the file, or the variable or option that holds it or what it lies in."""
    parts = [str(part) for part in place]
    for length in range(len(parts), 0, -1):
        other = named.get("__".join(parts[:length]))
        if other is not None:
            return ".".join([other, *parts[length:]])
    return ".".join(parts)


def _fields_at(model: type[BaseModel], place: Place) -> list[str]:
    """Names, as a file has them, of the fields of the model that lies at the place."""
    for part in place:
        of_model = {field.alias or name: field for name, field in model.model_fields.items()}
        if isinstance(part, str) and part in of_model:
            model = _model_in(of_model[part].annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _alike(field: str, *, allowed: Sequence[str]) -> str:
    """The fields that an unknown one may be a misspelling of, in brackets; else empty."""
    alike = get_close_matches(field, allowed, MAX_ALIKE)
    return f" (did you mean {' or '.join(alike)}?)" if alike else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)
