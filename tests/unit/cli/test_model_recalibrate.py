"""`chorale model recalibrate`: the line of an institution's records, against statsmodels, and its readers."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import facts_of, read_model, with_facts
from chorale.spec.state import state_parts
from client.submission import initial_bytes
from crypto.errors import ConfigError
from tests.unit.cli.conftest import Calls

torch = pytest.importorskip("torch", reason="needs the extra silo")

from silo_agent.training.data.loading import load_data  # noqa: E402
from silo_agent.training.data.settings import DataSettings  # noqa: E402
from silo_agent.training.predicting.recalibrating import fitted_line  # noqa: E402
from simulation.engine import Simulation  # noqa: E402
from tests.support.objectives import make_job  # noqa: E402

HEADINGS = ("age", "dose", "ill")
CLASSES = ("healthy", "ill")
TREES = {"strategy": {"preset": "trees", "options": {"depth": 2, "bins": 8}}, "model": {"name": "trees"}}
DIGITS = 1e-8  # of a line, against statsmodels


def table_job(**fields: Any) -> JobSpec:
    columns = [{"name": "age", "mean": 50.0, "scale": 10.0}, {"name": "dose", "mean": 2.0}]
    table = {"columns": columns, "label_column": "ill", "input_shape": (2,), "classes": CLASSES}
    network = {"model": {"name": "mlp", "hidden": (4,)}, "rounds": 4, "silos": ("a", "b", "c")}
    return make_job(**{**table, **network, **fields})


def write_table(
    path: Path, rows: int, *, seed: int, shift: float = 0.0, names: Sequence[str] = CLASSES
) -> Path:
    """Who is old is ill more often than not; of as many the same where the shift is 0."""
    rng = np.random.default_rng(seed)
    age_N, dose_N = rng.normal(50, 10, rows), rng.normal(2, 1, rows)
    chance_N = 1 / (1 + np.exp(-(age_N - 50) / 8 + shift))
    place_N = np.minimum((rng.random(rows) < chance_N) * (1 + (dose_N > 2)), len(names) - 1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADINGS)
        ill = [names[each] for each in place_N]
        writer.writerows(zip(age_N.round(2), dose_N.round(3), ill, strict=True))
    return path


def trained(folder: Path, **fields: Any) -> Path:
    """The file of a model that three silos trained."""
    spec, data = table_job(**fields), {}
    for place, silo in enumerate(spec.silos):
        path = write_table(folder / f"{silo}.csv", 150, seed=place, names=spec.class_names)
        settings = DataSettings.model_validate({"name": silo, "format": "csv", "path": path})
        data[silo] = load_data(settings, spec)
    simulation = Simulation(spec, data)
    for _ in simulation.run():
        pass
    facts = facts_of(simulation.job.spec, job_digest=simulation.job.digest, round=4)
    file = folder / "model.safetensors"
    file.write_bytes(b"".join(with_facts(state_parts(simulation.state), facts)))
    return file


def answers(chorale: Calls, file: Path, rows: Path) -> NDArray[np.float64]:
    """What `model predict` says. Shapes: -> (N, C)."""
    out = file.with_name(f"{file.stem}-{rows.stem}.csv")
    ended = chorale("model", "predict", file, rows, "--out", out)
    assert ended.code == 0, ended.err
    with out.open() as read:
        rows_N = list(csv.DictReader(read))
    names = [heading for heading in rows_N[0] if heading.startswith("probability_")]
    best = [
        names[each] for each in np.argmax([[float(row[name]) for name in names] for row in rows_N], axis=1)
    ]
    assert [f"probability_{row['prediction']}" for row in rows_N] == best
    return np.array([[float(row[name]) for name in names] for row in rows_N])


def places(rows: Path, names: Sequence[str] = CLASSES) -> NDArray[np.int64]:
    with rows.open() as file:
        return np.array([names.index(row["ill"]) for row in csv.DictReader(file)])


def log_odds(chances_NC: NDArray[np.float64]) -> NDArray[np.float64]:
    odds_N: NDArray[np.float64] = np.log(chances_NC[:, 1]) - np.log(chances_NC[:, 0])
    return odds_N


def pooled_fit(log_odds_N: NDArray[np.float64], is_ill_N: NDArray[np.int64]) -> Any:
    return statsmodels.api.Logit(is_ill_N, statsmodels.api.add_constant(log_odds_N)).fit(disp=0, tol=1e-14)


@pytest.mark.parametrize("fields", [{}, TREES], ids=["network", "trees"])
def test_the_line_is_that_of_statsmodels_and_answers_follow_it(
    fields: dict[str, Any], tmp_path: Path, chorale: Calls
) -> None:
    file, out = trained(tmp_path, **fields), tmp_path / "here.safetensors"
    own, new = (write_table(tmp_path / f"{seed}.csv", 400, seed=seed, shift=1.0) for seed in (8, 9))
    before_NC, is_ill_N = answers(chorale, file, own), places(own)
    ended = chorale("model", "recalibrate", file, own, "--out", out)
    assert ended.code == 0, ended.err
    arrays, facts = read_model(out)
    line, fit = json.loads(facts["recalibrated"]), pooled_fit(log_odds(before_NC), is_ill_N)
    assert [line["intercept"], line["slope"]] == pytest.approx([*fit.params], abs=DIGITS)
    assert (line["records"], line["model"]) == (400, hashlib.sha256(file.read_bytes()).hexdigest())
    after_NC = answers(chorale, out, own)
    figures = [
        (
            -np.log(each_NC[range(400), is_ill_N]).mean(),
            ((each_NC - np.eye(2)[is_ill_N]) ** 2).sum(axis=1).mean(),
        )
        for each_NC in (before_NC, after_NC)
    ]
    assert ended.out.splitlines() == [
        "400 records, to which the line is fitted:",
        *(
            f"  {what} {one:.6g} -> {other:.6g}"
            for what, one, other in zip(("log loss", "Brier score of all classes"), *figures, strict=True)
        ),
        *(
            f"  {what} {fit.params[place]:.6g} (standard error {fit.bse[place]:.3g})"
            for what, place in (("slope", 1), ("intercept", 0))
        ),
        f"{out}: written",
    ]
    again = pooled_fit(log_odds(after_NC), is_ill_N)
    assert [*again.params] == pytest.approx([0.0, 1.0], abs=1e-6)
    expected_N = line["intercept"] + line["slope"] * log_odds(answers(chorale, file, new))
    assert log_odds(answers(chorale, out, new)) == pytest.approx(expected_N, abs=1e-9)
    for name, array in read_model(file)[0].items():
        np.testing.assert_array_equal(arrays[name], array)


def test_records_without_a_label_are_left_out_and_named(tmp_path: Path, chorale: Calls) -> None:
    file, own, out = trained(tmp_path), tmp_path / "own.csv", tmp_path / "here.safetensors"
    write_table(own, 200, seed=8)
    own.write_text(own.read_text() + "50,2,\n")
    ended = chorale("model", "recalibrate", file, own, "--out", out)
    assert ended.code == 0, ended.err
    assert "own.csv, line 202, column ill: expected one of healthy, ill" in ended.err
    assert json.loads(read_model(out)[1]["recalibrated"])["records"] == 200


def test_a_recalibrated_file_is_no_jobs_own(tmp_path: Path, chorale: Calls) -> None:
    file, out, own = trained(tmp_path), tmp_path / "here.safetensors", tmp_path / "own.csv"
    write_table(own, 200, seed=8)
    assert chorale("model", "recalibrate", file, own, "--out", out).code == 0
    line, digest = (
        json.loads(read_model(out)[1]["recalibrated"]),
        hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    shown = f"recalibrated: {line['intercept']:g} + {line['slope']:g} x the log odds of file {digest[:12]}"
    assert f"{shown}, fitted without noise to 200 records\n" in chorale("model", "show", out).out
    answers(chorale, out, own)
    assert json.loads((tmp_path / "here-own.json").read_text())["line"] == line
    with pytest.raises(ConfigError, match=r"here.safetensors: it is recalibrated, which no job knows"):
        initial_bytes(table_job(), out)
    assert "is already there" in chorale("model", "recalibrate", file, own, "--out", out).err


def test_figures_of_a_job_take_the_place_of_a_temperature(tmp_path: Path, chorale: Calls) -> None:
    """They are of the network's own log odds."""
    file, out, rows = trained(tmp_path), tmp_path / "all.safetensors", tmp_path / "a.csv"
    before_N = log_odds(answers(chorale, file, rows))
    arrays, facts = read_model(file)
    file.write_bytes(b"".join(with_facts(state_parts(arrays), {**facts, "temperature": "2"})))
    given = ("model", "recalibrate", file, "--slope", "0.75", "--intercept", "-0.25", "--out", out)
    assert chorale(*given).out == f"{out}: written\n"
    assert log_odds(answers(chorale, out, rows)) == pytest.approx(0.75 * before_N - 0.25, abs=1e-9)
    assert "temperature" not in read_model(out)[1]
    assert "x the log odds of file" in (shown := chorale("model", "show", out).out)
    assert shown.count(", given\n") == 1


