"""`chorale silo check`: every mistake in one call, nothing sent, nothing spent, nothing written."""

from __future__ import annotations

import hashlib
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest

from crypto.identity.certificates import Role
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import load_policy
from tests.support import own_code
from tests.support.class_folders import write_folders
from tests.unit.cli.conftest import Calls, Desk, Ended

# noise is solved for; all records a step, which is quick to account for
SOLVED = {"epsilon": 4.0, "records": {"clip_norm": 1.0, "sample_rate": 1.0}}
PRIVATE = {
    "records": {"clip_norm": 1.0, "sample_rate": 0.5, "noise_multiplier": 8.0},
    "statistics_noise_multiplier": 16.0,
}
TABLE = "age,chol,sick\n" + "60,250,1\n40,180,0\n" * 30
MISTAKES = "old,180,0\n60,many,5\n50\n"


class Failing:
    """An objective of an institution with a mistake in it."""

    def compute(self, work: object) -> object:
        raise KeyError("head.weight")


def files_below(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def table_job(desk: Desk, **changes: object) -> Path:
    columns = [{"name": "age", "mean": 50.0, "scale": 10.0}, {"name": "chol", "scale": 100.0}]
    fields = {"classes": 2, "input_shape": [2], "columns": columns, "label_column": "sick"}
    return desk.job(**{**fields, **changes})


def table_silo(desk: Desk, text: str, *, unit: str | None = None, **changes: object) -> Path:
    file = desk.folder / "table.csv"
    file.write_text(text)
    return desk.silo(data={"format": "csv", "path": str(file), "name": "ward", "unit": unit}, **changes)


def test_a_table_in_another_dialect_is_proposed_and_its_flow_printed(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    config = table_silo(desk, "age;chol;sick\n" + "60,5;250;1\n40;180;0\n" * 30)
    ended = chorale("silo", "check", "--config", config, "--job", table_job(desk))
    assert ended.code == 1
    assert 'by its first lines: dialect: {delimiter: ";", decimal: ","}' in ended.out
    data = {"format": "csv", "path": str(desk.folder / "table.csv"), "name": "ward"}
    config = desk.silo(data={**data, "dialect": {"delimiter": ";", "decimal": ","}})
    ended = chorale("silo", "check", "--config", config, "--job", table_job(desk))
    assert ended.code == 0, ended.out
    assert "data: 60 records found, 60 readable, 60 eligible, 60 labeled, 60 used\n" in ended.out


def test_a_table_in_another_dialect_is_a_warning_without_a_job(desk: Desk, chorale: Calls) -> None:
    """It said that all is well. Columns that the settings rename were found in no dialect."""
    config = table_silo(desk, "Alter;chol;sick\n" + "60,5;250;1\n40;180;0\n" * 30)
    data = {"format": "csv", "path": str(desk.folder / "table.csv"), "rename": {"Alter": "age"}}
    for given in (data, {**data, "dialect": {"delimiter": ";"}}):
        ended = chorale("silo", "check", "--config", desk.silo(data=given))
        (warning,) = [line for line in ended.out.splitlines() if line.startswith("warning")]
        assert warning.endswith('otherwise; by its first lines: dialect: {delimiter: ";", decimal: ","}')
        assert (ended.code, ended.out.splitlines()[-1]) == (0, "look at the warnings; nothing was sent")
    config = desk.silo(data={**data, "dialect": {"delimiter": ";", "decimal": ","}})
    assert chorale("silo", "check", "--config", config).out.endswith("all is well; nothing was sent\n")


def test_a_file_that_is_written_otherwise_shows_few_of_its_problems(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    rows = "".join(f'"{place},5",250,1\n' for place in range(30))
    config = table_silo(desk, f"age,chol,sick\n{rows}")
    ended = chorale("silo", "check", "--config", config, "--job", table_job(desk))
    assert "problem  data: and 18 more\n" in ended.out
    assert len(problems(ended)) == 13
    assert "30 problems: this silo is not ready" in ended.err
    assert "chorale doctor --config" in ended.err


def test_a_column_of_hardly_plausible_values_is_a_warning(desk: Desk, chorale: Calls) -> None:
    """In another unit all were missing, and all was well."""
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    job = table_job(desk, columns=[{"name": "age"}, {"name": "chol", "scale": 9.0, "plausible": [1, 60]}])
    for wrong, is_warned in ((31, True), (30, False)):
        rows = "60,250,1\n" * wrong + "40,5,0\n" * (60 - wrong)
        config = table_silo(desk, f"age,chol,sick\n{rows}")
        ended = chorale("silo", "check", "--config", config, "--job", job)
        assert ended.code == 0, ended.out
        warning = f"warning  column: chol: {wrong} of 60 values are not plausible; has the file another unit?"
        assert (warning in ended.out) == is_warned


def problems(ended: Ended) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in ended.out.splitlines() if line.startswith("problem")]


def test_without_a_job_all_of_a_silos_own_files_are_checked(desk: Desk, chorale: Calls) -> None:
    policy = desk.write("other.yaml", {"federation": "elsewhere"})
    data = {"format": "csv", "path": str(desk.folder / "none.csv")}
    key = {**desk.identity(Role.SILO, "silo-0"), "key": str(desk.folder / "none.key")}
    proxy = {"proxy": "out:3128", "proxy_credentials": str(desk.folder / "none.login")}
    config = desk.silo(policy=str(policy), data=data, identity=key, objective="tests.nowhere:Model", **proxy)
    before = files_below(desk.folder)
    ended = chorale("silo", "check", "--config", config)
    assert ended.code == 1
    assert [line.split(":")[0] for line in problems(ended)] == [
        "certificate",
        "proxy",
        "policy",
        "data.path",
        "objective",
    ]
    assert "error: 5 problems: this silo is not ready" in ended.err
    assert files_below(desk.folder) == before, "not even the folder of the ledger is made"


def test_a_field_is_named_once_in_a_finding(desk: Desk, chorale: Calls) -> None:
    # "directory: directory: ..." was read as a field in a field
    (desk.folder / "taken").write_text("")
    data = {"format": "module", "module": "tests.nowhere:Data"}
    config = desk.silo(directory=str(desk.folder / "taken"), data=data, objective="tests.nowhere:Model")
    ended = chorale("silo", "check", "--config", config)
    assert problems(ended) == [
        f"directory: {desk.folder / 'taken'} is a file, expected a folder",
        "data.module: cannot load tests.nowhere:Data: No module named 'tests.nowhere'",
        "objective: cannot load tests.nowhere:Model: No module named 'tests.nowhere'",
    ]


def test_what_would_stop_the_agent_at_its_start_is_found(desk: Desk, chorale: Calls) -> None:
    # all was said to be well: the first job, or the start, found it
    config = desk.silo(directory="/proc/silo-0", software_digest="0" * 64)
    ended = chorale("silo", "check", "--config", config)
    assert [line.partition(",")[0] for line in problems(ended)] == [
        f"software_digest: expected {'0' * 64}",
        "directory: /proc cannot be written to: " + problems(ended)[1].rpartition(": ")[2],
    ], ended.out
    assert ended.code == 1


@pytest.mark.parametrize(
    ("gpus", "settings", "expected"),
    [
        (0, {"device": "cuda"}, "device: cuda is set but torch finds no GPU; allowed here: auto, cpu"),
        (2, {"devices": 4}, "devices: 4 are set, torch finds 2 GPUs on this machine"),
        (0, {"devices": 4}, None),  # processes of the CPU
    ],
)
def test_devices_that_the_machine_does_not_have_are_found(
    desk: Desk,
    chorale: Calls,
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    settings: dict[str, object],
    expected: str | None,
) -> None:
    torch = pytest.importorskip("torch", reason="asks torch for GPUs: needs the extra silo")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    ended = chorale("silo", "check", "--config", desk.silo(**settings))
    assert problems(ended) == ([] if expected is None else [expected]), ended.out


def test_all_is_well_ends_with_zero(desk: Desk, chorale: Calls) -> None:
    login = desk.folder / "login"
    login.write_text("olga:word\n")
    login.chmod(0o600)
    ended = chorale("silo", "check", "--config", desk.silo(proxy="out:3128", proxy_credentials=str(login)))
    assert "ok       proxy: out:3128, with a login" in ended.out.splitlines()
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "all is well; nothing was sent")


@pytest.mark.parametrize(
    "strategy, privacy, phases",
    [
        ("fedavg", None, ["enrollment", "train", "evaluate"]),
        ("fedavg", SOLVED, ["enrollment", "train", "evaluate"]),
        ("fedcsd", None, ["enrollment", "class-presence", "prototypes", "train", "evaluate"]),
        ("spherefed", None, ["enrollment", "train", "calibrate", "evaluate"]),
        ("fedbabu_ft", None, ["enrollment", "train", "evaluate", "fine-tune"]),
        ("fedrep", None, ["enrollment", "train", "evaluate"]),
        ("scaffold", None, ["enrollment", "train", "evaluate"]),
    ],
)
def test_every_phase_of_a_method_runs_on_one_batch(
    desk: Desk, chorale: Calls, strategy: str, privacy: object, phases: list[str]
) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    allowing = {"federation": "test", "class_statistics": "allow", "local_state": "allow"}
    policy = desk.write("allowing.yaml", allowing)
    job = table_job(desk, strategy={"preset": strategy}, privacy=privacy, fraction=1.0, rounds=9)
    config = table_silo(desk, TABLE, policy=str(policy))
    before = files_below(desk.folder)
    ended = chorale("silo", "check", "--config", config, "--job", job)
    assert ended.code == 0, ended.out + ended.err
    reported = [
        line.split()[2].rstrip(":") for line in ended.out.splitlines() if line.startswith("ok       phase")
    ]
    assert reported == phases
    assert "ok       round: at most about" in ended.out
    assert ("class rows: 0 to " in ended.out) == (strategy == "fedcsd")
    assert files_below(desk.folder) == before


def test_of_trees_the_widest_level_is_tried_and_what_their_columns_lack_is_told(
    desk: Desk, chorale: Calls
) -> None:
    """The first round sums three numbers: nothing was said of how much a level sends."""
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    policy = desk.write("allowing.yaml", {"federation": "test", "class_statistics": "allow"})
    chol = {"name": "chol", "scale": 100.0, "unit": "mg/dL", "edges": [200.0, 240.0]}
    job = desk.job(
        strategy={"preset": "trees", "options": {"depth": 4, "bins": 64}},
        model={"name": "trees"},
        classes=2,
        input_shape=[4],
        columns=[{"name": "age", "mean": 50.0}, chol, {"name": "sex", "categories": ["f", "m"]}],
        label_column="sick",
    )
    written = "age,chol,sex,sick\n" + "60,250,f,1\n,180,m,0\n" * 30
    ended = chorale("silo", "check", "--config", table_silo(desk, written, policy=str(policy)), "--job", job)
    assert ended.code == 0, ended.out
    assert f"{3 * 8 * 8 * 4 * 65 / (1 << 20):.3f} MB to send" in ended.out
    for text, expected in (
        (written.replace("chol,sex", "fat,sex"), "chol"),
        (written.replace(",m,", ",w,"), "'w'"),
        (written.replace(",", ";").replace("60", "60,5"), 'dialect: {delimiter: ";", decimal: ","}'),
    ):
        config = table_silo(desk, text, policy=str(policy))
        ended = chorale("silo", "check", "--config", config, "--job", job)
        assert ended.code == 1
        assert expected in ended.out


def test_of_a_search_one_arm_is_tried_and_all_are_named(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    search = {"values": {"training.learning_rate": [0.1, 0.3, 1.0]}}
    job = table_job(desk, search=search, training={}, privacy=None, fraction=1.0, rounds=9)
    ended = chorale("silo", "check", "--config", table_silo(desk, TABLE), "--job", job)
    assert ended.code == 0, ended.out + ended.err
    assert ended.out.count("ok       phase") == 3
    assert "MB to send, of each of at first 3 arms" in ended.out


@pytest.mark.parametrize(("privacy", "is_refused"), [(None, True), (PRIVATE, False)])
def test_a_data_set_with_too_many_refusals_is_told_before_a_job_is_sent(
    desk: Desk, chorale: Calls, privacy: object, is_refused: bool
) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    policy = desk.write("closed.yaml", {"federation": "test", "max_data_refusals": 0})
    config, job = table_silo(desk, TABLE, policy=str(policy)), table_job(desk, privacy=privacy)
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        ledger.data_refusals(policy=load_policy(policy), data_set="data").record(bytes(32), suspends=True)
    ended = chorale("silo", "check", "--config", config, "--job", job)
    expected = "refusals: data set data: 1 inputs were refused for its data, more than 0 (max_data_refusals)"
    assert [line.partition(";")[0] for line in problems(ended)] == [expected] * is_refused, ended.out


@pytest.mark.parametrize("privacy", [None, PRIVATE])
def test_mistakes_of_job_policy_and_records_are_all_listed(
    desk: Desk, chorale: Calls, privacy: object
) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    policy = desk.write("strict.yaml", {"federation": "test", "max_rounds": 3})
    config = table_silo(desk, TABLE + MISTAKES, policy=str(policy))
    job = table_job(desk, rounds=9, privacy=privacy)
    ended = chorale("silo", "check", "--config", config, "--job", job)
    table = f"data: {desk.folder / 'table.csv'}"
    assert problems(ended)[:6] == [
        "acceptance: policy: expected at most 3, got 9 rounds",
        f"{table}, line 64: expected 3 values, got 1",
        f"{table}, line 62, column age: expected a number, got 'old'",
        f"{table}, line 63, column chol: expected a number, got 'many'",
        f"{table}, line 64, column sick: expected a number, got ''",
        f"{table}, line 63: labels must be 0 to 1 (by the job's task and classes), got 5",
    ]
    assert ended.code == 1
    assert "phase train" in ended.out, "the records that fit run through the phases"


def test_classes_are_found_by_the_jobs_names_and_folders_that_are_left_out_are_counted(
    desk: Desk, chorale: Calls
) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    folder = desk.folder / "images"
    write_folders(folder, {"healthy": range(20), "krank": range(200, 220), "unknown": [9]})
    own = {"labels": {"krank": "pneumonia"}, "drop": ["unknown"]}
    config = desk.silo(data={"format": "image-folder", "path": str(folder), **own})
    fields = {"model": {"name": "mlp", "hidden": []}, "input_shape": [1, 2, 2]}
    named = desk.job(classes=["healthy", "pneumonia"], **fields)
    ended = chorale("silo", "check", "--config", config, "--job", named)
    assert (ended.code, problems(ended)) == (0, []), ended.out
    assert "ok       drop: 1 records of 'unknown' are left out, by data.drop" in ended.out
    ended = chorale("silo", "check", "--config", config, "--job", desk.job(classes=2, **fields))
    (problem,) = problems(ended)
    assert problem.startswith("data: classes: format image-folder needs the name of each class, such as")


def test_a_budget_that_is_too_small_is_read_and_left_alone(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    policy = desk.write("tight.yaml", {"federation": "test", "privacy": {"epsilon": 4.0}})
    config = table_silo(desk, TABLE, policy=str(policy))
    ledger = Ledger(desk.folder / "silo-0" / "ledger.sqlite")
    ledger.budget(policy=load_policy(policy), data_set="data").open_account()
    ledger.close()
    before = files_below(desk.folder)
    job = table_job(desk, privacy={**PRIVATE, "statistics_noise_multiplier": 2.0})
    ended = chorale("silo", "check", "--config", config, "--job", job)
    assert problems(ended)[-1].startswith("budget: job")
    assert "expected at most epsilon 4 of account data" in problems(ended)[-1]
    assert files_below(desk.folder).items() >= before.items()


def test_own_code_that_raises_is_a_line_that_names_the_phase(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="draws a first state: needs the extra silo")
    config = table_silo(desk, TABLE, objective="tests.unit.cli.test_silo_check:Failing")
    ended = chorale("silo", "check", "--config", config, "--job", table_job(desk))
    assert problems(ended) == ["training: phase train: KeyError: 'head.weight'"]


def test_the_data_set_that_a_job_names_is_checked_under_its_own_policy(desk: Desk, chorale: Calls) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    strict = str(desk.write("strict.yaml", {"federation": "test", "max_rounds": 3}))
    table = desk.folder / "table.csv"
    table.write_text(TABLE)
    ward = {"format": "csv", "path": str(table), "name": "ward", "policy": strict}
    config = desk.silo(data=[{"format": "digits", "name": "digits"}, ward])
    of_ward = chorale("silo", "check", "--config", config, "--job", table_job(desk, data="ward", rounds=9))
    assert problems(of_ward) == ["acceptance: policy: expected at most 3, got 9 rounds"]
    of_none = chorale("silo", "check", "--config", config, "--job", desk.job())
    assert problems(of_none) == ["job: job digits: names no data set, and this silo has several"]


def test_code_that_a_job_names_is_loaded_where_the_policy_lists_it_and_it_is_the_jobs(
    desk: Desk, chorale: Calls
) -> None:
    pytest.importorskip("torch", reason="loads a model: needs the extra silo")
    listing = str(desk.write("listing.yaml", {"federation": "test", "distributions": [own_code.NAME]}))
    model = {"name": "net", "from": own_code.PINNED}
    named = {"code": [{"distribution": own_code.PINNED, "sha256": "0" * 64}]}
    config = table_silo(desk, TABLE, policy=listing)
    with own_code.importable(desk.folder / "own"):
        loaded = own_code.PACKAGE in sys.modules
        unlisted = chorale(
            "silo", "check", "--config", table_silo(desk, TABLE), "--job", table_job(desk, model=model)
        )
        assert problems(unlisted) == [
            "code: policy: expected code of Chorale or of no other (distributions), "
            f"got code of {own_code.PINNED}"
        ]
        config = table_silo(desk, TABLE, policy="absent.yaml")
        unread = chorale("silo", "check", "--config", config, "--job", table_job(desk, model=model))
        assert problems(unread)[-1] == "code: the policy cannot be read, so none of it is loaded"
        assert (loaded, own_code.PACKAGE in sys.modules) == (False, False), "it was not run"
        config = table_silo(desk, TABLE, policy=listing)
        other = chorale("silo", "check", "--config", config, "--job", table_job(desk, model=model, **named))
        assert len(problems(other)) == 1
        assert problems(other)[0].startswith(f"code: {own_code.PINNED}: ")
        fine = chorale(
            "silo", "check", "--config", config, "--job", table_job(desk, model={**model, "options": {}})
        )
        assert "code: hospital-models==1.2.0, SHA-256 " in fine.out
    absent = chorale("silo", "check", "--config", config, "--job", table_job(desk, model=model))
    assert len(problems(absent)) == 1
    assert problems(absent)[0].startswith("code: ")


def test_a_job_with_transforms_metrics_and_an_end_of_its_own_runs_on_one_batch(
    desk: Desk, chorale: Calls
) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    policy = desk.write("allowing.yaml", {"federation": "test", "class_statistics": "allow"})
    by_accuracy = {"metric": "accuracy", "best": "highest"}
    job = desk.job(
        rounds=40,
        keep=by_accuracy,
        stop={**by_accuracy, "rounds": 3},
        augment=[{"kind": "random-crop", "padding": 1}],
        normalize={"mean": [0.3], "std": [0.3]},
        task={"name": "classification", "metrics": ["confusion", "calibration"]},
    )
    ended = chorale("silo", "check", "--config", desk.silo(policy=str(policy)), "--job", job)
    assert ended.code == 0, ended.out + ended.err
    evaluation = desk.job(rounds=0)
    unknown = chorale("silo", "check", "--config", desk.silo(), "--job", evaluation)
    assert problems(unknown) == [
        "model: rounds: 0 evaluates a given model, and none is given; give it: --init FILE.safetensors"
    ]


@pytest.mark.parametrize("unit", [None, "patient"])
def test_a_private_job_is_told_with_what_a_record_is_and_what_several_cost(
    desk: Desk, chorale: Calls, unit: str | None
) -> None:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    rows = [f"{place // 4},{40 + place},{200 + place},{place % 2}" for place in range(60)]
    config = table_silo(desk, "\n".join(["patient,age,chol,sick", *rows, ""]), unit=unit)
    ended = chorale("silo", "check", "--config", config, "--job", table_job(desk, privacy=PRIVATE))
    assert ended.code == 0, ended.out + ended.err
    assert "privacy: somebody with 2, 5, 10, 20 records in one silo: epsilon " in ended.out
    if unit is None:
        assert (
            "data set ward: a record is one row; where one person has several, name the column" in ended.out
        )
        assert " units" not in ended.out.split("ok       data")[1].splitlines()[0]
    else:
        assert "data set ward: a record is all rows of one patient, of which 32 are used at most" in ended.out
        assert re.search(
            r"data: \d+ samples of \d+ units to train on, \d+ samples of \d+ units held out", ended.out
        )


def test_files_that_no_job_uses_are_counted_with_the_reason(desk: Desk, chorale: Calls) -> None:
    """A hidden file and an image without a line in labels.csv vanished without a word."""
    image = pytest.importorskip("PIL.Image", reason="writes images: needs the extra silo")
    root = desk.folder / "set"
    (root / "images").mkdir(parents=True)
    for number in range(20):
        image.new("L", (4, 4), number).save(root / "images" / f"{number}.png")
    (root / "images" / ".DS_Store").touch()
    (root / "labels.csv").write_text("image,sick\n" + "".join(f"{n}.png,{n % 2}\n" for n in range(19)))
    config = desk.silo(data={"format": "image-folder", "path": str(root)})
    ended = chorale(
        "silo",
        "check",
        "--config",
        config,
        "--job",
        desk.job(classes=2, input_shape=[1, 4, 4], label_column="sick"),
    )
    assert (
        f"ok       files: {root}/images: 21 found, 20 images, 19 with a line in labels.csv; left out: "
        "1 hidden (.DS_Store), 1 without a line in labels.csv (19.png)"
    ) in ended.out.splitlines(), ended.out
    assert ended.code == 0, ended.out
