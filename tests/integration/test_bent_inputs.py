"""A silo that lies about its input, with tags that fit the lie, over real mutual TLS, against real agents.

No tag tells such a sum from an honest one, so what no honest silos can have put in is not applied: every silo
that is shown the sum signs that the state stays. Source: docs/protocol.md 4.12, 7.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from crypto.fixed_point.ring import Words
from silo_agent.rounds.inputs import input_cache
from silo_agent.training.phase_input import PhaseRequest, encoded, phase_values
from strategies.base import Array
from tests.support.rogue import Rogue

pytestmark = pytest.mark.asyncio

LIAR = "silo-3"
BENT_ROUND = 2
Bend = Callable[[Mapping[str, Array], Layout], Encoder]


class BeyondItsBox(Encoder):
    """The first word of the update is more than all silos together can put in."""

    def read(self, ring_bits: int, start: int, out: Words) -> None:
        super().read(ring_bits, start, out)
        (delta,) = [each for each in self.layout.quantities if each.name == "delta"]
        first = self.layout.slices(ring_bits).get("delta", slice(-1, -1)).start
        if start <= first < start + out.size:
            members = self.layout.members
            out[first - start] = members * math.ceil(delta.scale(members) * delta.bound) + 1


def _honest(values: Mapping[str, Array], layout: Layout) -> Encoder:
    return Encoder(values, layout=layout)


def _a_word_beyond_its_box(values: Mapping[str, Array], layout: Layout) -> Encoder:
    return BeyondItsBox(values, layout=layout)


def _the_weight_of_the_others_taken_back(values: Mapping[str, Array], layout: Layout) -> Encoder:
    """The update would be divided by 4e-9."""
    return Encoder({**values, "weight": np.array(-0.75 + 2.0**-28)}, layout=layout)


def bend_inputs(monkeypatch: pytest.MonkeyPatch, bend: Bend) -> None:
    """Those of the liar."""
    bent: list[Mapping[str, Array]] = []

    def values_of(request: PhaseRequest, *, silo: str, **rest: Any) -> Mapping[str, Array]:
        values = phase_values(request, silo=silo, **rest)
        if silo == LIAR and (request.key.round, request.key.phase) == (BENT_ROUND, "train"):
            bent.append(values)
        return values

    def words_of(request: PhaseRequest, values: Mapping[str, Array]) -> Encoder:
        is_bent = any(values is each for each in bent)
        return bend(values, request.layout) if is_bent else encoded(request, values)

    monkeypatch.setattr(input_cache, "phase_values", values_of)
    monkeypatch.setattr(input_cache, "encoded", words_of)


@pytest.mark.parametrize(
    "bend, reason",
    [
        (_honest, ""),
        (_a_word_beyond_its_box, "implausible"),
        (_the_weight_of_the_others_taken_back, "min-weight"),
    ],
)
async def test_a_sum_that_no_honest_silos_give_is_used_up_and_moves_no_silo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bend: Bend, reason: str
) -> None:
    bend_inputs(monkeypatch, bend)
    async with Rogue(tmp_path / "four") as rogue:
        await rogue.start()
        await rogue.control()
        before = rogue.put(rogue.state)
        exchange = rogue.begin_next()
        await rogue.until_signed(exchange)
        await rogue.unmask(exchange)
        outcome = rogue.outcome(exchange)
        assert (outcome.reason, outcome.state is None) == (reason, bool(reason))

        await rogue.agree(exchange)  # all four sign what the outcome says, the liar too

        rogue.tell_outcome(exchange, cohort=rogue.names, result="used-up" if reason else "applied")
        assert (rogue.put(rogue.state) == before) is bool(reason)
        for name in rogue.names:
            assert rogue.agents[name].last_logged("next state computed")["applied"] is not bool(reason)
        await rogue.control()  # over the same silos and, after a lie, the same state
