"""SCAFFOLD: local steps corrected by how a silo's gradients differ from the mean.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
(arXiv 1910.06378), algorithm 1 with option II. A silo steps along g(y) - c_i + c; after K steps of rate lr
from x to y_i its control variate becomes c_i+ = c_i - c + (x - y_i) / (K lr), and
c <- c + sum_i w_i (c_i+ - c_i) over the silos of the sum. c_i is the silo's local state and stays there.
The paper weighs all N silos by 1/N. Here w_i = p_i, as for the deltas: the method minimizes sum p_i f_i, for
which c must be sum p_i c_i, and then the corrections cancel in the mean whatever the counts are. c stays that
sum while all silos apply what they took part in and the enrollment's total stays as it is.
With momentum K is FedNova's a_k, the sum of the gradients' coefficients
(silo_agent/training/parts/server_updates.py).

Leaks sum_i p_i (c_i+ - c_i) besides FedAvg's sums: the change of the mean gradient along the silos' paths.
The deltas tell much the same, because each c_i follows from the silo's own. Costs one more vector of the
model's length up and, in the global state, one down, and one on the silo's disk.

P = trained parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import METHOD, Array, PhaseContext, ServerStep, blocks, pieces_of
from strategies.recipe import ServerUpdate, UnderPrivacy

CONTROL = METHOD + "control"  # (P,) float32: c, in the order of delta; absent while it is zero
CONTROL_DELTA = "control_delta"
CONTROL_BOUND = 64.0  # of p (c_i+ - c_i), in units of a gradient: far beyond one that a network trains with


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """FedAvg's step, and the global control variate for the next round."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        size = context.trained_values
        return (
            Quantity(
                name=CONTROL_DELTA,
                shape=(size,),
                bound=CONTROL_BOUND,
                ring_bits=32,
                is_tagged=True,
                discloses=Disclosure.STATISTIC,
            ),
        )

    def step(self, context: PhaseContext, sums: Mapping[str, Array]) -> ServerStep:
        """The sum of p is not divided by: silos that were not in the sum keep their control variates, too."""
        before_P, moved = context.state.get(CONTROL), pieces_of(sums, CONTROL_DELTA)
        control_P = np.empty(context.trained_values, np.float32)
        for block in blocks(control_P.size):
            control_P[block] = moved(block) if before_P is None else before_P[block] + moved(block)
        return ServerStep(
            steps=pieces_of(sums, "delta"), divisor=float(sums["weight"]), arrays={CONTROL: control_P}
        )


CONTROLS_WITHOUT_NOISE = (
    "keeps a silo's gradients without noise between rounds and sums how they change, which no clip bounds"
)
SCAFFOLD = ServerUpdate(
    word="scaffold",
    rule=Scaffold(),
    counts_steps=True,
    keeps_local_state=True,
    reads=(CONTROL,),
    under_privacy=UnderPrivacy(records=CONTROLS_WITHOUT_NOISE, sums=CONTROLS_WITHOUT_NOISE),
)
