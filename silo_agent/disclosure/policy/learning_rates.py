"""How fast a job may move the global state. Source: docs/protocol.md 6.9."""

from __future__ import annotations

import math
from collections.abc import Iterator

from chorale.spec.job_spec import JobSpec
from crypto.errors import PolicyRefusal, Rule
from silo_agent.disclosure.policy.privacy_policy import refusal_by

# lowest in any round, of a cosine schedule in the first one; highest in the first round
LEARNING_RATES = (1e-6, 10.0)
SERVER_LEARNING_RATES = (1e-3, 10.0)  # divided by 1 - momentum where the server update has one


def rate_refusals(spec: JobSpec) -> Iterator[PolicyRefusal]:
    """Where a state would not move, or move beyond what the silos sent.

    Security: a state that does not move is asked again as another one (docs/protocol.md 6.10). One that
    moves little still gives sums that nearly depend on each other (docs/threat-model.md, differences of
    cohorts): no rate that a method needs keeps it from that.
    """
    first, server = spec.learning_rate_at(1), spec.method.server_rate
    lowest = first if spec.training.schedule.kind == "cosine" else spec.learning_rate_at(max(1, spec.rounds))
    for what, given, low, high in (
        ("learning_rate", lowest, LEARNING_RATES[0], math.inf),
        ("learning_rate", first, 0.0, LEARNING_RATES[1]),
        ("server_learning_rate", server, *SERVER_LEARNING_RATES),
    ):
        if given < low:
            yield refusal_by(f"{what} {given:.4g}", f"at least {low:g}", Rule.LEARNING_RATE)
        if given > high:
            yield refusal_by(f"{what} {given:.4g}", f"at most {high:g}", Rule.LEARNING_RATE)
