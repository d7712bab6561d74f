"""DP-SGD at a silo: one clip per sample over everything, whole-number noise, a divisor that is no count.

Statistical tests draw under a fixed key, so they pass or fail for good. RARE is the probability with which
each would fail for a right sampler under a fresh key.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import inspect
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy import stats
from torch import Tensor, nn

from chorale.job_spec import JobSpec
from chorale.privacy_spec import RecordsSpec
from chorale.state import buffer_names, trained_names
from crypto.errors import ConfigError
from crypto.gaussian import DEVIATION
from silo_agent.batches import Tensors
from silo_agent.data import load_data
from silo_agent.data.base import SiloData
from silo_agent.data.settings import DataSettings
from silo_agent.evaluation import evaluate
from silo_agent.initial_state import initial_state
from silo_agent.local_training import train_locally
from silo_agent.models import build_model
from silo_agent.models.base import Backbone, CutModel
from silo_agent.models.state import load_arrays
from silo_agent.objective import Cancelled, Work
from silo_agent.objectives.base import Setting
from silo_agent.objectives.cross_entropy import CrossEntropy
from silo_agent.objectives.local_loss import LocalLoss, local_loss
from silo_agent.objectives.statistics import TEACHERS
from silo_agent.objectives.teacher import outputs_of
from silo_agent.privacy.clipping import clipped_sum
from silo_agent.privacy.draws import Draws
from silo_agent.privacy.records import NoisedGradients
from silo_agent.privacy.sample_gradients import SampleGradients
from silo_agent.training import TorchObjective
from strategies.base import Array, PhaseContext
from strategies.logit_prototypes import PROTOTYPES
from strategies.presets import PRESETS
from strategies.recipe import Features, Head, Loss, Mix, Regulariser, ServerUpdate, StatisticName
from strategies.standing import STANDINGS, parts_of

RARE = 1e-9
ROOT = Path(__file__).resolve().parents[3]
RECORDS = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.25}
CROSS_ENTROPY = LocalLoss(loss=CrossEntropy())


def fixed_random(seed: int = 0) -> Callable[[int], bytes]:
    """In place of the system's generator: other bytes at each call, the same in every run."""
    blocks = (hashlib.sha256(f"{seed} {count}".encode()).digest() for count in range(1 << 20))
    return lambda size: next(blocks)[:size]


class Quiet(Draws):
    """Every record in every step, and no noise."""

    def __init__(self) -> None:
        super().__init__(fixed_random())

    def records(self, count: int, *, rate: float) -> NDArray[np.int64]:
        return np.arange(count)

    def noise(self, count: int) -> NDArray[np.int64]:
        return np.zeros(count, np.int64)


def make_samples(count: int = 12, shape: tuple[int, ...] = (3,), *, seed: int = 1) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return Tensors(
        features=torch.randn((count, *shape), generator=generator),
        labels=torch.randint(4, (count,), generator=generator),
    )


