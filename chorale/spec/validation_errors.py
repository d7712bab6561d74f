"""Validation errors in one line: the field, what is allowed, what was given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

MAX_SHOWN = 60  # characters of a wrong value that are shown again
MAX_NAMED = 3  # unknown fields that are named; a file of another kind has them by the dozen
MAX_ALIKE = 2  # fields that are offered for a misspelled one

ONE, MANY = "(one)", "(many)"  # forms of a field that is a mapping or a list of them: no part of its name

EXPECTED = {  # by kind of error, in the words of a person who writes YAML; {…} are limits
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "fields and values",
    "model_type": "fields and values",
    "model_attributes_type": "fields and values",
    "path_type": "a path",
    "datetime_type": "a time such as 2027-01-31T00:00:00Z",
    "datetime_parsing": "a time such as 2027-01-31T00:00:00Z",
    "datetime_from_date_parsing": "a time such as 2027-01-31T00:00:00Z",
    "timezone_aware": "a time with its zone, such as 2027-01-31T00:00:00Z",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text like {pattern}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "enum": "{expected}",
}


def explain(
    error: ValidationError,
    model: type[BaseModel],
    *,
    source: str,
    env_prefix: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """One line for all errors; a value of the environment is named by its variable."""
    variables = (os.environ if environment is None else environment) if env_prefix else ()
    overriding = {
        name.removeprefix(env_prefix).lower(): name for name in variables if name.startswith(env_prefix)
    }
    messages, unknown = [], dict[tuple[int | str, ...], dict[str, str]]()
    for detail in error.errors(include_url=False):
        place = tuple(part for part in detail["loc"] if part not in (ONE, MANY))
        if detail["type"] == "extra_forbidden":
            unknown.setdefault(place[:-1], {})[str(place[-1])] = _field(place, overriding)
        else:
            messages.append(_message(detail, _field(place, overriding)))
    for place, fields in unknown.items():
        more = f" and {len(fields) - MAX_NAMED} more" if len(fields) > MAX_NAMED else ""
        what = "unknown field" if len(fields) == 1 else "unknown fields"
        allowed = _fields_at(model, place)
        alike = _alike(*fields, allowed=allowed) if len(fields) == 1 else ""
        named = ", ".join([*fields.values()][:MAX_NAMED])
        messages.append(f"{named}{more}: {what}{alike}, expected one of {', '.join(allowed)}")
    is_all_environment = all(each.startswith(tuple(overriding.values())) for each in messages)
    return "; ".join(messages) if overriding and is_all_environment else f"{source}: {'; '.join(messages)}"


def got(value: object) -> str:
    """A wrong value, to be named after what was expected."""
    if isinstance(value, date):  # YAML makes one of an unquoted 2027-01-31
        return value.isoformat()
    if not isinstance(value, str | int | float | bool | None):
        return kind_of(value)
    if isinstance(value, bool):
        return str(value).lower()  # as YAML writes it, which reads yes as true
    return "nothing" if value is None else repr(value)[:MAX_SHOWN]


def kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    names = {"dict": "fields and values", "list": "a list", "str": "text", "int": "a number"}
    return names.get(type(value).__name__, type(value).__name__)


def _message(detail: ErrorDetails, field: str) -> str:
    if detail["type"] == "missing":
        return f"{field}: a value is required"
    context = detail.get("ctx", {})
    limits = {
        name: int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        for name, limit in context.items()
    }
    if detail["type"] in ("value_error", "assertion_error"):
        message = str(context.get("error", detail["msg"]))
        return f"{field}: {message}" if field else message
    expected = EXPECTED.get(detail["type"])
    if expected is None:
        return f"{field}: {detail['msg'][0].lower()}{detail['msg'][1:]}, got {got(detail['input'])}"
    given = context["actual_length"] if detail["type"] in ("too_short", "too_long") else got(detail["input"])
    return f"{field}: expected {expected.format(**limits)}, got {given}"


def _field(place: Sequence[int | str], overriding: Mapping[str, str]) -> str:
    """The field's name in the file, or the variable that holds it or what it lies in."""
    parts = [str(part) for part in place]
    for length in range(len(parts), 0, -1):
        variable = overriding.get("__".join(parts[:length]))
        if variable is not None:
            return ".".join([variable, *parts[length:]])
    return ".".join(parts)


def _fields_at(model: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Field names of the model that lies at the place where an unknown field was given."""
    for part in place:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = _model_in(model.model_fields[part].annotation)
        if inner is not None:
            model = inner
    return list(model.model_fields)


def _alike(field: str, *, allowed: Sequence[str]) -> str:
    """The fields that an unknown one may be a misspelling of, in brackets; else empty."""
    alike = get_close_matches(field, allowed, MAX_ALIKE)
    return f" (did you mean {' or '.join(alike)}?)" if alike else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)
