"""Sums under masks in one process: every silo checks the tagged part of what is revealed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from chorale.transport.wire import PhaseKey
from crypto.errors import Refusal, RemoteProtocolError
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.ring import Words
from crypto.masking.masks import UnmaskPlan
from crypto.session.cohort import CohortRule
from crypto.session.sum_check import SumCheck
from silo_agent.training.phase_input import PhaseRequest
from simulation.members import enroll
from simulation.sums import SecureSum

NAMES = ("silo-0", "silo-1", "silo-2", "silo-3")
NOW = datetime.now(UTC) - timedelta(minutes=1)
MEMBERS = enroll(NAMES, federation="test", now=NOW)


def layout(*, is_tagged: bool) -> Layout:
    return Layout(
        members=len(NAMES),
        quantities=(
            Quantity(name="votes", shape=(4,), bound=1, is_count=True),
            Quantity(name="delta", shape=(4,), bound=8.0, ring_bits=32, is_tagged=is_tagged),
        ),
    )


def summed(summing: Layout) -> dict[str, Any]:
    """Of three silos of the four that are named."""
    none: Any = None
    request = PhaseRequest(
        job=none,
        key=PhaseKey(job_digest=bytes(32), round=1, phase="train", attempt=1),
        rule=CohortRule.for_members(len(NAMES)),
        layout=summing,
        context=none,
    )
    encoded = {
        name: Encoder({"votes": np.eye(4)[place], "delta": -np.eye(4)[place]}, layout=summing).encode()
        for place, name in enumerate(NAMES[:3])
    }
    return SecureSum(members=MEMBERS, now=NOW).sums(request, NAMES, encoded, bytes(32))


def spoil(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The sum that is unmasked is not the one that was masked."""
    unmask = UnmaskPlan.unmask

    def unmask_falsely(plan: UnmaskPlan, sums: dict[int, Words], *, workers: int | None = None) -> None:
        unmask(plan, sums, workers=workers)
        sums[32 if name == "delta" else 64][0] += 1

    monkeypatch.setattr(UnmaskPlan, "unmask", unmask_falsely)


@pytest.mark.parametrize("is_tagged", [False, True])
def test_the_sum_is_that_of_the_silos_that_came(is_tagged: bool) -> None:
    sums = summed(layout(is_tagged=is_tagged))
    assert sums["votes"].tolist() == [1, 1, 1, 0]
    assert sums["delta"].tolist() == [-1.0, -1.0, -1.0, 0.0]


def test_every_silo_checks_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: dict[str, list[str]] = {"check_survivors": [], "check_sum": [], "check_self_mask_seeds": []}
    for method, names in checked.items():
        honest = getattr(SumCheck, method)

        def check(own: SumCheck, *given: Any, names: list[str] = names, honest: Any = honest) -> None:
            names.append(own.name)
            honest(own, *given)

        monkeypatch.setattr(SumCheck, method, check)
    summed(layout(is_tagged=False))
    assert not any(checked.values())
    summed(layout(is_tagged=True))
    assert list(checked.values()) == [list(NAMES[:3])] * 3


def test_a_false_sum_is_refused_where_it_is_tagged(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patching:
        spoil(patching, "delta")
        with pytest.raises(RemoteProtocolError, match="sum: its tags are not those of 3 survivors") as caught:
            summed(layout(is_tagged=True))
        assert caught.value.code is Refusal.SUM
        assert summed(layout(is_tagged=False))["delta"][0] != -1.0
    spoil(monkeypatch, "votes")
    assert summed(layout(is_tagged=True))["votes"].tolist() == [2, 1, 1, 0]
