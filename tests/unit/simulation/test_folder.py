"""A simulation's folder: whenever a process is killed, the rounds that count are those it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from chorale.spec.state import state_from_file
from crypto.errors import ConfigError
from silo_agent.training.objective import Work
from simulation.engine import Simulation
from simulation.folder import SimulationFolder
from strategies.base import Array
from tests.support import one_hot
from tests.unit.simulation.conftest import Makes


class Keeping(one_hot.OneHot):
    def compute(self, work: Work) -> Mapping[str, Array]:
        if work.phase_kind == "train":
            work.local.propose({"method/rounds": work.local.arrays.get("method/rounds", np.zeros(1)) + 1})
        return super().compute(work)


def fresh(make: Makes) -> Simulation:
    return make(fraction=0.6, rounds=5, simulation={"objective": Keeping()})


def run_in(folder: Path, simulation: Simulation, *, rounds: int | None = None) -> None:
    """To its end, or for so many rounds and then no further, as if killed."""
    kept = SimulationFolder(folder, identity="one")
    with kept.held() as progress:
        simulation.progress = progress or simulation.progress
        for count, result in enumerate(simulation.run(), start=1):
            kept.add(result, simulation.progress)
            if count == rounds:
                return
        kept.finish(simulation)


def lines(folder: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture
def whole(make: Makes, tmp_path: Path) -> Path:
    run_in(tmp_path / "whole", fresh(make))
    return tmp_path / "whole"


def test_a_simulation_goes_on_after_its_last_round(make: Makes, tmp_path: Path, whole: Path) -> None:
    for _ in range(2):
        run_in(tmp_path / "stopped", fresh(make), rounds=2)
    run_in(tmp_path / "stopped", fresh(make))
    assert lines(tmp_path / "stopped") == lines(whole) == [1, 2, 3, 4, 5]
    for name in ("model.safetensors", "states/global-end.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (whole / name).read_bytes()
    kept = json.loads((tmp_path / "stopped" / "progress.json").read_text())["local"]
    assert kept == json.loads((whole / "progress.json").read_text())["local"]
    for name in kept.values():
        mine, its = (state_from_file(folder / "states" / name) for folder in (tmp_path / "stopped", whole))
        assert mine["method/rounds"] == its["method/rounds"]


def test_a_round_that_was_written_but_not_kept_is_run_again(make: Makes, tmp_path: Path, whole: Path) -> None:
    stopped = tmp_path / "stopped"
    run_in(stopped, fresh(make), rounds=3)
    with (stopped / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "result"')  # killed while it wrote
    (stopped / "states" / "global-5-train.safetensors").write_bytes(b"torn")
    (stopped / "states" / "local-silo-1-5-train.safetensors").write_bytes(b"torn")
    run_in(stopped, fresh(make))
    assert lines(stopped) == [1, 2, 3, 4, 5]
    assert (stopped / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    named = {"global-end.safetensors", *json.loads((stopped / "progress.json").read_text())["local"].values()}
    assert {path.name for path in (stopped / "states").iterdir()} == named


def test_the_curve_over_all_silos_is_whole_wherever_the_process_was_killed(
    make: Makes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def curved() -> Simulation:
        return make(fraction=0.6, rounds=5, evaluate_all_every=1, simulation={"objective": Keeping()})

    def points(folder: Path) -> list[int]:
        return [json.loads(line)["round"] for line in (folder / "evaluations.jsonl").read_text().splitlines()]

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_in(whole, curved())
    assert points(whole) == [1, 2, 3, 4, 5]
    run_in(stopped, curved(), rounds=3)
    assert points(stopped) == [1, 2]
    with monkeypatch.context() as killed:  # between progress.json and the curve
        killed.setattr(SimulationFolder, "_write_curve", lambda *_: None)
        run_in(stopped, curved(), rounds=1)
    assert points(stopped) == [1, 2]
    with SimulationFolder(stopped, identity="one").held():
        assert points(stopped) == [1, 2, 3]
    run_in(stopped, curved())
    assert (stopped / "evaluations.jsonl").read_bytes() == (whole / "evaluations.jsonl").read_bytes()
    (stopped / "progress.json").unlink()
    run_in(stopped, curved(), rounds=1)
    assert not (stopped / "evaluations.jsonl").exists()


def test_rounds_that_count_are_those_that_were_kept(make: Makes, tmp_path: Path) -> None:
    folder = SimulationFolder(tmp_path / "one", identity="one")
    assert folder.ended() == []
    run_in(tmp_path / "one", fresh(make), rounds=2)
    with folder.rounds_path.open("a") as file:
        file.write('{"round": 3, "result"')  # killed while it wrote
    assert folder.ended() == ["applied", "applied"]


def test_lines_of_a_first_round_that_was_not_kept_are_gone(make: Makes, tmp_path: Path) -> None:
    run_in(tmp_path / "stopped", fresh(make), rounds=1)
    (tmp_path / "stopped" / "progress.json").unlink()
    run_in(tmp_path / "stopped", fresh(make))
    assert lines(tmp_path / "stopped") == [1, 2, 3, 4, 5]


def test_a_simulation_that_has_ended_runs_nothing_again(make: Makes, whole: Path) -> None:
    again = fresh(make)
    run_in(whole, again)
    assert lines(whole) == [1, 2, 3, 4, 5]
    assert again.final_accuracy is not None


def test_a_folder_of_something_else_is_refused(make: Makes, tmp_path: Path, whole: Path) -> None:
    with (
        pytest.raises(ConfigError, match="of another job, data or options"),
        SimulationFolder(whole, identity="other").held(),
    ):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with (
        pytest.raises(ConfigError, match="holds files that no simulation wrote"),
        SimulationFolder(tmp_path / "full", identity="one").held(),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="is a file, expected a folder"),
        SimulationFolder(whole / "model.safetensors", identity="one").held(),
    ):
        pass


def test_two_simulations_never_share_a_folder(whole: Path) -> None:
    folder = SimulationFolder(whole, identity="one")
    with (
        folder.held(),
        pytest.raises(ConfigError, match="another simulation is running"),
        SimulationFolder(whole, identity="one").held(),
    ):
        pass


@pytest.mark.parametrize("text", ["{", "[]", '{"identity": "one"}'])
def test_a_spoilt_progress_file_is_said_and_not_gone_on_from(whole: Path, text: str) -> None:
    (whole / "progress.json").write_text(text)
    with pytest.raises(ConfigError, match=r"progress\.json"), SimulationFolder(whole, identity="one").held():
        pass


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "../../outside.safetensors"),
        ("local", {"silo-0": "../../outside.safetensors"}),
        ("local", ["silo-0"]),
        ("rounds_bytes", -1),
        ("rounds_bytes", 1 << 70),
        ("rounds_bytes", 1 << 30),
        ("following", 5),
        (None, None),
    ],
)
def test_a_progress_file_names_nothing_outside_and_no_line_that_is_not_there(
    whole: Path, field: str | None, value: object
) -> None:
    path, lines = whole / "progress.json", (whole / "rounds.jsonl").read_bytes()
    progress = json.loads(path.read_bytes())
    (whole.parent / "outside.safetensors").write_bytes((whole / "states" / progress["state"]).read_bytes())
    path.write_text(json.dumps(progress | ({} if field is None else {field: value})))
    folder = SimulationFolder(whole, identity="one")
    if field is None:
        with folder.held():
            pass
    else:
        with pytest.raises(ConfigError, match="cannot resume from it"), folder.held():
            pass
    assert (whole / "rounds.jsonl").read_bytes() == lines


def test_a_progress_file_that_is_nested_without_end_is_no_json(whole: Path) -> None:
    (whole / "progress.json").write_text("[" * 200_000)
    with pytest.raises(ConfigError, match="expected JSON"), SimulationFolder(whole, identity="one").held():
        pass
