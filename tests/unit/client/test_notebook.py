"""`chorale.simulate`: a module and data of this process, by the engine of `chorale simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import chorale
from chorale.spec.model_file import read_model
from chorale_models import Data, Sizes
from cli.main import run as run_command
from crypto.errors import ConfigError

torch = pytest.importorskip("torch", reason="needs the extra silo")

from torch import nn  # noqa: E402

JOB: dict[str, Any] = {"rounds": 2, "classes": 2, "training": {"learning_rate": 0.3}}


def samples(count: int = 240) -> Any:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((count, 2), np.float32)
    return torch.utils.data.TensorDataset(
        torch.from_numpy(x), torch.from_numpy((x.sum(1) > 0).astype(np.int64))
    )


def network() -> Any:
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))


def test_a_module_is_trained_over_a_cut_data_set_and_its_weights_come_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = network()
    made = chorale.simulate(module, samples(), JOB, device="cpu")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [
        ["round 1/2", "4 silos"],
        ["round 2/2", "4 silos"],
    ]
    assert made.final_accuracy is not None
    assert made.final_accuracy.value > 0.8
    assert len(made.results()) == 2
    module.load_state_dict(made.fetch())


def test_a_rate_at_which_the_method_was_never_seen_to_learn_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rate, is_said in ((0.1, False), (4.0, True)):
        job = {**JOB, "training": {**JOB.get("training", {}), "learning_rate": rate}}
        chorale.simulate(network(), samples(), job, device="cpu")
        assert ("training.learning_rate 4: fedavg was seen to learn at" in capsys.readouterr().err) is is_said


@pytest.mark.parametrize("model", [network, lambda sizes: nn.Linear(sizes.input_shape[0], sizes.classes)])
def test_functions_and_data_by_silo(model: Any) -> None:
    whole = samples()
    parts = {name: torch.utils.data.Subset(whole, range(at, 240, 3)) for at, name in enumerate("abc")}
    by_name = chorale.simulate(model, parts, JOB, tell=None, device="cpu")
    assert by_name.job.spec.silos == ("a", "b", "c")
    listed = [Data(train=each) for each in parts.values()]
    by_place = chorale.simulate(model, listed, JOB, tell=None, device="cpu")
    assert by_place.job.spec.silos == ("silo-1", "silo-2", "silo-3")
    assert by_place.final_accuracy is not None


def test_it_begins_with_the_modules_own_weights_where_that_is_asked() -> None:
    module = network()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    job = {**JOB, "rounds": 0}
    kept = chorale.simulate(module, samples(), job, keeps_weights=True, tell=None, device="cpu")
    torch.testing.assert_close(kept.fetch(), before)
    with pytest.raises(ConfigError, match="rounds: 0 evaluates a given model, and none is given"):
        chorale.simulate(module, samples(), job, tell=None, device="cpu")
    torch.testing.assert_close(module.state_dict(), before)  # it is trained as a copy


def test_the_same_job_and_data_give_the_bits_of_the_command(tmp_path: Path) -> None:
    x, y = samples().tensors
    np.savez(tmp_path / "rows.npz", x=x.numpy(), y=y.numpy())
    (tmp_path / "data.yaml").write_text(f"format: npz\npath: {tmp_path / 'rows.npz'}\n")
    job = {**JOB, "name": "t", "federation": "t", "silos": ["a", "b", "c"], "input_shape": [2]}
    job["model"] = {"name": "mlp", "hidden": [4]}
    file, run = tmp_path / "job.yaml", tmp_path / "run"
    file.write_text(yaml.safe_dump(job))
    given = ("--data", tmp_path / "data.yaml", "--partition", "iid", "--device", "cpu")
    assert run_command(["simulate", *map(str, (file, *given, "--out", run))]) == 0
    data = Data(train=list(zip(x.numpy(), y.numpy(), strict=True)))
    by_file = chorale.simulate(None, data, file, tell=None, device="cpu")
    by_text = chorale.simulate(None, data, file.read_text(), tell=None, device="cpu")
    arrays, facts = read_model(run / "model.safetensors")
    for made in (by_file, by_text):
        assert made.job.digest.hex() == facts["job"]
        assert made.model[1].keys() == arrays.keys()
        for name, array in made.model[1].items():
            np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.parametrize(
    ("model", "data", "fields", "said"),
    [
        (network, 5, {}, "data: expected a map-style data set, with a length and places, got int"),
        (7, None, {}, "model: expected a torch module or a function, got int"),
        (network, None, {"model": {"name": "mlp"}}, "job: model: expected none beside a module"),
        (lambda: nn.Linear(3, 2), None, {}, "given 2 samples in training mode"),
        (network, None, {"rounds": "many"}, "job: rounds"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(model: Any, data: Any, fields: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chorale.simulate(model, data or samples(), {**JOB, **fields}, tell=None, device="cpu")


def test_samples_that_are_drawn_are_refused_with_the_place_where_that_belongs() -> None:
    class Noisy:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, place: int) -> tuple[Any, int]:
            return torch.randn(2), place % 2

    with pytest.raises(ConfigError, match=r"record 0: .* Data\.train_transform"):
        chorale.simulate(network(), Noisy(), JOB, tell=None, device="cpu")


def test_sizes_are_those_of_the_job() -> None:
    given: list[Sizes] = []

    def build(sizes: Sizes) -> Any:
        given.append(sizes)
        return network()

    chorale.simulate(build, samples(), JOB, tell=None, device="cpu")
    assert {(each.classes, each.input_shape) for each in given} == {(2, (2,))}
