"""Sums of outer products in whole numbers: what one sample adds, whatever its numbers are, and the rounding.

N = samples, O and K = outputs and inputs of a layer.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chorale.privacy.products import DEVIATION, are_worth_it
from crypto.errors import ConfigError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.dp_sgd import outer_products
from silo_agent.training.dp_sgd.checks import Probes, check_gradients
from silo_agent.training.dp_sgd.clipping import ClippedSums
from silo_agent.training.dp_sgd.outer_products import (
    INPUT_BITS,
    OuterProducts,
    ProductSum,
    materialized,
)
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from strategies.tasks.base import Target
from tests.support.objectives import cut_model
from tests.unit.training.dp_sgd import (
    CROSS_ENTROPY,
    gradients_one_by_one,
    make_job,
    make_model,
    make_samples,
    model_of,
    released_units,
)

ODD = [0.0, -0.0, 1e-45, -1e-38, 1e-20, 1.0, -3.0, 3e38, math.inf, -math.inf, math.nan]
UNITS = [2.0, 1e3, DEVIATION / 1.3, DEVIATION * 1e3, 2.0**39]


class Kept(ProductSum):
    """Its products before they are rounded, as whole numbers. Shapes: -> (O, K)."""

    def products(self) -> Tensor:
        assert bool((self._sum_OK == self._sum_OK.trunc()).all())
        return (self._whole_OK << self._shift) + self._sum_OK.long()

    @property
    def a_unit(self) -> int:
        return 1 << self._shift


def kept(rows: OuterProducts, factor_N: Tensor, *, clip_units: float) -> Kept:
    sums = Kept(
        (rows.outputs_NO.shape[1], rows.inputs_NK.shape[1]), clip_units=clip_units, device=torch.device("cpu")
    )
    sums.add(rows, factor_N)
    return sums


def square(products: Tensor) -> int:
    return sum(each * each for each in products.flatten().tolist())


def products_of(count: int, outputs: int, inputs: int, *, seed: int, scale: float = 1.0) -> OuterProducts:
    generator = torch.Generator().manual_seed(seed)
    return OuterProducts(
        torch.randn((count, inputs), generator=generator) * scale,
        torch.randn((count, outputs), generator=generator),
    )


def clipped(rows: OuterProducts, *, clip_units: float, count: int | None = None) -> tuple[Tensor, int]:
    """By ClippedSums alone, with a bias. Shapes: -> (O K + O,)."""
    outputs, inputs = rows.outputs_NO.shape[1], rows.inputs_NK.shape[1]
    sums = ClippedSums(
        [torch.Size((outputs, inputs)), torch.Size((outputs,))],
        clip_norm=1.0,
        clip_units=clip_units,
        device=torch.device("cpu"),
        products=outputs * inputs,
    )
    sums.add([rows, rows.outputs_NO.clone()], count=len(rows) if count is None else count)
    found = sums.total()
    return found.sum_P, found.dropped


NUMBERS = st.one_of(st.sampled_from(ODD[:8]), st.floats(width=32, allow_nan=False, allow_infinity=False))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(NUMBERS, min_size=1, max_size=6),
    st.lists(NUMBERS, min_size=1, max_size=6),
    st.sampled_from(UNITS),
)
def test_whole_numbers_of_a_sample_are_never_longer_than_the_clip(
    inputs: list[float], outputs: list[float], units: float
) -> None:
    """Counted exactly, before the sum is rounded."""
    rows = OuterProducts(torch.tensor([inputs]), torch.tensor([outputs]))
    factor_N = (units * (1 - 2.0**-20) / rows.squares().sqrt().clamp(min=1.0)).double()
    sums = kept(rows, factor_N, clip_units=units)
    assert square(sums.products()) <= Fraction(units) ** 2 * sums.a_unit**2


def test_a_wide_input_is_cut_too() -> None:
    """Each of its 40,000 numbers would be rounded up."""
    rows = OuterProducts(torch.ones(1, 40_000), torch.ones(1, 1))
    factor_N = 1e6 * (1 - 2.0**-20) / rows.squares().sqrt()
    sums = kept(rows, factor_N, clip_units=1e6)
    assert square(sums.products()) <= (10**6 * sums.a_unit) ** 2


def test_what_rounding_adds_is_within_the_clip_too() -> None:
    """A sample may take every number of the sum over the edge between two units."""
    generator = torch.Generator().manual_seed(6)
    longest = 0.0
    for _ in range(400):
        inputs, outputs = (2 + torch.rand((2, 3), generator=generator) for _ in range(2))
        inputs[0] *= 1e-3  # a short one before it, so that sums begin anywhere between two units
        rows = OuterProducts(inputs, outputs)
        sums = [
            ClippedSums(
                [torch.Size((3, 3))],
                clip_norm=1.0,
                clip_units=310.4,
                device=torch.device("cpu"),
                products=9,
            )
            for _ in range(2)
        ]
        for count, each in zip((1, 2), sums, strict=True):
            each.add([rows], count=count)
        without, with_it = (each.total().sum_P for each in sums)
        longest = max(longest, math.sqrt(square(with_it - without)))
    assert 307.4 < longest <= 310.4


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_an_odd_number_makes_a_sample_zero_or_no_longer_than_the_clip(odd: float, side: str) -> None:
    rows = products_of(2, 3, 4, seed=1)
    (rows.inputs_NK if side == "inputs" else rows.outputs_NO)[0, 1] = odd
    together, dropped = clipped(rows, clip_units=1e6)
    alone, _ = clipped(OuterProducts(rows.inputs_NK[1:], rows.outputs_NO[1:]), clip_units=1e6)
    assert dropped == (not math.isfinite(odd))
    assert square(together - alone) <= 1e12
    if dropped:
        assert torch.equal(together, alone)


def test_a_sample_keeps_its_direction_and_a_short_one_its_length() -> None:
    rows = products_of(1, 5, 7, seed=2, scale=1e-2)
    found, _ = clipped(rows, clip_units=1e7)
    expected = torch.cat([rows.materialized().flatten(), rows.outputs_NO.flatten()])
    expected = expected * (1e7 - math.sqrt(35)) / max(1.0, float(expected.norm()))
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=8.0)


def test_a_zero_input_without_a_bias_adds_nothing() -> None:
    rows = OuterProducts(torch.zeros(1, 3), torch.ones(1, 2))
    assert not kept(rows, torch.tensor([1e6], dtype=torch.float64), clip_units=1e6).products().any()


@pytest.mark.parametrize("units", UNITS)
def test_any_number_of_aligned_samples_adds_up_exactly(units: float) -> None:
    """Of 9,001 float64 alone lost some, where 8,191 were exact: sums are carried before."""
    count = 9001
    rows = OuterProducts(torch.ones(1, 1), torch.ones(1, 1))
    factor_N = torch.full((32,), units * (1 - 2.0**-20), dtype=torch.float64)
    single = int(kept(rows, factor_N[:1], clip_units=units).products())
    sums = Kept((1, 1), clip_units=units, device=torch.device("cpu"))
    for start in range(0, count, 32):
        size = min(32, count - start)
        sums.add(OuterProducts(torch.ones(size, 1), torch.ones(size, 1)), factor_N[:size])
    assert int(sums.products()) == count * single
    assert int(sums.units()) == (2 * count * single + sums.a_unit) // (2 * sums.a_unit)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 40), st.sampled_from(UNITS[1:]), st.permutations(range(8)))
def test_a_sum_does_not_depend_on_order_and_a_sample_less_takes_its_own_products(
    seed: int, scale: int, units: float, order: list[int]
) -> None:
    rows = products_of(8, 3, 5, seed=seed, scale=scale)
    factor_N = (units * (1 - 2.0**-20) / rows.squares().sqrt().clamp(min=1.0)).double()

    def of(places: list[int]) -> Kept:
        chosen = OuterProducts(rows.inputs_NK[places], rows.outputs_NO[places])
        return kept(chosen, factor_N[places], clip_units=units)

    whole = of(list(range(8)))
    assert torch.equal(of(list(order)).products(), whole.products())
    less, own = of(list(range(7))), of([7])
    assert torch.equal(whole.products() - less.products(), own.products())
    moved = square(whole.units() - less.units())
    assert moved <= (units + math.sqrt(15)) ** 2


def test_a_released_sum_lies_on_the_lattice_of_the_noise_alone() -> None:
    """The low bits of a finer lattice would be the sum itself, without noise."""
    rows = products_of(6, 4, 9, seed=3)
    factor_N = torch.full((6,), 1e5, dtype=torch.float64)
    sums = kept(rows, factor_N, clip_units=1e6)
    finer = sums.products()
    assert bool((finer % sums.a_unit != 0).any())
    assert torch.equal(
        sums.units(), torch.div(finer + sums.a_unit // 2, sums.a_unit, rounding_mode="floor").flatten()
    )
    released = released_units(cut_model(nn.Identity(), width=3, classes=4).train(), make_samples(9))
    assert released.dtype.kind == "i"


def test_where_rounding_would_cost_more_than_a_hundredth_gradients_are_multiplied_out() -> None:
    assert are_worth_it(10_000, clip_units=10_000.0)
    assert not are_worth_it(10_001, clip_units=10_000.0)
    assert not are_worth_it(1, clip_units=2.0**41)
    rows = products_of(3, 40, 50, seed=4)
    found, _ = clipped(rows, clip_units=100.0)
    few, _ = clipped(OuterProducts(rows.inputs_NK[:2], rows.outputs_NO[:2]), clip_units=100.0)
    assert square(found - few) <= 100**2


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet"])
def test_matrices_of_our_own_networks_are_products_and_nothing_else_is(name: str) -> None:
    """`job plan` says by shapes which they are."""
    shape = (1, 16, 16)
    model = model_of(make_job(model={"name": name, "norm": "group", "seed": 1}, input_shape=shape))
    tried = Probes(input_shape=shape, target=Target(is_whole=True, low=0, high=9), device=torch.device("cpu"))
    found = check_gradients(model.train(), tried, loss=CROSS_ENTROPY)
    assert found == {name: each.dim() == 2 for name, each in model.named_parameters()}


class Twice(nn.Module):
    """Uses one dense layer at two places: what is cut there may add up to more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(inputs)))  # type: ignore[no-any-return]


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs[:, :, None]).sum(dim=1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("body", "is_product"), [(nn.Linear(3, 3), True), (Twice(), False), (Positions(), False)]
)
def test_a_layer_used_once_for_a_record_is_a_product_and_no_other_is(
    body: nn.Module, is_product: bool
) -> None:
    model = cut_model(body, width=3, classes=4).train()
    samples = make_samples(5)
    with SampleGradients(model) as gradients:
        found = gradients.of(CROSS_ENTROPY, samples.features.clone(), samples.labels, torch.arange(5))
        weights = {id(each): row for each, row in zip(gradients.parameters, found, strict=True)}
    inner = next(each for each in model.body.parameters() if each.dim() == 2)
    assert isinstance(weights[id(inner)], OuterProducts) == is_product
    assert isinstance(weights[id(model.head.weight)], OuterProducts)
    for place in range(5):
        model.zero_grad()
        loss = nn.functional.cross_entropy(
            model(samples.features[place : place + 1]), samples.labels[place : place + 1]
        )
        loss.backward()
        for each in model.parameters():
            torch.testing.assert_close(
                materialized(weights[id(each)])[place], each.grad, rtol=1e-4, atol=1e-6
            )


