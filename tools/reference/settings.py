"""docs/reference/settings.md: every field of every file that a person writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cli.schema import model_of
from client.settings import ENV_PREFIX as OPERATOR_PREFIX
from coordinator.settings import ENV_PREFIX as COORDINATOR_PREFIX
from silo_agent.disclosure.policy.policy import ENV_PREFIX as POLICY_PREFIX
from silo_agent.settings import ENV_PREFIX as SILO_PREFIX
from tools.reference.markdown import code, page, table
from tools.reference.schema import Schema, allowed, alternatives, described, fields_of, kind_of, written

INTRODUCTION = """\
The files that people write, in YAML: an unknown field is an error, and so is a value that is not allowed.
Plain values are those of YAML 1.2 (`1e-3` and `0o17` are numbers). What YAML 1.1 reads as something else
(`yes`, `no`, `on`, `off`, `y`, `n`, `010`, `12:30`, `1_000`) is refused by name: put quotes around a text.
[examples/](../examples) holds each file with every field, and says when to choose which value. An editor
checks a file as it is written by the JSON schema that `chorale schema` prints.

A field that has no default is required; inside a part that may be left out it is required where that part is
there. A variable of the environment takes the place of the field: numbers and text as they are, lists and
maps as `[a, b]` and `{a: 1}`, and `null`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One kind of file, of cli.schema. prefix: of its variables in the environment, None if it takes none."""

    title: str
    kind: str
    prefix: str | None
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}.yaml"


METHODS = " Presets, parts and their options are in [methods.md](../methods.md)."
FILES = (
    File(title="Coordinator", kind="coordinator", prefix=COORDINATOR_PREFIX),
    File(title="Silo", kind="silo", prefix=SILO_PREFIX),
    File(title="Policy of a silo", kind="policy", prefix=POLICY_PREFIX),
    File(title="Operator", kind="operator", prefix=OPERATOR_PREFIX),
    File(title="Job", kind="job", prefix=None, note=METHODS),
    File(title="Analysis", kind="analysis", prefix=None),
)


def settings_page() -> str:
    return page("Settings", INTRODUCTION, *(block for file in FILES for block in _section(file)))


def _section(file: File) -> Iterator[str]:
    yield f"## {file.title}"
    what = model_of(file.kind).model_json_schema()["description"]
    yield f"[{file.name}](../examples/{file.name}): {what}{file.note}"
    titles = ["Field", "Type", "Default", "Allowed", "Meaning"]
    variable = ["Environment"] if file.prefix is not None else []
    yield table([*titles, *variable], _rows(file))


def _rows(file: File) -> Iterator[list[str]]:
    schema = model_of(file.kind).model_json_schema()
    for path, field, is_required in fields(schema, schema.get("$defs", {})):
        row = [code(path), *_facts(field, schema.get("$defs", {}), is_required=is_required)]
        if file.prefix is not None:
            row.append(code(file.prefix + path.upper().replace(".", "__")))
        yield row


def fields(schema: Schema, definitions: Schema, prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Every field with its dotted path, those of parts and of entries in lists behind their own."""
    for name, field in fields_of([schema]).items():
        yield f"{prefix}{name}", field, name in schema.get("required", ())
        for each in alternatives(field, definitions):
            if "properties" in each:
                yield from fields(each, definitions, f"{prefix}{name}.")
            for item in alternatives(each.get("items", {}), definitions):
                # entries of several kinds have rows of their own, such as augment[random-crop].padding
                kind = item.get("properties", {}).get("kind", {}).get("const", "")
                yield from fields(item, definitions, f"{prefix}{name}[{kind}].")


def _facts(field: Schema, definitions: Schema, *, is_required: bool) -> list[str]:
    """Type, default, allowed, meaning."""
    kind = kind_of(field, definitions)
    default = "required" if is_required else _default(field, kind)
    return [kind, default, allowed(field, definitions), described(field, definitions)]


def _default(field: Schema, kind: str) -> str:
    default = field.get("default", {})  # a map that starts empty is the one that the schema leaves out
    is_part = kind.startswith("fields") and default is not None
    return "its fields' own" if is_part else written(default)
