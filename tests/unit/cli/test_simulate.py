"""`chorale simulate`: lines on stdout or in a folder, and one sentence for every validation error."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from cli.simulate.progress import ProgressLine
from tests.support.class_folders import write_folders
from tests.unit.cli.conftest import Calls, Desk, Ended

pytest.importorskip("torch", reason="trains for real: needs the extra silo")


def steps_job(desk: Desk, **changes: Any) -> Path:
    """Three steps, with spare ones, whose silos share their noise."""
    records = {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1, "noise": "sum"}
    privacy = {"records": records, "statistics_noise_multiplier": 40.0}
    fields = {"steps": 3, "rounds": 5, "model": {"name": "mlp", "hidden": []}, "privacy": privacy}
    fields["training"] = {"learning_rate": 0.1, "momentum": 0.0}
    return desk.job(**fields | changes)


def private_table_job(desk: Desk) -> Path:
    """One round over a table, with noise that is solved for."""
    return desk.job(
        classes=2,
        input_shape=[1],
        columns=[{"name": "age", "mean": 50, "scale": 10}],
        label_column="ill",
        model={"name": "mlp", "hidden": []},
        privacy={"epsilon": 8, "records": {"clip_norm": 1.0, "sample_rate": 0.5}},
    )


def silo_files(desk: Desk, **data: Any) -> list[str | Path]:
    """Options that name three silos' files: ten patients, of which one has seven rows."""
    rows = [f"p{min(row, 9)},{40 + row},{row % 2}" for row in range(16)]
    table = desk.folder / "table.csv"
    table.write_text("\n".join(["patient,age,ill", *rows]) + "\n")
    files: list[str | Path] = []
    for place in range(3):
        path = desk.silo(name=f"clinic-{place}", data={"format": "csv", "path": str(table), **data})
        files += ["--silo", path.rename(desk.folder / f"clinic-{place}.yaml")]
    return files


def test_a_line_a_round_on_stdout_and_progress_on_stderr(desk: Desk, chorale: Calls) -> None:
    ended = chorale("simulate", desk.job(rounds=2), "--silos", "4", "--device", "cpu")
    assert ended.code == 0, ended.err
    first, second, closing = (json.loads(line) for line in ended.out.splitlines())
    assert [first["round"], second["round"]] == [1, 2]
    assert first["silos"] == ["silo-1", "silo-2", "silo-3", "silo-4"]
    assert second["accuracy"] != first["accuracy"]
    assert second["model_after_round"] == 1
    assert closing["final_accuracy"] == closing["closing"]["evaluate"]["accuracy"]
    assert "round 2/2  4 silos" in ended.err


def test_the_folder_takes_lines_and_model_and_a_second_call_adds_nothing(
    desk: Desk, chorale: Calls, tmp_path: Path
) -> None:
    out = tmp_path / "runs" / "one"
    ended = [chorale("simulate", desk.job(), "--out", out, "--device", "cpu") for _ in range(2)]
    assert [each.code for each in ended] == [0, 0]
    assert ended[0].out == ended[1].out
    assert json.loads(ended[0].out)["model"] == str(out / "model.safetensors")
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 1
    refused = chorale("simulate", desk.job(), "--out", out, "--split-seed", "5")
    assert refused.code == 2
    assert "holds a simulation of another job, data or options" in refused.err


def test_names_of_the_job_are_kept_where_there_are_as_many(desk: Desk, chorale: Calls) -> None:
    ended = chorale("simulate", desk.job(), "--silos", "3", "--device", "cpu")
    assert json.loads(ended.out.splitlines()[0])["silos"] == ["silo-0", "silo-1", "silo-2"]


def test_silos_own_files_are_taken_as_they_are(desk: Desk, chorale: Calls, tmp_path: Path) -> None:
    cut = {"kind": "iid", "silos": 3}
    files = []
    for place in range(3):
        settings = {"format": "digits", "partition": {**cut, "index": place}}
        path = desk.silo(name=f"clinic-{place}", data=settings)
        files += ["--silo", path.rename(tmp_path / f"clinic-{place}.yaml")]
    ended = chorale("simulate", desk.job(), *files, "--device", "cpu")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out.splitlines()[0])["silos"] == ["clinic-0", "clinic-1", "clinic-2"]