class Beside(nn.Module):
    """Two layers whose outputs are added: autograd gives both one gradient, in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.wide(inputs) + self.deep(torch.relu(inputs))  # type: ignore[no-any-return]


class WeightsBeside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.one + self.other


class BiasFirst(nn.Module):
    """As after torch's own remove_weight_norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        weight = self.layer.weight
        del self.layer.weight
        self.layer.register_parameter("weight", weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)  # type: ignore[no-any-return]


class Rounded(nn.Module):
    """Computes in bfloat16, whose factors would round past the clip."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.GroupNorm(1, 3), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(self.norm(inputs)).float()  # type: ignore[no-any-return]


@pytest.mark.parametrize("body", [Beside, WeightsBeside, BiasFirst, Rounded, Twice, Positions])
def test_a_record_of_any_model_moves_a_step_by_no_more_than_the_clip(body: type[nn.Module]) -> None:
    """Where rows shared memory, one record moved it by 10^6 clips."""
    for seed in range(12):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = cut_model(body(), width=3, classes=4).train()
        samples = make_samples(1, seed=seed)
        moved = released_units(model, Tensors(features=samples.features * 3, labels=samples.labels)).astype(
            object
        )
        assert 0 < (moved @ moved) <= DEVIATION**2


@pytest.mark.parametrize("body", [Beside, WeightsBeside])
def test_a_unit_is_the_same_wherever_its_rows_are_where_gradients_share_memory(body: type[nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = cut_model(body(), width=3, classes=4).train()
    rows = make_samples(4, seed=3)
    found = []
    for before in (10, 30):
        first = make_samples(before, seed=4)
        samples = Tensors(
            features=torch.cat([first.features * 0, rows.features]),
            labels=torch.cat([first.labels * 0, rows.labels]),
            units_N=np.repeat([0, 1], [before, 4]),
            rows_per_unit=64,
        )
        alone = Tensors(
            features=first.features * 0,
            labels=first.labels * 0,
            units_N=np.zeros(before, np.int64),
            rows_per_unit=64,
        )
        found.append(released_units(model, samples) - released_units(model, alone))
    np.testing.assert_array_equal(found[0], found[1])


class Broadcast(nn.Module):
    """A further parameter of a dense layer has no row of the layer's bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.layer.extra = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + inputs * self.layer.extra  # type: ignore[no-any-return]


