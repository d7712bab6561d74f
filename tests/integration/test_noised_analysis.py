"""A table 1 under noise over real processes: what it costs, what it shows, and what is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_analysis import figures, wards
from tests.support.processes import run_cli

BUDGET, EPSILON = 3.0, 2.0
PRIVACY = {"epsilon": EPSILON}
OTHER = [{"name": "age", "edges": [18.0, 45.0, 110.0], "show": ["mean"]}]


def test_a_noised_analysis_is_charged_to_the_ledger_until_the_budget_is_used_up(tmp_path: Path) -> None:
    """The policy allows no exact analysis and lists no measurement."""
    federation, pooled = wards(tmp_path, policy={"privacy": {"epsilon": BUDGET}})
    with federation:
        federation.start()
        federation.wait_connected()
        analysis = federation.analysis(privacy=PRIVACY)
        planned = federation.cli("analysis", "plan", analysis)
        assert "each with noise" in planned.stdout
        assert "the count of a cell is off by up to " in planned.stdout
        done = federation.cli("analysis", "submit", analysis)
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.split()[0]
        assert federation.finish()["status"] == "done"
        results = federation.results(job_id)
        phases = [phase["phase"] for phase in federation.report(job_id)["phases"]]
        archive = tmp_path / "evidence.zip"
        federation.cli("job", "evidence", job_id, "--out", archive)
        verified = run_cli("evidence", "verify", archive)
        spent = []
        for name in federation.names:
            shown = run_cli("silo", "ledger", "--config", federation.folder / f"{name}.yaml").stdout
            (line,) = (each for each in shown.splitlines() if each.startswith("data set ward"))
            spent.append(float(line.split("epsilon ")[1].split(" of ")[0]))
        other = federation.analysis(columns=OTHER, group=None, privacy=PRIVACY)
        assert federation.cli("analysis", "submit", other).returncode == 0
        ended = federation.hub.wait_for(
            lambda record: record.get("event") == "job ended" and record["status"] != "done"
        )
    assert phases == ["enrollment.0", "analysis-noised.0"]
    promised = float(done.stderr.split("privacy: epsilon ")[1].split()[0])
    assert 0.99 * EPSILON <= promised <= EPSILON
    assert spent == pytest.approx([promised] * len(spent), rel=1e-3)
    _check_intervals(results["figures"], pooled)
    assert verified.returncode == 0, verified.stderr
    # the plan of 2 does not fit where 1 is left
    assert "budget" in ended["reason"]


def _check_intervals(found: list[dict[str, object]], pooled: list[tuple[object, ...]]) -> None:
    """Of 95 % each, with noise that nobody can fix: at least 70 % hold, but in one run of 10^6."""
    results = {"figures": found}
    held = []
    for group, sex in (("overall", ""), ("f", "f"), ("m", "m")):
        mine = [each for each in pooled if sex in ("", each[0])]
        lows, highs = (figures(results, "angina", f"count, {end} end", group) for end in ("lower", "upper"))
        counts = {part: sum(each[3] == part for each in mine) for part in ("typical", "atypical", "none")}
        held += [lows[part] <= count <= highs[part] for part, count in counts.items()]
        for column, place in (("age", 1), ("chol", 2)):
            values = np.array([each[place] for each in mine if each[place] is not None], np.float64)
            ends = [figures(results, column, f"mean, {end} end", group)[""] for end in ("lower", "upper")]
            held.append(ends[0] <= values.mean() <= ends[1])
    assert len(held) == 15
    assert sum(held) >= 11
