"""What an operator is told right after submitting: who of the job is not there."""

from __future__ import annotations

import pytest

from cli.job import read_spec, tell_absent
from tests.unit.cli.conftest import Desk


@pytest.mark.parametrize(
    ("connected", "told"),
    [
        ({"silo-0": True, "silo-1": True, "silo-2": True, "other": False}, ""),
        (
            {"silo-0": True, "silo-1": False},
            "not on the roster, so not in the job until they are: silo-2\n"
            "not connected now, the job waits for them: silo-1\n",
        ),
    ],
)
def test_silos_that_are_not_there_are_named(
    connected: dict[str, bool], told: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_absent(read_spec(desk.job()), connected)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", told)
