"""Calibration from a silo's data to the installed head: through the silos' objective and the ring.

The reference is least squares over the pooled features in float64, solved another way: from the
features themselves by singular values, with the cut-off that a relative 1e-12 of the Gram matrix is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import Cancelled, Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import TOTAL, Array, PhaseContext
from strategies.parts.closing.ffc import least_squares, unpacked
from strategies.parts.heads import HEAD
from tests.support.objectives import make_data, make_job, make_work
from tests.support.small_methods import built_model

Floats = NDArray[np.float64]

CLASSES, INPUTS, WIDTH = 5, 12, 16
SIZES = (4, 60, 45)  # the first silo has fewer samples than there are features


def job(
    *, ridge: float = 0.0, hidden: tuple[int, ...] = (WIDTH,), norm: str = "none", **fields: Any
) -> JobSpec:
    values = {"classes": CLASSES, "input_shape": (INPUTS,)} | fields
    return make_job(
        {"preset": "spherefed", "options": {"ridge": 0.0}},
        model={"name": "mlp", "hidden": hidden, "norm": norm, "seed": 3},
        **values,
    )


def silo_data(sizes: Sequence[int] = SIZES, *, seed: int = 0) -> list[SiloData]:
    """Each silo leans towards a class of its own."""
    generator = np.random.default_rng(seed)
    parts = []
    for silo, size in enumerate(sizes):
        labels_N = np.where(generator.random(size) < 0.5, silo, generator.integers(0, CLASSES, size))
        parts.append(make_data(generator.standard_normal((size, INPUTS)) + labels_N[:, None] / 3, labels_N))
    return parts


def with_dead_features(state: dict[str, Array]) -> None:
    state["model/body.1.weight"][[1, 4, 9]] = 0.0
    state["model/body.1.bias"][[1, 4, 9]] = -1.0


def with_dependent_features(state: dict[str, Array]) -> None:
    """Feature 7 is feature 3, feature 8 is half of feature 2."""
    for name in ("model/body.1.weight", "model/body.1.bias"):
        state[name][7] = state[name][3]
        state[name][8] = state[name][2] / 2


def with_both(state: dict[str, Array]) -> None:
    with_dead_features(state)
    with_dependent_features(state)


def work_of(spec: JobSpec, state: dict[str, Array], data: SiloData) -> Work:
    return make_work(spec, data, state=state, kind="calibrate", round=spec.rounds)


def silo_sums(spec: JobSpec, state: dict[str, Array], data: SiloData) -> dict[str, Array]:
    return dict(TorchObjective(device="cpu").compute(work_of(spec, state, data)))


def started(spec: JobSpec, data: Sequence[SiloData]) -> dict[str, Array]:
    total = sum(len(silo.train) for silo in data)
    return {**initial_state(spec), TOTAL: np.array(total, dtype=np.int64)}


def context_of(spec: JobSpec, state: dict[str, Array], members: int) -> PhaseContext:
    return PhaseContext(round=spec.rounds, members=members, classes=spec.classes, state=state, trained=())


def revealed(
    spec: JobSpec, state: dict[str, Array], data: Sequence[SiloData], members: int
) -> dict[str, Array]:
    """The sum as the coordinator decodes it: fixed point, rounded by chance, added modulo 2^64."""
    context = context_of(spec, state, members)
    layout = Layout(quantities=spec.method.phase("calibrate").quantities(context), members=members)
    total = ring.zeros(layout)
    for silo in data:
        encoded = Encoder(silo_sums(spec, state, silo), layout=layout).encode()
        assert encoded.clipped_total == 0
        ring.add_into(total, encoded.vectors)
    return ring.decode(total, layout=layout)


def pooled_features(spec: JobSpec, state: dict[str, Array], data: Sequence[SiloData]) -> tuple[Floats, Array]:
    """What the head is given, in float64; silo by silo, because float32 products depend on the batch."""
    model = built_model(spec, state).eval()
    with torch.inference_mode():
        parts = [model.embed(model.features(torch.tensor(silo.train.features))) for silo in data]
    unit_ND = torch.cat(parts).double().numpy()
    return unit_ND, np.concatenate([silo.train.labels for silo in data])


def pooled_solution(unit_ND: Floats, labels_N: Array) -> Floats:
    return np.asarray(np.linalg.lstsq(unit_ND, np.eye(CLASSES)[labels_N], rcond=1e-6)[0])


def relative(got: Array, expected: Array) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("members", [3, 200])
@pytest.mark.parametrize("sizes", [SIZES, (4, 5, 3)])
@pytest.mark.parametrize("spoil", [lambda _: None, with_dead_features, with_dependent_features, with_both])
def test_federated_head_equals_pooled_least_squares(spoil: Any, sizes: Sequence[int], members: int) -> None:
    spec, data = job(), silo_data(sizes)
    state = started(spec, data)
    spoil(state)
    sums = revealed(spec, state, data, members)
    result = spec.method.phase("calibrate").next_state(context_of(spec, state, members), sums)
    unit_ND, labels_N = pooled_features(spec, state, data)
    expected_DC = pooled_solution(unit_ND, labels_N)

    singular = np.linalg.svd(unit_ND, compute_uv=False)
    kept = singular[singular > 1e-6 * singular[0]]
    assert (kept[0] / kept[-1]) ** 2 <= 1e6  # the condition under which it is promised
    assert result.state is not None
    assert relative(result.state[HEAD], expected_DC.T) < 1e-6
    gram, _ = spec.method.phase("calibrate").quantities(context_of(spec, state, members))
    step = 1.0 / gram.scale(members)
    solution_DC = least_squares(
        unpacked(sums["gram"], WIDTH), sums["moment"], ridge=0.0, resolution=WIDTH * members * step
    )
    assert relative(solution_DC, expected_DC) < max(1e-9, 1e4 * step)
    assert not result.state[HEAD][:, ~unit_ND.any(axis=0)].any()


def test_cases_of_the_exactness_test_are_what_they_say() -> None:
    spec = job()

    def rank(spoil: Any, sizes: Sequence[int]) -> tuple[int, int]:
        data = silo_data(sizes)
        state = started(spec, data)
        spoil(state)
        unit_ND, _ = pooled_features(spec, state, data)
        dead = int((~unit_ND.any(axis=0)).sum())
        return int(np.linalg.matrix_rank(unit_ND, tol=1e-5)), dead

    assert rank(lambda _: None, SIZES) == (16, 0)
    assert rank(with_dead_features, SIZES) == (13, 3)
    assert rank(with_dependent_features, SIZES) == (14, 0)
    assert rank(with_both, SIZES) == (11, 3)
    assert rank(lambda _: None, (4, 5, 3))[0] == 12


def test_without_one_silo_the_head_is_the_optimum_of_the_others() -> None:
    spec, data = job(), silo_data()
    state = started(spec, data)
    sums = revealed(spec, state, data[:2], members=3)
    result = spec.method.phase("calibrate").next_state(context_of(spec, state, 3), sums)
    assert result.state is not None
    expected_DC = pooled_solution(*pooled_features(spec, state, data[:2]))
    assert relative(result.state[HEAD], expected_DC.T) < 1e-6
    assert relative(result.state[HEAD], pooled_solution(*pooled_features(spec, state, data)).T) > 1e-2


def test_silos_of_the_worked_example_send_the_cards_sums() -> None:
    """Features are the inputs; their length must not matter."""
    spec = job(hidden=(), classes=2, input_shape=(2,))
    data = make_data(np.array([[3 / 5, 4 / 5], [7.0, 0.0]]), [0, 1])
    sums = silo_sums(spec, started(spec, [data]), data)
    np.testing.assert_allclose(sums["gram"], [34 / 25, 12 / 25, 16 / 25], rtol=1e-6)
    np.testing.assert_allclose(sums["moment"], [[3 / 5, 1], [4 / 5, 0]], rtol=1e-6, atol=1e-12)
    assert (sums["gram"].dtype, sums["moment"].dtype) == (np.float64, np.float64)


def test_one_silos_sums_tell_its_sample_count_its_classes_and_single_samples_so_they_stay_masked() -> None:
    spec, data = job(), make_data(np.random.default_rng(0).standard_normal((6, INPUTS)), [0, 0, 2, 2, 2, 3])
    state = started(spec, [data])
    sums = silo_sums(spec, state, data)
    gram_DD = unpacked(sums["gram"], WIDTH)
    unit_ND, _ = pooled_features(spec, state, [data])
    assert np.trace(gram_DD) == pytest.approx(6, abs=1e-5)
    np.testing.assert_allclose(sums["moment"].sum(axis=1), unit_ND.sum(axis=0), atol=1e-12)
    np.testing.assert_array_equal(sums["moment"].any(axis=0), [True, False, True, True, False])
    np.testing.assert_allclose(sums["moment"][:, 3], unit_ND[5], atol=1e-12)
    assert np.linalg.eigvalsh(gram_DD)[0] > -1e-9
    assert np.abs(gram_DD - np.diag(np.diag(gram_DD))).max() <= 6 / 2


def test_sums_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, data = job(), silo_data()[1]
    state = started(spec, [data])
    whole = silo_sums(spec, state, data)
    monkeypatch.setattr("silo_agent.training.base.batches.PASS_BATCH", 7)
    cut = silo_sums(spec, state, data)
    for name, array in whole.items():
        np.testing.assert_allclose(cut[name], array, rtol=1e-6, atol=1e-6)


def test_batch_norm_counts_by_its_running_statistics() -> None:
    """In train mode the features, and with them the sums, would depend on the batch and move the buffers."""
    spec, data = job(norm="batch"), silo_data()[1]
    state = started(spec, [data])
    state["model/body.2.running_mean"] += 0.3
    unit_ND, labels_N = pooled_features(spec, state, [data])
    sums = silo_sums(spec, state, data)
    np.testing.assert_allclose(unpacked(sums["gram"], WIDTH), unit_ND.T @ unit_ND, atol=1e-5)
    np.testing.assert_allclose(sums["moment"], unit_ND.T @ np.eye(CLASSES)[labels_N], atol=1e-5)


def test_calibration_stops_when_it_is_no_longer_wanted() -> None:
    spec, data = job(), silo_data()[1]
    work = work_of(spec, started(spec, [data]), data)
    with pytest.raises(Cancelled, match="calibrate: no longer wanted"):
        TorchObjective(device="cpu").compute(dataclasses.replace(work, is_cancelled=lambda: True))
