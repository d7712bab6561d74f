"""Every alert fires when it should and not before, as promtool evaluates the rules of the charts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deployment import helm
from tests.support.programs import needed

SCENES = Path(__file__).parent / "alerts"

charts = pytest.mark.parametrize("chart", helm.NAMES)


def scenes_of(chart: str) -> list[helm.Object]:
    found: list[helm.Object] = yaml.safe_load((SCENES / f"{chart}.yaml").read_text())["tests"]
    return found


@charts
def test_every_alert_is_seen_to_fire_and_to_keep_quiet(chart: str) -> None:
    groups = yaml.safe_load((helm.CHARTS / chart / "files" / "alerts.yaml").read_text())["groups"]
    checks = [check for scene in scenes_of(chart) for check in scene["alert_rule_test"]]
    seen = {(check["alertname"], bool(check["exp_alerts"])) for check in checks}
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    assert seen == {(alert, does_fire) for alert in alerts for does_fire in (True, False)}


@charts
def test_every_alert_fires_for_one_of_several_and_names_it(chart: str) -> None:
    named = set()
    for scene in scenes_of(chart):
        there = {member_of(labels_of(each["series"])) for each in scene["input_series"]}
        for check in scene["alert_rule_test"]:
            fires = {member_of(each["exp_labels"]) for each in check["exp_alerts"]}
            if fires and fires < there:
                named.add(check["alertname"])
    assert named == {check["alertname"] for scene in scenes_of(chart) for check in scene["alert_rule_test"]}


def labels_of(series: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', series))


def member_of(labels: dict[str, str]) -> str:
    """The pod, or where there are none the process; empty where no process is left."""
    return f"{labels['namespace']}/{labels['pod']}" if "pod" in labels else labels.get("instance", "")


@charts
def test_alerts_fire_in_the_scenes_and_at_no_other_time(chart: str) -> None:
    done = subprocess.run(
        [needed("promtool"), "test", "rules", str(SCENES / f"{chart}.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
