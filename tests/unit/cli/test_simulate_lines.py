"""What `chorale simulate` says: of the model that it hands out, class rows, the curve and its end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chorale.spec.model_file import read_model
from chorale.spec.state import state_digest, state_to_bytes
from simulation.engine import Simulation
from tests.unit.cli.conftest import Calls, Desk
from tests.unit.cli.test_simulate import steps_job

pytest.importorskip("torch", reason="trains for real: needs the extra silo")


@pytest.mark.parametrize(
    ("holders", "said"),
    [
        (1, "class rows: all are sent, as --policy says (min_class_holders: 1)"),
        (3, "class rows: held back where fewer than 3 silos hold the class, as --policy says"),
        (None, "class rows: held back where few silos hold the class, by the job's default"),
    ],
)
def test_class_rows_are_told_by_the_policy_that_decides_them(
    desk: Desk, chorale: Calls, holders: int | None, said: str
) -> None:
    """The default policy's rule was told, and --all-class-rows advised, which is refused beside --policy."""
    rules = {"federation": "test", "class_statistics": "allow", "min_class_holders": holders}
    policy = desk.write("policy.yaml", rules)
    job = desk.job(strategy={"preset": "feddw"})
    ended = chorale("simulate", job, "--policy", policy, "--device", "cpu")
    assert ended.code == 0, ended.err
    assert said in ended.err
    assert "--all-class-rows" not in ended.err
    assert json.loads(ended.out.splitlines()[-1])["class_rows"] == "policy"


def test_the_last_line_says_which_class_rows_were_sent_and_what_is_unusual(
    desk: Desk, chorale: Calls
) -> None:
    def last(*options: str, **fields: Any) -> dict[str, Any]:
        ended = chorale("simulate", desk.job(**fields), "--device", "cpu", *options)
        assert ended.code == 0, ended.err
        found: dict[str, Any] = json.loads(ended.out.splitlines()[-1])
        return found

    feddw = {"strategy": {"preset": "feddw"}}
    assert last(**feddw)["class_rows"] == "default"
    assert last("--all-class-rows", **feddw)["class_rows"] == "all"
    plain = last()
    assert (plain["class_rows"], plain["unusual"]) == (None, [])
    parts = {"loss": "sphere-mse", "head": "frozen-orthonormal"}
    (rule,) = last(strategy={"parts": parts}, allow_unusual=True)["unusual"]
    assert rule.startswith("sphere-mse takes scores for cosines")


