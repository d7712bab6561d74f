"""YAML files that a person writes, checked against a pydantic model; all errors in one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from chorale.runtime.files import read_limited
from chorale.spec.validation_errors import explain
from crypto.errors import ConfigError
from strategies.expected import kind_of

MAX_BYTES = 256 * 1024  # a job that names 200 silos and 1,000 columns takes about 100 KiB
MAX_DEPTH = 16
MAX_VALUES = 20_000  # names of fields included; as many take most of a second to read
MAX_DIGITS = 40  # Python reads hexadecimal numbers of any length, and then cannot write them down
INTEGER = "tag:yaml.org,2002:int"

Model = TypeVar("Model", bound=BaseModel)


def load_settings(
    model: type[Model], path: Path, env_prefix: str, *, environment: Mapping[str, str] | None = None
) -> Model:
    """Settings from a file, overridden by the environment: PREFIX_FIELD, PREFIX_FIELD__INNER.

    Raises ConfigError that names file, field and what is allowed.
    """
    values = load_mapping(path, env_prefix, environment=environment)
    return check_values(model, values, source=str(path), env_prefix=env_prefix, environment=environment)


def load_mapping(
    path: Path | None, env_prefix: str, *, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The unchecked values of a file, or none, overridden by the environment. Raises ConfigError."""
    values = {} if path is None else parse_mapping(read_limited(path, MAX_BYTES), source=str(path))
    _override(values, env_prefix, os.environ if environment is None else environment)
    return values


def parse_mapping(data: bytes, *, source: str) -> dict[str, Any]:
    """The YAML mapping in the bytes: no aliases, tags, repeated keys, nor too many or too deep values.

    Raises ConfigError. Security: the loader builds plain values only (guarantee G5).
    """
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{source}: expected at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        values = yaml.load(data.decode(), Loader=_StrictLoader)
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: expected UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        problem = str(error.problem or error.context)
        if "<document start>" in problem or "<block end>" in problem:
            problem = "expected a field, its colon and its indentation like those before it"
        elif "mapping values" in problem:
            problem = "expected one field and its value on a line; put text that has a colon in quotes"
        elif "'\\t'" in problem:
            problem = "expected spaces before the field, got a tab"
        raise ConfigError(f"{source}: {place}{problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}") from None
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


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without aliases (they multiply), tags (they build what the text is not), repeated keys
    (they hide), depth (it recurses) and more values than a person writes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        self._values += 1
        if self.check_event(yaml.AliasEvent):
            raise _invalid("aliases are not allowed", self.get_mark())
        event = self.current_event  # what the next node begins with: check_event has read it
        if event.tag is not None:
            raise _invalid("tags are not allowed", event.start_mark)
        if self._depth > MAX_DEPTH:
            raise _invalid(f"expected at most {MAX_DEPTH} levels", event.start_mark)
        if self._values > MAX_VALUES:
            raise _invalid(f"expected at most {MAX_VALUES} values", event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and node.tag == INTEGER and len(node.value) > MAX_DIGITS:
            raise _invalid(f"expected a number of at most {MAX_DIGITS} digits", node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag != "tag:yaml.org,2002:str":
                raise _invalid("expected text as the name of a field", key_node.start_mark)
            if key_node.value in seen:
                raise _invalid(f"{key_node.value} is given twice", key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


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
        # lists and mappings are written as in YAML; everything else is text that the model reads
        if text.startswith(("[", "{")):
            inner[last] = parse_mapping(f"value: {text}".encode(), source=variable)["value"]
        else:
            inner[last] = None if text == "null" else text


def _invalid(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
