"""research/papers: every job of the catalog as an operator would submit it, and those that have none."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from chorale.spec.job_spec import JobSpec
from cli.given_data import DataOptions, data_options
from cli.simulate.command import simulate
from client.planning import Plan, plan_of
from client.submission import prepared
from crypto.errors import ConfigError
from research.accuracy import __main__ as accuracy
from research.accuracy.book import Book
from research.accuracy.federated import silos_of
from research.accuracy.trials import Outcome, Trial
from research.accuracy.work import OutOfRuns, Workers
from research.papers import __main__ as command
from research.papers import spherefed, words
from research.papers.catalog import TABLES, cells, kinds, summary
from research.papers.cells import Cell, Printed
from research.papers.coverage import STATUSES, Thing, things
from research.papers.feddr import CIFAR100
from research.papers.methods import preset, with_parts
from research.papers.rehearsal import made_up, small
from research.papers.simulated import job_file
from research.papers.suite import Options, distinct, ours, rehearse, rehearsed
from silo_agent.training.data.settings import DataSettings
from strategies.declared_parts import PARTS
from strategies.parts.regularizers import SECOND_WEIGHT
from strategies.presets import PRESETS

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OF_CUT = {
    "iid": [],
    "shards": ["shards_per_silo"],
    "dirichlet": ["alpha", "balance", "min_samples", "whole_test"],
}


def planned(spec: JobSpec) -> Plan:
    """As `job submit` and `job plan` take a job: digests, first state, phases and sums."""
    return plan_of(prepared(spec, source="job.yaml", federation=None, now=NOW))


def table_cells(name: str) -> dict[tuple[str, str], Cell]:
    table = next(each for each in TABLES if each.name == name)
    return {(cell.row, cell.column): cell for cell in table.cells}


# the catalog


def test_every_number_has_a_job_that_reads_as_it_was_written() -> None:
    """Of all of them the fields; of some the file: YAML takes long to read."""
    specs = [trial.spec() for trial in distinct(cell.trial(0) for cell in cells())]
    assert len(specs) > 700
    for spec in specs:
        assert JobSpec.model_validate(spec.model_dump(mode="json", exclude_none=True)) == spec
    for spec in specs[::100]:
        assert JobSpec.from_yaml(spec.to_yaml(), source="job.yaml") == spec


def test_tables_without_all_their_numbers_say_what_is_missing() -> None:
    for table in TABLES:
        assert table.has_results == bool(table.cells or table.missing), table.name
        places = [(cell.row, cell.column) for cell in table.cells]
        assert len(set(places)) == len(places), table.name
    facts = summary()
    assert facts["expressible"] == sum(each["is_expressible"] for each in facts["tables"])
    assert all(each["name"] and each["reason"] for each in facts["missing"])


def test_numbers_that_two_papers_print_are_the_same_and_have_the_same_jobs() -> None:
    """A slip of a row or column in one of both texts, or a job that differs, is seen here."""
    conference, journal = (
        table_cells(f"FedDr+ ({paper}), Table {number}")
        for paper, number in (("conference", 2), ("journal", 3))
    )
    for place, cell in conference.items():
        assert journal[place].printed == cell.printed
        assert journal[place].trial(1).key == cell.trial(1).key
    fixed, best = (table_cells(f"FedDr+ (journal), {name}") for name in ("Table 13", "Tables 2 and 11"))
    for row, column in fixed:
        if column.endswith(", none"):
            assert fixed[row, column] == best[row, column]


def test_jobs_hold_the_papers_settings() -> None:
    """By hand from the papers' tables of settings, one of each."""
    found = table_cells("FedDr+ (journal), Table 3")["FedDr+", "C100 s=10"].spec()
    assert (found.rounds, found.named_per_round, found.training.local_epochs) == (320, 10, 3)
    assert [found.learning_rate_at(each) for each in (160, 161, 241)] == pytest.approx([5.0, 0.5, 0.05])
    found = table_cells("SphereFed, Table 2")["FedProx + SphereFed", "TinyImageNet"].spec()
    assert (found.strategy.options["mu"], found.training.learning_rate) == (0.001, 0.5)
    found = table_cells("FedCSD, Table II")["FedCSD", "average of the four"].spec()
    assert {name: found.strategy.options[name] for name in ("mu", "tau", "alpha")} == {
        "mu": 0.5,
        "tau": 4.0,
        "alpha": 0.9,
    }
    found = table_cells("FedDW, Table I")["FedDW", "pathological CIFAR-100"].spec()
    assert (found.strategy.options["mu"], found.named_per_round, found.training.optimizer) == (
        10.0,
        5,
        "adam",
    )
    found = table_cells("FedDW, Table I")["FedRep", "practical CIFAR-10"].spec()
    assert (found.strategy.options["head_epochs"], found.training.local_epochs) == (1, 4)
    moon = table_cells("FedDW, Table I")["MOON", "practical CIFAR-100"].spec()
    assert moon.strategy.options["mu"] == 5.0
    both = table_cells("FedDW, Table IV")["MOON + DW", "pathological CIFAR-100"].spec()
    assert (both.method.weights, both.method.recipe.head.has_bias) == ((1.0, 5.0, 10.0), False)
    assert [str(each) for each in both.method.recipe.regularizers] == ["moon", "soft-labels"]
    assert [each.kind for each in moon.augment or ()] == ["random-crop", "horizontal-flip", "random-rotation"]
    found = table_cells("SphereFed, Table 2")["FedAvg", "IID"].spec()
    assert str(found.method.recipe.head) == "trained-unbiased"


