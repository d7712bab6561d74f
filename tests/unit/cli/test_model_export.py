"""`chorale model export`: what is in the folder gives what the federation's model gives."""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from chorale.spec.model_file import facts_of, open_model, with_facts
from chorale.spec.state import state_parts
from chorale.v1 import operations_pb2
from chorale_models import Sizes, model
from client.operations import Operations
from crypto.errors import ConfigError, RemoteProtocolError
from tests.unit.cli.conftest import Calls

torch = pytest.importorskip("torch", reason="needs the extra silo")

from silo_agent.training.data.formats.csv import load as load_csv  # noqa: E402
from silo_agent.training.data.settings import DataFormat, DataSettings  # noqa: E402
from silo_agent.training.exporting import export as exporting  # noqa: E402
from silo_agent.training.exporting import predict as exported  # noqa: E402
from silo_agent.training.models import registry  # noqa: E402
from silo_agent.training.models.registry import build_model  # noqa: E402
from silo_agent.training.models.starting import initial_state  # noqa: E402
from silo_agent.training.models.state import load_arrays  # noqa: E402
from tests.support.objectives import make_job  # noqa: E402

INPUTS = np.random.default_rng(1).standard_normal((5, 1, 8, 8), np.float32)
COLUMNS = [{"name": f"column-{place}", "mean": 1.0} for place in range(4)]
FIELDS: dict[str, Any] = {"input_shape": (4,), "columns": COLUMNS, "label_column": "sick"}


def written(path: Path, job: Any) -> Any:
    """A fetched model's file, and the model."""
    state = initial_state(job)
    facts = facts_of(job, job_digest=bytes(range(32)), round=3)
    path.write_bytes(b"".join(with_facts(state_parts(state), facts)))
    model = build_model(
        job.model,
        classes=job.classes,
        input_shape=job.input_shape,
        recipe=job.method.recipe,
        normalize=job.normalize,
    )
    with torch.no_grad():
        load_arrays(model, state)
    return model.eval()


@pytest.mark.gate  # torch's exporter alone takes 5 s to load
def test_script_and_onnx_file_give_what_the_model_gives(tmp_path: Path, chorale: Calls) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra export")
    from onnx.reference import ReferenceEvaluator

    normalize = {"mean": (0.5,), "std": (2.0,)}
    job = make_job({"preset": "fedetf"}, model={"name": "mlp", "hidden": (16,)}, normalize=normalize)
    file, out = tmp_path / "model.safetensors", tmp_path / "out"
    with torch.inference_mode():
        expected = written(file, job)(torch.from_numpy(INPUTS)).numpy()
    ended = chorale("model", "export", file, "--out", out)
    assert (ended.code, ended.err) == (0, "")
    names = ["model.safetensors", "load.py", "preprocessing.json", "model.onnx", "predict.py"]
    assert ended.out == f"{out}: {', '.join(names)}\n"
    assert {path.name for path in out.iterdir()} == {*names}
    preprocessing = json.loads((out / "preprocessing.json").read_text())
    assert preprocessing == {"classes": 10, "input_shape": [1, 8, 8], "input_type": "float32"} | {
        "normalize": {"mean": [0.5], "std": [2.0]},
        "answers": {
            "task": "classification",
            "kind": "probability",
            "names": [str(each) for each in range(10)],
            "range": None,
            "slope": 1.0,
            "intercept": 0.0,
        },
    }

    script: dict[str, Any] = {"__file__": str(out / "load.py"), "__name__": "load"}
    exec(compile((out / "load.py").read_text(), "load.py", "exec"), script)
    with torch.inference_mode():
        outputs = script["load"]()(torch.from_numpy(INPUTS)).numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    (by_onnx,) = ReferenceEvaluator(str(out / "model.onnx")).run(None, {"inputs": INPUTS})
    np.testing.assert_allclose(by_onnx, expected, rtol=1e-4, atol=1e-5)

    again = chorale("model", "export", out / "model.safetensors", "--out", out)
    assert again.code == 2
    assert "it is exported already" in again.err


