"""A private job over tokens, from what a silo's function gives to the noised update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra silo")

from chorale_models import Data, Sizes, model  # noqa: E402
from silo_agent.training.data.base import Samples  # noqa: E402
from silo_agent.training.data.loading import load_data  # noqa: E402
from silo_agent.training.data.settings import DataSettings  # noqa: E402
from silo_agent.training.models import registry  # noqa: E402
from silo_agent.training.torch_objective import TorchObjective  # noqa: E402
from tests.support.objectives import make_job, make_work  # noqa: E402
from tests.support.own_loader import OWN, gives  # noqa: E402
from tests.unit.training.dp_sgd import RECORDS  # noqa: E402

WORDS, LENGTH = 11, 6


class Words(torch.nn.Module):
    """An embedding has a row for each token of the vocabulary, and raises for any other."""

    def __init__(self, outputs: int, *, is_text: bool) -> None:
        super().__init__()
        self.rows, self.last = torch.nn.Embedding(WORDS, 4), torch.nn.Linear(4, outputs)
        self.is_text = is_text

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.rows(tokens)
        return self.last(found if self.is_text else found.mean(1))


@model()
def of_text(sizes: Sizes) -> torch.nn.Module:
    return Words(sizes.classes, is_text=True)


@model()
def of_class(sizes: Sizes) -> torch.nn.Module:
    return Words(sizes.classes, is_text=False)


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (of_text, {"task": {"name": "next-token"}, "classes": WORDS}),
        (of_class, {"vocabulary": WORDS, "classes": 2}),
    ],
    ids=["next-token", "classification"],
)
def test_a_private_job_over_tokens_trains_and_tests_beside_an_unknown_token(
    made: Any, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record with a token beyond the vocabulary refused every phase: whether it is there was told."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, WORDS, (61, LENGTH))
    y = rng.integers(-1, WORDS, (61, LENGTH)) if "task" in fields else rng.integers(0, 2, 61)
    x[60] = 500
    gives(monkeypatch, Data(train=Samples(features=x, labels=y)))
    monkeypatch.setattr(registry, "loaded", lambda *_, **__: made)
    job = make_job(
        model={"name": "words", "from": "hospital-models==1.0", "seed": 3},
        input_shape=(LENGTH,),
        input_type="int64",
        privacy={"epsilon": 8.0, "records": RECORDS, "statistics_noise_multiplier": 1.0, "delta": 1e-5},
        training={"local_epochs": 1},
        **fields,
    )
    data = load_data(DataSettings(**OWN), job)
    assert len(data.train) + len(data.holdout) == 60
    work = make_work(job, data)
    delta = TorchObjective(device="cpu").compute(work)["delta"]
    assert np.isfinite(delta).all()
    assert np.count_nonzero(delta) > 0.5 * delta.size
    tested = TorchObjective(device="cpu").compute(replace(work, phase_kind="evaluate"))
    assert float(tested["tested"]) == len(data.holdout)
