"""What a JSON schema says of one value, in words: its kind, what is allowed, its default.

Settings come as schemas from their pydantic models, values of charts from values.schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tools.reference.markdown import code, codes

Schema = Mapping[str, Any]

KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
    "object": "fields",
}
FORMATS = {"path": "path", "date-time": "time"}  # any other format is what the text has to look like
PLURALS = {"text": "texts", "path": "paths", "whole number": "whole numbers", "number": "numbers"}


def alternatives(schema: Schema, definitions: Schema) -> list[Schema]:
    """The schema once for each kind of value that it allows, with references followed."""
    if "$ref" in schema:
        named = definitions[schema["$ref"].removeprefix("#/$defs/")]
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return alternatives({**named, **own}, definitions)
    if "anyOf" in schema or "oneOf" in schema:
        options = schema.get("anyOf") or schema["oneOf"]
        return [each for one in options for each in alternatives(one, definitions)]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": kind} for kind in schema["type"]]
    return [schema]


def described(schema: Schema, definitions: Schema) -> str:
    """The description of the value itself, else of the kind of thing it is."""
    own = schema.get("description")
    return str(own or alternatives(schema, definitions)[0].get("description", ""))


def kind_of(schema: Schema, definitions: Schema) -> str:
    """Such as "whole number or null", "list of texts"."""
    found = [_kind(each, definitions) for each in alternatives(schema, definitions)]
    return " or ".join(dict.fromkeys(found))


def allowed(schema: Schema, definitions: Schema) -> str:
    """What the value may be within its kind; "" where that is everything."""
    found = [_allowed(each, definitions) for each in alternatives(schema, definitions)]
    return "; ".join(dict.fromkeys(filter(None, found)))


def written(value: Any) -> str:
    """A value as it would stand in a YAML file."""
    if isinstance(value, str) and value:
        return code(value)
    return code(json.dumps(_whole(value)))


def _kind(schema: Schema, definitions: Schema) -> str:
    is_numeric = all(isinstance(value, int) for value in schema.get("enum", [""]))
    kind = schema.get("type", "integer" if is_numeric else "string")  # an enum needs no type
    if kind == "array":
        return f"list of {_plural(schema['items'], definitions)}" if "items" in schema else "list"
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, dict):
        return f"map to {_plural(values, definitions)}"
    return FORMATS.get(schema.get("format", ""), KINDS[kind])


def _plural(schema: Schema, definitions: Schema) -> str:
    kinds = dict.fromkeys(_kind(each, definitions) for each in alternatives(schema, definitions))
    return " or ".join(PLURALS.get(kind, kind) for kind in kinds)


def _allowed(schema: Schema, definitions: Schema) -> str:
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return codes(map(str, schema["enum"]))
    said = [_range(schema), _length(schema, "minLength", "maxLength", "characters")]
    if schema.get("type") == "string" and "pattern" in schema:
        said.append(f"text like {code(schema['pattern'])}")
    if schema.get("format", "path") not in FORMATS:
        said.append(schema["format"])
    if schema.get("type") == "array":
        said.append(_length(schema, "minItems", "maxItems", "entries"))
        said.append(_each(schema.get("items", {"type": "string"}), definitions))
    return ", ".join(filter(None, said))


def _each(items: Schema, definitions: Schema) -> str:
    inner = allowed(items, definitions)
    return f"each {inner}" if inner else ""


def _range(schema: Schema) -> str:
    """pydantic names a limit by its own word where a validator of ours comes first."""
    words = {
        "at least": ("minimum", "ge"),
        "more than": ("exclusiveMinimum", "gt"),
        "at most": ("maximum", "le"),
        "less than": ("exclusiveMaximum", "lt"),
    }
    limits = {word: _number(schema[key]) for word, keys in words.items() for key in keys if key in schema}
    if limits.keys() == {"at least", "at most"}:
        return " to ".join(limits.values())
    return ", ".join(f"{word} {limit}" for word, limit in limits.items())


def _length(schema: Schema, least: str, most: str, unit: str) -> str:
    if least not in schema and most not in schema:
        return ""
    if most not in schema:
        return "not empty" if schema[least] == 1 else f"at least {schema[least]} {unit}"
    reach = f"{schema[least]} to" if least in schema else "at most"
    return f"{reach} {schema[most]} {unit}"


def _number(limit: float) -> str:
    if limit == 1 << 63:
        return "2^63"
    return json.dumps(_whole(limit))


def _whole(value: Any) -> Any:
    """1.0 is written as 1, as a person would."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def fields_of(schemas: Iterable[Schema]) -> Schema:
    """The properties of the one alternative that has any."""
    return next((each["properties"] for each in schemas if "properties" in each), {})
