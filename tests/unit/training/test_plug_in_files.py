"""A model of another distribution begins from a plain state_dict and is exported for its author's code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from chorale.pinned_code import pinned
from chorale.runtime import distributions
from chorale.spec.model_file import facts_of, read_model, with_facts
from chorale.spec.state import state_parts
from cli.main import run
from client.submission import initial_bytes
from crypto.errors import ConfigError
from silo_agent.training.models.starting import initial_state
from tests.support import own_code
from tests.support.objectives import make_job

pytest.importorskip("torch", reason="needs the extra silo")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = own_code.install(tmp_path)
    monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", str(path))  # of the process that runs the exported script
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    yield path
    for name in [name for name in sys.modules if name.partition(".")[0] == own_code.PACKAGE]:
        del sys.modules[name]
    distributions._owners.clear()
    distributions._running.clear()


def test_what_is_exported_begins_another_job(site: Path, tmp_path: Path) -> None:
    """With tied weights, half precision, a mask and a table of its own."""
    model = {"name": "net", "from": own_code.PINNED, "options": {"width": 8, "depth": 2}}
    job = pinned(make_job(classes=4, input_shape=(4,), model=model))
    state = initial_state(job)
    fetched, out = tmp_path / "model.safetensors", tmp_path / "out"
    facts = facts_of(job, job_digest=bytes(32), round=3)
    fetched.write_bytes(b"".join(with_facts(state_parts(state), facts)))
    assert read_model(fetched)[1]["code"] != "null"

    named = ["--run-code-of", own_code.PINNED]
    assert (
        run(["model", "export", str(fetched), "--out", str(out), *named]) == 0
    )  # it runs the script and compares

    assert f"from {own_code.PACKAGE}.code import net" in (out / "load.py").read_text()
    plain = safetensors.numpy.load_file(out / "model.safetensors")
    assert {"last.weight", "last.bias", "table", "places"} <= plain.keys()
    assert initial_bytes(job, out / "model.safetensors") == b"".join(state_parts(state))
    plain["last.bias"] = plain["last.bias"][:2]
    safetensors.numpy.save_file({"odd": np.zeros(1, np.float32), **plain}, out / "other.safetensors")
    with pytest.raises(ConfigError, match="in this job; extra: odd; unfit: last.bias is float32"):
        initial_bytes(job, out / "other.safetensors")


@pytest.mark.parametrize("named", [[], ["--run-code-of", "hospital-models==1.0.0"]])
def test_export_runs_code_of_the_distribution_that_the_person_names_alone(
    site: Path, tmp_path: Path, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger's file ran functions of any installed distribution, with options of the stranger's."""
    model = {"name": "net", "from": own_code.PINNED, "options": {"width": 8}}
    job = pinned(make_job(classes=4, input_shape=(4,), model=model))
    state = initial_state(job)
    for name in [name for name in sys.modules if name.partition(".")[0] == own_code.PACKAGE]:
        del sys.modules[name]
    facts = facts_of(job, job_digest=bytes(32), round=3)
    fetched, out = tmp_path / "model.safetensors", tmp_path / "out"
    fetched.write_bytes(b"".join(with_facts(state_parts(state), facts)))
    assert run(["model", "export", str(fetched), "--out", str(out), *named]) == 2
    errors = capsys.readouterr().err
    assert f"code of {own_code.PINNED} builds its model, with the options {{'width': 8}}" in errors
    assert own_code.PACKAGE not in sys.modules
    assert not out.exists()