def test_more_classes_have_the_temperature_that_fits(tmp_path: Path, chorale: Calls) -> None:
    names = ("healthy", "mild", "severe")
    file, out, own = trained(tmp_path, classes=names), tmp_path / "here.safetensors", tmp_path / "own.csv"
    write_table(own, 300, seed=8, shift=0.5, names=names)
    before_NC, place_N = np.log(answers(chorale, file, own)), places(own, names)
    ended = chorale("model", "recalibrate", file, own, "--out", out)
    assert ended.code == 0, ended.err

    def loss(slope: float) -> float:
        logits_NC = slope * before_NC
        return float((np.log(np.exp(logits_NC).sum(axis=1)) - logits_NC[range(300), place_N]).sum())

    best = minimize_scalar(loss, bounds=(0.1, 10.0), method="bounded", options={"xatol": 1e-9}).x
    bend = (loss(best + 1e-3) - 2 * loss(best) + loss(best - 1e-3)) / 1e-6
    line = json.loads(read_model(out)[1]["recalibrated"])
    assert line["slope"] == pytest.approx(best, abs=1e-6)
    assert f"  slope {line['slope']:.6g} (standard error {bend**-0.5:.3g})\n  intercept 0\n" in ended.out
    assert line["intercept"] == 0.0
    assert abs(best - 1.0) > 0.05, "else any line passes"
    after_NC = np.exp(line["slope"] * before_NC)
    after_NC /= after_NC.sum(axis=1, keepdims=True)
    assert answers(chorale, out, own) == pytest.approx(after_NC, abs=1e-9)


