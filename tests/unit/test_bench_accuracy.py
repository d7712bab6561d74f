"""research/accuracy: its plan, its tuning, its arithmetic, its words, and what it does when it is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crypto.errors import ConfigError, QuantizationError
from research.accuracy import __main__ as command
from research.accuracy import evidence, words
from research.accuracy.arms import ARMS, BASELINE, CONTROLS, Control, arm
from research.accuracy.book import Book
from research.accuracy.catalog import SMALL, SUITES
from research.accuracy.federated import run, silos_of
from research.accuracy.paired import Verdict, paired
from research.accuracy.plots import draw
from research.accuracy.report import Cell, Report, report_of
from research.accuracy.suites import Setting, Suite
from research.accuracy.trials import Outcome, Split, Trial
from research.accuracy.tuning import chosen
from research.accuracy.work import OutOfRuns, Workers
from silo_agent.data.base import Samples
from simulation.engine import Simulation

TINY = Suite(
    name="tiny",
    about="numbers",
    seeds=(1, 2),
    tuning_seeds=(101,),
    settings=(
        Setting(
            name="even",
            silos=3,
            data={"format": "npz", "name": "numbers"},
            partition={"kind": "iid"},
            rates=(0.1, 1.0),
            job={
                "classes": 3,
                "input_shape": [2],
                "rounds": 2,
                "model": {"name": "mlp", "hidden": [8]},
                "training": {"batch_size": 8, "local_epochs": 5},
            },
        ),
    ),
)
PAIR = (arm("fedavg"), arm("fedprox"))


def numbers(path: Path, *, test_shift: int = 0) -> Path:
    """120 training and 30 test samples; a sample's second feature is its number in thousandths."""
    generator = np.random.default_rng(7)
    labels = np.arange(150) % 3
    features = np.stack([labels - 1 + 0.1 * generator.normal(size=150), np.arange(150) / 1000], axis=1)
    tested = (labels[120:] + test_shift) % 3
    np.savez(path, x_train=features[:120], y_train=labels[:120], x_test=features[120:], y_test=tested)
    return path


def numbers_in(parts: Iterable[Samples]) -> list[int]:
    return sorted(round(1000 * value) for part in parts for value in part.features[:, 1])


def tuning_trial(suite: Suite = TINY) -> Trial:
    return suite.tuning(PAIR)[0]


def final_trial() -> Trial:
    return TINY.comparison(PAIR, {("even", one.name): 0.1 for one in PAIR})[0]


# differences


def test_paired_differences_are_those_of_a_calculation_by_hand() -> None:
    """10, 0 and -20 points: mean -10/3, standard deviation sqrt((40/3)^2 + (10/3)^2 + (50/3)^2)/sqrt(2)."""
    found = paired([0.9, 0.8, 0.7], [0.8, 0.8, 0.9])
    assert found.mean == pytest.approx(-10 / 3)
    assert found.error == pytest.approx(np.sqrt((1600 + 100 + 2500) / 9 / 2) / np.sqrt(3))
    assert (found.won, found.lost, found.seeds) == (1, 1, 3)
    assert found.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ((1.0, 2.0, 1.0, 2.0, 1.5), Verdict.BETTER),
        ((-1.0, -2.0, -1.0, -2.0, -1.5), Verdict.WORSE),
        ((1.0, 4.0, -1.0, 2.0, 1.5), Verdict.UNDECIDED),  # t = 1.83, below 2.776
        ((0.0, 0.0, 0.0, 0.0, 0.0), Verdict.UNDECIDED),
    ],
)
def test_verdict_follows_a_paired_t_test(points: Sequence[float], verdict: Verdict) -> None:
    assert paired([0.5 + each / 100 for each in points], [0.5] * 5).verdict is verdict


# the plan


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_every_method_has_the_same_budget_for_its_rate(suite: Suite) -> None:
    """Grid, number of trials and seeds, controls included; and no seed of the comparison is among them."""
    by_arm: dict[str, list[Any]] = {}
    for trial in suite.tuning(ARMS):
        by_arm.setdefault(trial.arm, []).append((trial.setting, trial.seed, trial.learning_rate, trial.job))
        assert trial.tested is Split.VALIDATION
    assert set(by_arm) == {one.name for one in ARMS}
    assert all(trials == by_arm[BASELINE] for trials in by_arm.values())
    assert not set(suite.tuning_seeds) & set(suite.seeds)


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_every_arm_is_a_job_of_the_product(suite: Suite) -> None:
    firsts = {trial.setting + trial.arm: trial for trial in suite.tuning(ARMS)}
    assert all(trial.spec().learning_rate_at(1) == trial.learning_rate for trial in firsts.values())


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.control)
def test_sums_named_for_a_control_are_those_that_it_does_not_make(control: Control) -> None:
    """The page says which statistics are summed for one part alone, so the code has to do the same."""
    method, without = (quantities(name) for name in (control.method, control.control))
    assert set(re.findall(r"`(\w+)`", control.sums)) == method - without
    assert without <= method


