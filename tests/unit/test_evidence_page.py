"""docs/evidence.md: its arithmetic, its tables from made-up accuracies, and the page against its figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from research.accuracy import source
from research.accuracy.arms import BASELINE
from research.accuracy.book import Book
from research.accuracy.catalog import SUITES
from research.accuracy.federated import run
from research.accuracy.page import evidence, families, words
from research.accuracy.page.plots import draw
from research.accuracy.paired import MARGIN, Difference, Interval, Verdict, level_of, paired, t_point
from research.accuracy.report import Cell, Missing, Report, report_of
from research.accuracy.trials import Outcome
from research.accuracy.tuning import Choice

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / evidence.PAGE).read_text()
MEASURED = [name for name in SUITES if evidence.read(ROOT, name)]
SEEDS = range(1, 11)


# differences, and what may be said of them


def test_paired_differences_are_those_of_a_calculation_by_hand() -> None:
    """10, 0 and -20 points: mean -10/3, standard deviation sqrt((40/3)^2 + (10/3)^2 + (50/3)^2)/sqrt(2)."""
    found = paired([0.9, 0.8, 0.7], [0.8, 0.8, 0.9])
    assert found.mean == pytest.approx(-10 / 3)
    assert found.error == pytest.approx(np.sqrt((1600 + 100 + 2500) / 9 / 2) / np.sqrt(3))
    assert (found.won, found.lost, found.seeds) == (1, 1, 3)
    assert found.interval(0.05).high == pytest.approx(-10 / 3 + 4.302653 * found.error)


def test_seeds_that_agree_by_chance_have_the_error_of_one_test_sample() -> None:
    """Accuracies of 100 samples are whole points: three equal differences are no proof of one."""
    found = paired([0.9, 0.8, 0.7], [0.87, 0.77, 0.67], tests=100)
    assert (found.mean, found.error) == (pytest.approx(3.0), pytest.approx(1 / np.sqrt(3)))
    assert found.interval(0.01).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 5.0, Verdict.BETTER),
        (-5.0, -0.1, Verdict.WORSE),
        (-1.9, 1.9, Verdict.EQUIVALENT),
        (0.1, 1.9, Verdict.EQUIVALENT),  # ahead, by less than what matters
        (-1.9, 2.1, Verdict.UNDECIDED),
        (0.0, 2.1, Verdict.UNDECIDED),
    ],
)
def test_verdict_follows_from_the_interval(low: float, high: float, verdict: Verdict) -> None:
    assert Interval(low=low, high=high).verdict is verdict


def holm(chances: Sequence[float]) -> int:
    """How many are rejected at 5 %, by the procedure as Holm wrote it."""
    ordered = sorted(chances)
    kept = [place for place, chance in enumerate(ordered) if chance > 0.05 / (len(ordered) - place)]
    return kept[0] if kept else len(ordered)


def test_intervals_of_a_family_show_what_holm_rejects_and_no_more() -> None:
    """Over families of random differences: an interval that decides is a test rejected, and the other way."""
    generator = np.random.default_rng(11)
    decided = 0
    for _ in range(200):
        found = [
            Difference(mean=mean, error=error, won=0, lost=0, seeds=20)
            for mean, error in zip(generator.normal(0, 2, 6), generator.exponential(0.6, 6), strict=True)
        ]
        level = level_of(found)
        intervals = [one.interval(level) for one in found]
        shown = sum(one.low > 0 or one.high < 0 for one in intervals)
        shown += sum(one.low > -MARGIN and one.high < MARGIN for one in intervals)
        assert shown == holm([chance for one in found for chance in one.chances])
        decided += shown
    assert 0 < decided < 200 * 12


def test_a_family_of_equal_methods_is_seldom_called_anything_else() -> None:
    """A false alarm in at most 5 % of families of twelve: of 200, more than 21 would come by chance once in a
    thousand. Single tests at 5 % would raise one in nearly half of them."""
    generator = np.random.default_rng(5)
    alarms = 0
    for _ in range(200):
        draws = generator.normal(0.0, 3.0, size=(12, 8))
        found = [paired(0.5 + one / 100, np.full(8, 0.5)) for one in draws]
        level = level_of(found)
        words_of = {one.interval(level).verdict for one in found}
        alarms += bool(words_of & {Verdict.BETTER, Verdict.WORSE})
    assert alarms <= 21


# tables


def cells(
    setting: str, arm: str, accuracy: float, *, rates: Sequence[float] = (0.1,), spread: float = 0.001
) -> list[Cell]:
    """One for each rate; seeds differ by as much in every arm, and from arm to arm by the spread."""
    noise = np.random.default_rng(len(arm)).normal(0.0, spread, len(SEEDS))
    by_seed = {seed: accuracy + 0.01 * (seed % 3) + noise[place] for place, seed in enumerate(SEEDS)}
    strength = words.ARMS[arm].published
    return [Cell(setting=setting, arm=arm, rate=rate, strength=strength, accuracy=by_seed) for rate in rates]


def report(*found: list[Cell], common: tuple[float, ...] = (0.1,)) -> Report:
    """Every arm's tuned rate is 0.1."""
    flat = [one for each in found for one in each]
    choices = {
        (one.setting, one.arm): Choice(
            setting=one.setting, arm=one.arm, point=(0.1, one.strength), validation={(0.1, one.strength): 0.5}
        )
        for one in flat
    }
    settings = tuple(dict.fromkeys(one.setting for one in flat))
    return Report(
        suite="digits",
        about="numbers",
        settings=settings,
        classes=dict.fromkeys(settings, 10),
        tests=dict.fromkeys(settings, 1000),
        arms=tuple(dict.fromkeys(one.arm for one in flat)),
        seeds=tuple(SEEDS),
        tuning_seeds=(101,),
        common=common,
        common_arms=tuple(dict.fromkeys(one.arm for one in flat)),
        runs=len(flat),
        planned=len(flat) + 1,
        seconds=3600.0,
        sources=("0123abcd / 01",),
        rows_by_default=dict.fromkeys(settings, 2.5),
        cells={(one.setting, one.arm, one.rate, one.strength): one for one in flat},
        choices=choices,
    )


