"""`chorale model export`: what is in the folder gives what the federation's model gives."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from chorale.spec.model_file import facts_of, with_facts
from chorale.spec.state import state_parts
from tests.unit.cli.conftest import Ended

torch = pytest.importorskip("torch", reason="needs the extra silo")

from silo_agent.training.models import export as exporting  # noqa: E402
from silo_agent.training.models.registry import build_model  # noqa: E402
from silo_agent.training.models.state import initial_state, load_arrays  # noqa: E402
from tests.support.objectives import make_job  # noqa: E402

Calls = Callable[..., Ended]
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
        classes=10,
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
    assert ended.out == f"{out}: model.safetensors, load.py, preprocessing.json, model.onnx\n"
    assert {path.name for path in out.iterdir()} == {
        "model.safetensors",
        "load.py",
        "preprocessing.json",
        "model.onnx",
    }
    told = json.loads((out / "preprocessing.json").read_text())
    assert told == {"classes": 10, "input_shape": [1, 8, 8], "input_type": "float32"} | {
        "normalize": {"mean": [0.5], "std": [2.0]}
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
    job = make_job(model={"name": "mlp", "hidden": (16, 8)}, adapters={"targets": ("1", "3"), "rank": 2})
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
    assert names == {"1.weight", "1.bias", "3.weight", "3.bias", "head.weight", "head.bias"}


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
            "return model.float()", "model.head.bias.data += 1; return model"
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
    told = json.loads((tmp_path / "out" / "preprocessing.json").read_text())
    assert (told["label_column"], told["columns"][3]["name"]) == (["sick"], "column-3")
    assert ended.err == (
        "no model.onnx: it needs the extra 'export' (no onnxscript here): pip install 'chorale[export]'\n"
    )


def test_a_file_without_facts_is_one_sentence(tmp_path: Path, chorale: Calls) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(b"".join(state_parts({"model/w": np.zeros(2, np.float32)})))
    ended = chorale("model", "export", file, "--out", tmp_path / "out")
    assert ended.code == 2
    assert "its metadata do not describe a model; expected a file of `job fetch`" in ended.err
    assert not (tmp_path / "out").exists()
