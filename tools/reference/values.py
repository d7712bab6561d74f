"""docs/reference/values.md: every value of both charts, by its comment, default and schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.reference.markdown import code, codes, page, table
from tools.reference.schema import Schema, allowed, alternatives, fields_of, kind_of, written
from tools.reference.sources import CHARTS, HELM, chart_file

INTRODUCTION = """\
What `helm install --values` may set. Any other key is refused, and so is a value that is not allowed or that
contradicts another. What `settings` and `policy` of a chart mean for the program is in
[settings.md](settings.md); [deploy-kubernetes.md](../deploy-kubernetes.md) takes a federation from nothing to
its first job."""
REFUSED = "Values that contradict one another, or lack one another, are refused with one of these:"

README = """\
`helm install RELEASE helm/{chart} --namespace NAMESPACE --values VALUES.yaml`, after
docs/deploy-kubernetes.md: it makes the Secrets and ConfigMaps that the values name. Kubernetes {kubernetes}.
values.yaml has a sentence above every value
(`helm show values helm/{chart}`), and values.schema.json refuses any other key."""
EXAMPLES = """\
Each is rendered and checked by the tests. helm/examples/argocd is an umbrella of both charts for Argo CD."""

Keys = tuple[str, ...]


def values_page() -> str:
    charts = (block for chart in CHARTS.values() for block in _chart(chart))
    return page("Values of the charts", INTRODUCTION, *charts)


def chart_page(chart: str) -> str:
    """README.md of a chart."""
    about = yaml.safe_load(chart_file(chart, "Chart.yaml"))
    shapes = sorted((HELM / chart / "ci").glob("*-values.yaml"))
    examples = [
        [f"[{file.name}](ci/{file.name})", _comment_above(_lines(file), _first_key(file))] for file in shapes
    ]
    return page(
        chart,
        f"{about['description']}.",
        README.format(chart=chart, kubernetes=about["kubeVersion"].removesuffix(".0-0")),
        "## Examples",
        EXAMPLES,
        table(["File", "Meaning"], examples),
    )


def _chart(chart: str) -> Iterator[str]:
    yield f"## {chart}"
    yield from _values_of(chart)


def _values_of(chart: str) -> Iterator[str]:
    text = chart_file(chart, "values.yaml")
    checks = "".join(chart_file(chart, f"templates/{name}") for name in ("_checks.tpl", "_common_checks.tpl"))
    yield _comment_above(text.splitlines(), _first_blank(text))
    yield table(["Value", "Type", "Default", "Allowed", "Meaning"], _rows(chart, text))
    yield REFUSED
    yield "\n".join(f"- {sentence}" for sentence in _contradictions(checks))


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _first_key(file: Path) -> int:
    return next(place for place, line in enumerate(_lines(file)) if not line.startswith("#"))


def _rows(chart: str, text: str) -> Iterator[list[str]]:
    defaults: Mapping[str, Any] = yaml.safe_load(text)
    comments = comments_of(text)
    whole = json.loads(chart_file(chart, "values.schema.json"))
    for path, schema, default in _values(_without_references(whole, whole), defaults):
        has_rows = bool(default) and bool(fields_of([schema]))
        shown = "" if has_rows else written(default)
        yield [code(".".join(path)), kind_of(schema, {}), shown, _allowed(schema, default), comments[path]]


def _without_references(part: Any, whole: Schema) -> Any:
    """The part with what it names by `#/properties/...` in place of the name."""
    if isinstance(part, list):
        return [_without_references(each, whole) for each in part]
    if not isinstance(part, dict):
        return part
    named: Any = {}
    if "$ref" in part:
        named = whole
        for step in part["$ref"].removeprefix("#/").split("/"):
            named = named[step]
    own = {key: value for key, value in part.items() if key != "$ref"}
    return {key: _without_references(value, whole) for key, value in {**named, **own}.items()}


def _values(
    schema: Schema, defaults: Mapping[str, Any], above: Keys = ()
) -> Iterator[tuple[Keys, Schema, Any]]:
    """Every value that values.yaml shows: its path, schema and default. Maps of free names are one value."""
    properties = fields_of(alternatives(schema, {}))
    for name, default in defaults.items():
        yield (*above, name), properties[name], default
        if isinstance(default, dict) and fields_of(alternatives(properties[name], {})):
            yield from _values(properties[name], default, (*above, name))


def _allowed(schema: Schema, default: Any) -> str:
    """Fields that have no row of their own, because values.yaml sets none, are told by name."""
    hidden = fields_of([schema]) if default == {} else fields_of([schema.get("items", {})])
    return f"fields {codes(hidden)}" if hidden else allowed(schema, {})


def comments_of(text: str) -> dict[Keys, str]:
    """The comment right above every key, by the key's path."""
    lines = text.splitlines()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)  # values.yaml is a mapping
    return {path: _comment_above(lines, line) for path, line in _keys(root)}


def _keys(node: yaml.MappingNode, above: Keys = ()) -> Iterator[tuple[Keys, int]]:
    for key, value in node.value:
        path = (*above, key.value)
        yield path, key.start_mark.line
        if isinstance(value, yaml.MappingNode):
            yield from _keys(value, path)


def _comment_above(lines: list[str], line: int) -> str:
    """The run of comment lines that ends above a line, as one text."""
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].lstrip(" #"))
    return " ".join(found)


def _first_blank(text: str) -> int:
    return text.splitlines().index("")


def _contradictions(template: str) -> Iterator[str]:
    """What _checks.tpl fails with; "..." stands for a value."""
    for sentence in re.findall(r'fail \(?(?:printf )?"([^"]+)"', template):
        yield re.sub("%[sqv]", "...", sentence)
