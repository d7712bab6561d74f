"""Validation errors in one line: the field, what is allowed, what was given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from strategies.expected import MAX_ALIKE, did_you_mean, meant, wrong_value

MAX_MESSAGES = 20  # a list of wrong values has one each
MAX_NAMED = 3  # unknown fields that are named; a file of another kind has them by the dozen
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
        place, message = _place_and_message(detail, model)
        if detail["type"] == "extra_forbidden":
            unknown.setdefault(place[:-1], {})[str(place[-1])] = _field(place, named)
        elif message == REQUIRED:
            missing.append(_field(place, named))
        else:
            messages.append(f"{_field(place, named)}: {message}" if place else message)
    if missing:
        required = REQUIRED if len(missing) == 1 else "values are required"
        messages.insert(0, f"{', '.join(missing)}: {required}")
    messages += [_unknown(fields, model, place) for place, fields in unknown.items()]
    if len(messages) > MAX_MESSAGES:
        messages[MAX_MESSAGES:] = [f"and {len(messages) - MAX_MESSAGES} more"]
    is_none_of_the_file = all(each.startswith(tuple(named.values())) for each in messages)
    return "; ".join(messages) if named and is_none_of_the_file else f"{source}: {'; '.join(messages)}"


def _unknown(fields: Mapping[str, str], model: type[BaseModel], place: Place) -> str:
    """The message on unknown fields that lie at one place. fields: how each is called, by its name there."""
    more = f" and {len(fields) - MAX_NAMED} more" if len(fields) > MAX_NAMED else ""
    shown, allowed = ", ".join([*fields.values()][:MAX_NAMED]), _fields_at(model, place)
    what, alike = "unknown fields", ""
    if len(fields) == 1:
        (field,) = fields
        elsewhere = list(_places_of(field, model, ""))
        what = "unknown field"
        if 0 < len(elsewhere) <= MAX_ALIKE:
            alike = meant([each if "." in each else f"{each} outside {place[0]}" for each in elsewhere])
        else:
            alike = did_you_mean(field, allowed)
    return f"{shown}{more}: {what}{alike}, expected one of {', '.join(allowed)}"


def _details(error: ValidationError) -> Iterator[ErrorDetails]:
    """Without lists that are too short only because wrong entries of theirs do not count."""
    details = error.errors(include_url=False)
    inner = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    return (each for each in details if each["type"] != "too_short" or each["loc"] not in inner)


def _place_and_message(detail: ErrorDetails, model: type[BaseModel]) -> tuple[Place, str]:
    """The field that an error is of, and what is wrong with it."""
    place = tuple(part for part in detail["loc"] if part not in (ONE, MANY))
    message = wrong_value(detail)
    if detail["type"].startswith("union_tag"):
        return (*place, detail["ctx"]["discriminator"].strip("'")), message
    found = _FIELD.match(message) if detail["type"] == "value_error" else None
    if found is None or found["field"] not in _fields_at(model, place):
        return place, message
    return (*place, found["field"], *found["rest"].split(".")[1:]), message[found.end() :]


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
    choice = [model]  # more than one where a word of theirs, such as `kind`, says which it is
    for part in place:
        fields = choice[0].model_fields
        by_name = {field.alias or name: field for name, field in fields.items()}
        tagged = [each for each in choice if len(choice) > 1 and part in _tags(each)]
        if tagged:
            choice = tagged
        elif isinstance(part, str) and part in by_name:
            choice = list(_models_in(by_name[part].annotation)) or choice
    return [field.alias or name for name, field in choice[0].model_fields.items()]


def _places_of(field: str, model: type[BaseModel], outer: str) -> Iterator[str]:
    """Where a model and its parts, though no list of parts, have a field of that very name."""
    for name, info in model.model_fields.items():
        shown = outer + (info.alias or name)
        if (info.alias or name) == field:
            yield shown
        annotation = info.annotation
        alternatives = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        for each in alternatives:
            if isinstance(each, type) and issubclass(each, BaseModel):
                yield from _places_of(field, each, f"{shown}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from _models_in(argument)


def _tags(model: type[BaseModel]) -> set[object]:
    """Words of which a field of the model has to be one."""
    kinds = (info.annotation for info in model.model_fields.values())
    return {word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)}
