"""research/accuracy: its plan, its tuning, its runs, and what it does when it is killed."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError, QuantizationError
from research.accuracy import __main__ as command
from research.accuracy import source
from research.accuracy.arms import ARMS, CONTRASTS, Arm
from research.accuracy.book import Book
from research.accuracy.catalog import SUITES
from research.accuracy.federated import run, silos_of
from research.accuracy.jpegs import decoded
from research.accuracy.page import evidence
from research.accuracy.report import report_of
from research.accuracy.suites import Setting, Suite
from research.accuracy.trials import Outcome, Split, Trial
from research.accuracy.tuning import chosen
from research.accuracy.work import OutOfRuns, Workers
from silo_agent.training.data.base import Samples
from simulation.engine import Simulation
from tests.support.shared_data import shared_folder

TINY = Suite(
    name="tiny",
    about="numbers",
    arms=("fedavg", "fedprox"),
    seeds=(1, 2),
    tuning_seeds=(101,),
    settings=(
        Setting(
            name="even",
            silos=3,
            data={"format": "npz", "name": "numbers"},
            partition={"kind": "iid"},
            rates=(0.1, 1.0),
            unit_rates=(0.1, 1.0),
            tests=30,
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


def tuning_trial() -> Trial:
    return TINY.tuning()[0]


def final_trial() -> Trial:
    return TINY.tuned({("even", "fedavg"): (0.1, None)})[0]


# the plan


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_every_method_has_the_budget_of_its_control(suite: Suite) -> None:
    """Rates, strengths and seeds of tuning and of common rates; no seed of the comparison tunes."""
    by_arm: dict[str, list[Any]] = {}
    common = [trial for flag in (True, False) for trial in suite.at_common_rates(is_published=flag)]
    for trial in (*suite.tuning(), *common):
        point = (trial.setting, trial.tested, trial.seed, trial.learning_rate, trial.strength)
        by_arm.setdefault(trial.arm, []).append(point)
    assert set(by_arm) == set(suite.arms)
    for one in CONTRASTS:
        if not {one.method, one.control} <= set(suite.arms):
            continue
        if ARMS[one.control].option:
            assert by_arm[one.method] == by_arm[one.control]
        else:
            assert [each[3] for each in by_arm[one.control]] == [
                each[3] for each in by_arm[one.method] if each[4] == ARMS[one.method].published
            ]
    assert not set(suite.tuning_seeds) & set(suite.seeds)


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_every_arm_is_a_job_of_the_product(suite: Suite) -> None:
    firsts = {(trial.setting, trial.arm, trial.strength): trial for trial in suite.tuning()}
    rates = {key: trial.spec().learning_rate_at(1) / trial.learning_rate for key, trial in firsts.items()}
    assert all(rate == 1 for (_, arm, _), rate in rates.items() if arm in own_rates(suite))
    assert {rates[key] / (key[2] or 1) for key in rates if ARMS[key[1]].scales_rate} <= {1}


def own_rates(suite: Suite) -> list[str]:
    """Arms that train at the rate of the grid."""
    return [name for name in suite.arms if ARMS[name].is_trained and not ARMS[name].scales_rate]


def test_the_first_step_of_feddr_plus_is_that_of_its_control(tmp_path: Path) -> None:
    """Its distance is zero there; at the method's own rate the control would step wider."""
    data = numbers(tmp_path / "numbers.npz")
    suite = replace(TINY, arms=("feddr_plus", "feddr_plus_no_fd", "fedavg"), common=(0.3,))
    method, control, _ = suite.at_common_rates(is_published=True)[:3]

    def after_one_step(trial: Trial) -> np.ndarray:
        training = {**trial.job["training"], "local_steps": 1, "local_epochs": None}
        trial = replace(trial, job={**trial.job, "rounds": 1, "training": training})
        simulation = Simulation(trial.spec(), silos_of(trial, data), device="cpu")
        list(simulation.run())
        return np.concatenate([np.ravel(simulation.state[name]) for name in sorted(simulation.state)])

    np.testing.assert_allclose(after_one_step(control), after_one_step(method), rtol=0, atol=1e-6)
    unscaled = {key: value for key, value in control.job["training"].items() if key != "learning_rate"}
    wide = after_one_step(replace(control, job={**control.job, "training": unscaled}))
    assert np.abs(wide - after_one_step(method)).max() > 1e-4


