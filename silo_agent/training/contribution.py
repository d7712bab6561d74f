"""What a trained model adds to the sum: p * delta, p, the buffers, and what a server update needs beside.

P = trained parameters, B = values of the float buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from silo_agent.objective import Work
from silo_agent.training.models.base import CutModel
from silo_agent.training.models.state import FloatArray, flat_arrays, flat_values
from silo_agent.training.parts.scaffold import OWN_CONTROL, next_control, own_control
from strategies.base import MODEL, Array
from strategies.parts.scaffold import CONTROL_BOUND, CONTROL_DELTA
from strategies.recipe import ServerUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One round's local result. Shapes: delta (P,) float32, not yet weighted. steps: of the optimizer."""

    work: Work
    model: CutModel
    delta_P: FloatArray
    steps: int


Extra = Callable[[Trained], Mapping[str, Array]]


def normalizer(*, steps: int, momentum: float) -> float:
    """FedNova's a_k: the sum of the coefficients with which the gradients of SGD steps enter the delta.

    A gradient taken s steps before the last weighs 1 + momentum + ... + momentum^s; without momentum a_k is
    the number of steps. Source: Wang et al. 2020 (arXiv 2007.07481), section 4; weight decay left aside.
    """
    remembered = momentum * (1.0 - momentum**steps) / (1.0 - momentum)
    return (steps - remembered) / (1.0 - momentum)


def _squared_length(trained: Trained) -> dict[str, Array]:
    """FedExP: p ||delta||^2, summed in float64."""
    delta_P = trained.delta_P.astype(np.float64)
    return {"update_sq_norm": np.asarray(trained.work.weight * np.dot(delta_P, delta_P))}


def _direction(trained: Trained) -> dict[str, Array]:
    """FedNova: p d_k in place of p delta_k, and p a_k. Without a step there is neither."""
    work = trained.work
    a = normalizer(steps=trained.steps, momentum=work.spec.training.momentum)
    scale = np.float32(work.weight / a if a > 0.0 else 0.0)
    return {"delta": scale * trained.delta_P, "normalizer": np.asarray(work.weight * a)}


def _control(trained: Trained) -> dict[str, Array]:
    """SCAFFOLD: p times what the silo's control variate changes by, and that variate for the next round.

    Where encoding clips the change, the variate that is kept has moved by no more, so that c stays sum p c_i.
    """
    work = trained.work
    steps = normalizer(steps=trained.steps, momentum=work.spec.training.momentum)
    before_P = own_control(work, trained.delta_P.size)
    after_P = next_control(work, trained.delta_P, steps=steps)
    weight = np.float32(work.weight)
    change_P = weight * (after_P - before_P)
    summed_P = np.clip(change_P, -CONTROL_BOUND, CONTROL_BOUND)
    kept_P = np.where(summed_P == change_P, after_P, before_P + summed_P / weight)
    work.local.propose({OWN_CONTROL: kept_P})
    return {CONTROL_DELTA: change_P}  # as it is, so that what is clipped is counted


# by server update: quantities that replace or join delta and weight
EXTRAS: Mapping[ServerUpdate, Extra] = MappingProxyType(
    {
        ServerUpdate.FEDEXP: _squared_length,
        ServerUpdate.FEDNOVA: _direction,
        ServerUpdate.SCAFFOLD: _control,
    }
)


def _hides_silo(work: Work) -> bool:
    """Under noise on the sums: an update that overflowed counts as zero, because a refusal would tell of the
    data what no noise covers."""
    privacy = work.spec.privacy
    return privacy is not None and privacy.sums is not None


def contribution(model: CutModel, work: Work, *, steps: int) -> dict[str, Array]:
    """Shapes: delta (P,) float32, weight () float64, and buffers (B,) float32 if the model has any."""
    context, weight = work.context, np.float32(work.weight)
    before_P = flat_arrays([work.state[MODEL + name] for name in context.trained])
    delta_P = flat_values(model, context.trained) - before_P
    if _hides_silo(work) and not np.isfinite(delta_P).all():
        delta_P = np.zeros_like(delta_P)
    values: dict[str, Array] = {
        "delta": weight * delta_P,
        "weight": np.asarray(work.weight, dtype=np.float64),
    }
    if context.buffers:
        values["buffers"] = weight * flat_values(model, context.buffers)
    extra = EXTRAS.get(work.spec.method.recipe.server_update)
    if extra is not None:
        values |= extra(Trained(work=work, model=model, delta_P=delta_P, steps=steps))
    return values
