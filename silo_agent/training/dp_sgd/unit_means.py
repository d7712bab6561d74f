"""The gradient of a unit: the mean of its rows' gradients, which is then clipped as one.

Rows come in batches of one size, unit by unit, so a unit may begin in one batch and end in a later one. Its
rows are added one after the other in their own order and divided by their number: the bits of the mean follow
from the unit's rows alone, wherever the batches end. Source: docs/privacy.md "The unit that is protected".
"""

# N = rows of one batch, U = units of one step

from __future__ import annotations

from torch import Tensor

from silo_agent.training.data.units import Indices


class UnitMeans:
    """Of one step. sizes_U: how many rows each drawn unit has, in the order in which they come."""

    def __init__(self, sizes_U: Indices) -> None:
        self._sizes, self._unit, self._seen = sizes_U.tolist(), 0, 0
        self._begun: list[Tensor] = []  # of the unit that the last batch did not end

    def gather(self, gradients: list[Tensor], count: int) -> int:
        """How many units end in this batch; their means are then the first rows of the gradients.

        Shapes: (N, *shape) of each parameter, of which `count` are rows. Overwrites the gradients.
        """
        ended = 0
        for row in range(count):
            for place, gradient_N in enumerate(gradients):
                if self._seen == 0:
                    gradient_N[ended] = gradient_N[row]
                elif row == 0:
                    gradient_N[0] += self._begun[place]
                else:
                    gradient_N[ended] += gradient_N[row]
            self._seen += 1
            if self._seen == self._sizes[self._unit]:
                for gradient_N in gradients:
                    gradient_N[ended] /= self._seen
                self._unit, self._seen, ended = self._unit + 1, 0, ended + 1
        for row in range(count, len(gradients[0])):
            for gradient_N in gradients:  # what fills up takes as long
                gradient_N[row] += gradient_N[row]
        self._begun = [gradient_N[ended].clone() for gradient_N in gradients] if self._seen else []
        return ended
