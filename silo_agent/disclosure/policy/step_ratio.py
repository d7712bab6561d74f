"""How far the global state moved, beside how far one silo would have moved it.

Masks hide who moved a sum, and the plausible box (docs/protocol.md 4.12) is wide. A silo does know its own
step: that which the server would have taken if all silos had sent what it sent. Honest silos' means are no
longer than three of these; a state that is built to read records lies 6 or more of them away.
Source: docs/protocol.md 6.11, docs/decisions/0014.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_STEPS = 5  # the longest of them says what this silo's steps are like
FLOOR_SHARE = 0.5  # of that one: a silo that has learned its own data still lets the others move the model


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySteps:
    """Of one array in one job: lengths of all its steps, and of this silo's own. first: its own first ones.

    Units: L2 norms in the array's units.
    """

    total: float = 0.0
    own_total: float = 0.0
    first: tuple[float, ...] = ()

    def after(self, *, step: float, own: float) -> ArraySteps:
        """With one more step that the state took. own: this silo's in the same phase."""
        first = self.first if len(self.first) >= FIRST_STEPS else (*self.first, own)
        floored = max(own, FLOOR_SHARE * max(first))
        return replace(self, total=self.total + step, own_total=self.own_total + floored, first=first)

    def after_unknown(self, *, step: float) -> ArraySteps:
        """With a step beside which this silo has none: it is judged with its next one."""
        return replace(self, total=self.total + step)

    def longest(self, *, own: float, max_ratio: float) -> float:
        """What a step may be long: it, and all steps with it, at most max_ratio times this silo's own."""
        own_total = self.after(step=0.0, own=own).own_total
        return min(max_ratio * (own_total - self.own_total), max_ratio * own_total - self.total)

    def is_too_long(self, *, step: float, own: float, max_ratio: float) -> bool:
        return step > self.longest(own=own, max_ratio=max_ratio)
