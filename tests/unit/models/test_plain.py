"""A plain state_dict as a job's first state, and the author's module whole again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from crypto.errors import ConfigError
from strategies.base import Array

torch = pytest.importorskip("torch", reason="needs the extra silo")

from silo_agent.training.models.plain import given_state, whole_module  # noqa: E402
from silo_agent.training.models.registry import build_model  # noqa: E402
from silo_agent.training.models.starting import initial_state  # noqa: E402
from silo_agent.training.models.state import load_arrays  # noqa: E402
from tests.support.objectives import make_job  # noqa: E402

BASE = bytes(32)
JOBS = [
    make_job({"preset": "fedavg"}, model={"name": "mlp", "hidden": (16,), "norm": "batch"}),
    make_job({"parts": {"head": "frozen-random"}}, model={"name": "mlp", "hidden": (16,)}),
    make_job({"preset": "spherefed"}, model={"name": "cnn"}),  # features of unit length
    make_job({"preset": "fedetf"}, model={"name": "mlp", "hidden": (16,)}),  # projected
]


def whole(job: Any, state: Mapping[str, Array]) -> tuple[Any, Any]:
    """The federation's model and the author's module, of one state."""
    models = [
        build_model(job.model, classes=10, input_shape=(1, 8, 8), recipe=job.method.recipe) for _ in range(2)
    ]
    for model in models:
        with torch.no_grad():
            load_arrays(model, state)
    return models[0].eval(), whole_module(models[1]).eval()


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.strategy.name)
def test_the_whole_module_gives_what_the_model_gives_and_its_state_dict_begins_a_job(job: Any) -> None:
    state = initial_state(job)
    model, module = whole(job, state)
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 1, 8, 8), np.float32))
    with torch.inference_mode():
        torch.testing.assert_close(module(inputs), model(inputs), rtol=0, atol=0)
    plain = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    assert not any(name.startswith(("body.", "model/")) for name in plain)
    again = given_state(job, plain, base=BASE, source="file")
    assert again.keys() == state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(again[name], array)


def test_a_plain_state_dict_fits_the_module_as_the_authors_code_builds_it() -> None:
    job = JOBS[1]
    _, module = whole(job, initial_state(job))
    fresh = build_model(job.model, classes=10, input_shape=(1, 8, 8)).body
    fresh.head = torch.nn.Linear(16, 10)
    fresh.load_state_dict(module.state_dict())  # strict: every name, and no other


def test_a_head_that_does_not_learn_is_drawn_where_the_file_has_none() -> None:
    job, state = JOBS[1], initial_state(JOBS[1])
    body = {name.removeprefix("model/body."): array + 1 for name, array in state.items() if "body." in name}
    given = given_state(job, body, base=BASE, source="file")
    np.testing.assert_array_equal(given["model/head.weight"], state["model/head.weight"])
    np.testing.assert_array_equal(given["model/body.1.weight"], state["model/body.1.weight"] + 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"head.weight": None, "head.bias": None}, "; missing: head.bias, head.weight$"),
        ({"classifier.weight": np.zeros((2, 2), np.float32)}, "; extra: classifier.weight$"),
        (
            {"1.weight": np.zeros((16, 63), np.float32)},
            r"; unfit: 1.weight is float32 \(16, 63\), expected float32 \(16, 64\)$",
        ),
        ({"1.bias": np.zeros(16)}, r"; unfit: 1.bias is float64 \(16,\), expected float32 \(16,\)$"),
        (
            {"1.bias": None, "odd": np.zeros(1, np.float32), "2.bias": np.zeros(1)},
            "; missing: 1.bias; extra: odd; unfit: 2.bias is float64",
        ),
    ],
)
def test_a_state_dict_of_another_model_lists_all_that_is_wrong(
    change: dict[str, Array | None], why: str
) -> None:
    _, module = whole(JOBS[0], initial_state(JOBS[0]))
    plain = {name: tensor.numpy() for name, tensor in module.state_dict().items()} | change
    given = {name: array for name, array in plain.items() if array is not None}
    with pytest.raises(ConfigError, match="file: not a state_dict of model mlp in this job" + why):
        given_state(JOBS[0], given, base=BASE, source="file")


def test_a_bias_that_the_method_has_no_place_for_is_refused() -> None:
    _, module = whole(JOBS[1], initial_state(JOBS[1]))
    plain = {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}
    plain["head.bias"][0] = 0.5
    with pytest.raises(ConfigError, match="; extra: head.bias$"):
        given_state(JOBS[1], plain, base=BASE, source="file")