def test_trees_are_simulated_as_any_job_and_planned_at_their_widest(desk: Desk, chorale: Calls) -> None:
    trees = {"strategy": {"preset": "trees", "options": {"depth": 2, "bins": 4}}, "model": {"name": "trees"}}
    job = desk.job(rounds=5, training={"learning_rate": 0.3}, **trees)
    ended = chorale("simulate", job, "--silos", "3", "--device", "cpu")
    assert ended.code == 0, ended.err
    *rounds, closing = (json.loads(line) for line in ended.out.splitlines())
    assert [each["result"] for each in rounds] == ["applied"] * 5
    assert closing["closing"]["evaluate"]["loss"] < rounds[0]["loss"]
    planned = chorale("job", "plan", job)
    assert planned.code == 0, planned.err
    assert "bin_gradients (6,400), bin_hessians (6,400), bin_records (6,400)" in planned.out
    assert "widest level of a tree" in planned.err


def test_silos_with_other_folder_names_learn_the_same_classes_or_are_refused(
    desk: Desk, chorale: Calls
) -> None:
    """The third silo had the classes of the others the other way round: accuracy was 1/2."""
    pairs = {"north": ("healthy", "ill"), "east": ("healthy", "ill"), "south": ("well", "changed")}
    labels = {"well": "healthy", "changed": "ill"}
    fields = {"model": {"name": "mlp", "hidden": []}, "input_shape": [1, 2, 2], "rounds": 8}
    job = desk.job(classes=["healthy", "ill"], training={"learning_rate": 1.0, "batch_size": 4}, **fields)
    for own, code in (({}, 2), ({"labels": labels}, 0)):
        files: list[str | Path] = []
        for name, (healthy, ill) in pairs.items():
            folder = desk.folder / name
            if not folder.exists():
                write_folders(folder, {healthy: range(0, 40, 4), ill: range(215, 255, 4)})
            data = {"format": "image-folder", "path": str(folder), **(own if name == "south" else {})}
            files += ["--silo", desk.silo(name=name, data=data).rename(desk.folder / f"{name}.yaml")]
        ended = chorale("simulate", job, *files, "--device", "cpu")
        assert ended.code == code, ended.err
        if own:
            assert json.loads(ended.out.splitlines()[-1])["final_accuracy"] == 1.0
        else:
            assert "folder 'changed' is none of the job's classes healthy, ill" in ended.err


def test_a_data_file_says_what_is_cut(desk: Desk, chorale: Calls) -> None:
    data = desk.write("data.yaml", {"format": "digits", "partition": {"kind": "shards"}})
    refused = chorale("simulate", desk.job(), "--data", data, "--silos", "7")
    assert refused.code == 2
    assert "7 silos x 2 shards cannot be shared" in refused.err
    twice = chorale("simulate", desk.job(), "--data", data, "--partition", "iid")
    assert twice.code == 2
    assert "--partition: " in twice.err
    assert "data.yaml, which holds it" in twice.err


def test_the_silos_own_models_are_told_with_the_global_one(desk: Desk, chorale: Calls) -> None:
    # with a head of each silo's own the global accuracy is of an untrained head
    ended = chorale("simulate", desk.job(strategy={"preset": "fedper"}), "--device", "cpu")
    assert ended.code == 0, ended.err
    closing = json.loads(ended.out.splitlines()[-1])
    own = closing["closing"]["evaluate"]["personal_accuracy"]
    assert closing["final_personal_accuracy"] == own > closing["final_accuracy"]
    assert f"final personal models: accuracy {own:.4f} +- " in ended.err
    assert "personal models: accuracy" in next(
        line for line in ended.err.splitlines() if line.startswith("round 1/1")
    )


def test_a_policy_that_would_refuse_the_job_refuses_its_simulation(desk: Desk, chorale: Calls) -> None:
    policy = desk.write("strict.yaml", {"federation": "test"})
    job = desk.job(strategy={"preset": "feddw"})
    refused = chorale("simulate", job, "--policy", policy, "--device", "cpu")
    assert refused.code == 3
    assert "class_statistics: refuse" in refused.err
    assert chorale("simulate", job, "--device", "cpu").code == 0


