"""Trees in XGBoost's own JSON, which it loads and predicts the same with: binary:logistic, multi:softprob
or reg:squarederror. Thresholds are of the model's inputs, as preprocessing.json says how they are made; a
missing input is NaN there.

T = trees, K = trees side by side, M = nodes of a tree.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import CalibrationLine
from strategies.base import Array, Arrays
from strategies.phases.trees import BASE, MISSING_LEFT, SPLIT_ON, THRESHOLD, VALUE, side_by_side
from strategies.tasks.regression import Regression

ROOT_PARENT = (1 << 31) - 1
VERSION = (2, 0, 0)  # of XGBoost, from which on this form is read


def xgboost_json(spec: JobSpec, arrays: Arrays, line: CalibrationLine | None) -> bytes:
    """The model. Base scores stand in the leaves of the first trees, since versions differ in where else."""
    task, inputs = spec.method.task, int(np.prod(spec.input_shape))
    scale, shift = (1.0, 0.0) if line is None else (line.slope, line.intercept)
    if isinstance(task, Regression):
        scale, shift = (task.high - task.low) / 2, (task.low + task.high) / 2
    offset_K = scale * arrays[BASE].astype(np.float64) + shift
    value_TKM = scale * arrays[VALUE].astype(np.float64)
    grown = np.flatnonzero((arrays[VALUE] != 0).any(axis=(1, 2)))
    value_TKM[0] += offset_K[:, np.newaxis]
    rounds, side = int(grown.max(initial=0)) + 1, side_by_side(task)
    trees = list[dict[str, Any]]()
    for tree in range(rounds):
        for place in range(side):
            made = _tree(
                arrays[SPLIT_ON][tree, place],
                arrays[THRESHOLD][tree, place],
                arrays[MISSING_LEFT][tree, place],
                value_TKM[tree, place],
            )
            sizes = {"num_deleted": "0", "num_feature": str(inputs), "size_leaf_vector": "1"}
            made["tree_param"] = {**sizes, "num_nodes": str(len(made["parents"]))}
            trees.append({**made, "id": len(trees)})
    objective: dict[str, Any] = {"reg_loss_param": {"scale_pos_weight": "1"}}
    name = "binary:logistic" if task.has_classes else "reg:squarederror"
    if side > 1:
        name, objective = "multi:softprob", {"softmax_multiclass_param": {"num_class": str(side)}}
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": [side * place for place in range(rounds + 1)],
        "tree_info": [*range(side)] * rounds,
        "trees": trees,
    }
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": "5E-1" if name == "binary:logistic" else "0E0",
            "boost_from_average": "1",
            "num_class": str(side if side > 1 else 0),
            "num_feature": str(inputs),
            "num_target": "1",
        },
        "objective": {"name": name, **objective},
    }
    return json.dumps({"learner": learner, "version": list(VERSION)}).encode()


def _tree(
    split_on_M: Array,
    threshold_M: Array,
    missing_left_M: Array,
    value_M: NDArray[np.float64],
) -> dict[str, Any]:
    """The nodes that there are, one after the other, level by level."""
    nodes, parents, children = [0], [ROOT_PARENT], list[int]()
    for place, node in enumerate(nodes):  # which grows
        children.append(len(nodes) if split_on_M[node] else -1)
        if split_on_M[node]:
            nodes += [2 * node + 1, 2 * node + 2]
            parents += [place, place]
    zeros = [0] * len(nodes)
    is_split = [left >= 0 for left in children]
    return {
        "left_children": children,
        "right_children": [left + 1 if left >= 0 else -1 for left in children],
        "parents": parents,
        "split_indices": [int(split_on_M[node]) - 1 if split_on_M[node] else 0 for node in nodes],
        "split_conditions": [
            float(threshold_M[node] if split else value_M[node])
            for node, split in zip(nodes, is_split, strict=True)
        ],
        "default_left": [
            int(missing_left_M[node]) if split else 0 for node, split in zip(nodes, is_split, strict=True)
        ],
        "base_weights": [float(value_M[node]) for node in nodes],
        "split_type": zeros,
        "loss_changes": [0.0] * len(nodes),
        "sum_hessian": [0.0] * len(nodes),
        **{
            name: [] for name in ("categories", "categories_nodes", "categories_segments", "categories_sizes")
        },
    }