def test_what_silos_have_of_their_own_is_judged_by_the_mean_over_silos() -> None:
    own, shared = (
        table_cells("FedDW, Table I")[row, "practical CIFAR-10"].trial(1).figure
        for row in ("FedPer", "FedDW")
    )
    assert (own, shared) == ("personal_accuracy", "accuracy")
    cells = [cell for name in ("Table I", "Table II") for cell in table_cells(f"FedDW, {name}").values()]
    of_silos = {cell.row for cell in cells if cell.trial(1).cut.whole_test}
    assert of_silos == {"FedRep", "FedProto", "FedALA", "FedPer", "Local"}


# thing by thing


def is_there(thing: Thing, place: str) -> bool:
    """A table of the paper, a word of a job, or a file with a text in it."""
    kind, _, word = place.partition(" ")
    path, _, text = place.partition(":")
    if kind in ("Table", "Tables", "Figure", "Figures"):
        return any(table.paper.startswith(thing.paper) and table.number == place for table in TABLES)
    if kind == "preset":
        return word in PRESETS
    if kind == "option":
        declared = [SECOND_WEIGHT, *(part for parts in PARTS.values() for part in parts)]
        options = [part.options.model_fields for part in declared]
        return any(word in fields for fields in options)
    if kind in PARTS:
        return word in [part.word for part in PARTS[kind]]
    return (ROOT / path).is_file() and text in (ROOT / path).read_text()


def test_everything_readers_look_for_is_where_the_table_says() -> None:
    found = things()
    assert len({(each.paper, each.item) for each in found}) == len(found) == 148
    assert [
        f"{each.item}: {place}" for each in found for place in each.places if not is_there(each, place)
    ] == []
    assert {each.status for each in found} == set(STATUSES)
    assert [each.item for each in found if not (each.places if each.status == "holds" else each.why)] == []


def test_page_has_a_row_for_each_thing_that_readers_look_for() -> None:
    lines = words.page_text().partition("## Thing by thing")[2].splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    papers = {each.paper for each in things()}
    assert len(rows) == 148 + 2 * len(papers)
    assert all(line.count(" | ") == 3 for line in rows)


# what has no job


def test_rows_marked_refused_are_refused() -> None:
    at = spherefed.federation(spherefed.FEDAVG, "a=0.5")
    job = Cell(row="", column="", federation=at, method=with_parts("fedavg", 0.1, closing="ccvr"))
    with pytest.raises(ConfigError, match="more than the 6.9e\\+10 allowed"):
        planned(job.spec())
    sphere = with_parts("spherefed_fedopt", 0.5, closing="ccvr")
    with pytest.raises(ValueError, match="ccvr trains the last linear layer alone, by cross-entropy"):
        replace(job, method=sphere).spec()
    [thousand] = [
        cell
        for place, cell in table_cells("FedDr+ (journal), Table 17").items()
        if place == ("FedAvg", "N=1000")
    ]
    assert thousand.is_simulated_alone
    with pytest.raises(ConfigError, match="200"):
        planned(thousand.spec())


