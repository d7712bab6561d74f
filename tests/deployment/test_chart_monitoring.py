"""Alerts and dashboards ask for metrics that exist, and say what to do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import prometheus_client
import pytest
import yaml

from chorale.observability.probes import ProbeServer
from coordinator.metrics import CoordinatorMetrics
from silo_agent.metrics import SiloMetrics
from tests.deployment import helm
from tests.deployment.queries import declared, mistakes
from tests.support.programs import needed

COORDINATOR, SILO = helm.NAMES
METRICS = {COORDINATOR: CoordinatorMetrics, SILO: SiloMetrics}
WATCHED = {COORDINATOR: "ingress-values.yaml", SILO: "gpu-values.yaml"}

charts = pytest.mark.parametrize("chart", helm.NAMES)


def names_of(chart: str) -> dict[str, dict[str, set[str]]]:
    return declared(METRICS[chart]().registry)


def rules_of(chart: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((helm.CHARTS / chart / "files" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_of(chart: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((helm.CHARTS / chart / "files" / "dashboard.json").read_text())
    return found


@charts
def test_alerts_ask_for_declared_metrics(chart: str) -> None:
    names = names_of(chart)
    for rule in rules_of(chart):
        assert "chorale_" in rule["expr"]
        assert list(mistakes(rule["expr"], names)) == [], rule["alert"]


@charts
def test_dashboards_ask_for_declared_metrics(chart: str) -> None:
    names = names_of(chart)
    dashboard = dashboard_of(chart)
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert len(queries) > 10
    for query in queries:
        assert "chorale_" in query
        assert list(mistakes(query, names)) == []


@pytest.mark.parametrize(
    "query, mistake",
    [
        ("chorale_coordinator_rounds", "no metric chorale_coordinator_rounds"),
        ("rate(chorale_coordinator_nothing_total[5m])", "no metric chorale_coordinator_nothing_total"),
        (
            'chorale_coordinator_rounds_total{stage="x"}',
            "chorale_coordinator_rounds_total has no label stage",
        ),
        (
            'chorale_coordinator_rounds_total{result=~"applied|done"}',
            "chorale_coordinator_rounds_total: result is never done",
        ),
        (
            "sum by (silo) (chorale_coordinator_rounds_total)",
            "grouped by silo, which no metric of the expression has",
        ),
        (
            "chorale_coordinator_stage_duration_seconds_bucket{kind='x'} + chorale_silo_connected",
            "no metric chorale_silo_connected",
        ),
    ],
)
def test_each_mistake_in_a_query_is_seen(query: str, mistake: str) -> None:
    assert mistake in list(mistakes(query, names_of(COORDINATOR)))


@charts
def test_of_several_processes_each_is_distinguished(chart: str) -> None:
    place = {"namespace", "pod", "instance"}
    targets = [target for panel in dashboard_of(chart)["panels"] for target in panel["targets"]]
    counted = [rule["expr"] for rule in rules_of(chart)] + [target["expr"] for target in targets]
    groups = re.findall(r"\b(?:sum|max) by \(([^)]*)\)", "\n".join(counted))
    assert len(groups) > 8
    assert all(place <= set(group.split(", ")) for group in groups)
    for target in targets:
        assert all(f'{label}=~"${label}"' in target["expr"] for label in place), target["expr"]
        assert "{{instance}}" in target["legendFormat"]


@charts
def test_panels_lie_apart_and_have_titles(chart: str) -> None:
    panels = dashboard_of(chart)["panels"]
    cells = {
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }
    assert len(cells) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels)
    assert max(x for x, _ in cells) < 24  # Grafana's grid
    assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)


@charts
def test_alerts_have_a_runbook_that_exists(chart: str) -> None:
    for rule in rules_of(chart):
        file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (helm.ROOT / file).read_text(), re.MULTILINE)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings], rule["alert"]
        assert rule["alert"].lower() == anchor
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")


@charts
def test_rules_and_dashboard_are_installed_as_they_lie_in_the_chart(chart: str) -> None:
    objects = helm.rendered(chart, WATCHED[chart])
    rules = [
        rule for group in helm.one(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]
    ]
    assert [rule["expr"] for rule in rules] == [rule["expr"] for rule in rules_of(chart)]
    prefix = "https://wiki.example.org/chorale/" if chart == COORDINATOR else ""
    for installed, rule in zip(rules, rules_of(chart), strict=True):
        url = rule["annotations"]["runbook_url"]
        assert installed["annotations"] == {**rule["annotations"], "runbook_url": f"{prefix}{url}"}
    board = helm.one(objects, "ConfigMap", f"fed-{chart}-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"][f"{chart}.json"]) == dashboard_of(chart)


@charts
def test_the_pod_of_helm_test_passes_where_the_process_is_ready_alone(chart: str) -> None:
    objects = helm.rendered(chart, WATCHED[chart])
    program, *arguments, url = helm.one(objects, "Pod")["spec"]["containers"][0]["command"]
    assert program == "python"
    host, path = url.removeprefix("http://").split("/")
    assert path == "readyz"
    services = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Service"}
    name, port = host.split(":")
    assert int(port) in [each["port"] for each in services[name]["spec"]["ports"]]

    def code_of(is_ready: bool) -> int:
        server = ProbeServer(
            "127.0.0.1",
            0,
            registry=prometheus_client.CollectorRegistry(),
            is_live=lambda: True,
            is_ready=lambda: is_ready,
        )
        server.start()
        try:
            asked = url.replace(host, f"127.0.0.1:{server.port}")
            done = subprocess.run(
                [sys.executable, *arguments, asked], capture_output=True, check=False, timeout=60
            )
        finally:
            server.stop()
        return done.returncode

    assert code_of(is_ready=True) == 0
    assert code_of(is_ready=False) != 0


@charts
def test_promtool_reads_the_alerts(chart: str) -> None:
    done = subprocess.run(
        [needed("promtool"), "check", "rules", str(helm.CHARTS / chart / "files" / "alerts.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules_of(chart))} rules found" in done.stdout
