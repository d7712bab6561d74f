"""A model, a task, a loss of an installed distribution: what a job takes of it, and what is refused first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.pinned_code import pinned
from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.own_data import own_function
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.models.starting import initial_state
from tests.support import own_code
from tests.support.objectives import make_data, make_job, make_work
from tests.support.own_code import PINNED

plug_ins = pytest.importorskip("silo_agent.training.plug_ins", reason="needs the extra silo")
TorchObjective = pytest.importorskip("silo_agent.training.torch_objective").TorchObjective

NET = {"name": "net", "from": PINNED}
ABSOLUTE = {"name": "absolute", "from": PINNED}


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_code.importable(tmp_path_factory.mktemp("own")) as path:
        yield path


def job(**fields: Any) -> JobSpec:
    strategy = fields.pop("strategy", {})
    return make_job(strategy, **{"classes": 4, "input_shape": (4,), "model": NET, **fields})


def checked(**fields: Any) -> JobSpec:
    made: JobSpec = plug_ins.checked(pinned(job(**fields)))
    return made


def test_a_job_gets_digest_sums_metrics_and_targets_from_the_code() -> None:
    spec = checked(task=ABSOLUTE, model={**NET, "options": {"depth": 2, "width": 6}})
    assert spec.code is not None
    assert [each.distribution for each in spec.code] == [PINNED]
    task = spec.method.task
    assert [each.name for each in task.round_sums] == ["error_sum", "near", "tested", "loss_sum"]
    assert (task.target.low, task.target.high, task.target.is_whole) == (-10.0, 10.0, False)
    sums = {"error_sum": 3.0, "near": 1.0, "tested": 2.0, "loss_sum": 3.0}
    figures = task.figures({name: np.array(value) for name, value in sums.items()})
    assert {name: each.value for name, each in figures.items()} == {
        "mae": 1.5,
        "share_near": 0.5,
        "loss": 1.5,
        "tested": 2.0,
    }
    again = JobSpec.from_yaml(spec.to_yaml(), source="job.yaml")
    assert again == spec
    assert plug_ins.checked(again) == spec  # as a silo does it


def test_the_first_state_is_drawn_without_the_authors_numbers() -> None:
    spec = checked(model={**NET, "options": {"depth": 2}})
    state, again = initial_state(spec), initial_state(spec)
    assert all(state[name].tobytes() == again[name].tobytes() for name in state)
    body = {name.removeprefix("model/body."): array for name, array in state.items()}
    assert (body["layers.0.norm2.weight"] == 0.5).all()
    assert (body["layers.0.norm1.weight"] == 1.0).all()
    assert (body["layers.0.self_attn.in_proj_bias"] == 0.0).all()
    assert 0.0 < np.abs(body["layers.1.linear2.weight"]).max() < 0.1
    # constants of the code, and the second name of a tied weight
    assert not {"table", "places", "layers.1.linear1.weight"} & body.keys()
    assert "layers.0.linear1.weight" in body
    assert state["model/head.weight"].shape == (4, 4)
    assert all(array.dtype == np.float32 for array in state.values())


def of(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "from": PINNED, **fields}


def method(preset: str = "fedavg", **fields: Any) -> dict[str, Any]:
    return {"strategy": {"preset": preset, **fields}}


def code(distribution: str) -> dict[str, Any]:
    return {"code": [{"distribution": distribution, "sha256": "0" * 64}]}


DP_SGD = {"privacy": {"epsilon": 4.0, "records": {"clip_norm": 1.0, "sample_rate": 0.1}}}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    (r"group chorale.models has no entry point nets, it has early", {"model": of("nets")}),
    (r"no distribution absent is installed here", {"model": {"name": "net", "from": "absent==1.0"}}),
    (
        r"hospital-models==9: the version that is installed here is 1.2.0",
        {"model": {"name": "net", "from": "hospital-models==9"}},
    ),
    (
        r"model net of .*: options: expected one of width, depth, got deep",
        {"model": of("net", options={"deep": 1})},
    ),
    (
        r"model net of .*: given 2 samples in training mode: RuntimeError",
        {"input_type": "int64"},
    ),
    (
        r"model headless of .*: strategy spherefed \(.*\) needs the model's last linear layer",
        {"model": of("headless"), **method("spherefed")},
    ),
    (r"model early of .*: 0 is not its last layer", {"model": of("early")}),
    (r"model: 1 shares its weight with 0.weight and cannot be taken out", {"model": of("tied")}),
    (r"model pair of .*, in training mode: expected one tensor .*, got a tuple", {"model": of("pair")}),
    (r"model random of .*: buffer draw has other values each time", {"model": of("random")}),
    (
        r"strategy.regularizer: soft-labels is computed by the classes of samples, and task absolute has",
        {"task": ABSOLUTE, **method("feddw")},
    ),
    (r"loss: expected one number a sample, \(2,\) of 2, got \(\)", {"task": of("flat")}),
    (r"task.sums: delta is the name of a quantity of Chorale's own", {"task": of("reserved")}),
    (
        r"model net of .* cannot be built: TypeError: .*str",
        {"model": of("net", options={"width": "wide"})},
    ),
    (
        r"task absolute of .*: options: expected one of near, got far",
        {"task": of("absolute", options={"far": 1})},
    ),
    (r"model narrow of .*: 0 is not its last layer, without it: RuntimeError", {"model": of("narrow")}),
    (
        r"model wide of .*: its answer to a sample has shape \(9,\), the job's task expects \(4,\)",
        {"model": of("wide")},
    ),
    (r"strategy.loss: expected numbers, got NaN for samples that are made up", method(loss=of("endless"))),
    (
        r"expected name==version, such as hospital-models==1.2.0, got 'net'",
        {"model": {**NET, "from": "net"}},
    ),
    (
        r"task.ratios: the job does not say what task absolute .* declares",
        {"task": of("absolute", ratios={"a": ["near", "tested"]})},
    ),
    (r"expected files of SHA-256 0000.*, as the job pins, got ", code(PINNED)),
    (r"code: expected the distributions that `from` names \(hospital-models==1.2.0\)", code("other==1")),
    (r"norm: not allowed with `from`", {"model": of("net", norm="group")}),
    (
        r"strategy.loss: spherefed has sphere-mse itself; focal of .* takes the place of loss task alone",
        method("spherefed", loss=of("focal")),
    ),
    (
        r"strategy.loss: centered is no mean of values of single records",
        {**method(loss=of("centered")), **DP_SGD, "model": of("headless")},
    ),
]


@pytest.mark.parametrize(("expected", "fields"), REFUSED, ids=[str(place) for place in range(len(REFUSED))])
def test_what_cannot_run_is_one_line_before_anything_is_signed(expected: str, fields: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError), match=expected) as refused:
        checked(**fields)
    if isinstance(refused.value, ConfigError):
        assert "\n" not in str(refused.value)


def data_settings(name: str, **fields: Any) -> DataSettings:
    return DataSettings.model_validate({"format": name, "from": PINNED, **fields})


def test_data_of_a_distribution_are_checked_and_cut_as_any_other() -> None:
    data = load_data(
        data_settings("line", options={"samples": 40}, holdout=0.25), make_job(classes=2, input_shape=(3,))
    )
    assert (len(data.train), len(data.holdout)) == (30, 10)
    with pytest.raises(ConfigError, match=r"data data: spoiled of .*: OSError: the archive is not mounted"):
        load_data(data_settings("spoiled"), make_job(classes=2, input_shape=(3,)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"format": "lines"}, "format: expected one of digits, .*, module, got lines"),
        ({"format": "nzp"}, r"module, got nzp \(did you mean npz\?\)"),
        ({"format": "digits", "from": PINNED}, "format: expected an entry point of"),
        ({"format": "digits", "options": {"a": 1}}, "options: needs `from`"),
    ],
)
def test_settings_of_data_that_name_nothing_are_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        DataSettings.model_validate(fields)


def test_an_agent_says_at_its_start_which_function_of_its_own_is_missing() -> None:
    with pytest.raises(
        ConfigError, match=r"data.from: .* group chorale.data has no entry point lines, it has"
    ):
        own_function(data_settings("lines"))
    module = DataSettings(format="module", module="tests.support.one_hot:none")
    with pytest.raises(ConfigError, match="data.module: cannot load tests.support.one_hot:none"):
        own_function(module)


def test_a_foreign_loss_and_regularizer_train_in_the_place_of_the_methods_own() -> None:
    strategy = {
        "loss": of("focal", options={"gamma": 0.0}),
        "regularizer": of("near"),
        "options": {"mu": 0.0},
    }
    spec, plain = (checked(strategy=each, model=of("headless")) for each in (strategy, {}))
    assert spec.strategy.loss is not None
    assert spec.strategy.loss.is_mean is True
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    data = make_data(x, (x[:, 0] > 0).astype(np.int64), holdout=(x[:8], np.zeros(8, np.int64)))
    work = make_work(plain, data)
    expected = TorchObjective(device="cpu").compute(work)
    # without focusing it is the cross-entropy, and mu is 0: the same steps
    found = TorchObjective(device="cpu").compute(dataclasses.replace(work, spec=spec))
    np.testing.assert_allclose(found["delta"], expected["delta"], atol=1e-5)
    heavy = spec.model_copy(update={"strategy": spec.strategy.model_copy(update={"options": {"mu": 1.0}})})
    held = TorchObjective(device="cpu").compute(dataclasses.replace(work, spec=heavy))
    assert np.linalg.norm(held["delta"]) < 0.9 * np.linalg.norm(expected["delta"])


def test_the_base_of_adapters_starts_as_the_author_says() -> None:
    """An export drew it without that, so its weights were not those that had been trained beside."""
    registry = pytest.importorskip("silo_agent.training.models.registry")
    spec = checked(adapters={"rank": 2, "alpha": 2, "targets": ["linear1"]})
    values = dict(registry.job_model_on_its_base(spec, None).named_parameters())
    (norm,) = (value for name, value in values.items() if name.endswith("layers.0.norm2.weight"))
    assert (norm == 0.5).all()
