"""A simulation hands out the best round's model, ends early, and evaluates without training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chorale.spec.model_file import read_model
from simulation.engine import Simulation
from tests.support.scripted import LAST, Scripted
from tests.unit.simulation.conftest import SILOS, Makes
from tests.unit.simulation.test_folder import run_in

KEEP = {"metric": "loss", "best": "lowest"}
ENDS = {"rounds": 9, "keep": KEEP, "stop": {**KEEP, "rounds": 2}}


def scripted(make: Makes, **fields: object) -> Simulation:
    return make(simulation={"objective": Scripted()}, **{**ENDS, **fields})


def test_rounds_stop_and_the_best_model_is_handed_out(make: Makes) -> None:
    simulation = scripted(make)
    assert [result.round for result in simulation.run()] == [1, 2, 3, 4, 5]
    assert simulation.stopped == "stopped after round 5 of 9: loss no lower for 2 rounds"
    assert simulation.final_loss is not None
    assert simulation.final_loss.value == pytest.approx(LAST)  # the closing evaluation is of the last model
    round, state = simulation.model
    assert round == 2
    assert simulation.progress.best_figures["loss"] == pytest.approx(1.0)  # of the model that is handed out
    np.testing.assert_allclose(state["model/votes"], np.full(SILOS, 2 / SILOS), atol=1e-6)
    np.testing.assert_allclose(simulation.state["model/votes"], np.full(SILOS, 5 / SILOS), atol=1e-6)


@pytest.mark.parametrize("rounds", [2, 4])
def test_a_stopped_simulation_that_continues_keeps_the_same_model(
    make: Makes, tmp_path: Path, rounds: int
) -> None:
    run_in(tmp_path / "whole", scripted(make))
    run_in(tmp_path / "killed", scripted(make), rounds=rounds)
    resumed = scripted(make)
    run_in(tmp_path / "killed", resumed)
    assert resumed.progress.best_figures["loss"] == pytest.approx(1.0)
    whole, killed = (tmp_path / name / "model.safetensors" for name in ("whole", "killed"))
    assert killed.read_bytes() == whole.read_bytes()
    assert read_model(killed)[1]["round"] == "2"


def test_without_rules_the_last_model_is_handed_out(make: Makes) -> None:
    simulation = scripted(make, rounds=3, keep=None, stop=None)
    assert len(list(simulation.run())) == 3
    assert simulation.model == (3, simulation.state)
    assert simulation.stopped == ""


def test_a_job_of_no_rounds_evaluates_the_given_model_and_leaves_it_as_it_is(make: Makes) -> None:
    simulation = scripted(make, rounds=0, keep=None, stop=None)
    given = simulation.state["model/votes"]
    assert list(simulation.run()) == []
    assert simulation.final_loss is not None
    assert simulation.final_loss.value == pytest.approx(LAST)
    assert set(simulation.closing) == {"evaluate"}
    np.testing.assert_array_equal(simulation.model[1]["model/votes"], given)
