"""The sum of clipped gradients that silos noise together: whole numbers, which a record moves by so much.

Statistical tests round under fixed keys, so they pass or fail for good. RARE is the probability with which
each would fail for a right rounding under fresh keys.
"""

# N = samples, P = values of all trained parameters together

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from crypto.errors import ConfigError
from crypto.fixed_point.encoder import MAX_ROUNDINGS, Encoder
from crypto.fixed_point.layout import Layout
from crypto.noise.sensitivity import clipped_sensitivity
from crypto.prg import Keystream
from silo_agent.training.base.batches import PRIVATE_BATCH, Tensors
from silo_agent.training.dp_sgd import compiled
from silo_agent.training.dp_sgd.records import gradient_sum
from silo_agent.training.dp_sgd.rounding import RoundedSums
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.torch_objective import TorchObjective
from strategies.phases.step import GRADIENT
from tests.support.objectives import make_work
from tests.unit.training.dp_sgd import (
    RARE,
    all_digits,
    gradients_one_by_one,
    make_model,
    make_samples,
    micro_batches,
    model_of,
    quantity_of,
    step_job,
)

CLIP = 0.5
SHAPES = ((40, 25), (7,), (13, 1))
P = sum(math.prod(shape) for shape in SHAPES)
COARSE = 512.0  # units: a clip of 256, which is 3.6 sqrt(P) and more


def rounded(values: int = P, *, scale: float = COARSE, key: int = 0) -> RoundedSums:
    return RoundedSums(clip_norm=CLIP, scale=scale, values=values, bits=Keystream(bytes([key]) * 32))


