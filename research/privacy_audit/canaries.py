"""One run of a job with many canaries, by the product's simulation, read from the models that it gives out.

Each canary is a record with an input of its own, put in by a coin of its own: its clipped gradient is at
right angles to the others'. The adversary sees every model, so every step's noised sum, and knows all of a
canary but its coin. Source: Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846).
"""

# K = canaries, C = classes, D = input width

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.privacy.job_releases import JobReleases
from chorale.privacy.solve import solve
from chorale.spec.job_spec import JobSpec
from research.attacks.digits import job
from research.privacy_audit.bounds import by_guessing
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.models.starting import initial_state
from simulation.engine import Simulation

SIDE = 32  # of the made-up images: 1,024 inputs
CANARIES = 1_000
GUESSES = 250
SILOS = 4
STEPS = 50
SAMPLE_RATE = 0.2
DELTA = 1e-5
EPSILON = 2.0
CLASSES = 10
LOUD = (
    1_000.0  # a canary's one input: its gradient by the bias is nothing beside it, and the clip always acts
)
RATE = 1e-4  # so small that the model stays where it is, and with it a canary's gradient
STATISTICS = 100.0
TRIES = 200  # of the ideal attack
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """claim: epsilon of the job's plan. bound: what the guesses refute. right: of so many guesses.

    ideal: median bound of the best attack on a right mechanism with these canaries. best: what guesses that
    are all right would give. noticed: the largest share of the noise's deviation that, were it all there is,
    the ideal attack would notice in half of its runs.
    """

    claim: float
    bound: float
    right: int
    guesses: int
    canaries: int
    ideal: float
    best: float
    noticed: float