def test_plan_of_a_calibrated_head_is_known_before_enrollment() -> None:
    """`job plan` once failed for each SphereFed job: no total of samples is in a first state."""
    at = spherefed.federation(spherefed.FEDAVG, "IID", data=CIFAR100)
    spec = Cell(row="", column="", federation=at, method=preset("spherefed", 0.5)).spec()
    [calibrate] = [phase for phase in planned(spec).phases if phase.kind == "calibrate"]
    assert calibrate.quantities == {"gram": 1280 * 1281 // 2, "moment": 1280 * 100}


# the page and the command


def test_command_prints_the_catalog_and_a_job(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert command.main(["--json"]) == 0
    facts = json.loads(capsysbinary.readouterr().out)
    assert set(facts) == {"tables", "expressible", "missing"}
    assert set(facts["missing"][0]) == {"name", "reason"}
    asked = ["--table", "FedCSD, Table III", "--row", "FedCSD", "--column", "a=0.5"]
    assert command.main(asked) == 0
    job = capsysbinary.readouterr().out
    spec = JobSpec.from_yaml(job, source="job.yaml")
    assert (spec.model.name, spec.strategy.name) == ("resnet50", "fedcsd")
    line = job.decode().splitlines()[1].removeprefix("# ")
    assert f"\n{line}\n" in (ROOT / "docs" / "papers.md").read_text()


def test_command_of_a_printed_job_trains_it_on_the_cut_of_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job was printed without its data and its cut, so nobody could run it. Of each federation one."""
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[DataOptions, bool]] = []
    monkeypatch.setattr(simulate, "callback", data_options(remembered(asked)))
    of_federation = {repr(cell.federation): cell for cell in cells()}
    for cell in of_federation.values():
        comments = [line[2:] for line in job_file(cell).decode().splitlines() if line.startswith("# ")]
        for line in comments[2:]:
            name, _, values = line.partition(" is one line: ")
            Path(name).write_text(values)
        simulate.main(shlex.split(comments[1])[2:], standalone_mode=False)
        (options, sends_all_rows), trial = asked.pop(), cell.trial(0)
        assert sends_all_rows == ("class-presence" in trial.spec().method.opening)
        if trial.partition:
            first = next(iter(options.settings_of(trial.spec()).values()))
            whole = DataSettings.model_validate(first["data"])
            assert whole.partition is not None
            used = {"kind", "silos", "seed", *OF_CUT[trial.cut.kind]}
            assert whole.partition.model_dump(include=used) == trial.cut.model_dump(include=used)
            assert whole.holdout == DataSettings.model_validate({**trial.data, "path": "x"}).holdout
        else:
            assert options.names((), None) == list(cell.federation.data.of_silos)


def remembered(asked: list[tuple[DataOptions, bool]]) -> Callable[..., None]:
    """In place of a simulation."""

    def remember(file: Path, *, data_options: DataOptions, sends_all_rows: bool, **rest: object) -> None:
        data_options.check_used()
        asked.append((data_options, sends_all_rows))

    return remember


def test_command_is_named_as_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "usage: python -m research.papers " in capsys.readouterr().out


def test_command_ends_without_a_traceback_where_its_reader_does() -> None:
    """`--json | head` ended in one."""
    with subprocess.Popen(
        [sys.executable, "-m", "research.papers", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.read(10) == b'{"tables":'
        run.stdout.close()
        assert (run.stderr.read(), run.wait(60)) == (b"", 141)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["--table", "Table 9"], "--table: expected one of SphereFed, Table 1; "),
        (["--row", "Base"], "--row: expected with --table and --column"),
        (
            ["--table", "FedCSD, Table III", "--row", "M9", "--column", "a=0.5"],
            "--row: expected one of FedAvg; Base; M1: similarity and mask; M2: ",
        ),
        (
            ["--table", "FedCSD, Table III", "--row", "Base", "--column", "a=9"],
            "--column: of Base expected one of a=0.5; got a=9",
        ),
    ],
)
def test_command_names_what_there_is_not(
    asked: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(asked)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


# the suite


def test_the_papers_number_stands_beside_ours(tmp_path: Path) -> None:
    cell = table_cells("FedCSD, Table III")["Base", "a=0.5"]
    with Book(tmp_path / "paper.jsonl") as book:
        assert ours(cell, book) is None
        book.write(cell.trial(1), Outcome(accuracy=0.6, seconds=1.0))
        book.write(cell.trial(3), Outcome(accuracy=0.62, seconds=1.0))
        assert ours(cell, book) == Printed(mean=61.0, deviation=1.41)
        table = next(each for each in TABLES if each.name == "FedCSD, Table III")
        [line] = [each for each in words.compared(table, book).splitlines() if each.startswith("Base")]
    assert line.split() == ["Base", "a=0.5", "63.66", "61", "+-", "1.41"]


def test_silos_with_files_of_their_own_have_their_samples(tmp_path: Path) -> None:
    trial = small(table_cells("FedCSD, Table II")["FedAvg", "average of the four"])
    folder = tmp_path / "office-caltech-10"
    folder.mkdir()
    names = ("amazon", "caltech", "dslr", "webcam")
    trial = replace(trial, silos=4)
    for mark, name in enumerate(names):
        images = np.full((8, *trial.spec().input_shape), mark, np.float32)
        labels = np.arange(8) % 4
        arrays = {"x_train": images, "y_train": labels, "x_test": images[:4], "y_test": labels[:4]}
        np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
    found = silos_of(trial, folder)
    assert [float(data.train.features.mean()) for data in found.values()] == [0.0, 1.0, 2.0, 3.0]


def test_a_suite_that_stops_goes_on(tmp_path: Path) -> None:
    rows = table_cells("FedCSD, Table I")
    chosen = [rows[row, "FEMNIST a=0.5"] for row in ("FedAvg", "FedCSD")]
    said: list[str] = []
    options = Options(out=tmp_path, data=None, device="cpu", workers=1, most=1)
    with pytest.raises(OutOfRuns, match="1 runs are left"):
        rehearse(chosen, options, said.append)
    rehearse(chosen, options, said.append)
    rehearse(chosen, options, said.append)
    assert [line.split()[0] for line in said] == ["1/2", "2/2"]


def test_a_job_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(trial: Trial, silos: object, *, device: str) -> float:
        raise ConfigError("round 1 was used up: no-data")

    monkeypatch.setattr("research.papers.suite.trained", fails)
    chosen = [table_cells("FedCSD, Table I")["FedAvg", "FEMNIST a=0.5"]]
    options = Options(out=tmp_path, data=None, device="cpu", workers=1, most=None)
    with pytest.raises(ConfigError, match="1 of 1 jobs fail, the first: round 1 was used up: no-data"):
        rehearse(chosen, options, lambda _: None)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["--device", "cuda"], "--data: paper needs the folder"),
        (["--data", "."], "--data: paper needs the folder"),
        (["--update"], "the papers' page is made with the site"),
    ],
)
def test_suite_says_what_it_takes(
    asked: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        accuracy.main(["--suite", "paper", *asked])
    assert expected in capsys.readouterr().err


def gpu_seen(trial: Trial, _: Path | None) -> Outcome:
    return Outcome(accuracy=float(os.environ["CUDA_VISIBLE_DEVICES"]), seconds=0.0)


@pytest.mark.soak
def test_each_process_has_a_gpu_that_no_other_has(tmp_path: Path) -> None:
    """Two processes, each of which takes one number and keeps it."""
    trials = [table_cells("FedCSD, Table III")["Base", "a=0.5"].trial(seed) for seed in range(40)]
    with Book(tmp_path / "book.jsonl") as book:
        pool = Workers(
            book,
            processes=1,
            device="cuda",
            path=lambda _: None,
            say=lambda _: None,
            runs=gpu_seen,
            gpus=2,
        )
        pool.finish(trials)
        seen = {book.outcome(trial).accuracy for trial in trials}
    assert seen <= {0.0, 1.0}


@pytest.mark.gate
def test_jobs_of_small_networks_train_for_two_rounds() -> None:
    """The deep ones take seconds each: `make soak`."""
    chosen = [
        table_cells("FedCSD, Table I")["FedCSD", "FEMNIST a=0.5"],
        table_cells("FedDW, Table I")["FedDW", "practical MNIST"],
        table_cells("FedDW, Table I")["FedPer", "pathological MNIST"],
    ]
    for cell in chosen:
        outcome = rehearsed(small(cell), None)
        assert (outcome.failed, outcome.accuracy is None) == ("", False), cell.row


@pytest.mark.soak
@pytest.mark.parametrize("cell", kinds(), ids=lambda cell: f"{cell.row}, {cell.column}")
def test_every_kind_of_job_is_planned_and_trains_for_two_rounds(cell: Cell) -> None:
    if not cell.is_simulated_alone:
        assert planned(cell.spec()).phases
    trial = small(cell)
    assert len(made_up(trial)) == trial.silos
    outcome = rehearsed(trial, None)
    assert (outcome.failed, outcome.accuracy is None) == ("", False)
