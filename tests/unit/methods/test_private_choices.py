"""What a private job reaches by its choices: noise of the arms, and the file of a body."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from chorale.spec.state import state_from_bytes
from client.submission import NEVER, initial_bytes, read_spec
from research.private_sum import body
from research.private_sum.choices import INPUTS, alone, arms, together
from silo_agent.training.data.base import Samples

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "job-head.yaml"


@pytest.fixture(autouse=True)
def no_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a body whose quality no test looks at."""
    monkeypatch.setattr(body, "DIGITS_PASSES", 0)


def test_noise_of_each_silo_for_itself_costs_more_than_that_of_all() -> None:
    """Two classes, by the sign of one input; ten silos of 200 records."""
    rng = np.random.default_rng(7)
    labels_N = rng.integers(2, size=2_000)
    inputs_ND = np.column_stack([2.0 * labels_N - 1.0, rng.standard_normal((2_000, 20)), np.ones(2_000)])
    own = (inputs_ND, labels_N)
    apart, shared = (
        {noise: run(own, own, silos=10, noise=noise, rate=1.0, seed=1) for noise in (0.1, 100.0)}
        for run in (alone, together)
    )
    assert min(apart[0.1], shared[0.1]) > 95.0
    assert apart[100.0] < shared[100.0] - 5.0


def test_arms_have_the_factors_of_the_products_rule() -> None:
    """Ten silos: 4 honest ones of a default cohort of 7, 6 of one of 9."""
    found = {arm: run.keywords["noise"] for arm, run in arms(10, 2.0).items() if isinstance(run, partial)}
    curator = found["one curator"]
    assert found["noise: silo"] == curator
    assert found["default"] == pytest.approx(curator * np.sqrt(10 / 4))
    assert found["min_cohort m-1"] == pytest.approx(curator * np.sqrt(10 / 6))
    assert list(arms(10, None)) == ["no noise"]


def test_the_bodys_file_is_what_the_example_begins_from(tmp_path: Path) -> None:
    """Its head is zero, and the job's own last layer."""
    file = tmp_path / "body.safetensors"
    assert body.main(["--out", str(file)]) == 0
    spec = read_spec(EXAMPLE, not_after=NEVER)
    state = state_from_bytes(initial_bytes(spec, file))
    assert state["model/head.weight"].shape == (10, 128)
    assert not np.any(state["model/head.weight"])
    assert not np.any(state["model/head.bias"])
    first = next(name for name, array in state.items() if array.ndim == 4)
    assert np.any(state[first])
    assert spec.trains == "head"


def test_features_are_what_the_head_gets() -> None:
    model = body.trained()
    with torch.no_grad():
        model.head.bias.fill_(2.0)
    images_N, labels_N = body.public_digits()
    some = Samples(features=images_N[:7].numpy(), labels=labels_N[:7].numpy())
    found_ND = body.features(model, some)
    head_CD = np.hstack([model.head.weight.detach().numpy(), model.head.bias.detach().numpy()[:, np.newaxis]])
    with torch.no_grad():
        assert found_ND @ head_CD.T == pytest.approx(model(images_N[:7]).numpy(), abs=1e-5)


def test_public_digits_stand_where_mnist_has_its_own() -> None:
    images_N, _ = body.public_digits()
    assert images_N.shape == (1797, 1, 28, 28)
    assert float(images_N.max()) <= 1.0
    assert not images_N[:, :, : body.MARGIN].any()
    moved = body.moved(images_N[:64], torch.Generator().manual_seed(1))
    assert moved.shape == (64, 1, 28, 28)
    assert not torch.equal(moved, images_N[:64])
    assert len(INPUTS) == 3