def test_a_policy_is_asked_what_the_job_costs_if_all_other_silos_collude(desk: Desk, chorale: Calls) -> None:
    """The job was simulated to its end, which the silos' agents then refused."""
    job = steps_job(desk)
    for most, code in ((30, 0), (0.01, 3)):
        rules = {"shared_noise": most}
        open_wide = {"federation": "test", "privacy": rules | {"epsilon": 10}}
        policy = desk.write("policy.yaml", open_wide)
        ended = chorale("simulate", job, "--policy", policy, "--device", "cpu")
        assert ended.code == code, ended.err
    assert ended.out == "", "nothing was trained"
    assert "expected at most epsilon 0.01 if all other silos collude" in ended.err


def test_a_job_of_steps_is_told_by_its_steps_and_its_figures_with_their_noise(
    desk: Desk, chorale: Calls
) -> None:
    """Three steps were counted as rounds of five, and an accuracy of 1.0 stood beside no word of noise."""
    ended = chorale("simulate", steps_job(desk, trains="head"), "--device", "cpu")
    assert ended.code == 0, ended.err
    assert [line[:11] for line in ended.err.splitlines() if line.startswith("step ")] == [
        "step 1 of 3",
        "step 2 of 3",
        "step 3 of 3",
    ]
    assert "round" not in "".join(ended.err.split("fedavg, 3 steps of 3 of 3 silos")[1:])
    closing = json.loads(ended.out.splitlines()[-1])
    tested = closing["closing"]["evaluate"]["tested"]
    # the counts' noise, of a multiplier of 40 and h = 2 of 3 silos
    away = 1.96 * 40.0 * math.sqrt(3 / 2)
    assert closing["closing"]["evaluate"]["tested_noise_high"] == pytest.approx(tested + away, rel=0.01)
    assert None not in closing["intervals"]["final_accuracy"]["noise"]
    assert "\nfinal accuracy" in ended.err
    assert " for these records, " in ended.err
    assert "trains head: without --init the head is trained on features of random weights" in ended.err
    plain = chorale("simulate", desk.job(), "--device", "cpu")
    assert json.loads(plain.out.splitlines()[-1])["intervals"]["final_accuracy"]["noise"] is None
    assert "trains head" not in plain.err


