"""A settings file with every field of its model, each under the sentence that the model says of it.

What is given stands as a value; every other field stands behind a # with its default. There is no second
text: a description that is wrong in a file is wrong in the model.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from chorale.runtime import plain_yaml

WIDTH = 100
OFF = "#"  # before a field that has its default; before a sentence a blank follows


def commented(model: type[BaseModel], values: Mapping[str, Any], *, title: str) -> str:
    """YAML. values: by name, of the fields that are given; a mapping for a part with fields of its own."""
    head = (
        title,
        "A line that begins with # and no blank is a field with its default: remove the # to change it. "
        "An unknown field is an error. Paths are relative to the folder that the command is called in. "
        "The last line says that the file is whole.",
    )
    lines = [line for text in head for line in _sentence(text, indent="")]
    return "\n".join([*lines, *_fields(model, values, indent="", is_off=False), "", "..."]) + "\n"


def _fields(model: type[BaseModel], values: Mapping[str, Any], *, indent: str, is_off: bool) -> Iterator[str]:
    """is_off: the whole part stands behind #."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        yield from [""] if indent == "" else []
        yield from _sentence(_described(field), indent=indent)
        yield from _field(key, field, values, indent=indent, is_off=is_off or key not in values)


def _field(
    key: str, field: FieldInfo, values: Mapping[str, Any], *, indent: str, is_off: bool
) -> Iterator[str]:
    mark = f"{indent}{OFF if is_off else ''}{key}:"
    part = _part(field.annotation)
    value = values[key] if key in values else field.get_default(call_default_factory=True)
    if part is not None and isinstance(value, Mapping | BaseModel):
        given = value if isinstance(value, Mapping) else {}
        yield mark
        yield from _fields(part, given, indent=f"{indent}  ", is_off=is_off)
    elif key not in values and field.is_required():
        yield f"{mark}"
    else:
        yield f"{mark} {_written(value)}"


def _described(field: FieldInfo) -> str:
    """The field's own sentence, or that of the part it is."""
    part = _part(field.annotation)
    description = field.description or (part.__doc__ if part is not None else "") or ""
    return " ".join(description.split())


def _part(annotation: Any) -> type[BaseModel] | None:
    """The model among what a field may be."""
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
