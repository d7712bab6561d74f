"""Adapters through real processes: the base stays at the silos, what travels and is kept is small."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import silo_agent.training.machine.torchvision_compat  # noqa: F401  peft imports torchvision
from chorale_models.model import Sizes
from chorale_models.networks.plain import mlp
from tests.support.federation import COORDINATOR, LocalFederation

pytest.importorskip("peft", reason="needs the extra language")

DATA = {"format": "digits", "name": "digits"}
MODEL = {"name": "mlp", "hidden": [256, 256]}
FIELDS = {"rounds": 4, "model": MODEL, "classes": 10, "input_shape": [1, 8, 8]}
BASE_BYTES = 4 * 80_000  # of more than 82,000 weights


@pytest.mark.gate
def test_silos_with_their_own_copies_of_a_base_train_adapters_beside_it(tmp_path: Path) -> None:
    bases = tmp_path / "bases"
    bases.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        save_file(
            mlp(Sizes(classes=10, input_shape=(1, 8, 8)), hidden=(256, 256)).state_dict(), bases / "new"
        )
    digest = hashlib.sha256((bases / "new").read_bytes()).hexdigest()
    (bases / "new").rename(bases / f"{digest}.safetensors")
    silo = {"objective": None, "device": "cpu", "data": DATA, "base_models": str(bases)}
    with LocalFederation(
        folder=tmp_path / "run", silos=3, silo=silo, policy={"initial_state": "computed"}
    ) as federation:
        federation.start()
        federation.wait_connected()
        spec = federation.job_spec(
            **FIELDS,
            adapters={"rank": 4, "targets": ["1", "4"], "base": digest},
            training={"learning_rate": 0.01},
        )
        path = tmp_path / "job.yaml"
        path.write_bytes(spec.to_yaml())
        done = federation.cli("job", "submit", path)
        assert done.returncode == 0, done.stderr
        job_id = str(done.stdout.split()[0])
        assert federation.finish()["status"] == "done"
        report = federation.report(job_id)
        state = federation.fetch(job_id)
    assert report["final_accuracy"] > 0.6  # chance is 0.1; which records are held out moves it by some points
    assert sum(array.nbytes for name, array in state.items() if name.startswith("model/")) < BASE_BYTES / 5
    assert {name for name in state if name.startswith("model/body.")} == {
        f"model/body.{layer}.lora_{side}.default.weight" for layer in (1, 4) for side in "AB"
    }
    assert np.any(state["model/body.4.lora_B.default.weight"])  # which starts at zero
    kept = [path for path in (tmp_path / "run").rglob("*") if path.suffix == ".safetensors"]
    assert any(COORDINATOR in path.parts for path in kept)
    assert all(path.stat().st_size < BASE_BYTES for path in kept)