def test_a_further_parameter_of_a_layer_has_a_gradient_of_its_own() -> None:
    model, samples = cut_model(Broadcast(), width=3, classes=4).train(), make_samples(5)
    with SampleGradients(model) as gradients:
        found = gradients.of(CROSS_ENTROPY, samples.features.clone(), samples.labels, torch.arange(5))
        rows = torch.cat([materialized(each).flatten(1) for each in found], dim=1)
    torch.testing.assert_close(rows, gradients_one_by_one(model, samples), rtol=1e-4, atol=1e-6)


class Chosen(nn.Module):
    """Gives a layer only the samples that are small."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found = torch.zeros_like(inputs)
        is_small_N = inputs.abs().amax(dim=1) < 1.5
        found[is_small_N] = self.layer(inputs[is_small_N])
        return found


def test_a_model_that_looks_at_large_values_is_refused_before_data() -> None:
    target = Target(is_whole=True, low=0, high=3)
    tried = Probes(input_shape=(3,), target=target, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match="cannot take the gradient of each sample by itself"):
        check_gradients(cut_model(Chosen(), width=3, classes=4).train(), tried, loss=CROSS_ENTROPY)


def test_no_samples_stay_on_a_model_after_an_error() -> None:
    model, samples = make_model(), make_samples(5)
    with pytest.raises(IndexError), SampleGradients(model) as gradients:
        gradients.of(CROSS_ENTROPY, samples.features.clone(), samples.labels + 9, torch.arange(5))
    assert not any(hasattr(layer, "activations") for layer in model.modules())
    assert all(each.requires_grad for each in model.parameters())


def test_gradients_of_a_pass_in_bfloat16_are_float32() -> None:
    samples = make_samples(5)
    with SampleGradients(cut_model(Rounded(), width=3, classes=4).train()) as gradients:
        found = gradients.of(CROSS_ENTROPY, samples.features.clone(), samples.labels, torch.arange(5))
    parts = [part for row in found for part in (row.parts if isinstance(row, OuterProducts) else [row])]
    assert {part.dtype for part in parts} == {torch.float32}


class Looping(nn.Module):
    """Runs a layer as often as a value says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        return self.layer(found) if bool((inputs > 50).any()) else found