def test_the_first_model_is_calibrated_and_not_trained(tmp_path: Path) -> None:
    data = numbers(tmp_path / "numbers.npz")
    suite = replace(TINY, arms=("spherefed_untrained",), common=(0.3, 1.0))
    low, high = (trial for trial in suite.at_common_rates(is_published=True) if trial.seed == 1)
    simulation = Simulation(low.spec(), silos_of(low, data), device="cpu")
    first = dict(simulation.state)
    list(simulation.run())
    body = [name for name in first if name.startswith("model/body")]
    assert body
    assert all(np.abs(simulation.state[name] - first[name]).max() < 1e-6 for name in body)
    assert run(low, data).accuracy == run(high, data).accuracy


@pytest.mark.parametrize(
    "arm", [one for one in ARMS.values() if one.option and not one.scales_rate], ids=lambda arm: arm.name
)
def test_a_strength_is_in_the_job_and_the_published_one_is_the_presets_own(arm: Arm) -> None:
    for strength in arm.grid:
        assert strength is not None
        assert job_of(arm, strength).strategy.options[arm.option] == strength
    if "preset" in arm.strategy:
        own = JobSpec.model_validate({**job_of(arm, arm.published).model_dump(), "strategy": arm.strategy})
        assert weights_of(own) == weights_of(job_of(arm, arm.published))


def weights_of(job: JobSpec) -> tuple[float, float]:
    """Of loss and regularizer."""
    return job.method.recipe.mix.weights(job.method.options)


def test_sums_named_for_a_control_are_those_that_it_does_not_make() -> None:
    """The page says which statistics are summed for one part alone, so the code has to do the same."""
    page = (Path(__file__).parents[2] / evidence.PAGE).read_text()
    rows = page.partition("\n## Controls\n")[2].partition("\n## ")[0].split("\n|")[3:]
    said = [set(re.findall(r"`(\w+)`", row.split("|")[-2])) for row in rows]
    pairs = [
        [set(job_of(ARMS[name], ARMS[name].published).quantity_names) for name in (one.method, one.control)]
        for one in CONTRASTS
    ]
    assert said == [method - without for method, without in pairs]
    assert all(without <= method for method, without in pairs)


def job_of(arm: Arm, strength: float | None) -> JobSpec:
    trial = next(each for each in SUITES["digits"].tuning() if each.arm == arm.name)
    return replace(trial, strategy=arm.at(strength)).spec()


def test_every_seed_of_the_chest_suite_can_be_cut() -> None:
    """With two classes a small alpha leaves some of 20 silos without samples, whatever is drawn."""
    folder, suite = shared_folder("pneumoniamnist_balanced").parent, SUITES["chest"]
    cuts = {(trial.setting, trial.seed): trial for trial in suite.tuning()}
    cuts |= {
        (trial.setting, seed): replace(trial, seed=seed) for trial in cuts.values() for seed in suite.seeds
    }
    for trial in cuts.values():
        silos = silos_of(replace(trial, tested=Split.TEST), suite.path(trial, folder)).values()
        assert sum(len(silo.holdout) for silo in silos) == suite.setting(trial.setting).tests


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
        chosen([final_trial()], lambda trial: Outcome(accuracy=0.5, seconds=0.0))


