"""Who sits out after a complaint."""

from __future__ import annotations

import pytest

from coordinator.complaints import FiledComplaint, excluded_silos

NOW, BEFORE = 7, 6  # phases
A_OF_B, A_OF_C, C_OF_D = ("a", "b"), ("a", "c"), ("c", "d")
# complaints of the phase before and of this one, each with its attempt; the attempt, and who sits it out
CASES = {
    "nobody without a complaint": ([], [], 1, ""),
    "the accused, in the next attempt": ([], [(1, A_OF_B)], 2, "b"),
    "and in that one only": ([], [(1, A_OF_B)], 3, ""),
    "of the last attempt, in all of the next phase": ([(1, A_OF_B), (2, C_OF_D)], [], 5, "d"),
    "not where an attempt followed": ([(1, A_OF_B)], [], 1, ""),
    "who then complains of another": ([], [(1, A_OF_B), (2, A_OF_C)], 3, "a"),
    "who then complains of the same": ([], [(1, A_OF_B), (3, A_OF_B)], 4, "a"),
    "who complained in the phase before": ([(1, A_OF_B)], [(1, A_OF_B)], 2, "a"),
    "both, where both are due": ([(2, A_OF_B)], [(1, A_OF_C)], 2, "ab"),
}


@pytest.mark.parametrize("case", CASES)
def test_who_sits_out(case):
    before, here, attempt, expected = CASES[case]
    history = [
        FiledComplaint(phase=phase, attempt=number, sender=sender, accused=accused)
        for phase, filed in ((BEFORE, before), (NOW, here))
        for number, (sender, accused) in filed
    ]
    assert excluded_silos(history, after={(NOW, attempt - 1), (BEFORE, 2)}) == set(expected)