@pytest.mark.gate  # peft loads transformers
@pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra language")
def test_adapters_are_exported_within_the_layers_that_they_are_beside(
    tmp_path: Path, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    job = make_job(model={"name": "mlp", "hidden": (16, 8)}, adapters={"targets": ("1", "4"), "rank": 2})
    state = {name: array + 0.125 for name, array in initial_state(job).items()}
    assert any(".lora_B." in name for name in state)
    facts = facts_of(job, job_digest=bytes(32), round=3)
    file, out = tmp_path / "model.safetensors", tmp_path / "out"
    file.write_bytes(b"".join(with_facts(state_parts(state), facts)))
    ended = chorale(
        "model", "export", file, "--out", out
    )  # it compares the script's outputs with the model's
    assert ended.code == 0, ended.err
    names = set(safetensors.numpy.load_file(out / "model.safetensors"))
    assert names == {"1.weight", "1.bias", "4.weight", "4.bias", "head.weight", "head.bias"}


def test_a_script_that_gives_something_else_is_an_error(
    tmp_path: Path, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a model's code draws numbers, or a process finds another release of it."""
    job = make_job(model={"name": "mlp", "hidden": (8,)}, **FIELDS)
    written(tmp_path / "model.safetensors", job)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    honest = exporting.loading_script
    monkeypatch.setattr(
        exporting,
        "loading_script",
        lambda *given: honest(*given).replace(
            "return model.eval()", "model.head.bias.data += 1; return model.eval()"
        ),
    )
    ended = chorale("model", "export", tmp_path / "model.safetensors", "--out", tmp_path / "out")
    assert ended.code == 2
    assert "load.py: its model gives other outputs than the federation's" in ended.err
    assert not (tmp_path / "out" / ".outputs.safetensors").exists()


def test_a_model_that_torch_cannot_export_has_no_onnx_file_and_says_why(
    tmp_path: Path, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(model={"name": "mlp", "hidden": (8,)}, **FIELDS)
    written(tmp_path / "model.safetensors", job)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    ended = chorale("model", "export", tmp_path / "model.safetensors", "--out", tmp_path / "out")
    assert ended.code == 0
    preprocessing = json.loads((tmp_path / "out" / "preprocessing.json").read_text())
    assert (preprocessing["label_column"], preprocessing["columns"][3]["name"]) == (["sick"], "column-3")
    assert ended.err == (
        "no model.onnx: it needs the extra 'export' (no onnxscript here): pip install '.[export]'\n"
    )


def test_rows_are_made_into_inputs_as_silos_make_them(tmp_path: Path) -> None:
    columns = [
        {"name": "age", "mean": 54.0, "scale": 9.0, "fill": 50.0, "plausible": (0, 120)},
        {"name": "sex", "categories": ("f", "m", "NA")},
        {"name": "pain", "categories": ("none", "typical"), "encoding": "index", "fill": -1.0, "scale": 2.0},
        {"name": "lead0..lead1", "mean": 1.0},
    ]
    job = make_job(classes=2, input_shape=(7,), columns=columns, label_column="ill")
    facts = exporting.preprocessing(job, facts_of(job, job_digest=bytes(32), round=3))
    table = tmp_path / "patients.csv"
    table.write_text(
        "pain,ill,age,sex,lead1,lead0\ntypical,1,63,m,1,2\nnone,0,,f,.5,-1e1\n?,0,400, ?,4_0,\n"
        "NA,0,x,w,nan,inf\nnone,1,50,NA,1,1\n"
    )
    settings = DataSettings(format=DataFormat.CSV, path=table)
    trained = load_csv(settings, job).train.features
    with table.open(newline="") as file:
        made = [list(exported.inputs_of(row, facts["columns"])) for row in csv.DictReader(file)]
    np.testing.assert_allclose(made, trained, rtol=1e-12)


TABLE: dict[str, Any] = {
    "columns": [{"name": "age", "mean": 50.0, "scale": 9.0}, {"name": "sex", "categories": ["f", "m"]}],
    "input_shape": (3,),
    "label_column": "sick",
}


@pytest.mark.gate  # torch's exporter alone takes 5 s to load
@pytest.mark.parametrize(
    "fields",
    [
        {"classes": ("well", "ill"), **TABLE},
        {"classes": ("a", "b"), **TABLE, "label_column": ["a", "b"], "task": {"name": "multi-label"}},
        {
            "classes": 1,
            **TABLE,
            "task": {"name": "regression", "options": {"low": -5.0, "high": 40.0}},
        },
    ],
    ids=["classification", "multi-label", "regression"],
)
def test_an_exported_folder_answers_without_chorale_as_chorale_does(
    fields: dict[str, Any], tmp_path: Path, chorale: Calls
) -> None:
    job, out = make_job(model={"name": "mlp", "hidden": (8,)}, **fields), tmp_path / "out"
    file, rows = tmp_path / "model.safetensors", tmp_path / "rows.csv"
    facts = facts_of(job, job_digest=bytes(32), round=3)
    file.write_bytes(b"".join(with_facts(state_parts(initial_state(job)), facts)))
    assert chorale("model", "export", file, "--out", out).code == 0
    rows.write_text("age,sex\n63,m\n,f\n12.5,?\n")
    assert chorale("model", "predict", file, rows, "--out", tmp_path / "own.csv").code == 0
    command = [sys.executable, "-I", out / "predict.py", rows, tmp_path / "theirs.csv"]
    assert subprocess.run(command, check=False).returncode == 0
    own, theirs = (
        list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
        for name in ("own", "theirs")
    )
    assert len(theirs) == 3
    for one, other in zip(own, theirs, strict=True):
        assert one.keys() - other.keys() == {"remarks"}
        for heading, text in other.items():
            if heading == "prediction" and "regression" not in str(fields.get("task")):
                assert text == one[heading]
            else:
                assert float(text) == pytest.approx(float(one[heading]), abs=1e-5)


@pytest.mark.gate
def test_a_predicting_script_that_answers_otherwise_is_an_error(
    tmp_path: Path, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(classes=("well", "ill"), model={"name": "mlp", "hidden": (8,)}, **TABLE)
    written(tmp_path / "model.safetensors", job)
    honest = exporting.preprocessing

    def other(*given: Any) -> Any:
        facts = honest(*given)
        facts["columns"][0]["mean"] += 1.0
        return facts

    monkeypatch.setattr(exporting, "preprocessing", other)
    ended = chorale("model", "export", tmp_path / "model.safetensors", "--out", tmp_path / "out")
    assert ended.code == 2
    assert "predict.py: probability_well: it gives other answers than the federation's model" in ended.err


def test_a_file_without_facts_is_one_sentence(tmp_path: Path, chorale: Calls) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(b"".join(state_parts({"model/w": np.zeros(2, np.float32)})))
    ended = chorale("model", "export", file, "--out", tmp_path / "out")
    assert ended.code == 2
    assert "its metadata do not describe a model; expected a file of `job fetch`" in ended.err
    assert not (tmp_path / "out").exists()


@model(head="1")
def any_options(sizes: Sizes, **options: object) -> Any:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, sizes.classes))


@pytest.mark.parametrize("fact", ["job", "round"])
def test_text_of_the_file_never_becomes_code_of_the_script(tmp_path: Path, chorale: Calls, fact: str) -> None:
    """The script's docstring had both as they stood, and the script is run."""
    job, ran = make_job(model={"name": "mlp", "hidden": (8,)}, **FIELDS), tmp_path / "ran"
    text = f'7"""\nopen({str(ran)!r}, "w")\n"""'
    facts = facts_of(job, job_digest=bytes(32), round=3) | {fact: text}
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"".join(with_facts(state_parts(initial_state(job)), facts)))
    ended = chorale("model", "export", file, "--out", tmp_path / "out")
    assert ended.code == 2
    assert f"its metadata: {fact}: expected " in ended.err
    assert not ran.exists()


def test_names_of_options_are_literals_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stood before the values as they were, and the script is run."""
    options = {"width": 3, "a=open('ran', 'w'), b": 1}
    job = make_job(model={"name": "net", "from": "nets==1.0", "options": options})
    monkeypatch.setattr(registry, "loaded", lambda *_, **__: any_options)
    built = build_model(job.model, classes=10, input_shape=job.input_shape)
    script = exporting.loading_script(job, built, facts_of(job, job_digest=bytes(32), round=3))
    called = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    names = {node.func.id for node in called if isinstance(node.func, ast.Name)}
    assert names == {"Path", "Sizes", "any_options", "load_file"}
    (made,) = [node for node in called if ast.unparse(node.func) == "any_options"]
    assert [(each.arg, ast.literal_eval(each.value)) for each in made.keywords] == [(None, options)]


def fetched(text: bytes, data: bytes, **summary: Any) -> bytes:
    """What an operator gets of a coordinator that sends this."""
    first, chunk = operations_pb2.FetchMessage(), operations_pb2.FetchMessage()
    first.job.spec, chunk.chunk.data = text, data
    for name, value in summary.items():
        setattr(first.summary, name, value)
    operations = Operations.__new__(Operations)
    operations._stub = SimpleNamespace(FetchModel=lambda _: iter([first, chunk]))
    return b"".join(operations.fetch(hashlib.sha256(text).digest())[1])


@pytest.mark.parametrize(
    "rounds, status, is_trained", [(3, "failed", False), (3, "done", True), (0, "", True)]
)
def test_a_model_that_no_round_changed_is_not_handed_out(rounds: int, status: str, is_trained: bool) -> None:
    """It was written as one that three silos trained. A job without rounds tests a given model."""
    job = make_job(rounds=rounds, strategy={"preset": "fedavg"})
    state = b"".join(state_parts(initial_state(job)))
    with nullcontext() if is_trained else pytest.raises(ConfigError, match="no round was applied"):
        assert fetched(job.to_yaml(), state, status=status)


@pytest.mark.parametrize("of_this_release", [True, False])
def test_metadata_of_the_coordinator_are_refused(of_this_release: bool) -> None:
    job = make_job()
    text = job.to_yaml() if of_this_release else b"field: of an earlier release"
    digest, state = hashlib.sha256(text).digest(), b"".join(state_parts(initial_state(job)))
    foreign = safetensors.numpy.save(safetensors.numpy.load(state), metadata={"round": "of the coordinator"})
    done = {"model_round": 1, "rounds_completed": 1}
    _, facts = open_model(fetched(text, state, **done))
    assert facts == (facts_of(job, job_digest=digest, round=1) if of_this_release else {})
    with pytest.raises(RemoteProtocolError, match="expected a state, which has no metadata"):
        fetched(text, foreign, **done)
