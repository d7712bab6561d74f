"""Classifier calibration with virtual representations: the head is trained on features drawn from sums.

CCVR, Luo et al., NeurIPS 2021 (arXiv 2106.05001), algorithm 1, once after the last round, over all silos. Of
each class c the silos sum the number of their samples n, their features and the products of those, s = sum_i
z_i and S = sum_i z_i z_i^T. By Eqs. 3 and 4 mu = s / n and Sigma = (S - n mu mu^T) / (n - 1). Virtual
features are drawn from N(mu, Sigma), of class c as many as its share of all samples says, and the head is
trained on them by cross-entropy, from where the rounds left it. Draws and training follow from public numbers
and fixed orders (strategies/exact.py), so every silo comes to the same head. A class that is not known by the
sums keeps its row, and the softmax goes over the known ones alone: else virtual features of the others would
train it away. Rate, epochs, batches and the default number of virtual features are chosen here.

Leaks n, s and S of each class: mean and covariance of its features, and what those of a few samples say about
each of them. Of two samples they are both features, up to their order; of n samples they leave a rotation of
n - 1 dimensions open. So a class is sent only where `min_class_holders` silos have LEAST_CLASS_SAMPLES of its
samples each, which the class-presence sum counts by: two honest silos then hold 16. A job chooses the model,
and features of a model without hidden layers are the samples themselves.

C = classes, D = feature width, T = D(D+1)/2 values of an upper triangle, K = known classes, V = virtual
features of a class, N = of all, B = of a batch, L = D, and 1 where the head has a bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crypto import encoding
from crypto.errors import ConfigError
from crypto.fixed_point.layout import CLIPPED, MAX_VALUES, Disclosure, Quantity, Side
from strategies import exact
from strategies.base import Array, FloatArray, PartOptions, PhaseContext, PhaseResult, options_of
from strategies.number_stream import NumberStream
from strategies.parts.closing.ffc import CALIBRATE, LEAST_PIVOT, unpacked
from strategies.parts.heads import HEAD, HEAD_BIAS
from strategies.parts.losses import TASK_LOSS
from strategies.parts.statistics.class_counts import class_counts
from strategies.parts.statistics.feature_prototypes import FEATURE_SUM_BOUND, UNBOUNDED_FEATURES
from strategies.recipe import Closing, Need, Options, always

LEAST_CLASS_SAMPLES = 8  # at a silo that counts as holder of a class
LEAST_CLASSES = 2  # whose virtual features the head can learn to tell from each other
BATCH, MOMENTUM = 64, 0.9
# what a job may ask every silo for: products of numbers, in minutes, and numbers held at once, half a GiB
MAX_PRODUCTS, MAX_NUMBERS = 1 << 36, 1 << 26
SOFTMAX_PRODUCTS, STEP_PRODUCTS = 64, 256  # what a score's softmax, and a sample's part of a step, take like


class CcvrOptions(PartOptions):
    """How many virtual features there are, and how the head learns from them."""

    virtual_features: int = Field(
        default=100, ge=1, le=10_000, description="M_c of CCVR: virtual features of a class, on average"
    )
    virtual_epochs: int = Field(default=10, ge=1, le=1_000, description="passes over the virtual features")
    virtual_learning_rate: float = Field(
        default=0.01, gt=0, le=100, description="rate at which the head learns from virtual features"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What the sums say of one class. Shapes: mean (D,), covariance (D, D)."""

    label: int
    samples: int
    mean_D: FloatArray
    covariance_DD: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFeaturesPhase:
    """Closing phase: sums counts, features and their products by class, installs the head that learned from
    features drawn by them. No other array changes."""

    kind: str = CALIBRATE
    options: CcvrOptions

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: class_counts (C,), class_feature_sums (C, D), class_feature_products (C, T).

        Raises ConfigError for a state without a head, and where the head would take hours to learn, or its
        virtual features more memory than a silo may have.
        """
        classes, width = self._head(context).shape
        _check_work(classes, width, self.options)
        shapes = {
            "class_feature_sums": (classes, width),
            "class_feature_products": (classes, width * (width + 1) // 2),
        }
        features = (
            Quantity(
                name=name,
                shape=shape,
                bound=FEATURE_SUM_BOUND,
                is_tagged=True,
                discloses=Disclosure.CLASS_STATISTIC,
                side=Side.TRAIN,
            )
            for name, shape in shapes.items()
        )
        clipped = Quantity(
            name=CLIPPED, bound=float(MAX_VALUES), is_count=True, discloses=Disclosure.DIAGNOSTIC
        )
        return (class_counts(classes), *features, clipped)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Install the head that learned, where it is right about no fewer virtual features than before.

        Figures: calibrated_classes, and the share of virtual features that the head is right about before and
        after.
        """
        moments = list(moments_of(sums))
        figures = {"calibrated_classes": float(len(moments))}
        if len(moments) < LEAST_CLASSES:
            return PhaseResult(state=context.state, figures=figures)
        numbers = NumberStream(encoding.digest("virtual-features", context.public_seed))
        features_ND, places_N = self._drawn(context, moments, numbers)
        bias_C = context.state.get(HEAD_BIAS)
        has_bias = bias_C is not None
        inputs_NL = _with_ones(features_ND) if has_bias else features_ND
        labels = [each.label for each in moments]
        start_CL = self._head(context).astype(np.float64)
        if bias_C is not None:
            start_CL = np.concatenate([start_CL, bias_C.astype(np.float64)[:, None]], axis=1)
        before_KL = start_CL[labels]
        after_KL = trained(before_KL, inputs_NL, places_N, options=self.options, numbers=numbers)
        before, after = (_right(weight_KL, inputs_NL, places_N) for weight_KL in (before_KL, after_KL))
        is_better = bool(np.isfinite(after_KL).all()) and after >= before
        figures |= {
            "virtual_accuracy_before": before / len(places_N),
            "virtual_accuracy_after": (after if is_better else before) / len(places_N),
        }
        if not is_better:
            return PhaseResult(state=context.state, figures=figures)
        width = features_ND.shape[1]
        head_CL = start_CL.copy()
        head_CL[labels] = after_KL
        written = {HEAD: np.ascontiguousarray(head_CL[:, :width], np.float32)}
        if has_bias:
            written[HEAD_BIAS] = np.ascontiguousarray(head_CL[:, width], np.float32)
        return PhaseResult(state={**context.state, **written}, figures=figures)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {"clipped": float(sums[CLIPPED])}

    def _drawn(
        self, context: PhaseContext, moments: Sequence[Moments], numbers: NumberStream
    ) -> tuple[FloatArray, NDArray[np.int64]]:
        """Virtual features, and of each the place of its class in `moments`. Shapes: (N, D), (N,)."""
        products = self.quantities(context)[2]
        # how far the silos' rounding may move an eigenvalue of a class's summed products
        resolution = moments[0].mean_D.size * context.members / products.scale(context.members)
        every = self.options.virtual_features * len(moments)
        total = int(exact.total(np.array([each.samples for each in moments], np.float64)))
        features, places = [], []
        for place, each in enumerate(moments):
            count = max(1, (every * each.samples + total // 2) // total)
            features.append(draw(each, count, resolution=resolution, numbers=numbers))
            places.append(np.full(count, place))
        return np.concatenate(features), np.concatenate(places)

    def _head(self, context: PhaseContext) -> Array:
        if HEAD not in context.state:
            raise ConfigError(
                f"calibrate: expected the array {HEAD} in the global state: it is what ccvr calibrates"
            )
        return context.state[HEAD]


def _check_work(classes: int, width: int, options: CcvrOptions) -> None:
    """Security: the operator chooses all of it, and each silo's agent computes it. Raises ConfigError."""
    samples = classes * options.virtual_features
    of_epoch = samples * (classes * (2 * width + SOFTMAX_PRODUCTS) + STEP_PRODUCTS)
    work = options.virtual_epochs * of_epoch + width * width * (samples + classes * width)
    if work > MAX_PRODUCTS:
        raise ConfigError(
            f"strategy.options.virtual_features: {samples} of width {width} take {work:.1e} products in "
            f"{options.virtual_epochs} epochs, more than the {MAX_PRODUCTS:.1e} allowed"
        )
    numbers = samples * max(width + 1, classes)  # features with a one, or their scores
    if numbers > MAX_NUMBERS:
        raise ConfigError(
            f"strategy.options.virtual_features: {samples} of width {width} with {classes} scores each are "
            f"{numbers:.1e} numbers, more than the {MAX_NUMBERS:.1e} allowed"
        )


def moments_of(sums: Mapping[str, Array]) -> Iterator[Moments]:
    """Mean and covariance of each class that has two samples, Eqs. 3 and 4."""
    counts_C, sums_CD, products_CT = (
        sums[name] for name in ("class_counts", "class_feature_sums", "class_feature_products")
    )
    for label in np.flatnonzero(counts_C >= 2):
        samples = int(counts_C[label])
        mean_D = np.asarray(sums_CD[label], np.float64) / samples
        spread_DD = unpacked(products_CT[label], mean_D.size) - samples * (mean_D[:, None] * mean_D)
        yield Moments(
            label=int(label), samples=samples, mean_D=mean_D, covariance_DD=spread_DD / (samples - 1)
        )


def draw(moments: Moments, count: int, *, resolution: float, numbers: NumberStream) -> FloatArray:
    """From N(mean, covariance), by Cholesky's decomposition with the largest pivot first. Shapes: -> (V, D).

    resolution: of n times the covariance. Directions whose pivot is at most that, or 1e-12 of the largest,
    have no spread: a class of few samples has none in most of them.
    """
    covariance_DD = (moments.covariance_DD + moments.covariance_DD.T) / 2.0
    largest = float(np.max(np.diagonal(covariance_DD)))
    least_pivot = max(LEAST_PIVOT * largest, resolution / (moments.samples - 1))
    lower_DR, order_D = exact.cholesky(covariance_DD, least_pivot=least_pivot)
    rank = lower_DR.shape[1]
    normal_VR = numbers.normal(count * rank).reshape(count, rank)
    features_VD = np.empty((count, order_D.size))
    features_VD[:, order_D] = exact.product(normal_VR, lower_DR.T)
    return features_VD + moments.mean_D


def trained(
    weight_KL: FloatArray,
    inputs_NL: FloatArray,
    places_N: NDArray[np.int64],
    *,
    options: CcvrOptions,
    numbers: NumberStream,
) -> FloatArray:
    """The weights after SGD on cross-entropy, in a new order in every epoch. Shapes: -> (K, L)."""
    velocity_KL = np.zeros_like(weight_KL)
    for _ in range(options.virtual_epochs):
        order_N = np.argsort(numbers.uniform(len(places_N), bound=1.0), kind="stable")
        for start in range(0, len(order_N), BATCH):
            chosen_B = order_N[start : start + BATCH]
            gradient_KL = cross_entropy_gradient(weight_KL, inputs_NL[chosen_B], places_N[chosen_B])
            velocity_KL = MOMENTUM * velocity_KL + gradient_KL
            weight_KL = weight_KL - options.virtual_learning_rate * velocity_KL
    return weight_KL


def cross_entropy_gradient(
    weight_KL: FloatArray, inputs_BL: FloatArray, places_B: NDArray[np.int64]
) -> FloatArray:
    """Of the mean over the batch: (softmax - onehot)^T x / B. Shapes: -> (K, L)."""
    logits_BK = exact.product(inputs_BL, weight_KL.T)
    powers_BK = exact.exponential(logits_BK - np.max(logits_BK, axis=1)[:, None])
    off_BK = powers_BK / exact.total(powers_BK.T)[:, None]
    off_BK[np.arange(len(places_B)), places_B] -= 1.0
    return exact.product(off_BK.T, inputs_BL) / len(places_B)


def _right(weight_KL: FloatArray, inputs_NL: FloatArray, places_N: NDArray[np.int64]) -> int:
    scores_NK = exact.product(inputs_NL, weight_KL.T)
    return int(np.count_nonzero(np.argmax(scores_NK, axis=1) == places_N))


def _with_ones(features_ND: FloatArray) -> FloatArray:
    return np.concatenate([features_ND, np.ones((len(features_ND), 1))], axis=1)


def calibration(options: Options) -> tuple[VirtualFeaturesPhase]:
    """What calibrates the head, before the final evaluation."""
    return (VirtualFeaturesPhase(options=options_of(CcvrOptions, options)),)


CCVR = Closing(
    word="ccvr",
    options=CcvrOptions,
    needs=(
        Need(
            holds=lambda recipe: recipe.loss is TASK_LOSS and not recipe.features.is_projected,
            reason="ccvr trains the last linear layer alone, by cross-entropy: it needs loss task and "
            "features raw or unit",
        ),
    ),
    under_privacy=UNBOUNDED_FEATURES,
    before_evaluation=calibration,
    least_class_samples=LEAST_CLASS_SAMPLES,
    least_rows=lambda options: LEAST_CLASSES,
    needs_classes=True,
    needs_head=always,
)
