"""Heads, and what they are given.

A frozen head is one fixed vector for each class, drawn with the job's first state: every machine draws the
same bytes (docs/protocol.md 7.12). Rows are classes.
Sources: SphereFed (Dong et al. 2022), Eq. 4, orthonormal rows; FedDr+ (Kim et al.), Eq. 3, simplex ETF;
FedBABU (Oh et al. 2022), a head that stays as it was drawn; FedETF (Li et al. 2023, arXiv 2303.10058), a
projection to unit length before the head.

C = classes, D = feature width, K = classes but one.
"""

from __future__ import annotations

import math

import numpy as np

from crypto.errors import ConfigError
from strategies.base import MODEL, FloatArray
from strategies.number_stream import NumberStream, orthonormal_rows
from strategies.recipe import Features, Head, Need, UnderPrivacy, always

HEAD_PREFIX = "head."  # of its parameters
HEAD = MODEL + HEAD_PREFIX + "weight"
HEAD_BIAS = MODEL + HEAD_PREFIX + "bias"
MAX_PRODUCTS = 1 << 36  # of rows drawn by Gram-Schmidt: minutes; a job asks every silo to draw them
NO_DATA = UnderPrivacy(why="says how the model is built; no data")


def frozen_head(head: Head, *, classes: int, width: int, numbers: NumberStream) -> FloatArray:
    """Shapes: -> (C, D) float64. Raises ConfigError where the width has no room for the classes, or where
    drawing it would take hours."""
    if head.draw is None:
        raise ConfigError(f"strategy.head: a {head} head is not frozen")
    if head.has_unit_rows and classes * classes * width > MAX_PRODUCTS:
        raise ConfigError(
            f"strategy.head: {classes} rows of width {width} at fixed angles are too many to draw"
        )
    return head.draw(classes, width, numbers)


def random_head(classes: int, width: int, numbers: NumberStream) -> FloatArray:
    """As a fresh linear layer is drawn: uniform within 1/sqrt(D)."""
    return numbers.uniform(classes * width, bound=1.0 / math.sqrt(width)).reshape(classes, width)


def orthonormal_head(classes: int, width: int, numbers: NumberStream) -> FloatArray:
    """W W^T = I: rows of unit length at right angles. Raises ConfigError if C > D."""
    if classes > width:
        raise ConfigError(
            f"strategy.head: {classes} orthonormal rows need a feature width of at least {classes}, "
            f"got {width}"
        )
    return orthonormal_rows(classes, width, numbers)


def etf_head(classes: int, width: int, numbers: NumberStream) -> FloatArray:
    """Unit rows at equal angles, w_i . w_j = -1/(C - 1), summing to zero. Raises ConfigError if D < C - 1.

    The simplex in C - 1 dimensions, by Helmert's matrix, turned by as many orthonormal rows u_k:
    w_i = sqrt(C / (C - 1)) (sum over k > i of u_k / s_k - i u_i / s_i), s_k = sqrt(k (k + 1)).
    """
    if width < classes - 1:
        raise ConfigError(
            f"strategy.head: a simplex of {classes} classes needs a feature width of at least {classes - 1}, "
            f"got {width}"
        )
    k_K = np.arange(1.0, classes)[:, np.newaxis]
    turned_KD = orthonormal_rows(classes - 1, width, numbers) / np.sqrt(k_K * (k_K + 1.0))
    head_CD = np.zeros((classes, width))
    head_CD[:-1] = np.add.accumulate(turned_KD[::-1])[::-1]
    head_CD[1:] -= k_K * turned_KD
    return math.sqrt(classes / (classes - 1.0)) * head_CD


TRAINED = Head(word="trained", has_bias=True, under_privacy=NO_DATA)
TRAINED_UNBIASED = Head(word="trained-unbiased", under_privacy=NO_DATA, needs_head=always)
FROZEN_RANDOM = Head(word="frozen-random", draw=random_head, under_privacy=NO_DATA, needs_head=always)
FROZEN_ORTHONORMAL = Head(
    word="frozen-orthonormal",
    draw=orthonormal_head,
    has_unit_rows=True,
    under_privacy=NO_DATA,
    needs_classes=True,
    needs_head=always,
)
FROZEN_ETF = Head(
    word="frozen-etf",
    draw=etf_head,
    has_unit_rows=True,
    under_privacy=NO_DATA,
    needs_classes=True,
    needs_head=always,
)

RAW = Features(word="raw", under_privacy=NO_DATA)
UNIT = Features(word="unit", is_unit=True, under_privacy=NO_DATA, needs_head=always)
PROJECTED_UNIT = Features(
    word="projected-unit",
    is_unit=True,
    is_projected=True,
    needs=(
        Need(
            holds=lambda recipe: recipe.head.has_unit_rows,
            reason="projected-unit features need head frozen-etf or frozen-orthonormal: before a head of "
            "another length or one that learns, projection and scale change nothing",
            is_advice=True,
        ),
    ),
    under_privacy=NO_DATA,
    needs_head=always,
)

HEADS = (TRAINED, TRAINED_UNBIASED, FROZEN_RANDOM, FROZEN_ORTHONORMAL, FROZEN_ETF)
FEATURES = (RAW, UNIT, PROJECTED_UNIT)
