"""docs/evidence.md against the committed figures, and one of its cells trained again."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.accuracy import evidence, words
from research.accuracy.arms import arm
from research.accuracy.catalog import SUITES
from research.accuracy.federated import run
from research.accuracy.report import Report

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / evidence.PAGE).read_text()
COMMITTED = evidence.read(ROOT)
MIN_TOLERANCE = 0.01  # where all seeds agree to less
needs_small = pytest.mark.skipif("small" not in COMMITTED, reason="research/evidence.json has no small suite")


def block(suite: str) -> str:
    """What stands between a suite's comments."""
    name = evidence.place(suite)
    begin, end = f"<!-- bench:{name} -->\n", f"\n<!-- /bench:{name} -->"
    return PAGE.partition(begin)[2].partition(end)[0]


def report(suite: str) -> Report:
    return Report.from_json(COMMITTED[suite]["report"])


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_page_says_what_the_committed_figures_say(suite: str) -> None:
    """Tables and sentences, machine, date and command."""
    expected = evidence.page_text(COMMITTED[suite]) if suite in COMMITTED else "Not measured yet."
    assert block(suite) == expected


@pytest.mark.parametrize("suite", sorted(COMMITTED))
def test_every_method_has_its_sentence_on_the_page(suite: str) -> None:
    found = report(suite)
    assert len(words.verdicts(found)) == len(words.controls_in(found))
    assert [said for said in words.verdicts(found) if f"- {said}" not in block(suite).splitlines()] == []


@pytest.mark.parametrize("suite", sorted(COMMITTED))
def test_every_method_was_tuned_on_the_suites_whole_grid(suite: str) -> None:
    found = report(suite)
    grids = {setting.name: setting.rates for setting in SUITES[suite].settings}
    assert {cell.setting for cell in found.cells} <= set(grids)
    assert all(tuple(rate for rate, _ in cell.tuned) == grids[cell.setting] for cell in found.cells)


@needs_small
def test_both_ways_of_leaving_out_the_distillation_have_the_same_figures() -> None:
    found = report("small")
    pairs = [
        (found.cell(name, "feddr_plus_beta_1"), found.cell(name, "feddr_plus_no_fd"))
        for name in found.settings
    ]
    assert all((one.rate, one.accuracy) == (other.rate, other.accuracy) for one, other in pairs)


@needs_small
@pytest.mark.parametrize(("setting", "name"), [("Dirichlet 0.5", "fedavg"), ("2 shards", "feddw_identity")])
def test_a_cell_trained_again_gives_what_is_committed(setting: str, name: str) -> None:
    """The same bits on the machine that measured it; elsewhere within the cell's own deviation."""
    cell = report("small").cell(setting, name)
    suite = SUITES["small"]
    rates = {(each.name, name): cell.rate for each in suite.settings}
    trial = next(
        each
        for each in suite.comparison((arm(name),), rates)
        if (each.setting, each.seed) == (setting, suite.seeds[0])
    )
    outcome = run(trial, None)
    assert outcome.final == pytest.approx(cell.accuracy[0], abs=max(cell.deviation, MIN_TOLERANCE))