def test_a_reference_that_does_better_at_another_rate_than_the_chosen_one_is_told() -> None:
    """FedAvg had 79.7 at the rate that two thirds of the validation samples chose, and 87.5 at another."""
    tuned = cells("even", BASELINE, 0.8)
    for elsewhere, is_told in ((0.87, True), (0.815, False)):
        found = report(cells("even", "fedprox", 0.85), tuned)
        other = cells("even", BASELINE, elsewhere, rates=(0.3,))
        more = {(one.setting, one.arm, one.rate, one.strength): one for one in other}
        better = replace(found, cells={**found.cells, **more})
        family = families.baseline_tuned(better)
        assert words.difference_table(family, better).endswith(" better + |") == is_told


def test_what_has_not_run_and_what_learns_nothing_is_said_and_not_judged() -> None:
    rates = (0.1, 0.3, 1.0)
    found = report(
        [*cells("even", "fedcsd", 0.8), *cells("even", "fedcsd", 0.1, rates=(1.0,), spread=0.0)],
        [
            *cells("even", "fedcsd_uniform", 0.8),
            *cells("even", "fedcsd_uniform", 0.1, rates=(1.0,), spread=0.0),
        ],
        common=rates,
    )
    family = families.controls_at_common_rates(found)
    assert [row.found["even"] for row in family.rows][1:] == [Missing.NOT_RUN, Missing.NEITHER_LEARNS]
    assert len(family.differences) == 1


def test_by_how_much_a_method_is_ahead_of_one_that_failed_is_no_figure() -> None:
    """It would read as a gain of eighty points, and widen every other interval of its table."""
    failed = cells("even", BASELINE, 0.1, spread=0.0)
    found = report(
        [*failed, *cells("odd", BASELINE, 0.8)],
        [*cells("even", "fedprox", 0.9), *cells("odd", "fedprox", 0.9)],
    )
    family = families.baseline_tuned(found)
    assert "| FedProx against FedAvg | the other does not learn | +" in words.difference_table(family, found)
    assert len(family.differences) == 1
    assert "| FedAvg | 11.0 +- 0.8 (learns on 0) | " in words.accuracy_table(found)
    behind = report(cells("even", BASELINE, 0.9), cells("even", "fedprox", 0.1, spread=0.0))
    table = words.difference_table(families.baseline_tuned(behind), behind)
    assert table.endswith("| FedProx against FedAvg | it does not learn itself |")