def test_mistakes_in_the_data_are_told_before_the_noise_is_solved_for(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that is not there was told after 20 seconds, in which nothing was said."""
    job = private_table_job(desk)
    monkeypatch.setattr("cli.simulate.command.solved", pytest.fail)
    ended = chorale("simulate", job, *silo_files(desk, unit="person"), "--device", "cpu")
    assert ended.code == 2
    assert "table.csv: no column 'person'" in ended.err


def test_rows_beyond_those_of_a_unit_are_told_by_silo_column_and_limit(desk: Desk, chorale: Calls) -> None:
    """A line of the log was printed for each silo, which named none of them."""
    job = private_table_job(desk)
    ended = chorale(
        "simulate", job, *silo_files(desk, unit="patient", max_rows_per_unit=2), "--device", "cpu"
    )
    assert ended.code == 0, ended.err
    ending = ": data set data: 5 rows are left out, beyond 2 of one patient (data.max_rows_per_unit)"
    lines = [line for line in ended.err.splitlines() if "left out" in line]
    assert lines == [f"clinic-{place}{ending}" for place in range(3)]
    assert "solving for the noise of epsilon 8" in ended.err


def test_a_draw_that_silos_would_refuse_is_told_first_and_simulated_without_their_policy(
    desk: Desk, chorale: Calls
) -> None:
    policy = desk.write("strict.yaml", {"federation": "test", "max_cohort_changes": 1000})
    job = desk.job(silos=[f"silo-{place:02}" for place in range(20)], fraction=0.15, rounds=2)
    refused = chorale("simulate", job, "--policy", policy, "--device", "cpu")
    assert refused.code == 3
    message = "fraction 0.15: if 2 of 20 silos collude, a round names more than 1 of them with a chance of"
    assert refused.err.startswith(message)
    assert "6 silos a round are enough (fraction 0.3)" in refused.err
    open_wide = chorale("simulate", job, "--device", "cpu", "--partition", "iid")
    assert open_wide.code == 0
    assert open_wide.err.startswith(message)
    assert len(json.loads(open_wide.out.splitlines()[0])["silos"]) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--silos", "2"], "2 is not in the range 3<=x<=10000"),
        (["--data", "numbers"], "error: --data: expected one of digits, mnist"),
        (["--data", "npz"], "error: --path: a value is required with format npz"),
        (["--data", "npz", "--path", "/nowhere"], "data.path: no such file or folder: /nowhere"),
        (["--partition", "shards", "--silos", "7"], "7 silos x 2 shards cannot be shared evenly"),
        (["--alpha", "-1"], "error: --alpha: expected more than 0, got -1"),
        # these trained on another cut than was asked for, without a word
        (
            ["--partition", "shards", "--alpha", "0.1"],
            "--alpha: not allowed with --partition shards, only with dirichlet",
        ),
        (["--shards-per-silo", "3"], "--shards-per-silo: not allowed with --partition dirichlet"),
        (
            ["--silo", "a.yaml", "--partition", "iid"],
            "--partition: not allowed with --silo, whose files",
        ),
        (["--silos", "20", "--min-samples", "500"], "no cut in 1000 draws gives each of 20 silos 500"),
        (["--policy", "/nowhere.yaml"], "/nowhere.yaml: no such file or directory"),
        (["--init", "/nowhere.safetensors"], "/nowhere.safetensors: no such file or directory"),
        (["--out", "/dev/null"], "--out: /dev/null is a file, expected a folder"),
        (["--address", "10.0.0.1:6379"], "--address: belongs to --engine ray, got processes"),
        (["--gpus", "0.5"], "--gpus: belongs to --engine ray, got processes"),
        (
            ["--partition", "shards", "--shards-per-silo", "500"],
            "3 silos x 500 are 1,500 shards, more than there are training samples; expected at most 470",
        ),
        # it was taken, and changed nothing
        (
            ["--all-class-rows"],
            "--all-class-rows: not allowed with fedavg, which holds back no class rows",
        ),
        (["--workers", "2"], "no such option '--workers'; --parallel says how many workers compute"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_validation_error_is_one_sentence_and_code_2(
    desk: Desk, chorale: Calls, options: list[str], said: str
) -> None:
    refused = chorale("simulate", desk.job(), *options)
    assert (refused.code, refused.out) == (2, "")
    (line,) = [line for line in refused.err.splitlines() if line.startswith("chorale: error: ")]
    assert said in line


def test_ray_that_is_not_installed_or_cannot_be_used_is_told_first(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*options: str) -> str:
        ended = chorale("simulate", desk.job(), "--engine", "ray", *options)
        assert (ended.code, ended.out) == (2, "")
        return ended.err

    found = importlib.util.find_spec
    with monkeypatch.context() as hidden:
        hidden.setattr("client.errors.find_spec", lambda name: None if name == "ray" else found(name))
        assert "simulate --engine ray needs the extra 'ray' (no ray here)" in refused()
        hidden.setattr("client.errors.find_spec", lambda name: True)
        assert "--device cuda with --engine ray: expected --gpus of each worker" in refused(
            "--device", "cuda"
        )
        assert "--gpus: expected a share of one GPU up to 1, or a whole number, got 1.5" in refused(
            "--gpus", "1.5"
        )


def test_a_private_job_is_computed_in_float32(desk: Desk, chorale: Calls) -> None:
    for option, value in (("--precision", "bfloat16"), ("--memory-format", "channels_last")):
        ended = chorale("simulate", steps_job(desk), option, value)
        assert ended.code == 2
        assert "a private job is computed in float32 and contiguous memory" in ended.err


def test_number_type_and_memory_order_are_part_of_what_a_folder_holds(
    desk: Desk, chorale: Calls, tmp_path: Path
) -> None:
    job, out = desk.job(), tmp_path / "out"
    plain = chorale("simulate", job, "--out", out, "--device", "cpu")
    assert plain.code == 0, plain.err
    refused = chorale("simulate", job, "--out", out, "--device", "cpu", "--precision", "bfloat16")
    assert "holds a simulation of another job, data or options" in refused.err
    half = chorale("simulate", job, "--device", "cpu", "--precision", "bfloat16")
    digests = [json.loads(each.out.splitlines()[-1])["state_digest"] for each in (plain, half)]
    assert digests[0] != digests[1]
    assert re.fullmatch("[0-9a-f]{64}", digests[0])


def test_a_terminal_sees_how_many_silos_have_answered_and_how_long_it_takes() -> None:
    now, seen = 0.0, io.StringIO()
    line = ProgressLine(seen, rounds=6, clock=lambda: now)
    for round in (1, 2, 3):
        for done in (1, 2, 3):
            now += 4.0
            line.answered((round, "train"), done, 3)
        line.round_ended(round)
    shown = seen.getvalue().split("\r\x1b[K")
    assert shown[1] == "round 1/6: train, 1 of 3 silos"
    # 12 s a round, four rounds after the second, of which 4 s are over
    assert shown[7] == "round 3/6: train, 1 of 3 silos, about 44 s left"
    silent = ProgressLine(None, rounds=6)
    silent.answered((1, "train"), 1, 3)
    silent.clear()


def test_jobs_that_no_simulation_can_run_say_so(desk: Desk, chorale: Calls) -> None:
    custom = chorale("simulate", desk.job(model={"name": "custom"}))
    assert custom.code == 2
    assert "custom is trained by the silos' own objectives" in custom.err
    few = chorale("simulate", desk.job(), "--silo", desk.silo())
    assert few.code == 2
    assert "--silo: expected a file for each of 3 silos, got 1" in few.err


def rows_in(ended: Ended) -> list[float]:
    lines = [json.loads(line) for line in ended.out.splitlines()]
    return [line["figures"]["soft_label_rows"] for line in lines if "figures" in line]


def test_class_rows_are_held_back_as_in_a_federation_unless_all_are_asked_for(
    desk: Desk, chorale: Calls
) -> None:
    """2 shards of 10 silos: no class has the 8 holders that a row needs, so a federation sends none."""
    cut = ("--silos", "10", "--device", "cpu", "--partition", "shards")
    fields: dict[str, Any] = {"strategy": {"preset": "feddw"}, "rounds": 1}
    refused = chorale("simulate", desk.job(**fields), *cut)
    assert refused.code == 3
    assert (
        "expected class rows of at least 1 of 10 classes, got 0: a row is sent where 8 of 10" in refused.err
    )
    assert "threshold" not in refused.err  # a class has two holders, and 5 are needed at least
    job = ("simulate", desk.job(**fields, allow_silent_statistics=True), *cut)
    few = chorale(*job)
    assert rows_in(few) == [0]
    assert "class rows: held back as by a federation's default policy" in few.err
    assert "rows of 0 of 10 classes" in few.err
    every = chorale("simulate", desk.job(**fields), *cut, "--all-class-rows")
    assert rows_in(every) == [10]
    assert "class rows: all are sent, as by no federation's default policy" in every.err


def test_a_policy_and_all_class_rows_are_not_given_together(desk: Desk, chorale: Calls) -> None:
    ended = chorale("simulate", desk.job(), "--policy", desk.folder / "policy.yaml", "--all-class-rows")
    assert ended.err == (
        "chorale: error: --all-class-rows: --policy says which class rows are sent (min_class_holders)\n"
    )


def test_the_test_set_is_the_same_in_every_round_and_needs_data_that_are_cut(
    desk: Desk, chorale: Calls
) -> None:
    job = ("simulate", desk.job(rounds=3, fraction=0.5), "--silos", "6", "--device", "cpu")
    ended = chorale(*job, "--test", "--partition", "shards", "--shards-per-silo", "5")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["figures"]["test_tested"] for line in lines[:-1]] == [359.0] * 3
    assert lines[2]["figures"]["test_accuracy"] == pytest.approx(lines[-1]["final_accuracy"], abs=1e-12)
    assert "model after round 3, test set: accuracy" in ended.err
    refused = chorale("simulate", desk.job(classes=2, input_shape=[1], columns=[{"name": "age"}],
                      label_column="ill"), *silo_files(desk), "--test")  # fmt: skip
    assert "--test: expected one data set that is cut into silos (--data), not --silo" in refused.err
