"""What an operator is told right after submitting: who of the job is not there."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from chorale.privacy.job_releases import JobReleases, rows_in_words
from chorale.privacy.promise import promise_of
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import facts_of, with_facts
from chorale.spec.state import state_parts, state_to_bytes
from client.submission import absent_notes, draw_notes, initial_bytes, read_spec, solved, sums_notes
from crypto.errors import ConfigError
from tests.unit.cli.conftest import Calls, Desk


@pytest.mark.parametrize(
    ("connected", "expected"),
    [
        ({"silo-0": True, "silo-1": True, "silo-2": True, "other": False}, ""),
        (
            {"silo-0": True, "silo-1": False},
            "not on the roster, so not in the job until they are: silo-2\n"
            "not connected now, the job waits for them: silo-1\n",
        ),
    ],
)
def test_silos_that_are_not_there_are_named(connected: dict[str, bool], expected: str, desk: Desk) -> None:
    notes = absent_notes(read_spec(desk.job()), connected)
    assert "".join(f"{note}\n" for note in notes) == expected


@pytest.mark.parametrize(
    ("silos", "fraction", "expected"),
    [
        (30, 1.0, ""),
        (
            30,
            0.3,
            "fraction 0.3: if 3 of 30 silos collude, a round names more than 3 of them with a chance of at "
            "most 0 over the job\n",
        ),
        (
            200,
            0.235,
            "fraction 0.235: if 20 of 200 silos collude, a round names more than 15 of them with a chance of "
            "at most 8.6e-06 over the job\n"
            "silos with the default policy refuse this job: policy: expected a chance of at most 1e-06 "
            "that a round names more than 15 of 20 colluders, got 8.6e-06 by rounds of 47 of "
            "200 silos; 48 silos a round are enough (fraction 0.24)\n",
        ),
    ],
)
def test_the_risk_of_a_draw_is_told_first(silos: int, fraction: float, expected: str, desk: Desk) -> None:
    names = [f"silo-{place}" for place in range(silos)]
    spec = read_spec(desk.job(silos=names, fraction=fraction, rounds=100))
    risk = [note for note in draw_notes(spec) if not note.startswith("each of 100 rounds draws")]
    assert "".join(f"{note}\n" for note in risk) == expected


@pytest.mark.parametrize(
    ("fields", "is_told"), [({}, True), ({"draw": "groups"}, False), ({"rounds": 29}, False)]
)
def test_as_many_draws_as_silos_are_shown_on_submission(
    fields: dict[str, Any], is_told: bool, desk: Desk
) -> None:
    names = [f"silo-{place}" for place in range(30)]
    notes = draw_notes(read_spec(desk.job(**{"silos": names, "fraction": 0.5, "rounds": 30, **fields})))
    assert (
        any("sums tell of single silos, and those of draw: groups do not" in note for note in notes)
        == is_told
    )


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [
        ({"fraction": 0.5}, True),
        ({"fraction": 0.5, "draw": "groups"}, False),
        ({}, False),
        ({"fraction": 0.5, "strategy": {"preset": "fedavg"}}, False),
    ],
)
def test_a_statistic_that_policies_refuse_in_redrawn_rounds_is_told_to_the_submitter(
    desk: Desk, fields: dict[str, Any], is_told: bool
) -> None:
    names = [f"silo-{place:02d}" for place in range(12)]
    notes = sums_notes(read_spec(desk.job(**{"silos": names, "strategy": {"preset": "feddw"}, **fields})))
    beginning = "statistic soft-labels: is summed without noise over a new set of silos in each round"
    assert any(note.startswith(beginning) and "drawn_rounds" in note for note in notes) == is_told


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {},
            "with fewer than 1 silos refuse the job: strategy.options init_slm: identity puts public rows in "
            "place of missing ones; threshold: 4 needs 3 holders, and every silo in every sum; "
            "allow_silent_statistics: true runs it as it is",
        ),
        ({"allow_silent_statistics": True}, "without them it is another method (allow_silent_statistics)"),
        (
            {"strategy": {"preset": "feddw", "options": {"init_slm": "identity"}}},
            "without them it is the same method (init_slm: identity)",
        ),
    ],
)
def test_the_submitter_is_told_which_class_rows_are_sent(
    desk: Desk, fields: dict[str, Any], said: str
) -> None:
    names = [f"silo-{place}" for place in range(4)]
    notes = sums_notes(read_spec(desk.job(**{"silos": names, "strategy": {"preset": "feddw"}, **fields})))
    assert notes == [
        "class rows: 0 to 10 of 10 are sent, of the classes that 4 of 4 silos hold (min_class_holders by "
        f"default), known before round 1; {said}"
    ]


def test_a_job_without_class_rows_is_told_nothing_of_them(desk: Desk) -> None:
    assert sums_notes(read_spec(desk.job())) == []


PRIVACY = {
    "epsilon": 8.0,
    "delta": 1e-5,
    "records": {"noise_multiplier": 1.0, "clip_norm": 1.0, "sample_rate": 0.1},
}
TABLE = {
    "columns": [{"name": "age"}],
    "input_shape": [1],
    "label_column": "ill",
    "classes": 2,
    "model": {"name": "mlp", "hidden": []},
    "subgroups": {"name": "sex", "categories": ["f", "m"]},
}


def test_a_job_with_subgroups_is_told_that_policies_refuse_them(desk: Desk) -> None:
    (note,) = sums_notes(read_spec(desk.job(**TABLE)))
    assert note == "subgroups: silos refuse the job unless analyses.exact in their policy says allow"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"task": {"name": "survival"}, "label_column": ["t", "e"]}, "regression, got survival"),
        ({"columns": None, "label_column": None}, "subgroups: needs columns"),
        ({"strategy": {"preset": "local_only"}}, "subgroups: not allowed with strategy local_only"),
        ({"privacy": PRIVACY}, "subgroups: not allowed with privacy"),
        ({"subgroups": {"name": "sex"}}, "expected either edges or categories"),
        (
            {"subgroups": {"name": "age", "edges": [0, 9], "show": ["mean"]}},
            "show: not allowed with subgroups",
        ),
        ({"subgroups": {"name": "age", "edges": [0, 9], "min_cell": 9}}, "min_cell"),
    ],
)
def test_subgroups_that_no_job_can_have_are_refused(desk: Desk, changed: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_spec(desk.job(**{**TABLE, **changed}))


def test_submit_tells_the_draw_before_it_reaches_for_the_coordinator(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="builds the initial model")
    names = [f"silo-{place}" for place in range(30)]
    job = desk.job(silos=names, fraction=0.1, rounds=100)
    ended = chorale("job", "submit", job, "--config", desk.operator())
    assert ended.code != 0
    lines = [line for line in ended.err.splitlines() if not line.startswith("now: ")]  # of a slow machine
    assert lines[0].startswith("fraction 0.1: if 3 of 30 silos collude, ")
    assert "9 silos a round are enough (fraction 0.3)" in ended.err


def test_the_draw_seed_of_an_earlier_job_is_left_out_of_the_first_state(desk: Desk, tmp_path: Path) -> None:
    init = tmp_path / "init.safetensors"
    init.write_bytes(state_to_bytes({**VOTES, "method/draw_seed": np.zeros(32, np.uint8)}))
    spec = read_spec(desk.job(model={"name": "custom"}))
    assert initial_bytes(spec, init) == state_to_bytes(VOTES)


def test_a_custom_model_without_starting_weights_is_told_to_give_them(desk: Desk, chorale: Calls) -> None:
    job = desk.job(model={"name": "custom"})
    ended = chorale("job", "submit", job, "--config", desk.operator())
    assert ended.code == 2
    assert "nothing is drawn for a model that is not built in, got custom" in ended.err
    assert "chorale: hint: give its starting weights: --init FILE.safetensors" in ended.err


def test_a_fetched_model_begins_a_job_without_its_facts(desk: Desk, tmp_path: Path) -> None:
    init, spec = tmp_path / "fetched.safetensors", read_spec(desk.job(model={"name": "custom"}))
    facts = facts_of(spec, job_digest=bytes(32), round=3)
    init.write_bytes(b"".join(with_facts(state_parts(VOTES), facts)))
    assert initial_bytes(spec, init) == state_to_bytes(VOTES)


def test_a_pickle_is_never_read_and_its_conversion_is_told(
    desk: Desk, tmp_path: Path, chorale: Calls
) -> None:
    torch = pytest.importorskip("torch", reason="saves a model as torch does")
    file = tmp_path / "model.pt"
    torch.save({"w": torch.arange(3.0)}, file)
    ended = chorale("job", "submit", desk.job(), "--config", desk.operator(), "--init", file)
    assert ended.code == 2
    assert f"{file}: .pt files can run code when they are read; expected safetensors" in ended.err
    (recipe,) = [line for line in ended.err.splitlines() if line.startswith("chorale: hint: ")]
    command, *arguments = shlex.split(recipe.removeprefix("chorale: hint: "))
    assert command == "python"
    subprocess.run([sys.executable, *arguments], check=True)
    converted = safetensors.numpy.load_file(file.with_suffix(".safetensors"))
    np.testing.assert_array_equal(converted["w"], np.arange(3.0))


def test_arrays_of_a_custom_model_have_the_names_of_a_state(desk: Desk, tmp_path: Path) -> None:
    init = tmp_path / "plain.safetensors"
    init.write_bytes(safetensors.numpy.save({"votes": np.zeros(3, np.float32)}))
    with pytest.raises(ConfigError, match=r"the arrays of a custom model are named model/\.\.\., got votes"):
        initial_bytes(read_spec(desk.job(model={"name": "custom"})), init)


VOTES = {"model/votes": np.zeros(100, np.float32)}
SUMS = {"epsilon": 4.0, "sums": {"clip_norm": 0.5}}


def _private(desk: Desk, **privacy: Any) -> JobSpec:
    model = {"model": {"name": "custom"}, "rounds": 3}
    return read_spec(desk.job(**model, privacy={**SUMS, **privacy}))


def test_noise_is_solved_for_and_told(desk: Desk) -> None:
    spec, (line, against, several, reserve, drowned) = solved(_private(desk), state_to_bytes(VOTES))
    assert spec.privacy is not None
    assert spec.privacy.sums is not None
    assert spec.privacy.unsolved == ()
    released = JobReleases(spec, VOTES)
    cost = released.epsilon()
    assert 0.98 * 4.0 <= cost <= 4.0
    updates, statistics = (
        JobReleases(spec, VOTES).epsilon_of_updates(),
        JobReleases(spec, VOTES).epsilon_of_statistics(),
    )
    assert updates is not None
    assert max(updates, statistics) < cost < updates + statistics
    assert line == (
        f"privacy: epsilon {cost:.4g} at delta 1e-05 for the whole job, for each record; by themselves "
        f"updates cost epsilon {updates:.4g} for each silo, statistics epsilon {statistics:.4g} "
        "for each record; noise multipliers: "
        f"sums.noise_multiplier {spec.privacy.sums.noise_multiplier:g}, "
        f"statistics_noise_multiplier {spec.privacy.statistics_noise_multiplier:g} "
        "(solved for: statistics_noise_multiplier, sums.noise_multiplier)"
    )
    collude = JobReleases(spec, VOTES, honest=1).promised_epsilon()
    assert collude > 1.2 * cost
    assert against == (
        "privacy: that protects from the coordinator and 1 of 3 silos, by the noise of 2 honest ones "
        f"(of more with a larger min_cohort); if all other silos collude with it: epsilon {collude:.4g}"
    )
    assert several.startswith(
        f"privacy: {rows_in_words(JobReleases(spec, VOTES).epsilon_of_rows())}; all rows of one unit"
    )
    assert reserve == (
        "privacy: room for colluders alone makes the noise of all 3 1.22 times one curator's; a round that "
        "loses more waits for them, is tried again at no further epsilon, and at last is lost"
    )
    times = promise_of(spec, VOTES).update_noise
    assert drowned.startswith(f"each round's noise is {times:.0f} times as long as the longest update: ")


def test_given_noise_that_costs_more_than_the_target_is_refused(desk: Desk) -> None:
    given = {"statistics_noise_multiplier": 50.0, "sums": {"clip_norm": 0.5, "noise_multiplier": 2.0}}
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: expected noise .* at most 4, got [0-9.]+$"):
        solved(_private(desk, **given), state_to_bytes(VOTES))
    spec, (line, *_) = solved(_private(desk, **given, epsilon=None), state_to_bytes(VOTES))
    assert "solved" not in line
    assert f"epsilon {JobReleases(spec, VOTES).epsilon():.4g} " in line


def test_job_without_privacy_is_submitted_as_it_is(desk: Desk) -> None:
    spec = read_spec(desk.job())
    assert solved(spec, b"") == (spec, [])


def test_promise_tells_how_noise_drowns_few_silos(desk: Desk) -> None:
    spec, _ = solved(_private(desk), state_to_bytes(VOTES))
    assert spec.privacy is not None
    assert spec.privacy.sums is not None
    multiplier = spec.privacy.sums.noise_multiplier
    assert multiplier is not None
    promise = promise_of(spec, VOTES)
    # m = 3 and h = 2: noise of variance 3/2 (z C / 3)^2 on each of 100 numbers of the mean
    assert promise.update_noise == pytest.approx(10 * math.sqrt(1.5) * multiplier / 3, rel=0.02)


def test_weights_of_another_model_are_refused_before_submission(desk: Desk, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="without torch the silos refuse it")
    spec, wider = (
        read_spec(desk.job(model={"name": "mlp", "hidden": [width]}, input_shape=[2])) for width in (8, 16)
    )
    init = tmp_path / "init.safetensors"
    init.write_bytes(initial_bytes(spec, None))
    assert initial_bytes(spec, init) == init.read_bytes()
    with pytest.raises(ConfigError, match=r"init\.safetensors: model/body\..*expects \(16.*got \(8"):
        initial_bytes(wider, init)


def test_plan_and_simulate_tell_the_rate_and_warn_where_it_never_worked(desk: Desk, chorale: Calls) -> None:
    warning = "training.learning_rate 3: fedavg was seen to learn at 0.003 to 0.3 alone; its own rate is 0.05"
    planned = chorale("job", "plan", desk.job(training={}))
    assert ", learning rate 0.05\n" in planned.out
    assert "seen to learn" not in planned.err
    large = desk.job(training={"learning_rate": 3.0})
    assert warning in chorale("job", "plan", large).err
    assert warning in chorale("simulate", large, "--data", "digits").err


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("mlp", r"gradients: \d\d% of .* values, of dense layers, are multiplied out for data.unit alone\n"),
        ("cnn", r"data\.unit alone; body\.\S*weight, .* are in any case\n"),
    ],
)
def test_a_plan_says_which_gradients_are_multiplied_out(
    model: str, sentence: str, desk: Desk, chorale: Calls
) -> None:
    records = {"clip_norm": 1.0, "sample_rate": 0.1, "noise_multiplier": 1.0}
    privacy = {"records": records, "statistics_noise_multiplier": 5.0}
    job = desk.job(model={"name": model, "norm": "group"}, privacy=privacy)
    planned = chorale("job", "plan", job)
    assert re.search(sentence, planned.out), (planned.out, planned.err)


def test_a_plan_under_much_noise_says_that_all_gradients_are_multiplied_out(
    desk: Desk, chorale: Calls
) -> None:
    """Rounding a sum of products would add a hundredth to so coarse a noise."""
    records = {"clip_norm": 1.0, "sample_rate": 0.1, "noise_multiplier": 2000.0}
    job = desk.job(
        model={"name": "mlp", "norm": "group"},
        privacy={"records": records, "statistics_noise_multiplier": 5.0},
    )
    assert "\ngradients: each record's is multiplied out\n" in chorale("job", "plan", job).out