def test_two_sides_that_both_guess_on_most_seeds_are_not_equivalent() -> None:
    """FedDr+ and its control learned on one seed of five, and were called equivalent."""
    few, many = ({seed: 0.8 if seed <= learned else 0.1 for seed in SEEDS} for learned in (2, 3))
    for accuracy, said in ((few, "undecided"), (many, "equivalent")):
        sides = [
            [replace(cells("even", arm, 0.8)[0], accuracy=accuracy)]
            for arm in ("feddr_plus", "feddr_plus_no_fd")
        ]
        found = report(*sides)
        assert words.difference_table(families.controls_tuned(found), found).endswith(f", {said} |")
        learned = sum(each > 0.5 for each in accuracy.values())
        assert words.accuracy_table(found).endswith(f" (learns on {learned}) |")


def test_a_suite_that_was_only_tuned_shows_choices_and_no_empty_table() -> None:
    found = replace(report(cells("even", BASELINE, 0.8)), cells={}, common=(), rows_by_default={})
    entry = evidence.committed(found, moment=datetime(2026, 11, 25, tzinfo=UTC))
    text = evidence.page_text(entry)
    assert "| FedAvg | 1 | 0.1* (50.0) |" in text
    assert "Accuracy in percent" not in text
    assert "Classes whose rows" not in text


def test_a_suite_without_test_seeds_shows_the_accuracy_of_every_rate() -> None:
    found = report(cells("even", BASELINE, 0.8), cells("even", "fedcsd", 0.8))
    tried = {
        key: replace(one, validation={(0.3, one.point[1]): 0.4, **one.validation, (0.1, 7.0): 0.9})
        for key, one in found.choices.items()
    }
    found = replace(found, choices=tried, cells={}, common=(), seeds=(), rows_by_default={})
    text = evidence.page_text(evidence.committed(found, moment=datetime(2026, 11, 25, tzinfo=UTC)))
    assert "learning rates 0.1 / 0.3:" in text
    assert "| FedAvg | 50.0 / 40.0 |\n| FedCSD | 50.0 / 40.0 |" in text
    assert "What tuning chose" not in text


def test_a_tuning_that_learned_nothing_is_told() -> None:
    found = report(cells("even", BASELINE, 0.8))
    chance = {key: replace(one, validation={one.point: 0.105}) for key, one in found.choices.items()}
    table = words.choice_table(replace(found, choices=chance))
    assert table.endswith("| FedAvg | 1 | none learns (10.5), so 0.1 |")


def test_strengths_at_an_end_of_their_grid_are_marked() -> None:
    found = report(cells("even", "feddr_plus", 0.8))
    (key,) = found.choices
    rates = {(rate, beta): 0.4 for rate in (0.03, 0.1, 0.3) for beta in (0.9, 0.99, 0.999)}
    for beta, mark in ((0.9, "*"), (0.99, ""), (0.999, "*")):
        choice = replace(found.choices[key], point=(0.1, beta), validation={**rates, (0.1, beta): 0.5})
        table = words.choice_table(replace(found, choices={key: choice}))
        assert table.endswith(f"| FedDr+ | 9 | 0.1, beta {beta:g}{mark} (50.0) |")


def test_a_design_finds_what_it_says_it_finds() -> None:
    """Drawn from a normal law, with the error that was found taken for the true one."""
    difference, level = Difference(mean=0.0, error=1.0, won=0, lost=0, seeds=5), 0.05
    least = difference.detectable(level)
    draws = least + np.random.default_rng(3).normal(0.0, math.sqrt(5), (20_000, 5))
    means, errors = draws.mean(axis=1), draws.std(axis=1, ddof=1) / math.sqrt(5)
    power = np.mean(means / errors > t_point(level, 5))
    assert abs(power - 0.8) < 6 * math.sqrt(0.8 * 0.2 / 20_000)  # six deviations


