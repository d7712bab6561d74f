"""Small jobs of methods: the model of a work, silos whose classes are clusters, answers without a network.

N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from chorale.spec.job_spec import JobSpec
from silo_agent.training.base.passes import Outputs
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import build_model
from silo_agent.training.models.state import load_arrays
from strategies.base import Array, Arrays, PhaseContext
from tests.support.objectives import make_data


def built_model(spec: JobSpec, state: Arrays | None = None) -> FederatedModel:
    """The job's own network, with the arrays of a state where one is given."""
    recipe = spec.method.recipe
    model = build_model(spec.model, classes=spec.classes, input_shape=spec.input_shape, recipe=recipe)
    if state is not None:
        load_arrays(model, state)
    return model


def clustered(
    generator: np.random.Generator,
    labels_N: Any,
    *,
    width: int = 4,
    apart: float = 1.0,
    spread: float = 0.3,
    named: Any = None,
    tested: int | None = None,
) -> SiloData:
    """Samples around the unit vector of each label, `apart` from zero.

    named: the labels that the silo gives them, where they are others.
    tested: the first so many are the hold-out; all training samples by default.
    """
    labels_N = np.asarray(labels_N)
    features_ND = apart * np.eye(max(width, labels_N.max() + 1), width)[labels_N]
    features_ND = features_ND + spread * generator.normal(size=(len(labels_N), width))
    given_N = labels_N if named is None else named
    holdout = None if tested is None else (features_ND[:tested], given_N[:tested])
    return make_data(features_ND, given_N, holdout=holdout)


def logits_alone(logits_NC: Tensor) -> Outputs:
    """For parts that read no features."""
    return Outputs(features_ND=logits_NC.new_empty((len(logits_NC), 0)), logits_NC=logits_NC)


def make_context(state: Mapping[str, Array] | None = None, **changes: Any) -> PhaseContext:
    """Three members and classes in round 1."""
    plain = PhaseContext(round=1, members=3, classes=3, state=dict(state or {}), trained=())
    return dataclasses.replace(plain, **changes)


def sum_of(silos: Any) -> dict[str, Array]:
    """Plain sums of what silos give."""
    silos = list(silos)
    return {name: np.sum([silo[name] for silo in silos], axis=0) for name in silos[0]}
