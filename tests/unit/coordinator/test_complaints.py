"""Who sits out after a complaint."""

from __future__ import annotations

from coordinator.complaints import FiledComplaint, sitting_out


def filed(attempt, sender, accused):
    return FiledComplaint(attempt=attempt, sender=sender, accused=accused)


def test_accused_sits_out_the_next_attempt_only():
    here = [filed(1, "a", "b")]
    assert sitting_out(attempt=2, here=here, before=[]) == {"b"}
    assert sitting_out(attempt=3, here=here, before=[]) == frozenset()


def test_accused_of_the_last_attempt_sits_out_the_whole_next_round():
    before = [filed(1, "a", "b"), filed(2, "c", "d")]
    for attempt in (1, 2, 5):
        assert sitting_out(attempt=attempt, here=[], before=before) == {"d"}


def test_silo_that_then_complains_of_another_sits_out_itself():
    here = [filed(1, "a", "b"), filed(2, "a", "c")]
    assert sitting_out(attempt=3, here=here, before=[]) == {"a"}


def test_silo_that_complains_of_the_same_one_again_is_heeded_again():
    here = [filed(1, "a", "b"), filed(3, "a", "b")]
    assert sitting_out(attempt=4, here=here, before=[]) == {"b"}


def test_complaint_of_another_in_the_next_round_falls_back_on_its_sender():
    before, here = [filed(1, "a", "b")], [filed(1, "a", "c")]
    assert sitting_out(attempt=2, here=here, before=before) == {"a", "b"}


def test_nobody_sits_out_without_a_complaint():
    assert sitting_out(attempt=1, here=[], before=[]) == frozenset()