def make_model(**fields: Any) -> CutModel:
    """A linear layer and a head, small enough for numpy."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        body = nn.Sequential(nn.Linear(3, 5), nn.GroupNorm(1, 5))
        return CutModel(Backbone(body=body, width=5), classes=4, **fields).train()


def gradient_of(
    model: CutModel,
    samples: Tensors,
    *,
    draws: Draws | None = None,
    loss: LocalLoss = CROSS_ENTROPY,
    batch: int = 8,
    **fields: Any,
) -> Tensor:
    """What one step writes into the parameters, laid end to end. Shapes: -> (P,)."""
    with SampleGradients(model) as gradients:
        step = NoisedGradients(
            samples,
            loss,
            gradients,
            records=RecordsSpec(**(RECORDS | fields)),
            expected_batch=batch,
            draws=draws or Quiet(),
            is_cancelled=lambda: False,
        )
        step.write()
        return torch.cat([parameter.grad.flatten().clone() for parameter in gradients.parameters])


class Released(NoisedGradients):
    """Keeps what is released as the whole numbers that it is."""

    units_P: NDArray[np.int64]

    def _put(self, gradient_P: Tensor) -> None:
        self.units_P = (gradient_P * self._expected_batch * self._clip_units).round().long().numpy()


def released_units(model: CutModel, samples: Tensors, draws: Draws | None = None) -> NDArray[np.int64]:
    """At a clip of 1 and a noise multiplier of 1: DEVIATION units are the clip. Shapes: -> (P,)."""
    with SampleGradients(model) as gradients:
        step = Released(
            samples,
            CROSS_ENTROPY,
            gradients,
            records=RecordsSpec(**RECORDS),
            expected_batch=64,
            draws=draws or Quiet(),
            is_cancelled=lambda: False,
        )
        step.write()
        return step.units_P


def gradients_one_by_one(model: CutModel, samples: Tensors) -> Tensor:
    """By autograd, a sample at a time. Shapes: -> (N, P)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = []
    for place in range(len(samples)):
        x, y = samples.slice(place, place + 1)
        loss = nn.functional.cross_entropy(model(x), y)
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows)


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
        head = CutModel(Backbone(body=nn.Identity(), width=2), classes=2)
        nn.init.zeros_(head.head.weight)
        nn.init.zeros_(head.head.bias)
        samples = Tensors(features=torch.tensor([[3.0, 4.0]]), labels=torch.tensor([0]))
        found_P = gradient_of(head.train(), samples, clip_norm=0.5, batch=4)
        weight_and_bias = np.array([-3, -4, 3, 4, -1, 1]) / 2
        expected_P = 0.5 * weight_and_bias / math.sqrt(13) / 4
        np.testing.assert_allclose(found_P, expected_P, rtol=2e-6)

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
        np.testing.assert_array_equal(moved_P, units_of(torch.tensor([gone])))
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
        unit = 0.5 / (DEVIATION / 1.5)
        units_P = released_P * 3 / unit
        assert units_P.abs().max() > 1e5
        torch.testing.assert_close(units_P, units_P.round(), rtol=0, atol=1e-6)

    def test_steps_and_rounds_draw_their_own(self) -> None:
        one, other = Draws(fixed_random(1)), Draws(fixed_random(2))
        drawn = [one.noise(100), one.noise(100), other.noise(100)]
        assert len({noise.tobytes() for noise in drawn}) == 3

    def test_no_other_generator_is_near(self) -> None:
        """torch's and numpy's are not cryptographic; a seed gives all that they will ever draw."""
        files = [*(ROOT / "silo_agent/privacy").glob("*.py"), ROOT / "crypto/gaussian.py"]
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


class TestSampling:
    def test_each_record_is_drawn_by_itself_with_the_rate(self) -> None:
        """Binomial counts of steps and of records, and no correlation from step to step."""
        draws, rate, size, steps = Draws(fixed_random(4)), 0.07, 500, 2000
        drawn = np.zeros((steps, size), bool)
        for step in range(steps):
            drawn[step, draws.records(size, rate=rate)] = True
        total = int(drawn.sum())
        assert stats.binomtest(total, drawn.size, rate).pvalue > RARE / 4
        for counts, trials in ((drawn.sum(axis=1), size), (drawn.sum(axis=0), steps)):
            variance = trials * rate * (1 - rate)
            spread = float(((counts - trials * rate) ** 2).sum() / variance)
            # binomials of these sizes are near enough to normal at RARE / 8
            assert min(stats.chi2.cdf(spread, counts.size), stats.chi2.sf(spread, counts.size)) > RARE / 8
        both = int((drawn[1:] & drawn[:-1]).sum())
        assert abs(both - rate**2 * drawn[1:].size) < 7 * math.sqrt(drawn.size) * rate

    def test_rates_of_one_and_of_nearly_nothing(self) -> None:
        draws = Draws(fixed_random())
        assert draws.records(9, rate=1.0).tolist() == list(range(9))
        assert draws.records(1000, rate=1e-18).size == 0
        assert draws.records(0, rate=0.5).size == 0

    def test_gradient_is_divided_by_the_expected_batch_not_by_who_came(self) -> None:
        model, samples = make_model(), make_samples(1)
        twice = Tensors(features=samples.features.repeat(2, 1), labels=samples.labels.repeat(2))
        torch.testing.assert_close(gradient_of(model, twice), 2 * gradient_of(model, samples))
        torch.testing.assert_close(gradient_of(model, samples, batch=2), 4 * gradient_of(model, samples))

    @pytest.mark.parametrize("count", [0, 3, 200])
    def test_steps_are_the_jobs_whatever_a_silo_holds(self, count: int) -> None:
        job = make_job(training={"local_epochs": 3}, privacy=privacy(sample_rate=0.4))
        assert train_on(job, digits(count)) == 8  # 3 / 0.4, rounded up

    def test_training_stops_between_batches(self) -> None:
        with pytest.raises(Cancelled, match="training: no longer wanted"):
            train_on(make_job(), digits(40), is_cancelled=lambda: True)


