"""Images from one silo's update of a model: the first layer's gradient is a product with the input.

Of a layer y = W x + b the gradients of row i are dW_i = (dL/dy_i) x and db_i = dL/dy_i, so dW_i / db_i is x,
exactly, whatever the loss and everything above, and over any number of SGD steps on one sample: the steps'
sums have the same ratio. With several samples it is their mean, weighted by dL/dy_i: a row that a ReLU
keeps silent for all samples but one gives that one away (Phong et al. 2018, IEEE TIFS 13(5); Boenisch et
al. 2023, arXiv 2112.02918). An attack by optimization (Zhu et al. 2019) finds no more than this.
"""

# H = rows of the first layer, D = pixels, N = samples of the attacked silo

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.rows import Row
from chorale.privacy.accountant import epsilon
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.solve import solve
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import trained_names
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout
from research.attacks.digits import digits, job
from research.attacks.inputs import encoded, phase_layout, silo_values
from research.attacks.sessions import decoded, secure_sum
from silo_agent.training.models.starting import initial_state
from strategies.base import MODEL, TOTAL, Array, Arrays
from strategies.phases.training import unflatten

SILOS = 5
HIDDEN = 64
LOCAL_EPOCHS = 3  # steps, because a silo's few samples are one batch
TARGET_EPSILON = 8.0
FEW = 8
# centered cosine from which an image counts as recovered: of 1,797 images 2 have a neighbor that near
RECOVERED = 0.99
# of the best of 64 rows: random ones have 0.25 to 0.28 in the mean
NEAR_COSINE, FAR_COSINE = 0.85, 0.5
DELTA = "delta"  # the quantity
DELTA_DP = 1e-5
OTHER_NOISE = 100.0  # of the statistics, which this attack does not look at: they cost next to nothing
FloatArray = NDArray[np.float64]
Update = Callable[["_Trial"], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One protection. recovered: share of the attacked silos' samples of which a row gave an image with a
    centered cosine of RECOVERED or more. cosine: the best row's, mean over the samples. mean_square_error: of
    that row, in units of a pixel's range. epsilon: of the update's release alone, at DELTA_DP."""

    protection: str
    samples: int
    recovered: float
    cosine: float
    mean_square_error: float
    epsilon: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAttack:
    """Every protection, for every number of samples of the attacked silo."""

    silos_attacked: int
    arms: tuple[Arm, ...]

    def arm(self, protection: str, samples: int) -> Arm:
        return next(one for one in self.arms if (one.protection, one.samples) == (protection, samples))

    def rows(self) -> list[Row]:
        judged = [arm for arm in self.arms if arm.protection in TARGETS]
        return [row for arm in judged for row in _rows(arm)]


NONE, MASKS = "no masks", "masks"
SUM = "the sum of all silos"
RECORDS = f"no masks, records at epsilon {TARGET_EPSILON:g}"
SUMS = f"the sum less all other updates, sums at epsilon {TARGET_EPSILON:g}"
PROMISES: Mapping[str, dict[str, Any]] = {
    RECORDS: {"records": {"clip_norm": 1.0, "sample_rate": 1.0}},
    SUMS: {"sums": {"clip_norm": 0.5}},
}
# by protection: the share recovered, and whether it is a least (the control) or a most
TARGETS: Mapping[str, tuple[dict[int, float], bool]] = {
    NONE: ({1: 1.0, FEW: 0.25}, False),
    MASKS: ({1: 0.0, FEW: 0.0}, True),
    RECORDS: ({1: 0.0, FEW: 0.0}, True),
    SUMS: ({1: 0.0, FEW: 0.0}, True),
}


def measure(*, attacked: int = 20, seed: int = 1, counts: Sequence[int] = (1, FEW)) -> GradientAttack:
    """Silos with few samples each, one after the other with four others that hold as many."""
    arms = []
    for samples in counts:
        trials = [_Trial(samples, seed=seed + number) for number in range(attacked)]
        for protection, update in _ARMS.items():
            arms.append(_arm(protection, samples, trials, update))
    return GradientAttack(silos_attacked=attacked, arms=tuple(arms))


def rows_of_first_layer(update_P: Array, state: Arrays) -> FloatArray:
    """dW_i / db_i of every row that moved. Shapes: (P,) -> (<= H, D). state: for the arrays' shapes."""
    like = {name.removeprefix(MODEL): array for name, array in state.items()}
    arrays = unflatten(np.asarray(update_P, np.float64), like, trained_names(dict(state)))
    weight_HD, bias_H = arrays["body.1.weight"], arrays["body.1.bias"]
    moved_H = bias_H != 0.0
    return np.asarray(weight_HD[moved_H] / bias_H[moved_H, None])


class _Trial:
    """One attacked silo: silo 0 of SILOS with `samples` digits each, and a fresh model."""

    def __init__(self, samples: int, *, seed: int) -> None:
        self.samples = samples
        self._seed = seed
        order_N = digits().shuffled(seed)[: SILOS * samples]
        self._parts = np.array_split(order_N, SILOS)
        self._plain = self.spec(None)
        self.state: Arrays = {**initial_state(self._plain), TOTAL: np.array(order_N.size)}

    @property
    def images_ND(self) -> FloatArray:
        return digits().images(self._parts[0])

    def spec(self, privacy: dict[str, Any] | None) -> JobSpec:
        training = {"local_epochs": LOCAL_EPOCHS, "batch_size": self.samples, "learning_rate": 0.05}
        return job(
            "fedavg", silos=SILOS, hidden=(HIDDEN,), training=training, privacy=privacy, model_seed=self._seed
        )

    def values(self, spec: JobSpec, place: int) -> dict[str, Array]:
        data = digits().silo(self._parts[place])
        return silo_values(spec, "train", self.state, data, members=SILOS, place=place)

    def layout(self, spec: JobSpec) -> Layout:
        return phase_layout(spec, "train", self.state, members=SILOS)

    def update_in_the_clear(self) -> Array:
        layout = self.layout(self._plain)
        return decoded(encoded(self.values(self._plain, 0), layout).vectors, layout)[DELTA]

    @cached_property
    def masked_and_sum(self) -> tuple[Array, Array]:
        layout = self.layout(self._plain)
        inputs = {
            name: encoded(self.values(self._plain, place), layout)
            for place, name in enumerate(self._plain.silos)
        }
        view = secure_sum(inputs, layout)
        return view.taken_at_face_value(self._plain.silos[0])[DELTA], view.sums[DELTA]

    def private_spec(self, protection: str) -> JobSpec:
        return self.spec(_solved(protection, self.samples))

    def update_under_records(self) -> Array:
        """What leaves one silo, without its masks: every step takes every sample."""
        return self.values(self.private_spec(RECORDS), 0)[DELTA]

    def update_under_sums(self) -> Array:
        """What the coordinator has if it knows the updates of all others: this one, and the noise of the
        h silos that are relied on."""
        spec = self.private_spec(SUMS)
        layout, values = self.layout(spec), self.values(spec, 0)
        total = ring.zeros(layout)
        nothing = {name: np.zeros_like(value) for name, value in values.items()}
        for number in range(spec.rule(SILOS).min_honest):
            ring.add_into(total, encoded(nothing if number else values, layout).vectors)
        return decoded(total, layout)[DELTA]

    def cost(self, protection: str) -> float | None:
        """Epsilon of the update's release by itself."""
        if protection not in PROMISES:
            return None
        released = JobReleases(self.private_spec(protection), dict(self.state)).of_input("train", SILOS)
        return epsilon([release for quantity, release in released if quantity.name == DELTA], DELTA_DP)


@cache
def _solved(protection: str, samples: int) -> dict[str, Any]:
    """The privacy of a job of one round whose update meets the target; who asks for it does not matter."""
    asked = {"delta": DELTA_DP, "epsilon": TARGET_EPSILON, "statistics_noise_multiplier": OTHER_NOISE}
    trial = _Trial(samples, seed=0)
    solved = solve(trial.spec(asked | PROMISES[protection]), dict(trial.state)).privacy
    assert solved is not None
    return solved.model_dump()


_ARMS: Mapping[str, Update] = {
    NONE: lambda trial: trial.update_in_the_clear(),
    MASKS: lambda trial: trial.masked_and_sum[0],
    SUM: lambda trial: trial.masked_and_sum[1],
    RECORDS: lambda trial: trial.update_under_records(),
    SUMS: lambda trial: trial.update_under_sums(),
}


def _arm(protection: str, samples: int, trials: Sequence[_Trial], update: Update) -> Arm:
    best = [_best(rows_of_first_layer(update(trial), trial.state), trial.images_ND) for trial in trials]
    cosines = np.concatenate([cosine_N for cosine_N, _ in best])
    errors = np.concatenate([error_N for _, error_N in best])
    return Arm(
        protection=protection,
        samples=samples,
        recovered=float(np.mean(cosines >= RECOVERED)),
        cosine=float(cosines.mean()),
        mean_square_error=float(errors.mean()),
        epsilon=trials[0].cost(protection),
    )


def _best(rows_HD: FloatArray, images_ND: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Centered cosine and mean square error of the row that is nearest to each image; what a row says
    beyond a pixel's range is cut, as an attacker would."""
    if not len(rows_HD):
        return np.zeros(len(images_ND)), np.full(len(images_ND), np.mean(images_ND**2))
    mean_D = digits().images(np.arange(len(digits().samples))).mean(axis=0)
    cosine_NH = _unit(images_ND - mean_D) @ _unit(rows_HD - mean_D).T
    nearest_N = cosine_NH.argmax(axis=1)
    errors_N = np.mean((np.clip(rows_HD[nearest_N], 0.0, 1.0) - images_ND) ** 2, axis=1)
    return cosine_NH.max(axis=1), np.asarray(errors_N)


def _unit(array_ND: FloatArray) -> FloatArray:
    lengths_N1 = np.linalg.norm(array_ND, axis=1, keepdims=True)
    return np.asarray(array_ND / np.maximum(lengths_N1, 1e-300))


def _rows(arm: Arm) -> list[Row]:
    targets, is_at_most = TARGETS[arm.protection]
    few = "1 sample" if arm.samples == 1 else f"{arm.samples} samples"
    what = f"images from an update, {few}, {arm.protection}"
    end = "" if is_at_most else " (control)"
    recovered = Row(
        name=f"{what}: share recovered{end}",
        target=targets[arm.samples],
        value=arm.recovered,
        unit="",
        is_at_most=is_at_most,
    )
    cosine = Row(
        name=f"{what}: mean cosine of the best row{end}",
        target=FAR_COSINE if is_at_most else NEAR_COSINE,
        value=arm.cosine,
        unit="",
        is_at_most=is_at_most,
    )
    return [recovered, cosine]
