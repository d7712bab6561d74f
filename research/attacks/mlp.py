"""What an attacker computes with a model of fully connected layers, from the arrays of the state."""

# N = samples, D = feature width, C = classes

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

from strategies.base import MODEL, Arrays

LAYERS = 3  # modules of each hidden layer: linear, norm, ReLU (silo_agent/training/models/plain.py)
FloatArray = NDArray[np.float64]


def features(state: Arrays, images_ND: FloatArray) -> FloatArray:
    """What the backbone gives; of a model without normalization layers. Shapes: (N, pixels) -> (N, D)."""
    features_ND = images_ND
    for place in count(1, LAYERS):
        layer = f"{MODEL}body.{place}."
        if layer + "weight" not in state:
            return features_ND
        weight, bias = state[layer + "weight"].astype(np.float64), state[layer + "bias"]
        features_ND = np.maximum(features_ND @ weight.T + bias, 0.0)
    raise AssertionError("not reached")


def unit_features(state: Arrays, images_ND: FloatArray) -> FloatArray:
    """The same at unit length; zeros stay zeros."""
    features_ND = features(state, images_ND)
    lengths_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
    return np.asarray(features_ND / np.maximum(lengths_N1, 1e-12))


def logits(state: Arrays, images_ND: FloatArray) -> FloatArray:
    """Of a head with a bias on features as they are. Shapes: (N, pixels) -> (N, C)."""
    head_CD, bias_C = state[MODEL + "head.weight"].astype(np.float64), state[MODEL + "head.bias"]
    return np.asarray(features(state, images_ND) @ head_CD.T + bias_C)
