"""Tables of a release stay as they are: what changes afterwards is one migration more."""

from __future__ import annotations

import hashlib

import pytest

from coordinator.storage.schema import MIGRATIONS as STORE
from silo_agent.disclosure.ledger.ledger import MIGRATIONS as LEDGER

RELEASED = {
    "coordinator": ("88041e61567bb18c",),
    "silo": ("5a96dd72e2c2fe30",),
}  # by version of the file, the first one of 1.0.0


@pytest.mark.parametrize(("side", "tables"), [("coordinator", STORE), ("silo", LEDGER)])
def test_released_tables_stay(side: str, tables: tuple[tuple[str, ...], ...]) -> None:
    found = [hashlib.sha256("\n".join(each).encode()).hexdigest()[:16] for each in tables]
    assert tuple(found[: len(RELEASED[side])]) == RELEASED[side]
