"""A real Prometheus server watches a real federation: series move, and the right alerts fire.

The rules are those that the charts render, with windows and `for` shortened all alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from silo_agent.settings import ENV_PREFIX
from tests.deployment import helm, prometheus
from tests.deployment.prometheus import Prometheus
from tests.support import programs
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.halting import Halt
from tests.support.ports import free_ports

pytestmark = pytest.mark.timeout(300)

# an hour becomes twelve seconds, a quarter of one three: six scrapes
FACTOR = 300
ROUNDS, VICTIMS = 4, ("silo-2", "silo-3")
# in the third round, between their shares and their vectors
HALT = Halt(at={"event": "input ready", "round": 3, "phase": "train"}, sent="shares")
# tests' certificates and rosters last five days, so these are right from the start
EXPIRING = {
    "ChoraleCoordinatorCertificateExpiring",
    "ChoraleCoordinatorRosterExpiring",
    "ChoraleSiloCertificateExpiring",
}
WATCHED = {"chorale-coordinator": "ingress-values.yaml", "chorale-silo": "gpu-values.yaml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    federation: LocalFederation
    prometheus: Prometheus
    targets: dict[str, str]  # addresses of /metrics by process

    def start_silo(self, name: str, halt: Halt | None = None) -> None:
        self.federation.start_silo(name, env={f"{ENV_PREFIX}METRICS_LISTEN": self.targets[name]}, halt=halt)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A server that scrapes a coordinator and four silos that attend. No job yet."""
    programs.needed("prometheus")
    folder = tmp_path_factory.mktemp("watched")
    rules = [rule_file(chart, folder) for chart in helm.NAMES]
    # silos that stand still are waited for, those that are gone are not
    settings = {"stage_deadline_seconds": 60.0, "reconnect_grace_seconds": 1.0}
    with LocalFederation(folder=folder, coordinator=settings) as federation:
        processes = [COORDINATOR, *federation.names]
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(processes))]
        targets = dict(zip(processes, addresses, strict=True))
        federation.coordinator["metrics_listen"] = targets[COORDINATOR]
        with prometheus.running(folder, targets=jobs(targets), rules=rules) as server:
            scene = Scene(federation=federation, prometheus=server, targets=targets)
            federation.start_coordinator()
            for name in federation.names:
                scene.start_silo(name, halt=HALT if name in VICTIMS else None)
            federation.wait_connected()
            yield scene


def rule_file(chart: str, folder: Path) -> Path:
    spec = helm.one(helm.rendered(chart, WATCHED[chart]), "PrometheusRule")["spec"]
    path = folder / f"{chart}.yaml"
    path.write_text(yaml.safe_dump(prometheus.hastened(spec, factor=FACTOR)))
    return path


def jobs(targets: dict[str, str]) -> dict[str, list[prometheus.Rules]]:
    """Static targets with the labels that the Prometheus Operator would give them."""
    found: dict[str, list[prometheus.Rules]] = {"coordinator": [], "silo": []}
    for name, address in targets.items():
        labels = {"namespace": "heart", "pod": f"{name}-0"}
        found["coordinator" if name == COORDINATOR else "silo"].append(
            {"targets": [address], "labels": labels}
        )
    return found


APPLIED = 'chorale_coordinator_rounds_total{phase="train", result="applied"}'
UPLOADED = 'chorale_coordinator_received_bytes_total{kind="upload"}'
BELOW, MISSING = "ChoraleCoordinatorCohortBelowThreshold", "ChoraleCoordinatorSilosMissing"
# what a silo that is gone is no reason for
UNRELATED = {"ChoraleCoordinatorRefusesCalls", "ChoraleSiloDistrustsPeers", "ChoraleSiloRejectsJobs"}


def moments(server: Prometheus, alert: str, *, since: float = 0.0) -> dict[str, float]:
    """When the alert was first seen in each state, of those it was in."""
    first: dict[str, float] = {}
    for moment, found in server.history(f'ALERTS{{alertname="{alert}"}}').items():
        for labels in found if moment > since else []:
            first.setdefault(labels["alertstate"], moment)
    return first


def now(server: Prometheus) -> float:
    found = server.value("vector(time())")
    assert found is not None
    return found