class Slope:
    """A penalty whose gradient is the same number for every weight of the head."""

    def penalty(self, model: CutModel) -> Tensor:
        return model.head.weight.sum()


class TestPenalty:
    def test_gradient_of_the_weights_is_added_exact_after_the_noise(self) -> None:
        """Per sample it would be clipped away; scaled by the batch it would not be 1000."""
        job = make_job(
            training={"local_epochs": 1, "momentum": 0.0, "learning_rate": 0.5},
            privacy=privacy(sample_rate=1.0, clip_norm=1e-3),
        )
        plain, steep = model_of(job), model_of(job)
        train_on(job, digits(30), model=plain)
        loss = LocalLoss(loss=CrossEntropy(), weight_penalty=Slope(), regulariser_weight=1000.0)
        train_on(job, digits(30), model=steep, loss=loss)
        apart = dict(steep.named_parameters())
        for name, parameter in plain.named_parameters():
            expected = -500.0 if name == "head.weight" else 0.0
            torch.testing.assert_close(
                apart[name] - parameter, torch.full_like(parameter, expected), rtol=1e-6, atol=1e-6
            )

    def test_weight_decay_is_post_processing(self) -> None:
        job = make_job(
            training={"local_epochs": 1, "momentum": 0.0, "learning_rate": 0.5, "weight_decay": 0.1},
            privacy=privacy(sample_rate=1.0, noise_multiplier=1e-3, clip_norm=1e-6),
        )
        model = model_of(job)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        train_on(job, digits(30), model=model)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), 0.95 * before[name], rtol=1e-6, atol=1e-6)