def cut(rows_NP: NDArray[np.float32], shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    """One micro-batch's gradients by parameter, zeros behind the rows. Shapes: -> (32, *shape) each."""
    filled_NP = np.zeros((PRIVATE_BATCH, rows_NP.shape[1]), np.float32)
    filled_NP[: len(rows_NP)] = rows_NP
    places = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = np.split(filled_NP, places, axis=1)
    return [torch.from_numpy(part.copy()).view(-1, *s) for part, s in zip(parts, shapes, strict=True)]


def some_rows(count: int, *, length: float, seed: int = 1, values: int = P) -> NDArray[np.float32]:
    rows_NP = np.random.default_rng(seed).normal(size=(count, values)).astype(np.float32)
    return rows_NP * np.float32(length) / np.linalg.norm(rows_NP, axis=1, keepdims=True)


def halves() -> NDArray[np.float32]:
    """As far from whole units as can be, within the clip."""
    return np.full((1, P), 2.5 / COARSE, np.float32)


HOSTILE: dict[str, Callable[[], NDArray[np.float32]]] = {
    "short": lambda: some_rows(1, length=CLIP / 3),
    "at the clip": lambda: some_rows(1, length=CLIP),
    "long": lambda: some_rows(1, length=1e30),
    "in one value": lambda: np.eye(1, P, dtype=np.float32) * 3e38,
    "halves": halves,
    "not finite": lambda: np.full((1, P), np.nan, np.float32),
    "infinite": lambda: np.full((1, P), -np.inf, np.float32),
}


class TestSensitivity:
    @pytest.mark.parametrize("row", HOSTILE.values(), ids=HOSTILE)
    def test_a_record_moves_the_sum_by_whole_numbers_within_the_bound(
        self, row: Callable[[], NDArray[np.float32]]
    ) -> None:
        """Neighbors under one coupling: the others' bits stay. 20 roundings of each."""
        most = clipped_sensitivity(CLIP, scale=COARSE, coordinates=P).squared_l2
        others_NP = some_rows(5, length=1.0)
        for key in range(20):
            with_it = rounded(key=key).of(cut(np.concatenate([others_NP, row()])), count=6).sum_P
            without = rounded(key=key).of(cut(others_NP), count=5).sum_P
            moved_P = with_it - without
            assert with_it.dtype == torch.int64
            assert float(moved_P.double().square().sum()) <= most  # in float64, where nothing overflows

    def test_the_bound_is_nearly_reached(self) -> None:
        """So a bound that is a tenth lower would be noticed, and noise is not made for more than is there."""
        most = clipped_sensitivity(CLIP, scale=COARSE, coordinates=P).squared_l2
        moved_P = rounded().of(cut(some_rows(1, length=1.0)), count=1).sum_P
        assert int(moved_P.square().sum()) > 0.9 * most

    def test_a_rounding_that_is_too_long_is_drawn_again_for_that_record_alone(self) -> None:
        """A bound that halves exceed every second time; the rest of the sum is as it was."""
        others_NP, redrawn = some_rows(3, length=CLIP / 10), 0
        for key in range(40):
            tried = rounded(key=key)
            first = rounded(key=key).of(cut(np.concatenate([others_NP, halves()])), count=4).sum_P
            tried._most = int(P * (2.5**2 + 0.25))  # the mean of its squared length
            of_others = tried.of(cut(others_NP), count=3).sum_P
            again = rounded(key=key)
            again._most = tried._most
            moved_P = again.of(cut(np.concatenate([others_NP, halves()])), count=4).sum_P - of_others
            assert int(moved_P.square().sum()) <= tried._most
            redrawn += not torch.equal(moved_P, first - of_others)
        assert 8 <= redrawn <= 32  # a fair coin leaves this once in 10^4 times

    def test_a_record_that_no_rounding_shortens_counts_as_zero(self) -> None:
        others_NP = some_rows(3, length=CLIP / 10)
        tried, alone = rounded(), rounded()
        tried._most = alone._most = P  # of halves at least 4 P
        found = tried.of(cut(np.concatenate([others_NP, halves()])), count=4)
        assert torch.equal(found.sum_P, alone.of(cut(others_NP), count=3).sum_P)
        assert found.dropped == 1
        assert tried._offset_bytes == 2 * MAX_ROUNDINGS * PRIVATE_BATCH * P

    def test_roundings_are_as_seldom_too_long_as_they_are_said_to_be(self) -> None:
        """Of 6,400 records none: at a chance of 2^-20 each that is so but for 0.6 %; the key is fixed."""
        sums, rows_NP = rounded(), np.repeat(halves(), PRIVATE_BATCH, axis=0)
        for _ in range(200):
            sums.of(cut(rows_NP), count=PRIVATE_BATCH)
        assert sums._offset_bytes == 200 * 2 * PRIVATE_BATCH * P

    def test_padding_weighs_nothing(self) -> None:
        rows_NP = some_rows(PRIVATE_BATCH, length=1.0)
        assert torch.equal(
            rounded().of(cut(rows_NP), count=4).sum_P, rounded().of(cut(rows_NP[:4]), count=4).sum_P
        )


class TestRounding:
    def test_is_right_in_the_mean(self) -> None:
        """Of 200 roundings, in every value: a sum of numbers within 1 of their mean (Hoeffding)."""
        rows_NP, turns = some_rows(PRIVATE_BATCH, length=CLIP / 7), 200
        sums, total_P = rounded(), np.zeros(P)
        for _ in range(turns):
            total_P += sums.of(cut(rows_NP), count=PRIVATE_BATCH).sum_P.numpy()
        expected_P = rows_NP.astype(np.float64).sum(axis=0) * COARSE * turns
        # the step of the bits rounds up by half of 2^-16 in the mean
        missed_P = total_P - expected_P * (1.0 - 2.0**-20) - turns * PRIVATE_BATCH * 2.0**-17
        away = math.sqrt(turns * PRIVATE_BATCH * math.log(2 * P / RARE) / 2)
        assert np.abs(missed_P).max() < away
        assert np.abs(missed_P).max() > 0.05 * away  # and it is a rounding

    def test_no_value_is_a_whole_unit_off(self) -> None:
        rows_NP = some_rows(1, length=1.0)
        found_P = rounded().of(cut(rows_NP), count=1).sum_P.numpy()
        factor = CLIP * (1.0 - 2.0**-20) / np.linalg.norm(rows_NP.astype(np.float64))
        assert np.abs(found_P - rows_NP[0] * factor * COARSE).max() < 1.0 + 1e-3

    def test_compiled_loops_round_to_the_same_numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if compiled.loops() is None:
            pytest.skip("numba does not compile here")
        shapes = ((9000, 9), (9000,), (3,))
        values = sum(math.prod(shape) for shape in shapes)
        assert values >= compiled.WORTH_VALUES
        # within the clip: one that is shortened may differ in the last bit of its length
        rows_NP = some_rows(5, length=CLIP / 2, values=values)
        fast = rounded(values, scale=4096.0).of(cut(rows_NP, shapes), count=5).sum_P
        monkeypatch.setattr(compiled, "loops", lambda: None)
        assert torch.equal(fast, rounded(values, scale=4096.0).of(cut(rows_NP, shapes), count=5).sum_P)

    def test_refuses_a_clip_of_more_units_than_a_number_holds(self) -> None:
        with pytest.raises(ConfigError, match=r"0.5 is 4.29e\+09 units, expected at most 1073741824"):
            rounded(scale=2.0**33)


class TestBatch:
    def test_is_the_sum_of_clipped_gradients(self) -> None:
        """Against autograd, a sample at a time, in float64: each record within a unit."""
        model, samples = make_model(), make_samples(50)
        rows_NP = gradients_one_by_one(model, samples).double()
        clip = float(rows_NP.norm(dim=1).median())
        expected_P = (rows_NP * (clip / rows_NP.norm(dim=1)).clamp(max=1.0)[:, None]).sum(dim=0)
        scale = 2.0**16
        with SampleGradients(model) as gradients:
            quantity = quantity_of(rows_NP.shape[1], batch_size=64, scale=scale, clip_norm=clip)
            found_P = gradient_sum(micro_batches(samples, gradients), clip_norm=clip, quantity=quantity)
        assert found_P.dtype == np.int64
        np.testing.assert_allclose(found_P / scale, expected_P, atol=50 / scale + 1e-5 * clip)

    @pytest.mark.parametrize("others", [300, 301])
    def test_a_batch_that_is_far_too_large_is_clamped_and_stays_a_neighbor(self, others: int) -> None:
        """All gradients are the same, ten times as many as expected; no word of the sum may wrap."""
        model, one = make_model(), make_samples(1)
        counts = (others, others + 1)
        sums = []
        for count in counts:
            samples = Tensors(features=one.features.repeat(count, 1), labels=one.labels.repeat(count))
            with SampleGradients(model) as gradients:
                values = sum(each.numel() for each in gradients.parameters)
                quantity = quantity_of(values, batch_size=8, scale=1024.0)
                sums.append(gradient_sum(micro_batches(samples, gradients), clip_norm=1.0, quantity=quantity))
            assert np.abs(sums[-1]).max() == 2 * 8 * 1024
            Encoder({GRADIENT: sums[-1]}, layout=Layout(quantities=(quantity,), members=20))
        most = clipped_sensitivity(1.0, scale=1024.0, coordinates=values).squared_l2
        assert int(np.square(sums[1] - sums[0]).sum()) <= most

    def test_a_batch_of_nobody_is_zero(self) -> None:
        model = make_model()
        with SampleGradients(model) as gradients:
            values = sum(each.numel() for each in gradients.parameters)
            found_P = gradient_sum(
                micro_batches(make_samples(0), gradients),
                clip_norm=1.0,
                quantity=quantity_of(values, batch_size=8, scale=1024.0),
            )
        assert not found_P.any()


@pytest.mark.parametrize("trains", ["all", "head"])
def test_the_objective_gives_a_steps_gradient_and_nothing_else(trains: str) -> None:
    """In the order of the trained parameters, in the units of the phase's own noise."""
    job = step_job(trains=trains)
    data = all_digits(job)
    work = make_work(job, data)
    values = work.context.trained_values
    quantity = quantity_of(values, batch_size=1000, scale=2.0**18)
    object.__setattr__(work, "layout", Layout(quantities=(quantity,), members=4))
    found = TorchObjective(device="cpu").compute(work)
    assert found.keys() == {GRADIENT}
    model = model_of(job, work)
    samples = Tensors.of(data.train, torch.device("cpu"))
    by_name = dict(model.named_parameters())
    rows_NP = gradients_one_by_one(model, samples)
    places = np.cumsum([each.numel() for each in by_name.values() if each.requires_grad])[:-1]
    norm_N1 = rows_NP.norm(dim=1, keepdim=True)
    expected_P = (rows_NP * (1.0 / norm_N1).clamp(max=1.0)).sum(dim=0)
    named = [name for name, each in by_name.items() if each.requires_grad]
    parts = dict(zip(named, np.split(expected_P.numpy(), places), strict=True))
    ordered_P = np.concatenate([parts[name] for name in work.context.trained])
    np.testing.assert_allclose(found[GRADIENT] / 2.0**18, ordered_P, atol=0.05)
    assert {name.split(".")[0] for name in work.context.trained} >= {"head"}
    assert (trains == "head") == all(name.startswith("head.") for name in work.context.trained)
