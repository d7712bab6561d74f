"""A trained model for use outside of a federation: plain weights, a script that loads them, ONNX and a
script that predicts with ONNX Runtime alone.

Both scripts are run, in processes of their own, before the folder counts as written: they have to give what
the federation's model gives.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from chorale.runtime.files import write_atomic
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import DESCRIBED, line_of
from crypto.errors import ConfigError
from silo_agent.training.exporting.trial import (
    PREDICT,
    RUN_SECONDS,
    ExportFailed,
    answers_of_rows,
    check_predict,
    is_predicted,
    made_up_rows,
)
from silo_agent.training.exporting.xgboost_model import xgboost_json
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.plain import EmbeddingLinear, last_layer, put_in, whole_module
from silo_agent.training.models.registry import model_of, options_of
from silo_agent.training.models.state import loaded_model
from silo_agent.training.predicting.answers import answer_facts
from strategies.base import Arrays

WEIGHTS, SCRIPT, PREPROCESSING, ONNX = "model.safetensors", "load.py", "preprocessing.json", "model.onnx"
EXAMPLES = 3  # samples of the check; not 1, which ONNX would take for a fixed size
TOLERANCE = 1e-5  # of outputs, relative; one process may use other threads than another
XGBOOST = "xgboost.json"
OPSET = 18

CHECK = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from load import load
with torch.inference_mode():
    save_file({"outputs": load()(load_file(sys.argv[2])["inputs"]).contiguous()}, sys.argv[3])
"""


def export(
    spec: JobSpec, arrays: Arrays, facts: Mapping[str, str], folder: Path, *, base_models: Path | None = None
) -> tuple[list[str], str]:
    """Write the model to a folder. Gives the names of its files, and why there is no ONNX file, or "".

    spec: what the facts describe (`described_job`). base_models: folder of the weights that adapters are put
    beside, as at a silo; they are exported together. Raises ConfigError.
    """
    model = loaded_model(spec, arrays, base_models=base_models)
    inputs = _example(spec)
    with torch.inference_mode():
        outputs = model(inputs)
    with TemporaryDirectory() as made:
        rows = made_up_rows(spec, Path(made))
        line = line_of(facts, source="model")
        # predict.py fills what is missing, which trees read as missing
        has_script = is_predicted(spec) and spec.method.recipe.growth is None
        answers = answers_of_rows(spec, model, rows, line) if has_script else None
        if spec.adapters is not None and spec.adapters.targets:
            _merge_adapters(model.body)
        script = loading_script(spec, model, facts)
        module = whole_module(model).eval()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        metadata = {**facts, "format": "pt"}
        write_atomic(folder / WEIGHTS, save(_unshared(module), metadata=metadata))
        write_atomic(folder / PREPROCESSING, json.dumps(preprocessing(spec, facts), indent=1).encode())
        write_atomic(folder / SCRIPT, script.encode())
        _check_script(folder, inputs, outputs)
        names = [WEIGHTS, SCRIPT, PREPROCESSING]
        if spec.method.recipe.growth is not None:
            write_atomic(folder / XGBOOST, xgboost_json(spec, arrays, line))
            names.append(XGBOOST)
        if missing := _write_onnx(module, inputs, folder / ONNX):
            return names, missing
        names.append(ONNX)
        if answers is not None:
            write_atomic(folder / PREDICT, Path(__file__).with_name(PREDICT).read_bytes())
            check_predict(folder / PREDICT, rows, answers)
            names.append(PREDICT)
        return names, ""


def _merge_adapters(module: nn.Module) -> None:
    """Each adapter into the layer beside it, which takes its place: the author's own code has no adapters."""
    for name, layer in list(module.named_modules()):
        if hasattr(layer, "base_layer") and hasattr(layer, "merge"):
            layer.merge()
            put_in(module, name, layer.base_layer)


