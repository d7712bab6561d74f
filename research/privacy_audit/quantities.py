"""Every noised quantity of a job: what one record moves its sum by, under the noise that has to be there.

A quantity is taken as the product declares and noises it, stretched to as many numbers as there are runs, and
encoded by the product at h honest silos and at the silos that collude. The adversary knows what colluders
sent and subtracts it. In one world the target silo adds a record that moves the sum as far as the quantity
allows, in the other it does not.
"""

# N = runs, each a number of the stretched quantity

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chorale.privacy.accountant import epsilon
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.quantity_noise import noised
from chorale.privacy.releases import Gaussian, Release, SampledGaussian
from chorale.spec.job_spec import JobSpec, phase_context
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.noise.sensitivity import Noise, clipped_sensitivity
from research.attacks.digits import job
from research.privacy_audit.bounds import by_counting, noise_at_most
from silo_agent.training.dp_sgd.micro_batches import Draws
from silo_agent.training.models.starting import initial_state
from strategies.base import TOTAL, Arrays

SILOS = 20
RUNS = 1 << 20
DELTA = 1e-5
MULTIPLIER = 1.0  # low, so that one release can be seen
SAMPLE_RATE = 0.2
SEED = bytes(32)
FloatArray = NDArray[np.float64]
Random = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One release of one quantity. claim: its epsilon at DELTA by the product's accounting.

    counted: lower bound without an assumption on the noise. gaussian: epsilon of Gaussian noise as wide as it
    may be at most, by the accounting of the same release. multiplier: of the release; measured: the largest
    that the draws allow.
    """

    phase: str
    quantity: str
    claim: float
    counted: float
    gaussian: float
    multiplier: float
    measured: float

    @property
    def is_refuted(self) -> bool:
        return max(self.counted, self.gaussian) > self.claim


def audited_job(preset: str, *, silos: int = SILOS, hidden: tuple[int, ...] = (16,)) -> JobSpec:
    """Noise in the sum, on a small model, with statistics of its method where it has some."""
    privacy = {
        "delta": DELTA,
        "records": {
            "clip_norm": 1.0,
            "noise_multiplier": MULTIPLIER,
            "sample_rate": SAMPLE_RATE,
            "noise": "sum",
        },
        "statistics_noise_multiplier": MULTIPLIER,
    }
    training = {"batch_size": 40, "momentum": 0.0}
    clip = {"logit_clip": 1.0} if preset == "fedcsd" else {}
    return job(
        preset,
        silos=silos,
        hidden=hidden,
        training=training,
        privacy=privacy,
        strategy={"preset": preset, "options": clip},
        rounds=1,
        steps=1,
        spare_steps=0,
    )


def audits(
    spec: JobSpec,
    *,
    runs: int = RUNS,
    missing: float = 0.0,
    skipped: frozenset[str] = frozenset(),
    random: Random = os.urandom,
) -> Iterator[Audit]:
    """Each noised quantity of each phase but the skipped ones. missing: a share of the noise's variance that
    is left out, to see that it would be noticed. random: of the keys of noise, roundings and draws."""
    state = {**initial_state(spec), TOTAL: np.array(1)}
    kinds = (*spec.method.opening, *spec.method.round_phases, *spec.method.closing)
    for kind in dict.fromkeys(kinds):
        members = len(spec.silos)
        released = {
            quantity.name: release for quantity, release in JobReleases(spec, state).of_input(kind, members)
        }
        for quantity in _noised(spec, kind, state, members):
            if quantity.name in skipped:
                continue
            release = released[quantity.name]
            yield audit(spec, kind, quantity, release, runs=runs, missing=missing, random=random)


def audit(
    spec: JobSpec,
    kind: str,
    quantity: Quantity,
    release: Release,
    *,
    runs: int,
    missing: float,
    random: Random,
) -> Audit:
    """The bounds of one release, by `runs` runs of each world."""
    rule, members = spec.rule(len(spec.silos)), len(spec.silos)
    colluders = members // 3
    assert quantity.noise is not None
    assert isinstance(release, Gaussian | SampledGaussian)
    thinner = replace(quantity.noise, variance=quantity.noise.variance * (1.0 - missing))
    moved = _moved(quantity, thinner)
    is_drawn_N = _drawn(release, runs, random)
    noise_N, with_N = (
        _seen(quantity, thinner, values_N, honest=rule.min_honest, colluders=colluders, random=random)
        for values_N in (np.zeros(runs), np.where(is_drawn_N, moved, 0.0))
    )
    multiplier = noise_at_most(noise_N) / (moved / _unit(quantity, thinner))
    as_measured = replace(release, noise_multiplier=multiplier)
    return Audit(
        phase=kind,
        quantity=quantity.name,
        claim=epsilon([release], DELTA),
        counted=by_counting(noise_N, with_N, delta=DELTA),
        gaussian=epsilon([as_measured], DELTA),
        multiplier=release.noise_multiplier,
        measured=multiplier,
    )


def _noised(spec: JobSpec, kind: str, state: Arrays, members: int) -> list[Quantity]:
    context = phase_context(spec, 1, dict(state), members, public_seed=SEED)
    declared = spec.method.phase(kind).quantities(context)
    return [each for each in noised(declared, spec, members) if each.noise is not None]


def _moved(quantity: Quantity, noise: Noise) -> float:
    """What the record adds to one number, as a silo hands it over: whole units, or the quantity's own."""
    assert quantity.sensitivity_l2 is not None
    if not quantity.is_whole_units:
        return quantity.sensitivity_l2
    allowed = clipped_sensitivity(quantity.sensitivity_l2, scale=noise.scale, coordinates=quantity.size)
    return math.floor(allowed.l2)


def _unit(quantity: Quantity, noise: Noise) -> float:
    """By how much a value as it is handed over has to be divided to be one of the decoded sum."""
    return noise.scale if quantity.is_whole_units else 1.0


def _drawn(release: Release, runs: int, random: Random) -> NDArray[np.bool_]:
    """Whether the record is in the run: always, or as the silo draws its batches."""
    if not isinstance(release, SampledGaussian):
        return np.ones(runs, bool)
    is_drawn_N = np.zeros(runs, bool)
    is_drawn_N[Draws(random).records(runs, rate=release.sample_rate)] = True
    return is_drawn_N


def _seen(
    quantity: Quantity,
    noise: Noise,
    values_N: FloatArray,
    *,
    honest: int,
    colluders: int,
    random: Random,
) -> FloatArray:
    """What the adversary has: the sum less what the colluders sent. values_N: of the target."""
    stretched = replace(quantity, shape=(len(values_N),), noise=noise, is_tagged=False)
    layout = Layout(quantities=(stretched,), members=honest + colluders)
    total = ring.zeros(layout)
    for place in range(honest + colluders):
        values = values_N if place == 0 else np.zeros(len(values_N))
        handed = values.astype(np.int64) if quantity.is_whole_units else values
        words = Encoder({quantity.name: handed}, layout=layout, random=random).encode().vectors
        ring.add_into(total, words)
        if place >= honest:
            _subtract(total, words)
    return np.asarray(ring.decode(total, layout=layout)[quantity.name], np.float64)


def _subtract(total: Mapping[int, ring.Words], words: Mapping[int, ring.Words]) -> None:
    for ring_bits, known in words.items():
        total[ring_bits][:] -= known
