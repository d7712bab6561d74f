"""What promtool says of rules and metrics. tests/deployment/test_runbooks.py has a server evaluate them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.deployment import helm, prometheus

PACE_SECONDS = 6.0
WATCHED = {"chorale-coordinator": "ingress-values.yaml", "chorale-silo": "gpu-values.yaml"}


def test_promtool_refuses_metrics_and_rules_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no help text"):
        prometheus.check("metrics", text="# TYPE chorale_x gauge\nchorale_x 1\n")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("groups: [{name: x, rules: [{alert: X, expr: sum(}]}]")
    with pytest.raises(AssertionError, match="parse error"):
        prometheus.check("rules", str(wrong))


@pytest.mark.parametrize("chart", helm.NAMES)
def test_promtool_accepts_the_rules_as_rendered_and_at_another_pace(chart: str, tmp_path: Path) -> None:
    spec = helm.one(helm.rendered(chart, WATCHED[chart]), "PrometheusRule")["spec"]
    paced = prometheus.paced(spec, seconds=PACE_SECONDS, others={})
    files = [tmp_path / "rendered.yaml", tmp_path / "paced.yaml"]
    for path, rules in zip(files, (spec, paced), strict=True):
        path.write_text(yaml.safe_dump(rules))
    prometheus.check("rules", *map(str, files))
    found = [rule for group in paced["groups"] for rule in group["rules"]]
    assert not any(re.search(r"\[[^]]*\d[mhd]\b", rule["expr"]) for rule in found)
    assert {rule.get("for", "0ms")[-2:] for rule in found} == {"ms"}
