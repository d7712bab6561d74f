"""YAML files that a person writes, checked against a pydantic model; all errors in one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chorale.runtime import plain_yaml
from chorale.runtime.files import read_limited
from chorale.runtime.validation_errors import explain
from crypto.errors import ConfigError
from strategies.expected import kind_of

MAX_BYTES = 256 * 1024  # a job that names 200 silos and 1,000 columns takes about 100 KiB
END = b"..."  # YAML's own end of a document

Model = TypeVar("Model", bound=BaseModel)


def load_settings(
    model: type[Model], path: Path, env_prefix: str, *, environment: Mapping[str, str] | None = None
) -> Model:
    """Settings from a file, overridden by the environment: PREFIX_FIELD, PREFIX_FIELD__INNER.

    Raises ConfigError that names file, field and what is allowed.
    """
    data = read_limited(path, MAX_BYTES)
    return settings_of(model, data, source=str(path), env_prefix=env_prefix, environment=environment)


def settings_of(
    model: type[Model],
    data: bytes,
    *,
    source: str,
    env_prefix: str,
    environment: Mapping[str, str] | None = None,
) -> Model:
    """As `load_settings`, from the bytes of a file."""
    values = parse_mapping(data, source=source)
    _override(values, env_prefix, os.environ if environment is None else environment)
    return check_values(model, values, source=source, env_prefix=env_prefix, environment=environment)


def check_whole(data: bytes, *, source: str) -> None:
    """Raises ConfigError unless the last line is `...`: what is cut anywhere before it lacks it."""
    if data.rstrip().rpartition(b"\n")[2] != END:
        raise ConfigError(
            f"{source}: expected `...` as its last line, without which the file may be half written"
        )


def load_mapping(
    path: Path | None, env_prefix: str, *, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The unchecked values of a file, or none, overridden by the environment. Raises ConfigError."""
    values = {} if path is None else parse_mapping(read_limited(path, MAX_BYTES), source=str(path))
    _override(values, env_prefix, os.environ if environment is None else environment)
    return values


def parse_mapping(data: bytes, *, source: str) -> dict[str, Any]:
    """The YAML mapping in the bytes, as `plain_yaml.parse` reads it. Raises ConfigError."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{source}: expected at most {MAX_BYTES} bytes, got {len(data)}")
    values = plain_yaml.parse(data, source=source)
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: expected fields and values, got {kind_of(values)}")
    return values


def check_values(
    model: type[Model],
    values: Mapping[str, Any],
    *,
    source: str,
    env_prefix: str = "",
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Model:
    """The model that the values make. Raises ConfigError that names every wrong field, and the variable or
    option instead where it came from there. options: by field, as in {"identity__key": "--key"}."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        message = explain(
            error, model, source=source, env_prefix=env_prefix, environment=environment, options=options
        )
        raise ConfigError(message) from None


def _override(values: dict[str, Any], prefix: str, environment: Mapping[str, str]) -> None:
    for variable, text in sorted(environment.items()):
        if not variable.startswith(prefix):
            continue
        *outer, last = variable.removeprefix(prefix).lower().split("__")
        inner = values
        for name in outer:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"{variable}: expected fields and values in {name} of the file, got a single value"
                )
        # lists, mappings and options, which have no declared type, are written as in YAML; everything else is
        # text that the model reads
        if text.startswith(("[", "{")) or "options" in outer:
            inner[last] = parse_mapping(f"value: {text}".encode(), source=variable)["value"]
        else:
            inner[last] = None if text == "null" else text