def test_a_comparison_of_less_than_three_seeds_is_not_measured() -> None:
    (one,) = cells("even", "fedprox", 0.9)
    (other,) = cells("even", BASELINE, 0.8)
    few = replace(one, accuracy={seed: one.accuracy[seed] for seed in (1, 2)})
    assert report([one], [other]).difference(few, other) is Missing.NOT_RUN
    assert isinstance(report([one], [other]).difference(one, other), Difference)


def test_tables_show_differences_with_interval_and_verdict() -> None:
    found = report(cells("even", BASELINE, 0.8), cells("even", "fedprox", 0.85))
    table = words.difference_table(families.baseline_tuned(found), found)
    assert "| FedProx against FedAvg | +4.9 (" in table
    assert table.endswith(", better |")
    assert "| FedAvg | 1 | 0.1* (50.0) |" in words.choice_table(found)
    note = words.family_note(families.baseline_tuned(found), found)
    assert note.startswith("1 comparison of 10 seeds, intervals of 95.00 %")
    counts = words.verdict_counts(families.baseline_tuned(found))
    assert counts == "1 better, 0 worse, 0 equivalent, 0 undecided"
    assert "provisional" not in note


def test_accuracies_of_less_than_all_seeds_say_of_how_many() -> None:
    (whole,), (one,) = cells("even", "fedprox", 0.8), cells("even", BASELINE, 0.8)
    for seeds, said in (((1,), "71.0 (1 seed)"), ((1, 2), "70.0 +- 1.4 (2 seeds)")):
        fewer = replace(one, accuracy={seed: 0.73 - 0.02 * seed for seed in seeds})
        table = words.accuracy_table(report([whole], [fewer]))
        assert f"| FedAvg | {said} |" in table
        assert "seed" not in table.partition("| FedAvg |")[0]


def test_verdicts_of_a_table_without_all_of_its_seeds_are_provisional() -> None:
    """A table that is judged after 13 seeds and again after 20 has more chances than 5 % to be wrong."""
    (one,) = cells("even", "fedprox", 0.85)
    fewer = replace(one, accuracy={seed: one.accuracy[seed] for seed in range(1, 8)})
    found = report([fewer], cells("even", BASELINE, 0.8))
    note = words.family_note(families.baseline_tuned(found), found)
    assert note.startswith("1 comparison of 7 seeds")
    assert "verdicts are provisional" in note
    lacking = report([one], cells("even", BASELINE, 0.8), cells("odd", BASELINE, 0.8))
    note = words.family_note(families.baseline_tuned(lacking), lacking)
    assert note.startswith("1 comparison of 10 seeds")
    assert "verdicts are provisional" in note


def test_means_at_common_rates_are_over_the_seeds_that_all_methods_have() -> None:
    """Seeds differ by more than methods do."""
    (one,) = cells("even", "fedprox", 0.8)
    fewer = replace(one, accuracy={3: 0.9, 4: 0.7})
    found = report([fewer], cells("even", BASELINE, 0.8, spread=0.0))
    assert "| FedAvg | 80.5 |" in words.rate_table(found)
    assert "| FedProx | 80.0 |" in words.rate_table(found)


def test_a_tuned_rate_among_the_common_ones_makes_no_row_of_common_rates() -> None:
    found = report(cells("even", "fedprox", 0.8), cells("even", BASELINE, 0.8))
    found = replace(found, common_arms=(BASELINE,))
    assert "| FedAvg |" in words.rate_table(found)
    assert "FedProx" not in words.rate_table(found)


def test_no_rate_is_told_of_an_arm_that_does_not_train() -> None:
    found = report(cells("even", "spherefed_untrained", 0.8), cells("even", "spherefed", 0.8))
    assert "| FFC on the first model | 1 | none (50.0) |" in words.choice_table(found)
    assert "| SphereFed | 1 | 0.1* (50.0) |" in words.choice_table(found)


# the page


