"""What a PromQL expression asks of our metrics, by their names, labels and values of labels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry

_SELECTOR = re.compile(r"\b(chorale_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# what Prometheus adds to every series that it scrapes, and a histogram to its buckets
SCRAPED = {"job", "instance", "namespace", "pod", "service", "le"}
# labels whose values are not known before roster and jobs are
OPEN = {"silo", "federation_job"}


def declared(registry: CollectorRegistry) -> dict[str, dict[str, set[str]]]:
    """Every series name with its labels, each with the values it starts with."""
    names: dict[str, dict[str, set[str]]] = {}
    for family in registry.collect():
        for suffix in SUFFIXES[family.type]:
            names[family.name + suffix] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                if sample.name in names:  # no _created
                    names[sample.name].setdefault(label, set()).add(value)
    for collector, made in registry._collector_to_names.items():
        for name in names.keys() & set(made):
            for label in collector._labelnames:  # type: ignore[attr-defined]
                names[name].setdefault(label, set())
    return names


def mistakes(expression: str, names: dict[str, dict[str, set[str]]]) -> Iterator[str]:
    """What the expression asks for that is not declared."""
    labels: set[str] = set()
    for name, matchers in _SELECTOR.findall(expression):
        if name not in names:
            yield f"no metric {name}"
            continue
        labels |= names[name].keys()
        for label, _, text in _MATCHER.findall(matchers):
            if label in SCRAPED:
                continue
            if label not in names[name]:
                yield f"{name} has no label {label}"
            elif label not in OPEN and "$" not in text:
                yield from (
                    f"{name}: {label} is never {value}"
                    for value in text.split("|")
                    if value not in names[name][label]
                )
    for grouping in _GROUPING.findall(expression):
        for label in re.findall(r"\w+", grouping):
            if label not in labels | SCRAPED:
                yield f"grouped by {label}, which no metric of the expression has"
