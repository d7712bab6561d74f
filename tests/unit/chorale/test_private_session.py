"""Sessions over private layouts: what is revealed is the sum of what silos hold, and the promised noise.

Every silo draws its noise from the system, so each test may fail without cause: the statistics below are
beyond six standard deviations, two-sided 2 * 10^-9 for each, where a test does not say otherwise.
"""

# N = values of one quantity

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from chorale.privacy.job_releases import JobReleases
from chorale.privacy.quantity_noise import noise_deviations
from chorale.privacy.releases import Gaussian
from chorale.spec.job_spec import JobSpec
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.masking.masks import UnmaskPlan
from strategies.base import TOTAL, Array
from tests.support.sessions import Exchange, make_federation, make_session
from tests.unit.chorale.test_privacy import SUMS, MakeSpec, private, quantities

SILOS = 6
HONEST = 3  # h: five have to survive, two may side with the coordinator
STATE: dict[str, Array] = {
    "model/body.weight": np.zeros((64, 48), np.float32),
    "model/head.weight": np.zeros((10, 64), np.float32),
    TOTAL: np.array(400),
}
DEVIATIONS = 6.0


@dataclass
class Noised(Exchange):
    """Silos that hold values; each makes its words once."""

    encoders: dict[str, Encoder] = field(default_factory=dict)

    def upload(self, name: str) -> None:
        self.masked[name] = b"".join(self.maskers[name].stream(self.encoders[name]))
        self.coordinator.on_masked(name)

    def sums(self, *, drop: Collection[str] = ()) -> dict[str, Array]:
        self.run_until("unmask", {"masked": drop})
        plan = self.unmask()
        assert isinstance(plan, UnmaskPlan)
        sums = self.masked_sum(plan.survivors)
        plan.unmask(sums)
        return ring.decode(sums, layout=self.terms.layout)


def noised(layout: Layout, encoders: dict[str, Encoder]) -> Noised:
    base = make_session(SILOS, layout=layout)
    parts = {each.name: getattr(base, each.name) for each in dataclasses.fields(Exchange)}
    return Noised(**parts, encoders=encoders)


def encoders(layout: Layout, held: Mapping[str, Mapping[str, Any]]) -> dict[str, Encoder]:
    return {name: Encoder(values, layout=layout) for name, values in held.items()}


def held_by(layout: Layout) -> dict[str, dict[str, Any]]:
    return {name: values_of(layout, seed=place) for place, name in enumerate(make_federation(SILOS).names)}


def layout_of(spec: JobSpec, kind: str) -> Layout:
    return Layout(
        quantities=tuple(quantities(spec, kind, members=SILOS, state=STATE)),
        members=SILOS,
    )


def values_of(layout: Layout, *, seed: int) -> dict[str, Any]:
    """Well within the bounds, but for clipped arrays: theirs are three times as long as they may be."""
    return {
        each.name: 1 if each.is_count else _value(each, np.random.default_rng((seed, place)))
        for place, each in enumerate(layout.quantities)
    }


def _value(quantity: Quantity, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    value_N = generator.uniform(-0.1, 0.1, quantity.shape) * min(quantity.bound, 1e4)
    if quantity.noise is None or quantity.noise.clip_l2 is None:
        return value_N
    return (value_N * (3 * quantity.noise.clip_l2 / np.linalg.norm(value_N))).astype(np.float32)


def exact_sums(layout: Layout, values: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for each in layout.quantities:
        shrink = 3.0 if each.noise is not None and each.noise.clip_l2 is not None else 1.0
        parts = [np.asarray(held[each.name], np.float64) / shrink for held in values]
        sums[each.name] = np.sum(parts, axis=0)
    return sums


def error_units(quantity: Quantity, revealed: Array, exact: Any) -> np.ndarray[Any, Any]:
    """Of the sum, in ring units, as they stood in the words: a rotation is undone by its transpose."""
    error_N = (np.asarray(revealed) - exact).reshape(-1)
    if quantity.projection is not None:
        error_N = quantity.projection.project(error_N).astype(np.float64)
    assert quantity.noise is not None
    return error_N * quantity.noise.scale


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize(
    ("privacy", "kind", "fields"),
    [
        ({"sums": SUMS}, "train", {}),
        ({"sums": SUMS}, "train", {"update_bits": 16}),
        ({"records": {"clip_norm": 1.0, "noise_multiplier": 1.1, "sample_rate": 0.1}}, "calibrate", {}),
    ],
    ids=["sums", "sums in 16 bits", "records"],
)
def test_the_revealed_sum_has_the_noise_of_those_who_are_in_it(
    make_spec: MakeSpec, privacy: dict[str, Any], kind: str, fields: dict[str, Any], lost: int
) -> None:
    preset = "spherefed" if kind == "calibrate" else "fedavg"
    spec = private(make_spec, strategy={"preset": preset}, privacy=privacy, **fields)
    layout = layout_of(spec, kind)
    held = held_by(layout)
    noisy = noised(layout, encoders(layout, held))
    dropped = noisy.terms.names[:lost]
    revealed = noisy.sums(drop=dropped)
    survivors = [name for name in noisy.terms.names if name not in dropped]
    exact = exact_sums(layout, [held[name] for name in survivors])
    errors = []
    for quantity in layout.quantities:
        if quantity.noise is None:
            assert revealed[quantity.name] == pytest.approx(exact[quantity.name], rel=1e-6)
            continue
        error_N = error_units(quantity, revealed[quantity.name], exact[quantity.name])
        errors.append(error_N / math.sqrt(quantity.noise.variance))
    error_N = np.concatenate(errors)
    size = error_N.size
    assert size >= 2500
    # chi-square with `size` degrees of freedom; rounding adds at most 1/4 to variances above 2^14
    chi_square = float(error_N @ error_N)
    assert chi_square / len(survivors) == pytest.approx(size, abs=DEVIATIONS * math.sqrt(2 * size))
    assert abs(error_N.sum()) <= DEVIATIONS * math.sqrt(size * len(survivors))
    # what was promised, and paid for: the noise of h silos
    assert chi_square / HONEST > size


def test_the_noise_that_is_paid_for_is_that_of_h_silos(make_spec: MakeSpec) -> None:
    """Not of the m that are named, nor of the five that have to survive."""
    spec = private(make_spec, privacy={"sums": SUMS})
    assert spec.rule(SILOS).min_honest == HONEST
    layout = layout_of(spec, "train")
    delta = layout.quantities[0]
    assert delta.noise is not None
    assert delta.noise.clip_l2 is not None
    release = JobReleases(spec, STATE).cost("train", SILOS)[0]
    assert isinstance(release, Gaussian)
    clip = 2 * delta.noise.scale * delta.noise.clip_l2  # an exchanged update moves the sum twice that far
    assert release.noise_multiplier == pytest.approx(
        math.sqrt(HONEST * delta.noise.variance) / clip, rel=2e-3
    )
    assert release.draws == HONEST * delta.size
    figures = noise_deviations(layout.quantities, SILOS)
    assert figures["delta"] == pytest.approx(math.sqrt(SILOS * delta.noise.variance) / delta.noise.scale)


def test_a_later_attempt_uploads_the_same_input(make_spec: MakeSpec) -> None:
    """Two reveals of an input with fresh noise each would have half the variance."""
    layout = layout_of(private(make_spec, privacy={"sums": SUMS}), "train")
    inputs = encoders(layout, held_by(layout))
    first, second = noised(layout, inputs), noised(layout, inputs)
    one, other = first.sums(), second.sums()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert first.masked != second.masked  # under other masks
