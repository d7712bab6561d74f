"""What a server update needs of a silo: what is summed with p * delta, or in its place.

strategies/parts/server_updates/ says for each what the sums do and what they leak.

FedExP: p ||delta||^2. FedNova: p d_k in place of p delta_k, and p a_k.

SCAFFOLD: the correction of every step, and the control variate that follows from the steps. Karimireddy et
al. 2020 (arXiv 1910.06378), algorithm 1, lines 10 and 12 (option II). c - c_i is constant for the round, so
it is the exact gradient of <c - c_i, theta>: a penalty of the weights alone.

P = trained parameters. delta_P is float32 and not yet weighted; steps: of the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from silo_agent.training.base.loss import add_to_gradients
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.state import FloatArray
from silo_agent.training.objective import Work
from strategies.base import METHOD, MODEL, Array
from strategies.parts.server_updates.scaffold import CONTROL, CONTROL_BOUND, CONTROL_DELTA

OWN_CONTROL = METHOD + "own_control"  # (P,) float32 of the local state: c_i; absent while it is zero


def squared_length(work: Work, delta_P: FloatArray, steps: int) -> Mapping[str, Array]:
    """FedExP: summed in float64."""
    wide_P = delta_P.astype(np.float64)
    return {"update_sq_norm": np.asarray(work.weight * np.dot(wide_P, wide_P))}


def direction(work: Work, delta_P: FloatArray, steps: int) -> Mapping[str, Array]:
    """FedNova: without a step there is neither."""
    a = normalizer(steps=steps, momentum=work.spec.training.momentum)
    scale = np.float32(work.weight / a if a > 0.0 else 0.0)
    return {"delta": scale * delta_P, "normalizer": np.asarray(work.weight * a)}


def normalizer(*, steps: int, momentum: float) -> float:
    """FedNova's a_k: the sum of the coefficients with which the gradients of SGD steps enter the delta.

    A gradient taken s steps before the last weighs 1 + momentum + ... + momentum^s; without momentum a_k is
    the number of steps. Source: Wang et al. 2020 (arXiv 2007.07481), section 4; weight decay left aside.
    """
    remembered = momentum * (1.0 - momentum**steps) / (1.0 - momentum)
    return (steps - remembered) / (1.0 - momentum)


class DriftCorrection:
    """<c - c_i, theta>. Shapes: correction (P,), in the order of `names`."""

    def __init__(self, correction_P: FloatArray, names: tuple[str, ...]) -> None:
        self._correction_P = torch.from_numpy(correction_P)
        self._names = names

    def penalty(self, model: FederatedModel) -> Tensor:
        parameters = dict(model.named_parameters())
        theta_P = torch.cat([parameters[name].reshape(-1) for name in self._names])
        return torch.dot(self._correction_P.to(theta_P), theta_P)

    def add_gradient(self, model: FederatedModel, *, weight: float) -> None:
        parameters = model.parameters_named(self._names)
        self._correction_P = self._correction_P.to(parameters[0])  # moved by the first step alone
        flat = torch.split(self._correction_P, [each.numel() for each in parameters])
        corrections = [part.view_as(each) for part, each in zip(flat, parameters, strict=True)]
        add_to_gradients(parameters, corrections, weight=weight)


def drift_correction(work: Work) -> DriftCorrection:
    """Raises RemoteProtocolError for a control variate of another length than the model's."""
    size = sum(work.state[MODEL + name].size for name in work.context.trained)
    correction_P = global_control(work, size) - own_control(work, size)
    return DriftCorrection(correction_P, work.context.trained)


def control_change(work: Work, delta_P: FloatArray, steps: int) -> Mapping[str, Array]:
    """SCAFFOLD: p times what the silo's control variate changes by; that variate goes to the next round.

    Where encoding clips the change, the variate that is kept has moved by no more, so that c stays sum p c_i.
    """
    counted = normalizer(steps=steps, momentum=work.spec.training.momentum)
    before_P = own_control(work, delta_P.size)
    after_P = next_control(work, delta_P, steps=counted)
    weight = np.float32(work.weight)
    change_P = weight * (after_P - before_P)
    summed_P = np.clip(change_P, -CONTROL_BOUND, CONTROL_BOUND)
    kept_P = np.where(summed_P == change_P, after_P, before_P + summed_P / weight)
    work.local.propose({OWN_CONTROL: kept_P})
    return {CONTROL_DELTA: change_P}  # as it is, so that what is clipped is counted


def next_control(work: Work, delta_P: FloatArray, *, steps: float) -> FloatArray:
    """c_i - c + (x - y_i) / (K lr), from delta = y_i - x. Without a step it stays. Shapes: -> (P,).

    steps: K, or with momentum the sum of the coefficients of the gradients in the delta.
    """
    own_P = own_control(work, delta_P.size)
    if steps <= 0.0:
        return own_P
    rate = work.spec.learning_rate_at(work.round)
    change_P = delta_P.astype(np.float64) / (steps * rate)
    return (own_P - global_control(work, delta_P.size) - change_P).astype(np.float32)


def global_control(work: Work, size: int) -> FloatArray:
    """c, zero before the first sum. Shapes: -> (P,)."""
    control_P = work.state.get(CONTROL)
    if control_P is not None and (control_P.shape != (size,) or control_P.dtype != np.float32):
        raise RemoteProtocolError(
            f"global state: {CONTROL} is {control_P.dtype} {control_P.shape}, expected float32 {(size,)}",
            code=Refusal.STATE,
        )
    return _or_zero(control_P, size)


def own_control(work: Work, size: int) -> FloatArray:
    """c_i, zero before the first applied round. Shapes: -> (P,)."""
    control_P = work.local.arrays.get(OWN_CONTROL)
    if control_P is not None and (control_P.shape != (size,) or control_P.dtype != np.float32):
        raise ConfigError(f"local state: {OWN_CONTROL} is not of this job's model")
    return _or_zero(control_P, size)


def _or_zero(control_P: Array | None, size: int) -> FloatArray:
    return np.zeros(size, np.float32) if control_P is None else np.asarray(control_P, np.float32)
