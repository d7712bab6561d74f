"""Heads, and what they are given.

A frozen head is one fixed vector for each class, made once by the operator and carried in the state: its
bytes travel, because a seed gives other bytes under another LAPACK. Rows are classes.
Sources: SphereFed (Dong et al. 2022), Eq. 4, orthonormal rows; FedDr+ (Kim et al.), Eq. 3, simplex ETF;
FedBABU (Oh et al. 2022), a head that stays as it was drawn; FedETF (Li et al. 2023, arXiv 2303.10058), a
projection to unit length before the head.

C = classes, D = feature width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.errors import ConfigError
from strategies.base import MODEL, FloatArray
from strategies.recipe import Features, Head, Need, Standing

HEAD = MODEL + "head.weight"
NO_DATA = Standing(why="says how the model is built; no data")


def frozen_head(head: Head, *, classes: int, width: int, seed: int) -> NDArray[np.float32]:
    """Shapes: -> (C, D) float32. Raises ConfigError where the width has no room for the classes."""
    if head.draw is None:
        raise ConfigError(f"strategy.head: a {head} head is not frozen")
    return head.draw(classes, width, np.random.Generator(np.random.PCG64(seed))).astype(np.float32)


def random_head(classes: int, width: int, generator: np.random.Generator) -> FloatArray:
    """As a fresh linear layer is drawn: uniform within 1/sqrt(D)."""
    bound = 1.0 / np.sqrt(width)
    return generator.uniform(-bound, bound, size=(classes, width))


def orthonormal_head(classes: int, width: int, generator: np.random.Generator) -> FloatArray:
    """W W^T = I: rows of unit length at right angles. Raises ConfigError if C > D."""
    if classes > width:
        raise ConfigError(
            f"strategy.head: {classes} orthonormal rows need a feature width of at least {classes}, "
            f"got {width}"
        )
    return _orthonormal_columns(width, classes, generator).T


def etf_head(classes: int, width: int, generator: np.random.Generator) -> FloatArray:
    """Unit rows at equal angles, w_i . w_j = -1/(C - 1), summing to zero. Raises ConfigError if D < C - 1."""
    if width < classes - 1:
        raise ConfigError(
            f"strategy.head: a simplex of {classes} classes needs a feature width of at least {classes - 1}, "
            f"got {width}"
        )
    centering_CC = np.eye(classes) - 1.0 / classes
    stretch = np.sqrt(classes / (classes - 1.0))
    if width >= classes:
        wide_CD: FloatArray = stretch * (_orthonormal_columns(width, classes, generator) @ centering_CC).T
        return wide_CD
    # the simplex spans C - 1 dimensions: its own eigenvectors, turned into the features' space
    basis = np.linalg.eigh(centering_CC)[1][:, 1:]
    head_CD: FloatArray = stretch * (_orthonormal_columns(width, classes - 1, generator) @ basis.T).T
    return head_CD


def _orthonormal_columns(rows: int, columns: int, generator: np.random.Generator) -> FloatArray:
    """Haar-distributed: Q of a Gaussian matrix, with the signs that make R's diagonal positive."""
    q, r = np.linalg.qr(generator.standard_normal((rows, columns)))
    return np.asarray(q * np.sign(np.diag(r)), dtype=np.float64)


TRAINED = Head(word="trained", has_bias=True, standing=NO_DATA)
TRAINED_UNBIASED = Head(word="trained-unbiased", standing=NO_DATA)
FROZEN_RANDOM = Head(word="frozen-random", draw=random_head, standing=NO_DATA)
FROZEN_ORTHONORMAL = Head(
    word="frozen-orthonormal", draw=orthonormal_head, has_unit_rows=True, standing=NO_DATA
)
FROZEN_ETF = Head(word="frozen-etf", draw=etf_head, has_unit_rows=True, standing=NO_DATA)

RAW = Features(word="raw", standing=NO_DATA)
UNIT = Features(word="unit", is_unit=True, standing=NO_DATA)
PROJECTED_UNIT = Features(
    word="projected-unit",
    is_unit=True,
    is_projected=True,
    needs=(
        Need(
            holds=lambda recipe: recipe.head.has_unit_rows,
            reason="projected-unit features need head frozen-etf or frozen-orthonormal: before a head of "
            "another length or one that learns, projection and scale change nothing",
        ),
    ),
    standing=NO_DATA,
)

HEADS = (TRAINED, TRAINED_UNBIASED, FROZEN_RANDOM, FROZEN_ORTHONORMAL, FROZEN_ETF)
FEATURES = (RAW, UNIT, PROJECTED_UNIT)
