"""`chorale model predict` and `show`: new rows and images are read as training read them, without labels."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import facts_of, read_model, with_facts
from chorale.spec.state import state_parts
from tests.support.databases import write_table
from tests.support.scan_files import write_nifti, write_slice
from tests.unit.cli.conftest import Calls

torch = pytest.importorskip("torch", reason="needs the extra silo")

from silo_agent.training.data.loading import load_data  # noqa: E402
from silo_agent.training.data.settings import DataSettings  # noqa: E402
from silo_agent.training.models.base import FederatedModel  # noqa: E402
from silo_agent.training.models.registry import job_model  # noqa: E402
from silo_agent.training.models.starting import initial_state  # noqa: E402
from silo_agent.training.models.state import load_arrays  # noqa: E402
from silo_agent.training.predicting.inputs import guessed_format, inputs_in  # noqa: E402
from silo_agent.training.predicting.predict import predictions  # noqa: E402
from tests.support.objectives import make_job  # noqa: E402

COLUMNS = [
    {"name": "age", "mean": 50.0, "scale": 20.0, "fill": 40.0},
    {"name": "smoker", "categories": ["yes", "no"]},
]
TABLE: dict[str, Any] = {"input_shape": (3,), "columns": COLUMNS, "label_column": "ill"}
CLASSES = ["healthy", "ill"]
GERMAN = {"delimiter": ";", "decimal": ",", "thousands": ".", "encoding": "cp1252"}
BOUNDS = {"low": 10.0, "high": 30.0}
VALUES = {"smoker": {"ja": "yes", "nein": "no"}, "ill": {"krank": "ill"}}


def written(path: Path, job: JobSpec, **closing: float) -> FederatedModel:
    """A fetched model's file, and the model. closing: figures of its closing evaluation."""
    state = {name: array + 0.1 for name, array in initial_state(job).items()}
    facts = facts_of(job, job_digest=bytes(range(32)), round=3, closing=closing)
    path.write_bytes(b"".join(with_facts(state_parts(state), facts)))
    model = job_model(job)
    with torch.no_grad():
        load_arrays(model, state)
    return model.eval()


def table_job(**fields: Any) -> JobSpec:
    network = {"model": {"name": "mlp", "hidden": (4,)}, "classes": CLASSES}
    return make_job(**{**TABLE, **network, **fields})


def logits(model: FederatedModel, inputs: Any) -> Any:
    with torch.inference_mode():
        return model(torch.tensor(np.asarray(inputs, np.float32)))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def config_of(folder: Path, **fields: Any) -> Path:
    path = folder / "data.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def chances(row: dict[str, str]) -> list[float]:
    return [float(row[f"probability_{name}"]) for name in CLASSES]