class TestModel:
    @pytest.mark.parametrize(
        "of_job", [{"records": RECORDS}, {"sums": {"clip_norm": 1.0, "noise_multiplier": 1.0}}]
    )
    def test_batch_normalisation_is_refused_at_the_silo_too(self, of_job: dict[str, Any]) -> None:
        job = make_job(privacy=of_job | {"statistics_noise_multiplier": 1.0})
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8))
        model = CutModel(Backbone(body=body, width=8), classes=10)
        with pytest.raises(ConfigError, match="body.2 is a batch normalisation, .* needs norm: group"):
            train_on(job, digits(20), model=model)

    def test_a_buffer_is_refused(self) -> None:
        model = make_model()
        model.body.register_buffer("mean", torch.zeros(3))
        with pytest.raises(ConfigError, match="model: body keeps a buffer, mean, which no noise covers"):
            train_on(make_job(), digits(20), model=model)

    @pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "vgg11", "mobilenet_v2"])
    def test_every_backbone_trains_with_group_normalisation(self, name: str) -> None:
        model = model_of(make_job(model={"name": name, "norm": "group", "seed": 1}))
        samples = digits(2)
        gradient_P = gradient_of(model, samples, clip_norm=1e3, noise_multiplier=1e-3, batch=2)
        expected_P = gradients_one_by_one(model, samples).sum(dim=0) / 2
        # float32 through twenty layers, another order of adding up
        assert (gradient_P - expected_P).norm() < 1e-3 * expected_P.norm()

    def test_model_is_as_it_was_afterwards(self) -> None:
        model = make_model(features=Features.PROJECTED_UNIT, head=Head.FROZEN_ETF)
        names = dict(model.__dict__)
        gradient_of(model, make_samples())
        assert set(model.__dict__) == set(names)
        assert all(not layer._forward_hooks and not layer._backward_hooks for layer in model.modules())
        assert model.scale is not None
        assert model.scale.requires_grad
        copy.deepcopy(model)(torch.zeros(1, 3)).sum().backward()

    def test_frozen_parameters_take_none(self) -> None:
        model, samples = make_model(), make_samples()
        model.body.requires_grad_(False)
        rows_NP = gradients_one_by_one(model, samples)
        assert rows_NP.shape == (12, 24)
        found_P = gradient_of(model, samples, clip_norm=1e2, noise_multiplier=1e-3)
        torch.testing.assert_close(found_P, rows_NP.sum(dim=0) / 8, rtol=1e-4, atol=1e-6)

    def test_the_scale_of_projected_features_has_a_gradient_by_sample(self) -> None:
        model, samples = make_model(features=Features.PROJECTED_UNIT, head=Head.FROZEN_ETF), make_samples()
        assert model.scale is not None
        rows_NP = gradients_one_by_one(model, samples)
        norm_N = rows_NP.norm(dim=1)
        clip = float(norm_N.median())
        expected_P = (rows_NP * (clip / norm_N).clamp(max=1.0)[:, None]).sum(dim=0) / 8
        torch.testing.assert_close(
            gradient_of(model, samples, clip_norm=clip), expected_P, rtol=1e-4, atol=1e-6
        )


UNIT = {"head": Head.FROZEN_ETF, "features": Features.UNIT, "loss": Loss.DOT_REGRESSION}
UNBIASED = {"head": Head.TRAINED_UNBIASED, "regulariser": Regulariser.SOFT_LABELS}
ALLOWED: list[dict[str, Any]] = [
    {},
    {"server_update": ServerUpdate.FEDOPT},
    {"server_update": ServerUpdate.FEDEXP},
    {"server_update": ServerUpdate.FEDNOVA},
    {"head": Head.FROZEN_ORTHONORMAL, "features": Features.UNIT, "loss": Loss.SPHERE_MSE},
    {"head": Head.FROZEN_ETF, "features": Features.PROJECTED_UNIT},
    UNIT,
    {"regulariser": Regulariser.PROX},
    {"regulariser": Regulariser.MOON},
    {"regulariser": Regulariser.KD},
    {"regulariser": Regulariser.NTD},
    {"regulariser": Regulariser.LD},
    {**UNIT, "regulariser": Regulariser.FD, "mix": Mix.CONVEX},
    {**UNBIASED, "statistic": StatisticName.SOFT_LABELS},
    {"regulariser": Regulariser.CSD, "statistic": StatisticName.LOGIT_PROTOTYPES},
]
UNCLIPPABLE = (Loss.BALANCED_SOFTMAX, Loss.CLIENT_ADAPTED)
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"loss": Loss.BALANCED_SOFTMAX},
        "strategy.loss: balanced-softmax weighs every sample by the silo's class",
    ),
    (
        {"head": Head.FROZEN_ETF, "loss": Loss.CLIENT_ADAPTED},
        "strategy.loss: client-adapted weighs every sample by the silo's class counts",
    ),
    (
        {"server_update": ServerUpdate.SCAFFOLD},
        "strategy.server_update: scaffold keeps a silo's gradients without noise",
    ),
]