def quantities(name: str) -> set[str]:
    setting = SMALL.settings[0]
    trial = SMALL.comparison((arm(name),), {(each.name, name): 0.1 for each in SMALL.settings})[0]
    assert trial.setting == setting.name
    return set(trial.spec().quantity_names)


# tuning and the test samples


def test_silos_of_a_tuning_trial_hold_no_test_sample(tmp_path: Path) -> None:
    data = numbers(tmp_path / "numbers.npz")
    silos = silos_of(tuning_trial(), data).values()
    trained, tested = numbers_in(silo.train for silo in silos), numbers_in(silo.holdout for silo in silos)
    assert len(tested) == 24  # a fifth
    assert sorted(trained + tested) == list(range(120))
    final = silos_of(final_trial(), data).values()
    assert numbers_in(silo.holdout for silo in final) == list(range(120, 150))
    assert numbers_in(silo.train for silo in final) == list(range(120))


def test_other_test_samples_tune_alike_and_test_otherwise(tmp_path: Path) -> None:
    """A tuning that saw one test sample anywhere would come out otherwise with others in their place."""
    one, other = numbers(tmp_path / "one.npz"), numbers(tmp_path / "other.npz", test_shift=1)
    assert run(tuning_trial(), one).final > 0.5
    assert run(tuning_trial(), one).accuracy == run(tuning_trial(), other).accuracy
    assert run(final_trial(), one).accuracy != run(final_trial(), other).accuracy


def test_a_rate_is_never_chosen_by_test_samples() -> None:
    with pytest.raises(ValueError, match="fedavg: a rate is chosen on validation samples"):
        chosen([final_trial()], lambda trial: Outcome(accuracy=(0.5,), seconds=0.0))


def test_the_best_mean_is_chosen_and_a_tie_goes_to_the_smaller_rate() -> None:
    trials = TINY.tuning(PAIR)
    scores = {("fedavg", 0.1): 0.7, ("fedavg", 1.0): 0.7, ("fedprox", 0.1): 0.6, ("fedprox", 1.0): 0.8}
    found = chosen(trials, lambda trial: ended(scores[trial.arm, trial.learning_rate]))
    assert [(choice.arm, choice.rate, choice.is_at_the_edge) for choice in found] == [
        ("fedavg", 0.1, True),
        ("fedprox", 1.0, True),
    ]
    assert found[1].validation == {0.1: 0.6, 1.0: 0.8}


def ended(accuracy: float) -> Outcome:
    return Outcome(accuracy=(accuracy,), seconds=1.0)


# runs


def test_both_ways_of_leaving_out_the_distillation_agree_to_the_last_bit(tmp_path: Path) -> None:
    data = numbers(tmp_path / "numbers.npz")
    found = [
        run(replace(final_trial(), strategy=arm(name).strategy), data).accuracy
        for name in ("feddr_plus_beta_1", "feddr_plus_no_fd", "feddr_plus")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_training_that_fails_is_an_outcome_and_counts_as_nothing_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Simulation) -> None:
        raise QuantizationError("silo-1: delta is not finite")

    monkeypatch.setattr(Simulation, "run", fails)
    outcome = run(final_trial(), numbers(tmp_path / "numbers.npz"))
    assert (outcome.failed, outcome.accuracy, outcome.final) == ("silo-1: delta is not finite", (), 0.0)


def test_data_that_are_not_there_are_no_outcome(tmp_path: Path) -> None:
    """A line in the book would keep the next call from trying again."""
    with pytest.raises(ConfigError, match="no such file or folder"):
        run(final_trial(), tmp_path / "numbers.npz")


def test_settings_without_data_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    paper = SUITES["paper"].with_data_in(tmp_path)
    assert {setting.folder for setting in paper.settings} == {"cifar10"}
    assert set(paper.names) < set(SUITES["paper"].names)


# a killed suite


def workers(book: Book, runs: Callable[[Trial, Path | None], Outcome], most: int | None = None) -> Workers:
    return Workers(
        book, processes=1, device="cpu", path=lambda _: None, say=lambda _: None, most=most, runs=runs
    )


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.test_bench_accuracy import PAIR, TINY, ended, workers
from research.accuracy.book import Book