def test_each_row_has_its_answer_in_its_order_and_what_was_read_otherwise(
    tmp_path: Path, chorale: Calls
) -> None:
    file, new, out = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.csv"
    model = written(file, table_job())
    new.write_bytes("smoker;age;who\nja;1.050,5;x\nnein;;y\nfrueher;30;z\n".encode("cp1252"))
    refused = chorale("model", "predict", file, new, "--out", out)
    assert "no columns 'age', 'smoker'; it has smoker;age;who" in refused.err
    assert "hint: --config FILE says how a file is written" in refused.err
    config = config_of(tmp_path, format="csv", path="elsewhere.csv", dialect=GERMAN, values=VALUES)
    ended = chorale("model", "predict", file, new, "--config", config, "--out", out)
    assert (ended.code, ended.out) == (0, f"{out}: 3 answers, 0 inputs that cannot be read\n"), ended.err
    expected = logits(model, [[50.025, 1, 0], [-0.5, 0, 1], [-1, 0, 0]]).softmax(dim=1)
    rows = rows_of(out)
    np.testing.assert_allclose([chances(row) for row in rows], expected, rtol=1e-5)
    assert [row["prediction"] for row in rows] == [CLASSES[each] for each in expected.argmax(dim=1)]
    assert [row["row"] for row in rows] == ["1", "2", "3"]
    wrong = "smoker: expected one of yes, no, got 'frueher', read as missing"
    far = "age: more than 8 scales from the mean of training"
    assert [row["remarks"] for row in rows] == [far, "", wrong]
    origin = json.loads(out.with_suffix(".json").read_text())
    assert origin["model"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert origin["inputs"] == [{"file": "new.csv", "sha256": hashlib.sha256(new.read_bytes()).hexdigest()}]
    assert (origin["model"]["job"], origin["answers"]) == (bytes(range(32)).hex(), "probability")


def test_columns_are_derived_converted_and_believed_as_in_training(tmp_path: Path, chorale: Calls) -> None:
    file = tmp_path / "m.safetensors"
    age = {"name": "age", "scale": 100.0, "unit": "months", "plausible": [0, 1200]}
    written(file, table_job(columns=[age, COLUMNS[1]]))
    (tmp_path / "plain.csv").write_text("age,smoker\n600,yes\n,no\n1300,no\n")
    born = "born,seen,smoker\n1950-05-02,2000-05-02,yes\nsoon,2000-05-02,no\n1850-01-01,2000-05-02,no\n"
    (tmp_path / "born.csv").write_text(born)
    units = {"age": {"unit": "years", "factors": {"months": 12.0}}}
    derive = {"age": {"years": ["born", "seen"]}, "other": {"days": ["here", "there"]}}
    config = config_of(tmp_path, format="csv", path="elsewhere.csv", units=units, derive=derive)
    found = []
    for options in (["plain.csv"], ["born.csv", "--config", config]):
        name, *rest = options
        out = tmp_path / f"of-{name}"
        ended = chorale("model", "predict", file, tmp_path / str(name), *rest, "--out", out)
        assert ended.code == 0, ended.err
        found.append(rows_of(out))
    assert [chances(row) for row in found[0]] == [chances(row) for row in found[1]]
    outside = "age: outside of 0 to 1200 (plausible), missing"
    assert [row["remarks"] for row in found[0]] == ["", "", outside]
    no_day = "born: expected a day as YYYY-MM-DD, got 'soon', read as missing"
    assert [row["remarks"] for row in found[1]] == ["", no_day, outside]
    config.write_text(config.read_text().replace("months", "weeks"))
    ended = chorale(
        "model", "predict", file, tmp_path / "born.csv", "--config", config, "--out", tmp_path / "o.csv"
    )
    assert "age: the job reads months, the data hold years: expected a factor" in ended.err


def test_a_silos_settings_serve_though_the_new_rows_have_no_label(tmp_path: Path, chorale: Calls) -> None:
    file, new, out = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.csv"
    model = written(file, table_job())
    new.write_text("Raucher;Alter\nja;50\n")
    names = {"Raucher": "smoker", "Alter": "age", "Befund": "ill"}
    labels, dialect = {"krank": "ill", "gesund": "healthy"}, {"delimiter": ";"}
    fields = {"rename": names, "values": VALUES, "labels": labels, "dialect": dialect}
    config = config_of(tmp_path, format="csv", path="x.csv", **fields)
    assert chorale("model", "predict", file, new, "--config", config, "--out", out).code == 0
    expected = logits(model, [[0, 1, 0]]).softmax(dim=1)[0]
    np.testing.assert_allclose(chances(rows_of(out)[0]), expected, rtol=1e-5)


def test_a_row_that_cannot_be_read_keeps_its_place(tmp_path: Path, chorale: Calls) -> None:
    file, new, out = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.csv"
    written(file, table_job())
    new.write_text('age,smoker\n1,yes\n"2,no\n3,no\n')
    ended = chorale("model", "predict", file, new, "--out", out)
    assert ended.out == f"{out}: 2 answers, 1 inputs that cannot be read\n"
    assert "line 3: a quote opens a cell" in ended.err
    assert [(row["row"], row["prediction"] != "", row["remarks"]) for row in rows_of(out)] == [
        ("1", True, ""),
        ("2", False, "cannot be read"),
        ("3", True, ""),
    ]


DIALECTS = st.tuples(
    st.sampled_from([(",", "."), (";", ","), ("\t", "."), ("|", ",")]),
    st.sampled_from([(None, "utf-8"), (" ", "utf-8"), ("'", "iso-8859-15")]),
)
PATIENTS = st.lists(
    st.tuples(st.integers(0, 99_999), st.sampled_from(["yes", "no", ""])), min_size=1, max_size=5
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(dialect=DIALECTS, patients=PATIENTS)
def test_answers_are_those_of_the_same_rows_in_training_whatever_the_dialect(
    tmp_path: Path, chorale: Calls, dialect: Any, patients: list[tuple[int, str]]
) -> None:
    (delimiter, decimal), (thousands, encoding) = dialect
    folder = tmp_path / "drawn"
    folder.mkdir(exist_ok=True)
    job, fields = table_job(), {"delimiter": delimiter, "decimal": decimal, "encoding": encoding}
    model = written(folder / "m.safetensors", job)
    plain_file, odd = folder / "plain.csv", folder / "odd.csv"
    plain_file.write_text("age,smoker,ill\n" + "".join(f"{age}.5,{text},ill\n" for age, text in patients))
    grouped = [f"{age:,}".replace(",", thousands or "") + f"{decimal}5" for age, _ in patients]
    lines = [delimiter.join(["smoker", "age"])]
    lines += [delimiter.join([text, age]) for age, (_, text) in zip(grouped, patients, strict=True)]
    odd.write_bytes("\r\n".join(lines).encode(encoding))
    config = config_of(folder, format="csv", path="x", dialect={**fields, "thousands": thousands})
    file, out = folder / "m.safetensors", folder / "out.csv"
    for earlier in (out, out.with_suffix(".json")):
        earlier.unlink(missing_ok=True)
    ended = chorale("model", "predict", file, odd, "--config", config, "--out", out)
    assert ended.code == 0, ended.err
    given_rows = DataSettings.model_validate({"format": "csv", "path": plain_file, "holdout": 0.0})
    trained_on = load_data(given_rows, job).train.features
    expected = logits(model, trained_on).softmax(dim=1)
    np.testing.assert_allclose([chances(row) for row in rows_of(out)], expected, rtol=1e-4, atol=1e-9)


def test_tables_of_a_database_and_parquet_answer_alike_and_parquet_keeps_its_facts(
    tmp_path: Path, chorale: Calls
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra tables")
    import pyarrow

    file, out = tmp_path / "m.safetensors", tmp_path / "out.parquet"
    written(file, table_job())
    patients = [("p1", 30.0, "yes"), ("p2", 60.0, "no")]
    write_table(tmp_path, ("patient", "age", "smoker"), patients)
    config = config_of(
        tmp_path, format="sql", database={"url_file": str(tmp_path / "url"), "table": "t"}, unit="patient"
    )
    assert chorale("model", "predict", file, "--config", config, "--out", tmp_path / "a.csv").code == 0
    columns = dict(zip(("patient", "age", "smoker"), map(list, zip(*patients, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    assert chorale("model", "predict", file, tmp_path / "t.parquet", "--out", out).code == 0
    made = parquet.read_table(out)
    by_sql = rows_of(tmp_path / "a.csv")
    assert [row["patient"] for row in by_sql] == ["p1", "p2"]
    np.testing.assert_allclose(made["probability_ill"].to_pylist(), [chances(row)[1] for row in by_sql])
    assert json.loads(made.schema.metadata[b"chorale"])["inputs"][0]["file"] == "t.parquet"


def test_images_are_called_by_their_paths_and_one_that_is_none_says_why(
    tmp_path: Path, chorale: Calls
) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra silo")
    file, folder, out = tmp_path / "m.safetensors", tmp_path / "new", tmp_path / "out.csv"
    job = make_job(classes=CLASSES)
    model = written(file, job)
    (folder / "ward").mkdir(parents=True)
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8), np.uint8)
    image.fromarray(pixels).save(folder / "ward" / "a.png")
    (folder / "b.png").write_text("no image")
    (folder / "notes.doc").write_text("none")
    ended = chorale("model", "predict", file, folder, "--out", out)
    assert ended.out == f"{out}: 1 answers, 1 inputs that cannot be read\n"
    assert "1 left out" in ended.err
    bad, good = rows_of(out)
    assert (bad["image"], good["image"]) == ("b.png", "ward/a.png")
    assert "UnidentifiedImageError" in bad["remarks"]
    expected = logits(model, pixels[np.newaxis, np.newaxis] / 255).softmax(dim=1)[0]
    np.testing.assert_allclose(chances(good), expected, rtol=1e-5)


class Bright(FederatedModel):
    """The second class where a pixel is bright."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)

    def forward(self, inputs: Any) -> Any:
        return torch.cat([0 * inputs + (inputs.max() + inputs.min()) / 2, inputs], dim=1)


@pytest.mark.parametrize("kind", ["png", "nifti", "dicom"])
def test_masks_lie_in_the_grid_of_their_image(tmp_path: Path, chorale: Calls, kind: str) -> None:
    pytest.importorskip("monai", reason="needs the extra medical")
    import nibabel
    from PIL import Image

    folder = tmp_path / "new"
    folder.mkdir()
    values, affine = np.zeros((16, 8), np.int16), np.diag([0.5, 2.0, 3.0, 1.0])
    values[8:] = 200
    if kind == "png":
        Image.fromarray(values.astype(np.uint8)).save(folder / "a.png")
    elif kind == "nifti":
        write_nifti(folder / "a.nii.gz", values, affine)
    else:
        write_slice(folder / "a.dcm", values)
    job = make_job(task={"name": "segmentation"}, classes=2, model={"name": "custom"})
    given = DataSettings.model_validate({"format": guessed_format(folder), "path": folder})
    columns = predictions(Bright(), inputs_in(given, job), job, masks=tmp_path / "masks")
    assert (columns["remarks"], columns["pixels_1"]) == ([""], [64])
    path = tmp_path / str(columns["mask"][0])
    if kind == "png":
        mask = np.asarray(Image.open(path))
    else:
        found: Any = nibabel.load(path)  # type: ignore[attr-defined]
        mask = np.asarray(found.dataobj)
    if kind == "nifti":
        np.testing.assert_allclose(found.affine, affine)
    np.testing.assert_array_equal(mask, values > 100)


def test_cosines_are_called_scores(tmp_path: Path, chorale: Calls) -> None:
    file, new, out = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.csv"
    model = written(file, table_job(strategy={"preset": "spherefed"}))
    new.write_text("age,smoker\n50,yes\n")
    assert chorale("model", "predict", file, new, "--out", out).code == 0
    (row,) = rows_of(out)
    expected = logits(model, [[0, 1, 0]])[0].tolist()
    assert [float(row[f"score_{name}"]) for name in CLASSES] == pytest.approx(expected, rel=1e-5)
    assert json.loads(out.with_suffix(".json").read_text())["answers"] == "score"


@pytest.mark.parametrize(
    ("task", "fields", "heading"),
    [
        ("multi-label", {"label_column": ["l0", "l1"]}, "probability_ill"),
        ("regression", {"classes": 2, "label_column": ["l0", "l1"], "options": BOUNDS}, "prediction_l1"),
        ("survival", {"classes": 2, "label_column": ["l0", "l1"]}, "survival_after_interval_1"),
    ],
)
def test_other_tasks_answer_in_their_own_words(
    tmp_path: Path, chorale: Calls, task: str, fields: dict[str, Any], heading: str
) -> None:
    file, new, out = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.csv"
    options = fields.pop("options", {})
    model = written(file, table_job(task={"name": task, "options": options}, **fields))
    new.write_text("age,smoker\n50,yes\n")
    ended = chorale("model", "predict", file, new, "--out", out)
    assert ended.code == 0, ended.err
    outputs = logits(model, [[0, 1, 0]])[0].tolist()
    alive = math.prod(1 / (1 + math.exp(each)) for each in outputs)
    expected = {
        "multi-label": 1 / (1 + math.exp(-outputs[1])),
        "regression": 20 + 10 * outputs[1],
        "survival": alive,
    }
    assert float(rows_of(out)[0][heading]) == pytest.approx(expected[task], rel=1e-5)
    kind = "number" if task == "regression" else "probability"
    assert json.loads(out.with_suffix(".json").read_text())["answers"] == kind


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new.csv", "--out", "o.txt"], "--out: expected a file .csv or .parquet"),
        (["--out", "o.csv"], "DATA: a value is required, or --config"),
        (
            ["nowhere.csv", "--out", "o.csv"],
            "nowhere.csv: expected a file or folder that is there, or images",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, chorale: Calls, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "m.safetensors", table_job())
    (tmp_path / "new.csv").write_text("age,smoker\n1,yes\n")
    ended = chorale("model", "predict", "m.safetensors", *arguments)
    assert ended.code == 2
    assert said in ended.err


def test_show_says_what_a_model_was_trained_on(tmp_path: Path, chorale: Calls) -> None:
    file = tmp_path / "m.safetensors"
    privacy = {"epsilon": 3.0, "records": {"clip_norm": 1.0, "sample_rate": 0.1}}
    written(file, table_job(privacy=privacy))
    shown = chorale("model", "show", file).out.splitlines()
    assert shown[1].startswith("trained by ")
    assert "privacy: epsilon 3 at delta 1e-05, for the whole job" in shown
    assert "classes: healthy, ill" in shown
    assert "  age: a number, 50 subtracted, divided by 20; 40 where it is missing" in shown
    assert "  smoker: one of yes, no" in shown
    years = {"name": "age", "unit": "years", "plausible": (0.0, 120.0)}
    written(file, table_job(columns=[years, COLUMNS[1]]))
    believed = "  age: a number in years from 0 to 120, 0 subtracted, divided by 1; 0 where it is missing"
    assert believed in chorale("model", "show", file).out.splitlines()


def test_show_says_of_no_column_of_trees_that_it_is_filled(tmp_path: Path, chorale: Calls) -> None:
    file = tmp_path / "m.safetensors"
    given = {"strategy": {"preset": "trees"}, "model": {"name": "trees"}, "training": {"learning_rate": 0.3}}
    written(file, table_job(columns=[{"name": "age", "mean": 50, "scale": 20}, COLUMNS[1]], **given))
    assert "  age: a number, 50 subtracted, divided by 20" in chorale("model", "show", file).out.splitlines()


def test_what_a_strangers_file_says_steers_no_terminal(tmp_path: Path, chorale: Calls) -> None:
    file = tmp_path / "m.safetensors"
    written(file, table_job())
    arrays, facts = read_model(file)
    hostile = {**facts, "name": "\x1b[2Jgone", "epsilon": "\r1", "delta": "0"}
    file.write_bytes(b"".join(with_facts(state_parts(arrays), hostile)))
    ended = chorale("model", "show", file)
    assert ended.code == 0, ended.err
    assert "\x1b" not in ended.out
    assert "\r" not in ended.out


def test_nothing_that_is_there_is_overwritten(tmp_path: Path, chorale: Calls) -> None:
    """--out that named the patients' own file took its place, and a file of JSON beside it too."""
    file, new, beside = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.json"
    written(file, table_job())
    new.write_text("age,smoker\n1,yes\n")
    beside.write_text("mine")
    for out, taken in ((new, new), (tmp_path / "out.csv", beside)):
        ended = chorale("model", "predict", file, new, "--out", out)
        assert f"{taken}: a file is already there and is not overwritten" in ended.err
    assert (new.read_text(), beside.read_text()) == ("age,smoker\n1,yes\n", "mine")
    assert not (tmp_path / "out.csv").exists()


def test_inputs_of_which_none_can_be_read_are_counted(tmp_path: Path, chorale: Calls) -> None:
    file, folder, out = tmp_path / "m.safetensors", tmp_path / "new", tmp_path / "out.csv"
    written(file, make_job(classes=CLASSES))
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (folder / name).write_text("no image")
    ended = chorale("model", "predict", file, folder, "--out", out)
    assert ended.out == f"{out}: 0 answers, 2 inputs that cannot be read\n"
    assert [row["image"] for row in rows_of(out)] == ["a.png", "b.png"]


@pytest.mark.parametrize("unit", ["prediction", "remarks", "patient"])
def test_a_unit_takes_no_answers_place(tmp_path: Path, chorale: Calls, unit: str) -> None:
    file, new, out = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.csv"
    written(file, table_job())
    new.write_text(f"age,smoker,{unit}\n1,yes,p7\n")
    config = config_of(tmp_path, format="csv", path="x.csv", unit=unit)
    assert chorale("model", "predict", file, new, "--config", config, "--out", out).code == 0
    (row,) = rows_of(out)
    assert row["patient" if unit == "patient" else f"input_{unit}"] == "p7"
    assert row["prediction"] in CLASSES
    assert row["remarks"] == ""


def test_a_folder_of_series_has_an_answer_a_series(tmp_path: Path, chorale: Calls) -> None:
    pytest.importorskip("monai", reason="needs the extra medical")
    folder = tmp_path / "new"
    for name in ("a", "b"):
        for place in range(2):
            write_slice(
                folder / name / f"{place}.dcm",
                np.full((8, 8), 500),
                place=place,
                series=f"1.2.{name == 'b':d}",
            )
    job = make_job(input_shape=(1, 8, 8, 2), classes=2, model={"name": "custom"})
    given = DataSettings.model_validate({"format": guessed_format(folder), "path": folder})
    assert inputs_in(given, job).names == ["a", "b"]
    assert [inputs_in(given, job).read(place)[0].shape for place in (0, 1)] == [(1, 8, 8, 2)] * 2


def test_hidden_files_of_a_folder_say_no_format(tmp_path: Path) -> None:
    write_nifti(tmp_path / "a.nii.gz", np.zeros((2, 2, 2), np.int16))
    (tmp_path / ".DS_Store").write_bytes(b"")
    assert guessed_format(tmp_path) == "nifti"
    write_nifti(tmp_path / "b.nii.gz", np.zeros((2, 2, 2), np.int16))
    (tmp_path / "LICENSE").write_text("as a DICOM file may be called")
    assert guessed_format(tmp_path) == "nifti"


@pytest.mark.parametrize("scans", [None, {"grid": {"spacing_mm": [1, 2, 3]}, "range": [0, 1]}])
def test_a_mask_of_a_volume_has_its_files_own_axes(tmp_path: Path, chorale: Calls, scans: Any) -> None:
    pytest.importorskip("monai", reason="needs the extra medical")
    import nibabel

    values = np.zeros((4, 6, 8), np.int16)
    values[:1, :2, 3:] = 200
    # to the back, upwards, to the right
    affine = np.array([[0, 0, 1.0, 5], [-2.0, 0, 0, 6], [0, 3.0, 0, 7], [0, 0, 0, 1]])
    write_nifti(tmp_path / "new" / "a.nii.gz", values, affine)
    job = make_job(
        task={"name": "segmentation"},
        classes=2,
        model={"name": "custom"},
        input_shape=(1, 8, 4, 6),
        scans=scans,
    )
    given = DataSettings.model_validate({"format": "nifti", "path": tmp_path / "new"})
    columns = predictions(Bright(), inputs_in(given, job), job, masks=tmp_path / "masks")
    found: Any = nibabel.load(tmp_path / str(columns["mask"][0]))  # type: ignore[attr-defined]
    np.testing.assert_allclose(found.affine, affine)
    if scans is None:
        np.testing.assert_array_equal(np.asarray(found.dataobj), values > 100)
    assert columns["mask"] == ["masks/a.nii.gz"]
    assert columns["pixels_1"] == [int(np.asarray(found.dataobj).sum())]
    assert columns["remarks"] == [""]


def test_what_lies_beyond_the_models_grid_is_told(tmp_path: Path, chorale: Calls) -> None:
    pytest.importorskip("monai", reason="needs the extra medical")
    write_nifti(tmp_path / "new" / "a.nii.gz", np.zeros((8, 8, 8), np.int16), np.eye(4))
    job = make_job(
        task={"name": "segmentation"},
        classes=2,
        model={"name": "custom"},
        input_shape=(1, 4, 8, 4),
        scans={"grid": {"spacing_mm": [1, 1, 1], "pad": 0}},
    )
    given = DataSettings.model_validate({"format": "nifti", "path": tmp_path / "new"})
    columns = predictions(Bright(), inputs_in(given, job), job, masks=tmp_path / "masks")
    assert columns["remarks"] == ["75% of its volume lies beyond the model's grid, and was not looked at"]


def test_a_fitted_temperature_makes_cosines_probabilities(tmp_path: Path, chorale: Calls) -> None:
    file, new, out = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.csv"
    model = written(file, table_job(strategy={"preset": "spherefed"}), temperature=0.05)
    new.write_text("age,smoker\n50,yes\n")
    assert chorale("model", "predict", file, new, "--out", out).code == 0
    (row,) = rows_of(out)
    expected = (logits(model, [[0, 1, 0]])[0] / 0.05).softmax(dim=0).tolist()
    assert [float(row[f"probability_{name}"]) for name in CLASSES] == pytest.approx(expected, rel=1e-5)
    said = json.loads(out.with_suffix(".json").read_text())
    assert (said["answers"], said["line"]["slope"]) == ("probability", 20.0)
    assert "temperature: 0.05, fitted to the silos' hold-outs" in chorale("model", "show", file).out


@pytest.mark.parametrize("stated", ["0", "1e-300", "-1", "nan", "inf", "warm"])
def test_a_temperature_that_is_none_is_refused(stated: str, tmp_path: Path, chorale: Calls) -> None:
    file = tmp_path / "m.safetensors"
    job = table_job()
    facts = {**facts_of(job, job_digest=bytes(32), round=3), "temperature": stated}
    file.write_bytes(b"".join(with_facts(state_parts(initial_state(job)), facts)))
    found = chorale("model", "show", file)
    assert found.code != 0
    assert f"temperature: expected a number from 0.0078125 to 64, got '{stated}'" in found.err


def test_a_value_far_from_what_training_saw_has_a_remark(tmp_path: Path, chorale: Calls) -> None:
    """The job states a mean of 50 and a scale of 20."""
    file, new, out = tmp_path / "m.safetensors", tmp_path / "new.csv", tmp_path / "out.csv"
    written(file, table_job())
    new.write_text("age,smoker\n210,yes\n211,yes\n-111,no\n")
    assert chorale("model", "predict", file, new, "--out", out).code == 0
    far = "age: more than 8 scales from the mean of training"
    assert [row["remarks"] for row in rows_of(out)] == ["", far, far]