def test_the_best_mean_is_chosen_and_a_tie_goes_to_the_smaller_rate() -> None:
    trials = TINY.tuning()
    scores = {("fedavg", 0.1): 0.7, ("fedavg", 1.0): 0.7, ("fedprox", 0.1): 0.6, ("fedprox", 1.0): 0.8}
    found = chosen(trials, lambda trial: ended(scores[trial.arm, trial.learning_rate]))
    assert [(choice.arm, choice.point, choice.is_at_an_end) for choice in found] == [
        ("fedavg", (0.1, None), True),
        ("fedprox", (1.0, None), True),
    ]
    assert found[1].validation == {(0.1, None): 0.6, (1.0, None): 0.8}


def test_strength_and_rate_are_chosen_together_and_common_rates_try_each_strength() -> None:
    suite = replace(TINY, arms=("feddr_plus", "fedprox"), common=(0.3,), tunes_strength=True)
    (choice, control) = chosen(
        suite.tuning(),
        lambda trial: ended(0.6 if (trial.strength, trial.learning_rate) == (0.99, 0.1) else 0.5),
    )
    assert choice.point == (0.1, 0.99)
    assert control.point == (0.1, None)
    others = [(trial.arm, trial.strength) for trial in suite.at_common_rates(is_published=False)]
    assert others == [("feddr_plus", 0.99), ("feddr_plus", 0.999)] * 2
    published = [(trial.arm, trial.strength) for trial in suite.at_common_rates(is_published=True)]
    assert published == [("feddr_plus", 0.9), ("fedprox", None)] * 2


def ended(accuracy: float) -> Outcome:
    return Outcome(accuracy=accuracy, seconds=1.0)


# runs


def test_a_control_is_its_method_with_the_part_switched_off(tmp_path: Path) -> None:
    """With no weight on the distillation FedDr+ is its control to the last bit, and with some it is not."""
    data = numbers(tmp_path / "numbers.npz")
    found = [
        run(replace(final_trial(), strategy=strategy), data).accuracy
        for strategy in (
            ARMS["feddr_plus_no_fd"].at(None),
            ARMS["feddr_plus"].at(1.0),
            ARMS["feddr_plus"].at(0.05),
        )
    ]
    assert found[0] == found[1] != found[2]


def test_jpegs_become_the_arrays_that_they_hold(tmp_path: Path) -> None:
    images = np.full((3, 8, 8, 3), 1, np.uint8) * np.array([0, 120, 240], np.uint8)[:, None, None, None]
    for split in ("train", "test"):
        files = [io.BytesIO() for _ in images]
        for file, image in zip(files, images, strict=True):
            Image.fromarray(image).save(file, "JPEG")
        raw = [file.getvalue() for file in files]
        np.savez(
            tmp_path / f"{split}.npz",
            jpeg=np.frombuffer(b"".join(raw), np.uint8),
            offsets=np.cumsum([0, *map(len, raw)]),
            labels=np.arange(3),
        )
    with np.load(decoded(tmp_path, tmp_path)) as found:
        assert np.abs(found["x_test"].astype(int) - images).max() <= 2
        assert found["y_train"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="expected arrays jpeg, offsets and labels"):
        decoded(tmp_path / "nowhere", tmp_path)


def test_training_that_fails_is_an_outcome_and_counts_as_nothing_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Simulation) -> None:
        raise QuantizationError("silo-1: delta is not finite")

    monkeypatch.setattr(Simulation, "run", fails)
    outcome = run(final_trial(), numbers(tmp_path / "numbers.npz"))
    assert (outcome.failed, outcome.accuracy, outcome.final) == ("silo-1: delta is not finite", None, 0.0)


def test_data_that_are_not_there_are_no_outcome(tmp_path: Path) -> None:
    """A line in the book would keep the next call from trying again."""
    with pytest.raises(ConfigError, match="no such file or folder"):
        run(final_trial(), tmp_path / "numbers.npz")


def test_settings_without_data_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    even = replace(TINY.settings[0], place="there")
    both = replace(TINY, settings=(even, replace(even, name="odd", place="not there")))
    assert both.with_data_in(tmp_path).names == ("even",)


# a killed suite