def runs(trial, path):
    if trial.arm == "fedprox" and trial.learning_rate == 1.0:
        os.kill(os.getpid(), signal.SIGKILL)
    return ended(trial.learning_rate)

workers(Book(Path(sys.argv[1])), runs).finish(TINY.tuning(PAIR))
"""


def test_killed_suite_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    path, trials, trained = tmp_path / "tiny.jsonl", TINY.tuning(PAIR), []
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -9
    with path.open("ab") as file:
        file.write(path.read_bytes()[:40])  # what a kill in the middle of a line leaves

    def again(trial: Trial, _: Path | None) -> Outcome:
        trained.append((trial.arm, trial.learning_rate))
        return ended(trial.learning_rate)

    with Book(path) as book:
        assert len(book) == 3
        workers(book, again).finish(trials)
        assert trained == [("fedprox", 1.0)]
    with Book(path) as book:
        assert book.missing(trials) == []
        assert [book.outcome(trial).final for trial in trials] == [0.1, 1.0, 0.1, 1.0]


def test_a_run_with_one_other_setting_is_another_run(tmp_path: Path) -> None:
    trial = final_trial()
    changes: list[dict[str, Any]] = [
        {"seed": 9},
        {"learning_rate": 0.2},
        {"tested": Split.VALIDATION},
        {"partition": {"kind": "iid", "min_samples": 3}},
        {"job": {**trial.job, "rounds": 3}},
        {"strategy": {"preset": "fedavg", "options": {"mu": 1}}},
    ]
    with Book(tmp_path / "book.jsonl") as book:
        book.write(trial, ended(0.5))
        assert book.missing([trial, *(replace(trial, **change) for change in changes)]) == [
            replace(trial, **change) for change in changes
        ]


def test_no_more_runs_than_asked_for(tmp_path: Path) -> None:
    with Book(tmp_path / "book.jsonl") as book:
        with pytest.raises(OutOfRuns, match="1 runs are left"):
            workers(book, lambda trial, _: ended(0.5), most=3).finish(TINY.tuning(PAIR))
        assert len(book) == 3


def test_suite_that_needs_data_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        command.main(["--suite", "fashion"])
    assert ended_with.value.code == 2
    assert "--data: the suite fashion needs the folder of its data set" in capsys.readouterr().err


def test_folder_without_the_suites_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--suite", "fashion", "--data", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "accuracy: error: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--suite", "paper", "--data", str(tmp_path)])
    assert "holds no data of the suite paper" in capsys.readouterr().err


# words and pictures


def cell(name: str, accuracy: Sequence[float], *, setting: str = "even", rate: float = 0.1) -> Cell:
    tuned = ((0.03, 0.5), (0.1, 0.6), (0.3, 0.5))
    by_round = tuple(round(share * accuracy[0], 4) for share in (0.5, 1.0))
    return Cell(
        setting=setting, arm=name, rate=rate, tuned=tuned, accuracy=tuple(accuracy), by_round=by_round
    )


def report(*cells: Cell) -> Report:
    return Report(
        suite="small",
        about="numbers",
        seeds=(1, 2, 3, 4, 5),
        tuning_seeds=(101,),
        runs=len(cells),
        trained_seconds=600.0,
        workers=2,
        rows_by_default=(("even", 2.0, 3),),
        cells=cells,
    )


BASE = (0.80, 0.82, 0.84, 0.86, 0.88)
HIGHER = tuple(value + gain for value, gain in zip(BASE, (0.02, 0.03, 0.02, 0.03, 0.025), strict=True))


UNPROVED = ("does not beat", "costs nothing", "need not leave", "pays")  # no test here shows equality


def test_sentence_calls_a_difference_that_is_not_significant_undecided() -> None:
    (said,) = words.verdicts(report(cell(BASELINE, BASE), cell("feddw", BASE), cell("feddw_identity", BASE)))
    assert said == (
        "**FedDW against FedDW towards the identity**, which leaves out soft labels (the identity in their "
        "place): undecided on every cut (even: +0.0 +- 0.0, 0/5). For that part alone silos sum "
        "`soft_labels` (C x C), `class_counts` (C) and `class_presence` (C)."
    )


def test_sentence_says_where_a_method_is_behind_its_control() -> None:
    (said,) = words.verdicts(
        report(cell(BASELINE, BASE), cell("feddw", BASE), cell("feddw_identity", HIGHER))
    )
    assert "worse on even (even: -2.5 +- 0.2, 0/5). For that part" in said


def test_sentence_says_where_a_method_is_ahead_of_its_control() -> None:
    both = [cell("feddw", HIGHER), cell("feddw_identity", BASE)]
    (said,) = words.verdicts(report(cell(BASELINE, BASE), *both))
    assert "place): better on even (even: +2.5 +- 0.2, 5/5). For that part" in said
    odd = [
        replace(one, setting="odd")
        for one in (cell(BASELINE, BASE), cell("feddw", BASE), cell("feddw_identity", BASE))
    ]
    (said,) = words.verdicts(report(cell(BASELINE, BASE), *both, *odd))
    assert "place): better on even, undecided on odd (even: +2.5" in said


@pytest.mark.parametrize("accuracy", [BASE, HIGHER], ids=["equal", "ahead"])
def test_sentences_claim_nothing_that_the_seeds_do_not_show(accuracy: Sequence[float]) -> None:
    found = report(cell(BASELINE, BASE), cell("feddw", accuracy), cell("feddw_identity", BASE))
    said = " ".join([*words.verdicts(found), *words.against_baseline(found)])
    assert [claim for claim in UNPROVED if claim in said] == []


def test_sentence_says_where_a_method_stands_against_fedavg() -> None:
    found = report(cell(BASELINE, BASE), cell("fedprox", HIGHER), cell("moon", BASE))
    assert words.against_baseline(found) == [
        "FedProx against FedAvg: better on even (even: +2.5 +- 0.2, 5/5).",
        "MOON against FedAvg: undecided on every cut (even: +0.0 +- 0.0, 0/5).",
    ]


def test_table_shows_mean_deviation_difference_and_seeds_won() -> None:
    table = words.accuracy_table(report(cell(BASELINE, BASE), cell("fedprox", HIGHER)))
    assert "| FedAvg | 84.0 +- 3.2 |" in table
    assert "| FedProx | 86.5 +- 3.4; +2.5 +- 0.2, 5/5 |" in table


def test_chosen_rate_at_an_end_of_the_grid_is_marked() -> None:
    edge = Cell(
        setting="even",
        arm=BASELINE,
        rate=0.03,
        tuned=((0.03, 0.7), (0.1, 0.6)),
        accuracy=BASE,
        by_round=(0.5,),
    )
    assert "| FedAvg | 0.03* (70.0) |" in words.rate_table(report(edge))
    assert "| FedAvg | 0.1 (60.0) |" in words.rate_table(report(cell(BASELINE, BASE)))


def test_report_comes_back_from_json_as_it_was() -> None:
    before = report(cell(BASELINE, BASE), cell("fedprox", HIGHER))
    assert Report.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_report_has_a_cell_for_every_method_and_counts_failures() -> None:
    tuning = TINY.tuning(PAIR)
    choices = chosen(tuning, lambda trial: ended(trial.learning_rate / 2))
    comparison = TINY.comparison(PAIR, {(one.setting, one.arm): one.rate for one in choices})
    failing = comparison[0]
    found = report_of(
        TINY,
        choices,
        tuning,
        comparison,
        lambda trial: (
            Outcome(accuracy=(), seconds=1.0, failed="diverged") if trial == failing else ended(0.5)
        ),
        workers=1,
        rows_by_default={"even": 3.0},
    )
    assert [(one.arm, one.rate, one.accuracy, one.failed) for one in found.cells] == [
        ("fedavg", 1.0, (0.0, 0.5), 1),
        ("fedprox", 1.0, (0.5, 0.5), 0),
    ]
    assert (found.runs, found.trained_seconds) == (8, 8.0)


def test_update_writes_figures_page_and_pictures_that_belong_together(tmp_path: Path) -> None:
    for folder in ("docs", "research"):
        (tmp_path / folder).mkdir()
    page = tmp_path / evidence.PAGE
    page.write_text("before\n<!-- bench:accuracy-small -->\n<!-- /bench:accuracy-small -->\nafter\n")
    found = report(cell(BASELINE, BASE), cell("feddw", BASE), cell("feddw_identity", HIGHER))
    evidence.update(found, root=tmp_path)
    entry = evidence.read(tmp_path)["small"]
    assert evidence.page_text(entry) in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "docs").glob("*.svg")}
    assert set(pictures) == {"evidence-rounds.svg", "evidence-differences.svg"}
    draw(found, folder=tmp_path, prefix="evidence")
    assert {name: (tmp_path / name).read_bytes() for name in pictures} == pictures