def _unshared(module: nn.Module) -> dict[str, Tensor]:
    """Safetensors holds no array under two names."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def preprocessing(spec: JobSpec, facts: Mapping[str, str]) -> dict[str, Any]:
    """What has to be done to a sample before the model gets it, and what its outputs stand for.

    `normalize` is done by the script's module and by the ONNX file; who loads the weights alone does it.
    """
    built = ("strategy", "model", "code", "augment", "adapters")
    said = {name: json.loads(text) for name, text in facts.items() if name in DESCRIBED and name not in built}
    if spec.columns is not None:  # ranges one by one
        said["columns"] = [column.model_dump(mode="json") for column in spec.inputs]
    said["answers"] = answer_facts(spec, line_of(facts, source="model"))
    return {name: value for name, value in said.items() if value is not None}


def loading_script(spec: JobSpec, model: FederatedModel, facts: Mapping[str, str]) -> str:
    """Python that builds the author's module and loads the weights. model: before it was taken apart.

    Raises ConfigError for a module that no script can import. Security: the script is run, and what it says
    comes from a file of anyone: each value is a literal of a checked value, and never text in the source.
    """
    found = model_of(spec.model, code=spec.code)
    module = importlib.import_module(found.build.__module__)
    name = next((name for name, value in vars(module).items() if value is found), None)
    if name is None or not all(part.isidentifier() for part in (name, *module.__name__.split("."))):
        raise ConfigError(
            f"model {spec.model.name}: it is no variable of {module.__name__}, so no script finds it"
        )
    needs = ("torch", "safetensors", "chorale", *([spec.model.source] if spec.model.source else []))
    options = options_of(spec.model)
    last = last_layer(model) if model.has_head else None
    own_layer = [inspect.getsource(EmbeddingLinear), ""] if isinstance(last, EmbeddingLinear) else []
    torch_names = ["from torch import Tensor, nn", "from torch.nn.functional import normalize"]
    lines = [
        '"""A model of a job: load() gives it. Written by `chorale model export`, and run."""',
        "",
        "from pathlib import Path",
        "",
        *(["import torch"] if own_layer or spec.normalize is not None else []),
        "from safetensors.torch import load_file",
        *(torch_names if own_layer else ["from torch import nn"]),
        "",
        "from chorale_models import Sizes",
        f"from {module.__name__} import {name}",
        "",
        f"JOB, ROUND = {facts['job']!r}, {int(facts['round'])}",
        f"NEEDS = {needs!r}",
        "",
        "",
        *own_layer,
    ]
    sizes = f"Sizes(classes={spec.classes}, input_shape={spec.input_shape})"
    lines += [
        "def load(folder: Path = Path(__file__).parent) -> nn.Module:",
        f"    model = {name}({sizes}{f', **{options!r}' if options else ''}).float()",
    ]
    if isinstance(last, EmbeddingLinear) and model.head_path is not None:
        lines.append(_in_place_of(model.head_path, last))
    if spec.normalize is not None:
        shape = (-1, *(1,) * (len(spec.input_shape) - 1))
        lines += [
            f"    {name} = torch.tensor({list(values)}).reshape({shape})"
            for name, values in (("mean", spec.normalize.mean), ("std", spec.normalize.std))
        ]
        lines.append("    model.register_forward_pre_hook(lambda _, inputs: (inputs[0] - mean) / std)")
    lines += [
        f'    model.load_state_dict(load_file(folder / "{WEIGHTS}"))',
        "    return model.eval()",
        "",
    ]
    return "\n".join(lines)


def _in_place_of(cut: str, last: EmbeddingLinear) -> str:
    parent, _, own = cut.rpartition(".")
    width = None if last.projection is None else last.projection.in_features
    sizes = f"{last.in_features}, {last.out_features}, bias={'bias' in last.state_dict()}, width={width}"
    return f"    setattr(model.get_submodule({parent!r}), {own!r}, EmbeddingLinear({sizes}))"


def _example(spec: JobSpec) -> Tensor:
    """Shapes: (N, *input_shape). Whole inputs are 0 and 1, which every vocabulary has."""
    shape, generator = (EXAMPLES, *spec.input_shape), np.random.default_rng(0)
    if spec.input_type == "int64":
        return torch.from_numpy(generator.integers(0, 2, shape))
    return torch.from_numpy(generator.standard_normal(shape, np.float32))


def _check_script(folder: Path, inputs: Tensor, outputs: Tensor) -> None:
    """Raises ExportFailed where a process that runs the script does not give these outputs."""
    root = str(Path(__file__).resolve().parents[3])
    given, got = folder / ".inputs.safetensors", folder / ".outputs.safetensors"
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    try:
        write_atomic(given, save({"inputs": inputs}))
        ran = subprocess.run(
            [sys.executable, "-P", "-c", CHECK, str(folder.resolve()), str(given), str(got)],
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        if ran.returncode != 0:
            why = (ran.stderr.strip().splitlines() or ["no word"])[-1]
            raise ExportFailed(f"{folder / SCRIPT}: it does not run: {why}")
        if not torch.allclose(load_file(got)["outputs"], outputs, rtol=TOLERANCE, atol=TOLERANCE):
            raise ExportFailed(f"{folder / SCRIPT}: its model gives other outputs than the federation's")
    finally:
        given.unlink(missing_ok=True)
        got.unlink(missing_ok=True)


def _write_onnx(module: nn.Module, inputs: Tensor, path: Path) -> str:
    """Why there is no file, or ""."""
    path.unlink(missing_ok=True)  # of an earlier export
    try:
        import onnx  # noqa: F401
        import onnxruntime  # type: ignore[import-untyped]  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        return f"no {ONNX}: it needs the extra 'export' (no {error.name} here): pip install '.[export]'"
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):  # the exporter tells of its steps
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                (inputs,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["inputs"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("samples")},),
                verbose=False,
            )
        assert program is not None
        program.save(str(path), external_data=False)
    except Exception as error:  # whatever a model of anyone's does that the exporter cannot express
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__  # the exporter wraps what is wrong in its own advice
        message = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        return f"no {ONNX}: torch cannot export this model: {message[:200]}"
    return ""
