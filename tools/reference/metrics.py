"""docs/metrics.md: every series that coordinator and silo expose, and every alert on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

from coordinator.metrics import CoordinatorMetrics
from silo_agent.metrics import SiloMetrics
from tools.reference.markdown import NOTHING, code, codes, page, table
from tools.reference.sources import CHARTS, alerts

# labels that are no closed set: names come from the roster and from jobs
EVERY_SILO, EVERY_JOB = "every silo of the roster", "every job"

INTRODUCTION = """\
Both programs serve `/metrics` for Prometheus at the address of their setting `metrics_listen`, in
plain HTTP. The coordinator's metrics hold no loss, accuracy or update of a single silo. `/livez` and
`/readyz` on the same port answer 200 or 503.

Every series exists from the start, so that its first increase is seen. Label values come from the lists
below, never from a peer. A series of a job or a silo starts when the coordinator learns of it."""
ON_ALERTS = """\
The rules are `files/alerts.yaml` of each chart, for any Prometheus; the charts install them by
`metrics.prometheusRule`. Each name links to its runbook."""


def metrics_page() -> str:
    sides = {"Coordinator": _coordinator(), "Silo": _silo()}
    blocks = [INTRODUCTION]
    for title, registry in sides.items():
        titles = ["Metric", "Type", "Labels", "Starts at", "Meaning"]
        blocks += [f"## {title}", table(titles, map(_row, registry.collect()))]
    blocks += ["## Alerts", ON_ALERTS]
    for title, chart in CHARTS.items():
        rows = map(_alert_row, alerts(chart))
        blocks += [f"### {title}", table(["Alert", "Severity", "Fires when", "Says"], rows)]
    return page("Metrics", *blocks)


def _coordinator() -> CollectorRegistry:
    """One that knows a silo and a job, so that every label shows."""
    metrics = CoordinatorMetrics()
    metrics.know_silos([EVERY_SILO])
    metrics.know_job(EVERY_JOB)
    metrics.checkpoint.labels(federation_job=EVERY_JOB).set(0.0)
    return metrics.registry


def _silo() -> CollectorRegistry:
    return SiloMetrics().registry


def _row(family: Metric) -> list[str]:
    return [
        codes(_names(family)),
        family.type,
        "; ".join(_labels(family.samples)),
        _start(family),
        family.documentation,
    ]


def _names(family: Metric) -> Iterable[str]:
    """As they are asked for: a histogram has three."""
    return dict.fromkeys(sample.name for sample in family.samples)


def _labels(samples: Iterable[Sample]) -> Iterator[str]:
    """Every label with its values."""
    values: dict[str, dict[str, None]] = {}
    for sample in samples:
        for label, value in sample.labels.items():
            if label != "le":  # a bound of a bucket
                values.setdefault(label, {})[value] = None
    for label, found in values.items():
        yield f"{code(label)}: {', '.join(found)}"


def _start(family: Metric) -> str:
    if family.name.endswith("_timestamp_seconds"):
        return NOTHING
    return "NaN" if all(math.isnan(sample.value) for sample in family.samples) else "0"


def _alert_row(rule: dict[str, Any]) -> list[str]:
    held = f" for {rule['for']}" if "for" in rule else ""
    link = rule["annotations"]["runbook_url"].removeprefix("docs/")
    return [
        f"[{rule['alert']}]({link})",
        rule["labels"]["severity"],
        f"{code(rule['expr'])}{held}",
        rule["annotations"]["summary"],
    ]
