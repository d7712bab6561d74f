"""x(u) is fixed once its phase has begun, though it becomes words only when it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from crypto.fixed_point.encoder import Encoder
from crypto.masking.masks import Masker
from silo_agent.training.objective import Work
from silo_agent.training.phase_input import taken_over
from strategies.base import Array
from tests.support.agents import OneHot
from tests.unit.silo_agent.enrolled import MakeHub, enrolled


def test_arrays_that_an_objective_made_are_locked_and_not_copied() -> None:
    made = np.zeros(3)
    taken = taken_over({"delta": made})
    assert taken["delta"] is made
    with pytest.raises(ValueError, match="read-only"):
        made[0] = 1.0


def test_views_of_memory_that_others_may_write_are_copied() -> None:
    memory = np.zeros(6)
    taken = taken_over({"delta": memory[::2], "whole": memory[:]})
    memory[:] = 1.0
    assert taken["delta"].tolist() == [0.0] * 3
    assert taken["whole"].tolist() == [0.0] * 6
    assert memory.flags.writeable


def test_what_is_no_array_is_left_to_the_ring_to_refuse() -> None:
    odd: Any = {"delta": [1.0, [2.0]], "weight": np.float64(0.5)}
    assert taken_over(odd) == odd


class Reusing(OneHot):
    """Hands over views of memory that it keeps writing to; thirds, so that every value is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = np.zeros(0)

    def compute(self, work: Work) -> Mapping[str, Array]:
        values = super().compute(work)
        self.memory = np.linspace(-1, 1, values["delta"].size) / 3
        return {**values, "delta": self.memory[:]}


async def test_every_attempt_sends_the_words_of_the_first(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded again, or with what the memory holds by then, two attempts would tell more than one."""
    sent: list[dict[int, list[int]]] = []
    read_by = Masker.stream

    def recorded(masker: Masker, source: Encoder, **options: Any) -> Any:
        sent.append({ring_bits: vector.tolist() for ring_bits, vector in source.encode().vectors.items()})
        return read_by(masker, source, **options)

    monkeypatch.setattr(Masker, "stream", recorded)
    hub = await enrolled(make_hub, silos=12, each=lambda name: {"objective": Reusing()})
    sent.clear()
    for attempt in (1, 2):
        exchange = hub.begin(1, "train", attempt=attempt)
        await hub.until_masked(exchange)
        for agent in hub.agents.values():
            agent.objective.memory[:] = 0.9
    silos = len(hub.names)
    assert len(sent) == 2 * silos
    assert sent[:silos] == sent[silos:]
    assert sent[0] != sent[1]  # each is rounded with its own random bits
