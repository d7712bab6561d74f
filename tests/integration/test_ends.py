"""How jobs begin and end, over real processes: a plain state_dict, the best round, no rounds at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from chorale.spec.model_file import described_job, read_model
from tests.support.federation import LocalFederation
from tests.support.halting import Halt
from tests.support.scripted import LAST

KEEP = {"metric": "loss", "best": "lowest"}
ENDS: dict[str, Any] = {"rounds": 9, "keep": KEEP, "stop": {**KEEP, "rounds": 2}}
DATA = {"format": "digits", "name": "digits"}


@pytest.mark.parametrize("round", [3, 5])
def test_best_round_and_early_stop_survive_a_kill_after_a_phase_was_stored(
    tmp_path: Path, round: int
) -> None:
    """The coordinator dies once the phase is stored and before anything follows from it: in round 3 the best
    model so far was just measured, in round 5 it is decided that no round follows."""
    halt = Halt(at={"event": "phase ended", "round": round, "phase": "train"})
    with LocalFederation(
        folder=tmp_path,
        silos=3,
        silo={"objective": "tests.support.scripted:objective"},
    ) as federation:
        federation.start_coordinator(halt=halt)
        for name in federation.names:
            federation.start_silo(name)
        job_id = federation.submit(values=3, **ENDS)
        federation.hub.wait_halted()
        federation.hub.kill()
        federation.start_coordinator()
        assert federation.finish()["status"] == "done"

        report = federation.report(job_id)
        trained = [phase["round"] for phase in report["phases"] if phase["phase"] == "train"]
        assert trained == [1, 2, 3, 4, 5]
        last = report["phases"][-1]
        assert (last["round"], last["phase"], last["figures"]["loss"]) == (
            9,
            "evaluate.0",
            pytest.approx(LAST),
        )
        assert report["reason"] == "stopped after round 5 of 9: loss no lower for 2 rounds"
        assert (report["model_round"], report["kept"]) == (
            2,
            "loss 1.000 (no interval, 60 tested), the lowest",
        )
        # the model after round 2 is what round 3 starts from; of the last five rounds three states are kept
        np.testing.assert_allclose(federation.fetch(job_id)["model/votes"], np.full(3, 2 / 3), atol=1e-6)
        _, facts = read_model(tmp_path / "fetched.safetensors")
        assert (facts["job"][:12], facts["round"], facts["method"]) == (job_id, "2", "fedavg")
        watched = federation.cli("job", "watch", job_id)
        assert watched.stdout.splitlines()[1:] == [
            "stopped after round 5 of 9: loss no lower for 2 rounds",
            "kept: the model after round 2, loss 1.000 (no interval, 60 tested), the lowest",
        ]


def test_a_plain_state_dict_is_evaluated_by_a_job_of_no_rounds(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra silo")
    with LocalFederation(
        folder=tmp_path,
        silos=3,
        silo={"objective": None, "device": "cpu", "data": DATA},
        policy={"class_statistics": "allow"},
    ) as federation:
        federation.start()
        federation.wait_connected()
        network = {"model": {"name": "mlp", "hidden": [8]}, "classes": 10, "input_shape": [1, 8, 8]}
        spec = federation.job_spec(rounds=0, **network)
        path, init = tmp_path / "job.yaml", tmp_path / "pretrained.safetensors"
        path.write_bytes(spec.to_yaml())
        torch.manual_seed(0)
        own = torch.nn.Sequential()  # as an author's own code would name its layers
        own.add_module("1", torch.nn.Linear(64, 8))
        own.add_module("head", torch.nn.Linear(8, 10))
        plain = {name: tensor.numpy() for name, tensor in own.state_dict().items()}
        init.write_bytes(safetensors.numpy.save(plain, metadata={"format": "pt"}))

        drawn = federation.cli("job", "submit", path)
        assert drawn.returncode == 2
        assert "rounds: 0 evaluates a given model" in drawn.stderr

        done = federation.cli("job", "submit", path, "--init", init, "--watch")
        assert done.returncode == 0, done.stderr
        job_id = str(done.stdout.split()[0])
        report = federation.report(job_id)
        assert [phase["phase"] for phase in report["phases"]] == ["enrollment.0", "evaluate.0"]
        assert report["phases"][-1]["figures"]["tested"] > 0
        assert report["final_accuracy"] is not None
        fetched = federation.fetch(job_id)
        for name, array in plain.items():
            arrays = {own.removeprefix("body."): value for own, value in _model(fetched).items()}
            np.testing.assert_array_equal(arrays[name], array)

        # and one whose head is then fitted to the features of all silos
        fitted = federation.job_spec(rounds=0, strategy={"preset": "spherefed"}, **network)
        path.write_bytes(fitted.to_yaml())
        own.head = torch.nn.Linear(8, 10, bias=False)
        plain = {name: tensor.detach().numpy() for name, tensor in own.state_dict().items()}
        init.write_bytes(safetensors.numpy.save(plain))
        done = federation.cli("job", "submit", path, "--init", init, "--watch")
        assert done.returncode == 0, done.stderr
        report = federation.report(str(done.stdout.split()[0]))
        phases = [phase["phase"] for phase in report["phases"]]
        assert phases == ["enrollment.0", "calibrate.0", "evaluate.0"]
        assert report["final_accuracy"] > 0.2  # of ten classes, by eight features that nobody trained
    arrays, facts = read_model(tmp_path / "fetched.safetensors")
    assert described_job(facts, source="file").model == spec.model
    assert json.loads(facts["input_shape"]) == [1, 8, 8]
    assert {name for name in arrays if not name.startswith("model/")} == {"method/total"}


def _model(state: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("model/"): array for name, array in state.items() if name.startswith("model/")}
