"""Weights made so that a summed update holds single records, and how records are read off such a sum.

The trap rows of the first layer measure one direction with rising thresholds, and the head treats them
alike: a record above a row's threshold adds the same g x to the row's gradient, and g to its bias's, as to
those of all rows below. What two neighboring rows differ by is what the records between their thresholds add,
and where that is one record, dW / db is the record. Fowl et al. 2022, "Robbing the Fed" (arXiv 2110.13057);
Boenisch et al. 2023, "When the Curious Abandon Honesty" (arXiv 2112.02918).
"""

# H = rows of the first layer, T = trap rows, D = pixels, N = records, P = parameters, M = candidates

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from chorale.spec.state import trained_names
from strategies.base import MODEL, Array, Arrays
from strategies.phases.training import unflatten

REBUILT = 0.02  # length of the error by that of the record
FIRST, HEAD = "body.1.", "head."
FloatArray = NDArray[np.float64]


def trap_state(
    state: Arrays, public_ND: FloatArray, *, records: int, rows: int | None = None, seed: int = 3
) -> dict[str, Array]:
    """The state with its first `rows` rows, or all of them, made a trap.

    public_ND: records of the same kind that the attacker has; their mean and deviation give the thresholds.
    records: how many the silos hold, as enrollment tells. Few rows are laid where records are rarest.
    """
    trapped = {name: np.array(array) for name, array in state.items()}
    weight_HD, bias_H = trapped[MODEL + FIRST + "weight"], trapped[MODEL + FIRST + "bias"]
    rows = rows or len(bias_H)
    drawn_D = np.random.default_rng(seed).standard_normal((weight_HD.shape[1],))
    direction_D = drawn_D / np.linalg.norm(drawn_D)
    along_N = public_ND @ direction_D
    law = NormalDist(float(along_N.mean()), float(along_N.std()))
    share = 1.0 / max(rows, records)  # of the records between two thresholds
    weight_HD[:rows] = direction_D
    bias_H[:rows] = [-law.inv_cdf(1.0 - share * (rows - row - 0.5)) for row in range(rows)]
    head_CH = trapped[MODEL + HEAD + "weight"]
    # not the same for all classes: then the sum of a record's errors over the classes would be zero
    head_CH[:, :rows] = np.linspace(-1.0, 1.0, len(head_CH))[:, None]
    return trapped


def candidates(update_P: Array, state: Arrays) -> FloatArray:
    """dW / db of every row that moved, and of every difference of neighbors. Shapes: (P,) -> (M, D).

    state: for the arrays' shapes.
    """
    like = {name.removeprefix(MODEL): array for name, array in state.items()}
    arrays = unflatten(np.asarray(update_P, np.float64), like, trained_names(dict(state)))
    weight_HD, bias_H = arrays[FIRST + "weight"], arrays[FIRST + "bias"]
    all_MD = np.concatenate([weight_HD, np.diff(weight_HD, axis=0)])
    all_M = np.concatenate([bias_H, np.diff(bias_H)])
    moved_M = all_M != 0.0
    found_MD = all_MD[moved_M] / all_M[moved_M, None]
    # an attacker drops what cannot be a record: pixels lie in 0..1
    in_range_M = np.linalg.norm(found_MD, axis=1) <= (1.0 + REBUILT) * np.sqrt(found_MD.shape[1])
    return np.asarray(found_MD[in_range_M])


def rebuilt(candidates_MD: FloatArray, records_ND: FloatArray) -> NDArray[np.bool_]:
    """Which records a candidate comes within REBUILT of. Shapes: -> (N,)."""
    squares_N = np.sum(records_ND**2, axis=1)
    if not len(candidates_MD):
        return np.zeros(len(records_ND), np.bool_)
    squares_M = np.sum(candidates_MD**2, axis=1)
    errors_NM = squares_N[:, None] + squares_M - 2.0 * records_ND @ candidates_MD.T
    return np.asarray(errors_NM.min(axis=1) < REBUILT**2 * squares_N)