@pytest.mark.gate  # torch's exporter alone takes 5 s to load
def test_an_exported_folder_answers_by_the_line(tmp_path: Path, chorale: Calls) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra export")
    file, out, rows = trained(tmp_path), tmp_path / "here.safetensors", tmp_path / "a.csv"
    assert chorale("model", "recalibrate", file, "--slope", "2", "--intercept", "1", "--out", out).code == 0
    ended = chorale("model", "export", out, "--out", tmp_path / "folder")
    assert ended.code == 0, ended.err
    command = [sys.executable, "-I", tmp_path / "folder" / "predict.py", rows, tmp_path / "theirs.csv"]
    assert subprocess.run(command, check=False).returncode == 0
    with (tmp_path / "theirs.csv").open() as theirs:
        found = [[float(row[f"probability_{name}"]) for name in CLASSES] for row in csv.DictReader(theirs)]
    assert np.array(found) == pytest.approx(answers(chorale, out, rows), abs=1e-5)


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        (99, (), "expected at least 100 records with a label, got 99"),
        ("rare", (), "expected at least 20 records of each class, got 19 of one"),
        ("one", (), "no line fits best: the answers part the classes, or are all alike"),
        ("against", (), "the line that fits best: slope: expected at least 0.015625, got -"),
        (None, (), "DATA: a value is required, or --config"),
        (
            None,
            ("--slope", "1"),
            "--slope and --intercept: expected both, no data and a model of two classes",
        ),
        (100, ("--slope", "1", "--intercept", "0"), "--slope and --intercept: expected both, no data"),
        (None, ("--slope", "0", "--intercept", "0"), "--slope: expected at least 0.015625, got 0.0"),
        (None, ("--slope", "1", "--intercept", "nan"), "--intercept: expected a finite number, got nan"),
    ],
)
def test_records_and_lines_that_say_too_little_are_refused(
    rows: int | str | None, options: tuple[str, ...], why: str, tmp_path: Path, chorale: Calls
) -> None:
    file, own, out = trained(tmp_path), tmp_path / "own.csv", tmp_path / "here.safetensors"
    write_table(own, rows if isinstance(rows, int) else 400, seed=8)
    head, *lines = own.read_text().splitlines()
    if rows == "rare":
        ill = [line for line in lines if line.endswith(",ill")]
        lines = [line for line in lines if line.endswith("healthy")] + ill[:19]
    if rows == "one":
        lines = ["50,2," + line.rpartition(",")[2] for line in lines]
    if rows == "against":
        lines = [line.replace("healthy", "?").replace("ill", "healthy").replace("?", "ill") for line in lines]
    own.write_text("\n".join([head, *lines]))
    ended = chorale("model", "recalibrate", file, *([] if rows is None else [own]), *options, "--out", out)
    assert ended.code == 2
    assert why in ended.err
    assert not out.exists()