def test_report_is_of_the_runs_that_have_ended(tmp_path: Path) -> None:
    suite = replace(SUITES["digits"], arms=("fedavg", "moon"), common_arms=("fedavg",), seeds=(1, 2))
    tuning = [trial for trial in suite.tuning() if (trial.setting, trial.arm) == ("2 shards", "moon")]
    (first, *_) = suite.at_common_rates(is_published=True)
    with Book(tmp_path / "digits.jsonl") as book:
        for trial in tuning[1:]:
            book.write(trial, Outcome(accuracy=trial.learning_rate / 20, seconds=1.0))
        book.write(first, Outcome(accuracy=None, seconds=1.0, failed="diverged"))
        found = report_of(suite, book, rows_by_default={})
        assert (found.choices, [one.failed for one in found.cells.values()]) == ({}, [1])
        book.write(tuning[0], Outcome(accuracy=0.0, seconds=1.0))
        found = report_of(suite, book, rows_by_default={})
    assert found.choices["2 shards", "moon"].point == (10.0, None)
    assert (found.runs, found.seconds) == (len(tuning) + 1, len(tuning) + 1.0)
    assert Report.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_update_writes_figures_page_and_picture_that_belong_together(tmp_path: Path) -> None:
    for folder in ("docs", "research"):
        (tmp_path / folder).mkdir()
    page = tmp_path / evidence.PAGE
    page.write_text("before\n<!-- bench:accuracy-digits -->\n<!-- /bench:accuracy-digits -->\nafter\n")
    found = report(
        cells("even", BASELINE, 0.8), cells("even", "feddw", 0.85), cells("even", "feddw_identity", 0.8)
    )
    evidence.update(found, root=tmp_path)
    entry = evidence.read(tmp_path, "digits")
    assert entry is not None
    assert Report.from_json(entry["report"]) == found
    assert evidence.page_text(entry) in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")
    picture = (tmp_path / "docs" / "evidence-digits.svg").read_bytes()
    assert draw(found, folder=tmp_path) == tmp_path / "evidence-digits.svg"
    assert (tmp_path / "evidence-digits.svg").read_bytes() == picture


@pytest.mark.parametrize("suite", SUITES)
def test_page_says_what_the_committed_figures_say(suite: str) -> None:
    """Tables, machine, date and command."""
    name, entry = evidence.place(suite), evidence.read(ROOT, suite)
    begin, end = f"<!-- bench:{name} -->\n", f"\n<!-- /bench:{name} -->"
    expected = "Not measured yet." if entry is None else evidence.page_text(entry)
    assert PAGE.partition(begin)[2].partition(end)[0] == expected


@pytest.mark.parametrize("suite", MEASURED)
def test_figures_follow_from_the_runs_that_are_committed(suite: str, tmp_path: Path) -> None:
    entry = evidence.read(ROOT, suite)
    assert entry is not None
    printed = Report.from_json(entry["report"])
    with Book(tmp_path / "runs.jsonl") as book:
        book.take((ROOT / evidence.runs_of(suite)).read_bytes())
        assert report_of(SUITES[suite], book, rows_by_default=printed.rows_by_default) == printed


@pytest.mark.skipif("digits" not in MEASURED, reason="research/evidence has no digits")
@pytest.mark.parametrize(("setting", "arm"), [("Dirichlet 0.5", "fedavg"), ("2 shards", "feddw_identity")])
def test_a_cell_trained_again_gives_what_is_committed(setting: str, arm: str) -> None:
    """The same bits on the machine that measured it; elsewhere within four deviations of its seeds."""
    entry = evidence.read(ROOT, "digits")
    assert entry is not None
    found = Report.from_json(entry["report"])
    trial = next(
        each
        for each in SUITES["digits"].at_common_rates(is_published=True)
        if (each.setting, each.arm, each.learning_rate) == (setting, arm, 0.1)
    )
    cell = found.cells[setting, arm, 0.1, trial.strength]
    is_same = all(one.endswith(source.arithmetic()) for one in found.sources)
    wide = 1e-6 if is_same else max(4 * cell.deviation, 0.01)
    assert run(trial, None).final == pytest.approx(cell.accuracy[trial.seed], abs=wide)