class TestParts:
    @pytest.mark.parametrize(
        "parts", ALLOWED, ids=lambda parts: " ".join(str(part) for part in parts.values())
    )
    def test_one_private_round_moves_the_model(self, parts: dict[str, Any]) -> None:
        job = make_job(strategy=strategy_of(parts))
        work = make_work(job)
        values = dict(TorchObjective(device="cpu").compute(work))
        assert all(np.isfinite(value).all() for value in values.values())
        assert np.count_nonzero(values["delta"]) == values["delta"].size

    @pytest.mark.parametrize(
        "parts", ALLOWED, ids=lambda parts: " ".join(str(part) for part in parts.values())
    )
    def test_no_loss_mixes_samples(self, parts: dict[str, Any]) -> None:
        """Then clipping each one's gradient bounds what one record moves."""
        job = make_job(strategy=strategy_of(parts))
        work = make_work(job)
        setting = Setting(work=work, received=model_of(job, work), device=torch.device("cpu"))
        samples = Tensors.of(work.data.train, torch.device("cpu"))
        teacher = TEACHERS.get(job.method.recipe.regulariser)
        loss = local_loss(setting, samples, teacher=None if teacher is None else teacher(setting, samples))
        student = model_of(job, work)
        with torch.no_grad():  # away from its teacher, or distances have no gradient
            for parameter in student.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05 * parameter.abs().mean() * torch.sign(parameter))
        places_N = torch.tensor([4, 9, 17, 30])
        with SampleGradients(student.train()) as gradients:
            batch = gradients.of(loss, *samples.take(places_N), places_N)
            together_NP = torch.cat([each.flatten(1) for each in batch], dim=1)
            for row, place in enumerate(places_N):
                alone = gradients.of(loss, *samples.take(place[None]), place[None])
                alone_P = torch.cat([each.flatten() for each in alone])
                assert alone_P.norm() > 0
                torch.testing.assert_close(together_NP[row], alone_P, rtol=1e-3, atol=1e-5)

    def test_a_teachers_answer_does_not_tell_how_many_samples_there_are(self) -> None:
        model, samples = model_of(make_job()), digits(40)
        whole = outputs_of(model, samples, is_cancelled=lambda: False, is_private=True)
        for count in (1, 3, 39):
            some = outputs_of(model, digits(count), is_cancelled=lambda: False, is_private=True)
            assert some.logits_NC.shape == (count, 10)
            assert torch.equal(some.logits_NC, whole.logits_NC[:count])
            assert torch.equal(some.features_ND, whole.features_ND[:count])

    @pytest.mark.parametrize(("parts", "reason"), REFUSED)
    def test_a_part_that_mixes_samples_is_refused(self, parts: dict[str, Any], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            make_job(strategy=strategy_of(parts))

    def test_every_part_of_training_is_tried(self) -> None:
        tried = [*ALLOWED, *(parts for parts, _ in REFUSED)]
        for field, every in (("loss", Loss), ("regulariser", Regulariser), ("server_update", ServerUpdate)):
            default = {"loss": Loss.CROSS_ENTROPY, "regulariser": Regulariser.NONE}.get(
                field, "weighted-mean"
            )
            assert {parts.get(field, default) for parts in tried} == set(every)

    @pytest.mark.parametrize("preset", PRESETS)
    def test_every_preset_is_trained_or_refused_for_the_part_that_may_not(self, preset: str) -> None:
        strategy = {"preset": preset, "options": {"logit_clip": 10.0} if preset == "fedcsd" else {}}
        refusals = [STANDINGS[part].records for part in parts_of(PRESETS[preset])]
        assert (PRESETS[preset].loss in UNCLIPPABLE) <= any(refusals)
        if any(refusals):
            told = re.escape(next(filter(None, refusals)))
            with pytest.raises(ValueError, match=rf"{told} \(privacy.records\)"):
                make_job(strategy=strategy)
        else:
            assert make_job(strategy=strategy).privacy is not None


class TestTogether:
    def test_digits_are_learned_under_moderate_noise(self) -> None:
        """epsilon is about 4 at delta 1e-5; chance would be 0.1."""
        job = make_job(
            training={"local_epochs": 12, "batch_size": 96, "learning_rate": 0.5, "momentum": 0.5},
            privacy=privacy(noise_multiplier=1.5, sample_rate=96 / 1437),
        )
        model, data = model_of(job), all_digits(job)
        train_on(job, Tensors.of(data.train, torch.device("cpu")), model=model)
        holdout = Tensors.of(data.holdout, torch.device("cpu"))
        figures = evaluate(model, holdout, loss=CrossEntropy(), is_cancelled=lambda: False)
        assert figures.correct / figures.tested > 0.75

    def test_same_keys_give_the_same_round(self) -> None:
        """What is random in a round are the two keys and nothing else."""
        job = make_job()
        models = [model_of(job) for _ in range(3)]
        for model, seed in zip(models, (5, 5, 6), strict=True):
            train_on(job, digits(60), model=model, random=fixed_random(seed))
        first, same, other = ([p.detach().numpy() for p in model.parameters()] for model in models)
        assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
        assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def privacy(**records: Any) -> dict[str, Any]:
    return {"records": RECORDS | records, "statistics_noise_multiplier": 1.0}


def make_job(**fields: Any) -> JobSpec:
    training = {"local_epochs": 1, "batch_size": 16, "learning_rate": 0.1, **fields.pop("training", {})}
    values = {
        "name": "test",
        "federation": "test",
        "not_after": "2100-01-01T00:00:00Z",
        "silos": ("a", "b", "c", "d"),
        "rounds": 10,
        "model": {"name": "mlp", "norm": "group", "hidden": (32,), "seed": 1},
        "training": training,
        "classes": 10,
        "input_shape": (1, 8, 8),
        "seed": 7,
        "privacy": privacy(),
    }
    return JobSpec.model_validate(values | fields)


def strategy_of(parts: dict[str, Any]) -> dict[str, Any]:
    has_logits = parts.get("statistic") is StatisticName.LOGIT_PROTOTYPES
    return {"parts": parts, "options": {"logit_clip": 10.0} if has_logits else {}}


def all_digits(job: JobSpec) -> SiloData:
    return load_data(DataSettings.model_validate({"format": "digits", "name": "digits"}), job)


def digits(count: int) -> Tensors:
    return Tensors.of(all_digits(make_job()).train.first(count), torch.device("cpu"))


def make_work(job: JobSpec) -> Work:
    data = all_digits(job)
    state: dict[str, Array] = dict(initial_state(job))
    if job.method.recipe.regulariser is Regulariser.CSD:
        state[PROTOTYPES] = np.random.default_rng(2).normal(size=(10, 10))
    context = PhaseContext(
        round=1,
        members=4,
        classes=10,
        state=state,
        trained=tuple(name for name in trained_names(state) if job.method.trains(name)),
        buffers=buffer_names(state),
        options=job.method.options,
    )
    return Work(
        spec=job,
        phase_kind="train",
        round=1,
        silo="a",
        state=state,
        context=context,
        data=SiloData(train=data.train.first(60), holdout=data.holdout.first(20), name="digits"),
        weight=0.25,
        is_cancelled=lambda: False,
    )


def model_of(job: JobSpec, work: Work | None = None) -> CutModel:
    """As the work received it, or with the job's initial weights, everything trained."""
    model = build_model(job.model, classes=job.classes, input_shape=job.input_shape, recipe=job.method.recipe)
    load_arrays(model, initial_state(job) if work is None else work.state)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(work is None or name in work.context.trained)
    return model.train()


def train_on(job: JobSpec, samples: Tensors, *, model: CutModel | None = None, **fields: Any) -> int:
    loss: LocalLoss = fields.pop("loss", CROSS_ENTROPY)
    return train_locally(
        model or model_of(job),
        samples,
        spec=job,
        round=1,
        loss=loss,
        generator=torch.Generator(),
        is_cancelled=fields.pop("is_cancelled", lambda: False),
        **({"random": fixed_random()} | fields),
    )
