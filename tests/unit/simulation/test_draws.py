"""The figures of decision 30: what sums over groups tell, and what groups cost, beside new draws."""

from __future__ import annotations

import pytest

from research import draws

SLOW = draws.TRAININGS["one step at rate 1e-06"]


def test_new_draws_tell_every_silos_update_and_groups_do_not() -> None:
    assert draws.mean_cosine("rounds", SLOW) > 0.95
    assert draws.mean_cosine("groups", SLOW) < 0.6


def test_accuracy_is_that_of_the_last_rounds_on_the_whole_hold_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "ROUNDS", 6)
    monkeypatch.setattr(draws, "LAST", 2)
    found = {draw: draws.accuracy(draw, "Dirichlet 0.5", 1) for draw in draws.DRAWS}
    assert all(50 < each <= 100 for each in found.values())  # a chance of 10
    assert found["rounds"] != found["groups"]