def measure(*, canaries: int = CANARIES, noise_share: float = 1.0, seed: int = 1) -> OneRun:
    """noise_share: of the noise's deviation that the silos add; below 1 the audit should notice."""
    spec = _job(seed=seed)
    spec = solve(spec, initial_state(spec))
    claim = JobReleases(spec, initial_state(spec)).epsilon()
    rng = np.random.default_rng(seed)
    is_in_K = rng.random(canaries) < 0.5
    score_K = _scores(_with_noise_share(spec, noise_share), is_in_K)
    guesses = min(GUESSES, canaries // 2)
    right = _right(score_K, is_in_K, guesses)
    assert spec.privacy is not None
    assert spec.privacy.records is not None
    assert spec.privacy.records.noise_multiplier is not None
    # all silos are there, so there is more noise than the h that are counted on
    rule = spec.rule(SILOS)
    deviation = spec.privacy.records.noise_multiplier * math.sqrt(SILOS / rule.min_honest)
    return OneRun(
        claim=claim,
        bound=by_guessing(right, guesses, canaries=canaries, delta=DELTA),
        right=right,
        guesses=guesses,
        canaries=canaries,
        ideal=_ideal(deviation, canaries, guesses, rng),
        best=by_guessing(guesses, guesses, canaries=canaries, delta=DELTA),
        noticed=_noticed(deviation, canaries, guesses, claim, rng),
    )


def _scores(spec: JobSpec, is_in_K: NDArray[np.bool_]) -> FloatArray:
    """What the steps' sums hold of each canary's gradient, added up."""
    own_K = np.flatnonzero(is_in_K)
    silos = {name: _silo(part) for name, part in zip(spec.silos, np.array_split(own_K, SILOS), strict=True)}
    simulation = Simulation(spec, silos, device="cpu")
    score_K, before_CD = np.zeros(len(is_in_K)), _weights(simulation)
    gradient_CK = _gradients(before_CD, len(is_in_K))
    for result in simulation.run():
        assert not result.reason
        after_CD = _weights(simulation)
        moved_CK = (before_CD - after_CD)[:, : len(is_in_K)] * (spec.training.batch_size * SILOS / RATE)
        score_K += np.sum(moved_CK * gradient_CK, axis=0)
        before_CD = after_CD
    return score_K


def _silo(canaries_K: NDArray[np.int64]) -> SiloData:
    """Canary k is loud in input k and silent elsewhere."""
    inputs_KD = np.zeros((len(canaries_K), SIDE * SIDE), np.float32)
    inputs_KD[np.arange(len(canaries_K)), canaries_K] = LOUD
    features = inputs_KD.reshape(-1, 1, SIDE, SIDE)
    train = Samples(features=features, labels=np.zeros(len(canaries_K), np.int64))
    return SiloData(train=train, holdout=train.first(0), name="canaries")


def _weights(simulation: Simulation) -> FloatArray:
    return np.asarray(simulation.state["model/head.weight"], np.float64)


def _gradients(weights_CD: FloatArray, canaries: int) -> FloatArray:
    """Each canary's clipped gradient: of length 1, in its own column of the weights. Shapes: -> (C, K)."""
    logits_CK = LOUD * weights_CD[:, :canaries]
    error_CK = np.exp(logits_CK - logits_CK.max(axis=0))
    error_CK /= error_CK.sum(axis=0)
    error_CK[0] -= 1.0
    length_K = np.maximum(np.linalg.norm(error_CK, axis=0), 1e-12)
    return np.asarray(error_CK / length_K)


def _right(score_K: FloatArray, is_in_K: NDArray[np.bool_], guesses: int) -> int:
    """Guessed to be in: the highest scores; to be out: the lowest."""
    order_K = np.argsort(score_K)
    low_K, high_K = order_K[: guesses // 2], order_K[len(order_K) - (guesses - guesses // 2) :]
    return int(np.sum(~is_in_K[low_K]) + np.sum(is_in_K[high_K]))


def _ideal(deviation: float, canaries: int, guesses: int, rng: np.random.Generator) -> float:
    """The median bound where a score is exactly how often a canary was drawn, plus the noise."""
    found = []
    for _ in range(TRIES):
        is_in_K = rng.random(canaries) < 0.5
        drawn_K = rng.binomial(STEPS, SAMPLE_RATE, canaries)
        score_K = is_in_K * drawn_K + rng.normal(0.0, deviation * math.sqrt(STEPS), canaries)
        found.append(_right(score_K, is_in_K, guesses))
    return by_guessing(int(statistics.median(found)), guesses, canaries=canaries, delta=DELTA)


def _noticed(deviation: float, canaries: int, guesses: int, claim: float, rng: np.random.Generator) -> float:
    """By shares a tenth apart on a logarithmic scale."""
    for share in 10.0 ** -(np.arange(1, 21) / 10.0):
        if _ideal(float(share) * deviation, canaries, guesses, rng) > claim:
            return float(share)
    return 0.0


def _with_noise_share(spec: JobSpec, share: float) -> JobSpec:
    assert spec.privacy is not None
    assert spec.privacy.records is not None
    multiplier = (spec.privacy.records.noise_multiplier or 0.0) * share
    records = spec.privacy.records.model_copy(update={"noise_multiplier": multiplier})
    privacy = spec.privacy.model_copy(update={"records": records, "epsilon": None})
    return spec.model_copy(update={"privacy": privacy})


def _job(*, seed: int) -> JobSpec:
    privacy = {
        "delta": DELTA,
        "epsilon": EPSILON,
        "records": {"clip_norm": 1.0, "sample_rate": SAMPLE_RATE, "noise": "sum"},
        "statistics_noise_multiplier": STATISTICS,
    }
    training = {
        "learning_rate": RATE,
        "momentum": 0.0,
        "batch_size": round(SAMPLE_RATE * CANARIES / 2 / SILOS),
    }
    spec = job(
        "fedavg",
        silos=SILOS,
        hidden=(),
        training=training,
        privacy=privacy,
        input_shape=(1, SIDE, SIDE),
        rounds=STEPS,
        steps=STEPS,
        spare_steps=0,
        seed=seed,
        model_seed=seed,
    )
    return spec