def test_every_target_is_up_and_every_rule_is_evaluated(scene: Scene) -> None:
    scene.prometheus.wait("sum(up) == 5")
    scene.prometheus.wait("count(ALERTS) > 0")
    rules = scene.prometheus.rules()
    assert [(each["name"], each["lastError"]) for each in rules if each["health"] != "ok"] == []
    assert {each["name"] for each in rules} > {*EXPIRING, *UNRELATED, BELOW, MISSING}


def test_both_sides_serve_metrics_that_promtool_accepts(scene: Scene) -> None:
    for name in (COORDINATOR, "silo-0"):
        with urlopen(f"http://{scene.targets[name]}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert "# HELP chorale_" in text
        assert prometheus.check("metrics", text=text) == ""


def test_promtool_refuses_metrics_and_rules_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no help text"):
        prometheus.check("metrics", text="# TYPE chorale_x gauge\nchorale_x 1\n")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("groups: [{name: x, rules: [{alert: X, expr: sum(}]}]")
    with pytest.raises(AssertionError, match="parse error"):
        prometheus.check("rules", str(wrong))


@pytest.mark.parametrize("chart", helm.NAMES)
def test_promtool_accepts_the_rules_as_rendered_and_as_hastened(chart: str, tmp_path: Path) -> None:
    spec = helm.one(helm.rendered(chart, WATCHED[chart]), "PrometheusRule")["spec"]
    (tmp_path / "rendered.yaml").write_text(yaml.safe_dump(spec))
    hastened = rule_file(chart, tmp_path)
    prometheus.check("rules", str(tmp_path / "rendered.yaml"), str(hastened))
    rules = [rule for group in prometheus.hastened(spec, factor=FACTOR)["groups"] for rule in group["rules"]]
    assert not any(re.search(r"\[[^]]*\d[mhd]\b", rule["expr"]) for rule in rules)
    assert {rule.get("for", "0ms")[-2:] for rule in rules} == {"ms"}


def test_an_alert_fires_when_silos_are_killed_and_not_before(scene: Scene) -> None:
    server, federation = scene.prometheus, scene.federation
    server.wait("chorale_coordinator_connected_silos == 4")
    server.wait("sum(chorale_silo_connected) == 4")
    server.wait(f"{APPLIED} + on(pod) {UPLOADED} == 0")

    federation.submit(rounds=ROUNDS)
    for name in VICTIMS:
        federation.services[name].wait_halted()

    server.wait(f"{APPLIED} == 2")  # the third has begun
    server.wait('chorale_coordinator_cohort_size{phase="train"} == 4')
    server.wait(f"{UPLOADED} > 0")
    others = 'pod=~"silo-[01]-0"'  # who stands still answers no scrape
    server.wait(f'sum(chorale_silo_rounds_total{{phase="train", result="applied", {others}}}) == 4')
    server.wait(f'count(chorale_silo_transferred_bytes_total{{direction="up", {others}}} > 0) == 2')
    assert [moments(server, alert) for alert in (BELOW, MISSING, *UNRELATED)] == [{}] * 5

    for name in VICTIMS:
        federation.services[name].kill()

    for alert in (BELOW, MISSING):
        server.wait(f'ALERTS{{alertname="{alert}", alertstate="firing", pod="hub-0"}}')
        seen = moments(server, alert)
        assert seen["pending"] < seen["firing"]
    server.wait("chorale_coordinator_connected_silos == 2")
    server.wait('count(up{job="silo"} == 0) == 2')
    server.wait(f"{APPLIED} == 2")

    for name in VICTIMS:
        scene.start_silo(name)

    server.wait(f"{APPLIED} == {ROUNDS}")
    server.wait(f'absent(ALERTS{{alertname=~"{BELOW}|{MISSING}"}})')
    server.wait("sum(up) == 5")
    assert [moments(server, alert) for alert in UNRELATED] == [{}] * 3
    assert federation.finish()["status"] == "done"


def test_silos_tell_of_a_coordinator_that_is_gone(scene: Scene) -> None:
    server, alert = scene.prometheus, "ChoraleSiloDisconnected"
    firing = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
    server.wait("sum(chorale_silo_connected) == 4")
    server.wait(f"absent({firing})")
    killed = now(server)

    scene.federation.hub.kill()

    server.wait(f"count({firing}) == 4")
    seen = moments(server, alert, since=killed)
    assert seen["pending"] < seen["firing"]
