"""The rosters that phases run under: the newest and older ones, each checked at every phase."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chorale.credentials import Credentials
from coordinator.members.roster_book import RosterBook
from coordinator.process import Clock
from coordinator.storage.store import Store
from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony

LATER = timedelta(days=2)  # the second roster expires so much after the first


@pytest.mark.parametrize("version", [1, 2])
def test_a_roster_of_a_phase_is_refused_once_it_has_expired(tmp_path: Path, version: int) -> None:
    ceremony, now = Ceremony(folder=tmp_path), [datetime.now(UTC)]
    ceremony.enroll(Role.SILO, "a")
    ceremony.publish()
    store = Store(tmp_path / "coordinator.sqlite")
    book = RosterBook(
        ceremony.roster_path,
        federation=ceremony.federation,
        credentials=Credentials(ceremony.enroll(Role.COORDINATOR, "hub"), ceremony.anchors),
        store=store,
        clock=Clock(now=lambda: now[0]),
    )
    ceremony.enroll(Role.SILO, "b")
    now[0] += LATER
    ceremony.publish(issued=now[0])
    assert book.current.version == 2

    found = book.of_version(version)
    assert (found.version, found.silo_names) == (version, {"a", "b"} if version == 2 else {"a"})
    now[0] = found.expires + timedelta(seconds=1)
    with pytest.raises(RemoteProtocolError, match=f"version {version} expired") as caught:
        book.of_version(version)
    assert caught.value.code is Refusal.ROSTER
    store.close()
