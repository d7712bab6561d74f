"""A job that passes over a rule says which, wherever somebody decides about it or reads of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.output.report import document
from tests.unit.cli.conftest import Calls, Desk
from tests.unit.cli.test_approval import GIVEN, lines_of, offered
from tests.unit.cli.test_report_page import history
from web.report.page import page

ABLATION: dict[str, Any] = {
    "strategy": {"parts": {"loss": "sphere-mse", "head": "frozen-orthonormal"}, "aggregate": "uniform"},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"learning_rate": 0.1, "local_steps": 30},
}
RULE = "sphere-mse takes scores for cosines, and only before features unit are they"


def test_silo_show_names_the_rule_the_weights_and_the_steps(desk: Desk, chorale: Calls) -> None:
    desk.write("policy.yaml", GIVEN)
    job, config = offered(desk, **ABLATION, allow_unusual=True), desk.silo()
    screen = chorale("silo", "show", "--config", config, job.id)
    assert lines_of(screen, "unusual").startswith(f"passes over a rule: {RULE}")
    whole = " ".join(screen.out.split())
    assert "aggregate: uniform" in whole
    assert "local_steps: 30" in whole
    usual = offered(desk, strategy={"preset": "feddw", "as_published": "code"}, name="usual")
    shown = chorale("silo", "show", "--config", config, usual.id)
    assert lines_of(shown, "unusual") == ""
    assert "as_published: code" in " ".join(shown.out.split())


def test_job_plan_and_simulate_name_the_rule(desk: Desk, chorale: Calls) -> None:
    refused = chorale("job", "plan", desk.job(**ABLATION))
    assert refused.code != 0
    assert "allow_unusual: true passes over this rule" in refused.err
    job = desk.job(**ABLATION, allow_unusual=True)
    planned = chorale("job", "plan", job)
    assert f"unusual: passes over a rule: {RULE}" in planned.out
    assert [
        rule[: len(RULE)] for rule in json.loads(chorale("job", "plan", job, "--json").out)["unusual"]
    ] == [RULE]
    simulated = chorale("simulate", job, "--data", "digits")
    assert f"unusual: passes over a rule: {RULE}" in simulated.err


@pytest.mark.parametrize("is_allowed", [True, None])
def test_report_names_the_rule_in_file_and_page(desk: Desk, is_allowed: bool | None) -> None:
    fields = {**ABLATION, "allow_unusual": True} if is_allowed else {}
    job_history = history()
    job_history.signed = offered(desk, **fields).signed
    report = document(job_history)
    assert [rule.startswith(RULE) for rule in report["unusual"]] == ([True] if is_allowed else [])
    assert (f"Unusual: passes over a rule: {RULE}" in page(report)) == bool(is_allowed)
