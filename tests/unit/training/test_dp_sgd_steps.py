"""One step of DP-SGD at a silo: one clip per sample over everything, whole-number noise.

Statistical tests draw under a fixed key, so they pass or fail for good. RARE is the probability with which
each would fail for a right sampler under a fresh key.
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy import stats
from torch import Tensor, nn

from chorale.privacy.products import DEVIATION
from silo_agent.training.base.batches import Tensors
from silo_agent.training.dp_sgd.micro_batches import Draws
from silo_agent.training.loop.local_training import train_locally
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import cut_model
from tests.unit.training.dp_sgd import (
    RARE,
    clipped_sum,
    digits,
    fixed_random,
    gradient_of,
    gradients_one_by_one,
    make_job,
    make_model,
    make_samples,
    make_work,
    model_of,
    released_units,
)

ROOT = Path(__file__).resolve().parents[3]


class TestClip:
    def test_each_sample_is_clipped_over_all_parameters_together(self) -> None:
        """Per tensor the proof would need sqrt(tensors) times the noise."""
        model, samples = make_model(), make_samples()
        rows_NP = gradients_one_by_one(model, samples)
        norm_N = rows_NP.norm(dim=1)
        clip = float(norm_N.median())  # some are clipped, some are not
        expected_P = (rows_NP * (clip / norm_N).clamp(max=1.0)[:, None]).sum(dim=0) / 8
        found_P = gradient_of(model, samples, clip_norm=clip)
        torch.testing.assert_close(found_P, expected_P, rtol=1e-4, atol=1e-6)

    def test_a_gradient_by_hand(self) -> None:
        """A head alone, softmax of two equal logits: (1/2 - 1, 1/2) times (3, 4, 1), whose norm is
        sqrt(13), clipped to 1/2 and divided by the batch of 4."""
        head = cut_model(nn.Identity(), width=2, classes=2)
        nn.init.zeros_(head.head.weight)
        nn.init.zeros_(head.head.bias)
        samples = Tensors(features=torch.tensor([[3.0, 4.0]]), labels=torch.tensor([0]))
        found_P = gradient_of(head.train(), samples, clip_norm=0.5, batch=4)
        weight_and_bias = np.array([-3, -4, 3, 4, -1, 1]) / 2
        expected_P = 0.5 * weight_and_bias / math.sqrt(13) / 4
        np.testing.assert_allclose(found_P, expected_P, rtol=3e-6)

    @pytest.mark.parametrize("clip", [0.01, 0.5, 1e6])
    def test_without_noise_a_step_is_opacus_own(self, clip: float) -> None:
        job = make_job(model={"name": "cnn", "norm": "group", "seed": 1})
        model = model_of(job)
        samples = digits(24)
        found_P = gradient_of(model, samples, clip_norm=clip, noise_multiplier=1e-3, batch=7)

        theirs = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
        optimizer = DPOptimizer(
            torch.optim.SGD(theirs.parameters(), lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=7,
        )
        samples.features.requires_grad_()
        nn.functional.cross_entropy(theirs(samples.features), samples.labels, reduction="sum").backward()
        optimizer.pre_step()
        expected_P = torch.cat([each.grad.flatten() / 7 for each in theirs.parameters()])
        if optimizer.loss_reduction == "mean":  # then opacus divides by the batch itself
            expected_P = expected_P * 7
        torch.testing.assert_close(found_P, expected_P, rtol=1e-3, atol=3e-7 * clip + 1e-9)

    @pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3, 1.0, 1e5, 1e18, 1e30])
    def test_no_sample_moves_the_sum_by_more_than_the_clip(self, scale: float) -> None:
        """Counted in whole numbers, which do not round."""
        generator = torch.Generator().manual_seed(5)
        for clip, units in ((1.0, 1e6), (1e-9, 4e9), (1e6, 4.0)):
            gradients = [scale * torch.randn((1, *shape), generator=generator) for shape in ((7, 9), (11,))]
            moved_P = clipped_sum(gradients, count=1, clip_norm=clip, clip_units=units).sum_P
            assert moved_P.dtype == torch.int64
            assert sum(value * value for value in moved_P.tolist()) <= units**2
            if scale * 8 > clip and units > 1e5:  # and does not lose what it may keep
                assert moved_P.double().norm() > 0.999 * units

    @pytest.mark.parametrize("name", ["mlp", "cnn"])
    @pytest.mark.parametrize("gone", [0, 3, 44])
    def test_a_record_moves_the_sum_by_its_own_whole_numbers(self, name: str, gone: int) -> None:
        """To the last bit. In float sums, and in batches whose size others decide, the rest moves too."""
        model = model_of(make_job(model={"name": name, "norm": "group", "seed": 1}))
        samples = digits(45)
        others = torch.tensor([place for place in range(45) if place != gone])

        def units_of(places_N: Tensor) -> NDArray[np.int64]:
            return released_units(
                model, Tensors(features=samples.features[places_N], labels=samples.labels[places_N])
            )

        moved_P = units_of(torch.arange(45)) - units_of(others)
        off_P = moved_P - units_of(torch.tensor([gone]))
        assert np.abs(off_P).max() <= 1  # sums of products are rounded to units
        plain = [each.dim() != 2 for each in model.parameters() for _ in range(each.numel())]
        assert not off_P[plain].any()
        assert 0 < float(moved_P.astype(float) @ moved_P) <= DEVIATION**2

    def test_whole_numbers_add_up_exactly_at_the_finest_unit(self) -> None:
        """2^32 units a clip, which float32 sums would round."""
        rows_NP = torch.randn(32, 1, generator=torch.Generator().manual_seed(1)) * 10
        together = clipped_sum([rows_NP.clone()], count=32, clip_norm=1.0, clip_units=DEVIATION * 1e3)
        alone = [
            clipped_sum([row[None].clone()], count=1, clip_norm=1.0, clip_units=DEVIATION * 1e3)
            for row in rows_NP
        ]
        assert torch.equal(together.sum_P, torch.stack([each.sum_P for each in alone]).sum(dim=0))

    def test_what_fills_up_a_batch_weighs_nothing(self) -> None:
        gradients = [torch.ones(5, 4)]
        clipped = clipped_sum(gradients, count=2, clip_norm=2.0, clip_units=1000.0)
        assert clipped.sum_P.tolist() == [2 * 499] * 4
        assert clipped.dropped == 0


class TestOddGradients:
    @pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
    def test_a_sample_without_a_finite_gradient_counts_as_zero(self, odd: float) -> None:
        """Elsewhere one NaN made the norm NaN, the factor NaN or 1, and the update left unclipped."""
        model, samples = make_model(), make_samples(5)
        others = Tensors(features=samples.features[1:].clone(), labels=samples.labels[1:])
        samples.features[0, 1] = odd
        torch.testing.assert_close(gradient_of(model, samples), gradient_of(model, others))

    def test_an_infinite_gradient_in_one_parameter_drops_the_sample_from_all(self) -> None:
        gradients = [torch.ones(2, 3), torch.ones(2, 4)]
        gradients[1][0, 2] = math.inf
        clipped = clipped_sum(gradients, count=2, clip_norm=1.0, clip_units=700.0)
        assert clipped.dropped == 1
        assert clipped.sum_P.tolist() == [264] * 7  # 700 / sqrt(7), cut: the other sample alone

    def test_a_gradient_of_zero_stays_zero(self) -> None:
        zero_P = clipped_sum([torch.zeros(3, 4)], count=3, clip_norm=1.0, clip_units=1e6).sum_P
        assert zero_P.tolist() == [0] * 4

    def test_a_clip_norm_that_float32_cannot_divide_by_lets_no_gradient_through(self) -> None:
        """Zero times an infinite factor is no number, and was cast to -2^63 before any noise."""
        gradients = [torch.cat([torch.zeros(1, 4), torch.full((1, 4), 1e-38)])]
        sum_P = clipped_sum(gradients, count=2, clip_norm=1e-34, clip_units=1e6).sum_P
        assert sum_P.double().norm() <= 1e6

    def test_a_silo_without_a_record_releases_noise(self) -> None:
        empty = Tensors(features=torch.zeros(0, 3), labels=torch.zeros(0, dtype=torch.int64))
        noise_P = gradient_of(make_model(), empty, draws=Draws(fixed_random()))
        assert noise_P.isfinite().all()
        assert (noise_P != 0).all()


class TestNoise:
    def test_its_deviation_is_multiplier_times_clip_over_the_expected_batch(self) -> None:
        """Of noise alone: no record is drawn. Chi-square on both sides, RARE in all."""
        model, empty = make_model(), make_samples(0)
        draws = Draws(fixed_random(1))
        fields = {"clip_norm": 0.3, "noise_multiplier": 2.5, "batch": 40, "draws": draws}
        noise = torch.cat([gradient_of(model, empty, **fields) for _ in range(300)]).double().numpy()
        z_N = noise / (2.5 * 0.3 / 40)
        squares = float((z_N**2).sum())
        assert min(stats.chi2.cdf(squares, z_N.size), stats.chi2.sf(squares, z_N.size)) > RARE / 4
        assert stats.norm.sf(abs(z_N.sum()) / math.sqrt(z_N.size)) > RARE / 4
        assert stats.kstest(z_N, "norm").pvalue > RARE / 2

    def test_it_is_added_once_whatever_the_number_of_records(self) -> None:
        """Noise scaled by the records drawn, or added to each micro-batch, would show."""
        model = make_model()
        few, many = (
            gradient_of(model, make_samples(count), draws=Draws(fixed_random(2)), sample_rate=1.0)
            - gradient_of(model, make_samples(count))
            for count in (2, 64)
        )
        torch.testing.assert_close(few, many, rtol=1e-3, atol=1e-5)

    def test_what_is_released_are_whole_units(self) -> None:
        """Nothing of a float sum's last bits is left to tell what was added to what (Mironov 2012)."""
        model, samples = make_model().double(), make_samples()
        samples = Tensors(features=samples.features.double(), labels=samples.labels)
        fields = {"clip_norm": 0.5, "noise_multiplier": 1.5, "batch": 3}
        released_P = gradient_of(model, samples, draws=Draws(fixed_random()), **fields)
        products = sum(each.numel() for each in model.parameters() if each.dim() == 2)
        unit = 0.5 / (DEVIATION / 1.5 - math.sqrt(products))
        units_P = released_P * 3 / unit
        assert units_P.abs().max() > 1e5
        torch.testing.assert_close(units_P, units_P.round(), rtol=0, atol=1e-6)

    def test_steps_and_rounds_draw_their_own(self) -> None:
        one, other = Draws(fixed_random(1)), Draws(fixed_random(2))
        drawn = [one.noise(100), one.noise(100), other.noise(100)]
        assert len({noise.tobytes() for noise in drawn}) == 3

    def test_no_other_generator_is_near(self) -> None:
        """torch's and numpy's are not cryptographic; a seed gives all that they will ever draw."""
        files = [*(ROOT / "silo_agent/training/dp_sgd").glob("*.py"), *(ROOT / "crypto/noise").glob("*.py")]
        names = {name for file in files for name in names_in(ast.parse(file.read_text()))}
        assert len(files) > 4
        assert "Keystream" in names
        assert names & NOT_CRYPTOGRAPHIC == set()

    def test_it_comes_from_the_system(self) -> None:
        """The job's seed is known to all silos and to the coordinator."""
        assert inspect.signature(train_locally).parameters["random"].default is os.urandom
        work = make_work(make_job())
        first, second = (dict(TorchObjective(device="cpu").compute(work))["delta"] for _ in range(2))
        assert np.count_nonzero(first != second) > 0.99 * first.size


NOT_CRYPTOGRAPHIC = frozenset(
    [
        "randn",
        "rand",
        "normal",
        "normal_",
        "randint",
        "bernoulli",
        "bernoulli_",
        "randperm",
        "Generator",
        "manual_seed",
        "default_rng",
        "RandomState",
        "MT19937",
        "Philox",
        "seed",
        "getrandbits",
    ]
)


def names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.name for alias in node.names)
