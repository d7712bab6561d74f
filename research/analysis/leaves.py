"""What trees of four hospitals tell of few records: their bins the coordinator, their leaves a reader.

    python -m research.analysis.leaves      # three minutes; records of hospitals: --data FOLDER

Of the first tree, whose scores are all the base score, it counts which records and classes give a leaf its
value. As a bound, one who knew the records of every leaf also has each sum and difference of leaves: a linear
program finds for each record that in which it counts once, no record less than never, and all together least.
Where all then count once or never and they are fewer than LEAST, it isolates a group.

N = records, D = inputs, L = leaves, C = cells: records in the same leaf of every tree.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import linprog  # type: ignore[import-untyped]

from bench.options import Parser, ended
from chorale.spec.job_spec import JobSpec
from research.analysis.reconstruction import DATA
from research.analysis.seen import LEAST
from research.heart_disease.hospitals import EXAMPLE, FAR_AWAY, splits
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.privacy_policy import Permission
from simulation.engine import Simulation
from strategies.base import Array, Arrays
from strategies.phases import trees
from strategies.phases.trees import BASE, MISSING_BELOW, MODEL_ARRAYS, SPLIT_ON, VALUE

TREES, DEPTH, BINS, RATE = 30, 3, 32, 0.3  # the defaults of a job but for the rate
MOST = 1_000  # records of a leaf, for one who does not know better
Mask = NDArray[np.bool_]


def grown(folder: Path) -> tuple[Array, Arrays]:
    """Records of all hospitals, which all are in the sums, and the last state. Shapes: -> (N, D)."""
    values = yaml.safe_load((EXAMPLE / "job.yaml").read_bytes())
    columns = [{key: each[key] for key in ("name", "mean", "scale")} for each in values["columns"]]
    values |= {"strategy": {"preset": "trees"}, "model": {"name": "trees"}, "columns": columns}
    values |= {"rounds": 1 + TREES * DEPTH, "training": {"learning_rate": RATE}, "not_after": FAR_AWAY}
    spec = JobSpec.model_validate(values)
    data = {name: split.final for name, split in splits(spec, folder, seed=0).items()}
    policy = Policy(federation=spec.federation, class_statistics=Permission.ALLOW, count_granularity=1)
    simulation = Simulation(spec, data, policy=policy, device="cpu")
    for result in simulation.run():
        assert not result.reason
    return np.concatenate([each.train.features for each in data.values()]), simulation.state


def nodes(x_ND: Array, state: Arrays) -> Iterator[tuple[int, int, Mask]]:
    """Tree, number in it and records of those that hold any."""
    for tree in range(TREES):
        node_N = np.zeros(len(x_ND), np.int64)
        split_on, threshold, missing_left = (state[name][tree, 0] for name in MODEL_ARRAYS[:3])
        for level in range(DEPTH + 1):
            for number in range((1 << level) - 1, (2 << level) - 1):
                if (mask_N := node_N == number).any():
                    yield tree, number, mask_N
            asked_N = split_on[node_N].astype(np.int64) - 1
            value_N = x_ND[np.arange(len(x_ND)), np.maximum(asked_N, 0)]
            goes_left_N = (value_N >= MISSING_BELOW) | (missing_left[node_N] > 0)
            is_left_N = (value_N < threshold[node_N]) & goes_left_N
            node_N = np.where(asked_N >= 0, 2 * node_N + 2 - is_left_N, node_N)


def fits(value: float, base: float, *, rate: float = RATE, l2: float = 1.0) -> int:
    """How many pairs, records and those of the second class, give a leaf of the first tree this value."""
    chance = 1.0 / (1.0 + math.exp(-base))
    whole_N, of_class_K = np.arange(LEAST, MOST)[:, None], np.arange(MOST)
    leaf_NK = -rate * (whole_N * chance - of_class_K) / (whole_N * chance * (1.0 - chance) + l2)
    fraction_NK, exponent_NK = np.frexp(leaf_NK)
    rounded_NK = np.ldexp(np.round(np.ldexp(fraction_NK, trees.LEAF_BITS)), exponent_NK - trees.LEAF_BITS)
    return int(((rounded_NK.astype(np.float32) == value) & (of_class_K <= whole_N)).sum())


def isolated(leaves_LN: Mask) -> tuple[int, int]:
    """By one who knows each leaf's records: the smallest group, and the records in those below LEAST."""
    cells_LC, records_C = np.unique(leaves_LN.astype(np.float64), axis=1, return_counts=True)
    sizes_C = np.full(len(records_C), np.inf)
    for cell, at_L in enumerate(cells_LC.T):
        never = {"A_ub": -cells_LC.T, "b_ub": np.zeros(len(records_C)), "bounds": (None, None)}
        least = linprog(cells_LC @ records_C, A_eq=at_L[None], b_eq=[1.0], **never)
        if np.isclose(weight_C := cells_LC.T @ least.x, weight_C > 0.5, atol=1e-6).all():
            sizes_C[cell] = round(least.fun)
    return int(sizes_C.min()), int(records_C[sizes_C < LEAST].sum())


def in_small_bins(x_ND: Array, masks: Sequence[Mask], *, most: int) -> int:
    """How many records are in a bin of a node and an input with so few."""
    edges_E = np.array(trees.normal_edges(BINS), np.float32)
    bin_ND = np.searchsorted(edges_E, x_ND, side="right")
    bin_ND[x_ND < MISSING_BELOW] = BINS
    is_small_N = np.zeros(len(x_ND), np.bool_)
    for mask_N, bin_N in product(masks, bin_ND.T):
        is_small_N |= mask_N & (np.bincount(bin_N[mask_N], minlength=BINS + 1)[bin_N] <= most)
    return int(is_small_N.sum())


def main(arguments: Sequence[str] | None = None) -> int:
    """A line for bins, for sums of leaves, and for the values of the first tree."""
    parser = Parser("analysis.leaves", __doc__, package="research")
    parser.add_argument("--data", type=Path, default=DATA, help="of the hospitals' files")
    x_ND, state = grown(parser.parse_args(arguments).data)
    found = [*nodes(x_ND, state)]
    summed = [mask_N for _, number, mask_N in found if number < (1 << DEPTH) - 1]
    few = [in_small_bins(x_ND, summed, most=most) for most in (1, LEAST - 1)]
    print(f"of {len(x_ND)} records {few[0]} are alone in a bin, {few[1]} with fewer than {LEAST}")
    leaves = [each for each in found if state[SPLIT_ON][each[0], 0, each[1]] == 0]
    masks_LN = np.array([mask_N for *_, mask_N in leaves])
    print(f"{len(leaves)} leaves of {masks_LN.sum(axis=1).min()} records and more isolate groups of", end=" ")
    smallest, records = isolated(masks_LN)
    print(f"{smallest} and more, {records} records in those below {LEAST}")
    values = [float(state[VALUE][0, 0, number]) for tree, number, _ in leaves if tree == 0]
    pairs = sorted(fits(value, float(state[BASE][0])) for value in values)
    print(f"pairs of counts that fit each leaf of the first tree: {pairs}")
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))