def test_a_layer_that_one_record_makes_another_kind_ends_the_training() -> None:
    """Else the other records would be cut in another way beside it."""
    model, samples = cut_model(Looping(), width=3, classes=4).train(), make_samples(5)
    with SampleGradients(model, ["body.layer.weight", "head.weight"]) as gradients:

        def of(features: Tensor) -> object:
            return gradients.of(CROSS_ENTROPY, features.clone(), samples.labels, torch.arange(5))

        of(samples.features)
        with pytest.raises(RuntimeError, match="used once in a pass is used otherwise now"):
            of(samples.features * 1e3)
    with SampleGradients(model, ["head.weight"]) as gradients:
        assert [type(each) for each in of(samples.features)].count(OuterProducts) == 1  # type: ignore[attr-defined]


def test_nearly_cancelling_positions_move_a_sum_by_no_more_than_the_clip() -> None:
    """Cut one by one they were 3.58 clips."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = cut_model(Positions(), width=3, classes=4).train()
    features = torch.tensor([[1e4, -1e4 + 1e-2, 0.0]])
    for count in (1, 2):
        samples = Tensors(features=features.repeat(count, 1), labels=torch.zeros(count, dtype=torch.int64))
        moved = released_units(model, samples).astype(object)
        assert (moved @ moved) <= (count * DEVIATION) ** 2


def test_products_cost_a_few_bytes_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has the size of all samples' gradients."""
    monkeypatch.setattr(outer_products.OuterProducts, "materialized", lambda _: pytest.fail("multiplied out"))
    model = cut_model(nn.Linear(3, 64), width=64, classes=4).train()
    assert released_units(model, make_samples(40)).any()


def test_bits_leave_room_for_a_micro_batch() -> None:
    for units in UNITS:
        sums = Kept((1, 1), clip_units=units, device=torch.device("cpu"))
        assert sums._most >= 32
        assert 1 <= sums._shift <= INPUT_BITS