@pytest.mark.parametrize("scale", [1e-10, math.nan])
def test_answers_that_differ_by_their_last_digits_have_no_line(scale: float) -> None:
    """Newton's matrix was singular."""
    rng = np.random.default_rng(0)
    logits_NC = np.array([1_000.0, 0.0]) + scale * rng.integers(0, 3, (200, 2))
    given = torch.from_numpy(logits_NC), torch.from_numpy(rng.integers(0, 2, 200))
    with pytest.raises(ConfigError, match="no line fits best"):
        fitted_line(*given, before=None, model="0" * 64)


def test_a_number_has_no_log_odds(tmp_path: Path, chorale: Calls) -> None:
    task = {"name": "regression", "options": {"low": 0.0, "high": 1.0}}
    spec, file = table_job(task=task, classes=1), tmp_path / "m.safetensors"
    facts = facts_of(spec, job_digest=bytes(32), round=1)
    state = {"model/w": np.zeros(1, np.float32)}
    file.write_bytes(b"".join(with_facts(state_parts(state), facts)))
    ended = chorale("model", "recalibrate", file, "--out", tmp_path / "out")
    assert "expected the task classification, whose answers have log odds, got regression" in ended.err


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("warm", "expected fields and values, got text"),
        ('{"slope": 0.0}', "slope: expected at least 0.015625, got 0.0"),
        ('{"slope": 1.0, "intercept": .inf}', "intercept: expected a finite number, got inf"),
        ('{"slope": 1.0, "records": -5}', "records: expected at least 1, got -5"),
        ('{"slope": 1.0, "model": "x"}', "model: expected 64 hexadecimal digits in lower case, got 'x'"),
        ("\ud800", "expected UTF-8 text"),
    ],
)
def test_a_line_that_is_none_is_refused(said: str, why: str, tmp_path: Path, chorale: Calls) -> None:
    file, spec = tmp_path / "m.safetensors", table_job()
    facts = {**facts_of(spec, job_digest=bytes(32), round=1), "recalibrated": said}
    file.write_bytes(b"".join(with_facts(state_parts({"model/w": np.zeros(1, np.float32)}), facts)))
    ended = chorale("model", "show", file)
    assert ended.code == 2
    assert f"its metadata: recalibrated: {why}" in ended.err
