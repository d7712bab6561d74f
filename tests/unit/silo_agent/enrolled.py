"""A hub of four silos whose enrollment is done, and what they refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.agents import Hub
from tests.unit.silo_agent.conftest import MakeHub


async def enrolled(
    make_hub: MakeHub, *, each: Callable[[str], Mapping[str, Any]] = lambda name: {}, **options: Any
) -> Hub:
    """Four silos whose enrollment is done; each: what a silo is and what its policy says, by its name."""
    hub = make_hub(**options)
    for name in hub.names:
        hub.add(name, **each(name))
    await hub.run(0, "enrollment.0")
    return hub


def refusals(hub: Hub, name: str, code: str) -> float:
    return (
        hub.agents[name].metrics.registry.get_sample_value("chorale_silo_refusals_total", {"reason": code})
        or 0.0
    )