def workers(book: Book, runs: Callable[[Trial, Path | None], Outcome], most: int | None = None) -> Workers:
    return Workers(
        book, processes=1, device="cpu", path=lambda _: None, say=lambda _: None, most=most, runs=runs
    )


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.test_bench_accuracy import TINY, ended, workers
from research.accuracy.book import Book

def runs(trial, path):
    if trial.arm == "fedprox" and trial.learning_rate == 1.0:
        os.kill(os.getpid(), signal.SIGKILL)
    return ended(trial.learning_rate)

workers(Book(Path(sys.argv[1])), runs).finish(TINY.tuning())
"""


def test_killed_suite_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    path, trials, trained = tmp_path / "tiny.jsonl", TINY.tuning(), []
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


def test_a_book_goes_on_from_what_another_packed(tmp_path: Path) -> None:
    """Its own lines win, and stand once in the file."""
    first, *others = TINY.tuning()
    with Book(tmp_path / "there.jsonl") as there:
        for trial in (first, *others):
            there.write(trial, ended(0.5))
        packed = there.packed()
    with Book(tmp_path / "here.jsonl") as here:
        here.write(first, ended(0.25))
        assert here.take(packed) == len(others)
        assert here.take(packed) == 0
    with Book(tmp_path / "here.jsonl") as here:
        assert [here.outcome(trial).final for trial in TINY.tuning()] == [0.25, *(0.5 for _ in others)]
        assert len((tmp_path / "here.jsonl").read_bytes().splitlines()) == len(others) + 1


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
            workers(book, lambda trial, _: ended(0.5), most=3).finish(TINY.tuning())
        assert len(book) == 3


def test_suite_that_needs_data_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended_with:
        command.main(["--suite", "fashion"])
    assert ended_with.value.code == 2
    assert "--data: the suite fashion needs the folder of its data set" in capsys.readouterr().err


def test_no_runs_are_committed_of_a_suite_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    with pytest.raises(SystemExit):
        command.main(["--suite", "digits", "--committed"])
    assert "digits.runs.jsonl.xz is not there: no run is committed yet" in capsys.readouterr().err


def test_folder_without_the_suites_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fashion_mnist").mkdir()
    assert command.main(["--suite", "fashion", "--data", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "accuracy: error: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--suite", "cifar", "--data", str(tmp_path)])
    assert "holds no data of the suite cifar" in capsys.readouterr().err


def test_training_needs_no_pictures() -> None:
    without = "import sys; sys.modules.update(matplotlib=None, PIL=None); import research.accuracy.__main__"
    subprocess.run([sys.executable, "-c", without], check=True)


def test_a_page_without_what_draws_it_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("matplotlib", "research.accuracy.page.plots"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with Book(tmp_path / "tiny.jsonl") as book:
        report = report_of(TINY, book, rows_by_default={"even": 3.0})
        with pytest.raises(ConfigError, match="need matplotlib: `make setup` installs it"):
            evidence.update(report, root=tmp_path)


def test_arithmetic_is_that_of_the_runs_whatever_else_is_imported() -> None:
    alone = "from research.accuracy.source import arithmetic; print(arithmetic())"
    bare = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    done = subprocess.run([sys.executable, "-c", alone], check=True, capture_output=True, text=True, env=bare)
    assert done.stdout.strip() == source.arithmetic()


def test_a_line_names_commit_and_arithmetic(tmp_path: Path) -> None:
    """Figures of a commit with other first weights once stood on the page as if they could be repeated."""
    with Book(tmp_path / "book.jsonl") as book:
        workers(book, lambda trial, _: ended(0.5)).finish(TINY.tuning()[:1])
    with Book(tmp_path / "book.jsonl") as book:
        found = book.outcome(TINY.tuning()[0]).source
    assert found == f"{source.commit()} / {source.arithmetic()}"
    assert re.fullmatch(r"[0-9a-f]{8,} / [0-9a-f]{8}|unknown / [0-9a-f]{8}", found)
