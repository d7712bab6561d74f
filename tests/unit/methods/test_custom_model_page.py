"""The code of docs/custom-model.md, as it stands there: it trains, and its start is a state of a job."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from chorale.spec.state import state_from_file
from silo_agent.training.objective import Objective
from tests.support.objectives import make_data, make_job, make_work

PAGE = Path(__file__).resolve().parents[3] / "docs" / "custom-model.md"


def test_the_page_s_model_learns_from_its_start(tmp_path, monkeypatch):
    code, start, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, text in (("own_model", code), ("own_start", start)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import own_model  # type: ignore[import-not-found]
    import own_start  # type: ignore[import-not-found]  # noqa: F401

    state = state_from_file(tmp_path / "start.safetensors")
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 10, 200)
    data = make_data(np.eye(64, dtype=np.float32)[labels].reshape(200, 1, 8, 8), labels)
    job = make_job(model={"name": "custom"})
    objective: Objective = own_model.Softmax()

    before = objective.compute(make_work(job, data, state=state))
    assert before["weight"] == 0.25
    arrays, place = dict(state), 0
    for name in make_work(job, data, state=state).context.trained:
        array = state["model/" + name]
        part = before["delta"][place : place + array.size].reshape(array.shape)
        arrays["model/" + name] = array + 4 * part
        place += array.size
    assert place == before["delta"].size
    after = objective.compute(make_work(job, data, state=arrays, kind="evaluate"))
    assert before["correct"] < 60
    assert after["correct"] == after["tested"] == 200
    assert after["loss_sum"] < before["loss_sum"]
    assert set(after) == {"correct", "tested", "loss_sum"}