def test_figures_beside_a_kept_model_are_its_own_or_named_as_the_last_ones(
    desk: Desk, chorale: Calls, tmp_path: Path
) -> None:
    """model_after_round said 4 and model was its file; accuracy and digest were those after round 5."""
    job = desk.job(
        silos=[f"s{place}" for place in range(10)],
        rounds=5,
        keep={"metric": "loss", "best": "highest"},  # of a loss that falls: an early one on every machine
        training={"learning_rate": 0.1, "local_epochs": 3, "batch_size": 16},
    )
    cut = ("--partition", "shards", "--split-seed", "1", "--device", "cpu")
    ended = chorale("simulate", job, *cut, "--out", tmp_path / "out")
    assert ended.code == 0, ended.err
    last, rounds = json.loads(ended.out), (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()
    kept = last["kept"]
    best = kept["after_round"]
    of_kept = json.loads(rounds[best])
    assert (last["model_after_round"], last["final_model_after_round"]) == (best, 5) != (5, 5)
    assert (kept["metric"], of_kept["model_after_round"]) == ("loss", best)
    told = {"accuracy", "accuracy_sampling_low", "accuracy_sampling_high", "loss", "tested"}
    assert kept["figures"] == {name: of_kept["figures"][name] for name in told}
    state, _ = read_model(Path(last["model"]))
    assert kept["state_digest"] == state_digest(state_to_bytes(state)).hex() != last["state_digest"]
    assert last["final_accuracy"] == last["closing"]["evaluate"]["accuracy"] != of_kept["accuracy"]
    assert f"kept: the model after round {best}, loss {of_kept['loss']:.3f} (no interval, " in ended.err
    assert "the final figures are of the model after round 5: accuracy " in ended.err


@pytest.mark.parametrize("preset", ["local_only", "fedproto"])
def test_a_model_that_nobody_trains_has_no_final_figures(desk: Desk, chorale: Calls, preset: str) -> None:
    """The first model's accuracy, some 0.1, stood there as final_accuracy and final_figure."""
    job = desk.job(strategy={"preset": preset})
    ended = chorale("simulate", job, "--device", "cpu", "--partition", "iid")
    assert ended.code == 0, ended.err
    last = json.loads(ended.out.splitlines()[-1])
    assert (last["final_accuracy"], last["final_loss"]) == (None, None)
    assert last["main_figure"] == "personal_accuracy"
    assert last["final_figure"] == last["final_personal_accuracy"] > 0.5
    assert set(last["closing"]["evaluate"]) == {
        "personal_accuracy",
        "personal_accuracy_deviation",
        "personal_silos",
    }
    refused = chorale("simulate", job, "--test")
    assert refused.err.endswith(
        "--test: not allowed with personalization alone, where no model is common to all\n"
    )


def test_rows_of_prototypes_and_of_a_calibration_are_told(desk: Desk, chorale: Calls) -> None:
    """2 shards of 10 silos: no class has enough holders, and no line said that nothing was calibrated."""
    cut = ("--silos", "10", "--partition", "shards", "--device", "cpu")
    fedproto = {"strategy": {"preset": "fedproto"}, "allow_silent_statistics": True}
    prototypes = chorale("simulate", desk.job(**fedproto), *cut)
    assert "rows of 0 of 10 classes" in next(line for line in prototypes.err.splitlines() if "1/1" in line)
    ccvr = {"strategy": {"preset": "ccvr"}, "allow_silent_statistics": True}
    calibrated = chorale("simulate", desk.job(**ccvr), *cut)
    assert "calibrate  rows of 0 of 10 classes" in calibrated.err.splitlines()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ((0, "enrollment.0"), "interrupted before a round had ended: the same command starts again"),
        ((2, "train"), "interrupted after round 1: the same command goes on from there"),
        ((2, "evaluate-all.0"), "interrupted after round 2: the same command goes on from there"),
        ((3, "evaluate.0"), "interrupted after round 3: the same command goes on from there"),
    ],
)
def test_an_interrupt_says_what_is_kept_and_the_same_command_where_it_goes_on(
    desk: Desk,
    chorale: Calls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[int, str],
    said: str,
) -> None:
    """Nothing was said; and what was stopped after its last round went on, by its words, after the one
    before."""
    call = ("simulate", desk.job(rounds=3, evaluate_all_every=2), "--device", "cpu")
    run_phase = Simulation._run_phase

    def interrupted(self: Simulation, round: int, phase: str) -> Any:
        if (round, phase) == where:
            raise KeyboardInterrupt
        return run_phase(self, round, phase)

    with monkeypatch.context() as stopped:
        stopped.setattr(Simulation, "_run_phase", interrupted)
        for out, expected in (
            (("--out", tmp_path / "out"), said),
            ((), "interrupted: nothing is kept without"),
        ):
            ended = chorale(*call, *out)
            assert ended.code == 130
            (line,) = [line for line in ended.err.splitlines() if line.startswith("interrupted")]
            assert line.startswith(expected)
    whole, resumed = chorale(*call), chorale(*call, "--out", tmp_path / "out")
    digests = [json.loads(each.out.splitlines()[-1])["state_digest"] for each in (whole, resumed)]
    assert digests[0] == digests[1]
    done = re.search("after round .", said)
    assert (f"continuing {done[0]}" if done else "fedavg, 3 rounds") in resumed.err
    assert ("continuing" in resumed.err) == bool(done)


def test_a_job_of_steps_says_after_which_step_it_was_interrupted(
    desk: Desk, chorale: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("simulate", steps_job(desk), "--device", "cpu", "--out", tmp_path / "out")
    run_round = Simulation._run_round

    def interrupted(self: Simulation, round: int) -> Any:
        if round == 3:
            raise KeyboardInterrupt
        return run_round(self, round)

    with monkeypatch.context() as stopped:
        stopped.setattr(Simulation, "_run_round", interrupted)
        assert "interrupted after step 2: the same command goes on from there" in chorale(*call).err
    assert "continuing after step 2" in chorale(*call).err


def test_the_curve_ends_with_the_closing_test_and_is_in_a_file(
    desk: Desk, chorale: Calls, tmp_path: Path
) -> None:
    """Round 6 stood in `closing` alone, and silos were 20.0."""
    job = desk.job(rounds=6, evaluate_all_every=2, fraction=0.5)
    ended = chorale("simulate", job, "--silos", "6", "--device", "cpu", "--out", tmp_path / "out")
    assert ended.code == 0, ended.err
    last = json.loads(ended.out)
    curve = last["evaluations"]
    assert [(point["round"], repr(point["silos"])) for point in curve] == [(2, "6"), (4, "6"), (6, "6")]
    tested = last["closing"]["evaluate"]
    assert {name: curve[2][name] for name in curve[0] if name not in ("round", "silos")} == tested
    written = (tmp_path / "out" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == curve
    logged = [line.split("  ")[::2] for line in ended.err.splitlines() if line.startswith("evaluate")]
    assert [kind for kind, _ in logged] == ["evaluate-all", "evaluate-all", "evaluate"]
    assert logged[2][1].startswith("model after round 6, all silos' hold-outs: accuracy ")


def test_one_worker_is_told_as_one(desk: Desk, chorale: Calls) -> None:
    ended = chorale("simulate", desk.job(), "--device", "cpu", "--parallel", "1")
    assert "; processes: 1 worker on this machine" in ended.err


def test_a_network_that_takes_no_such_images_is_told_with_the_jobs_name(desk: Desk, chorale: Calls) -> None:
    job = desk.job(model={"name": "alexnet"})
    ended = chorale("simulate", job)
    assert ended.code == 2
    assert f"error: {job}: model.name: alexnet takes images" in ended.err
