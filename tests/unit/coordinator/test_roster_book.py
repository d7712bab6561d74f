"""The rosters that phases run under: the newest and older ones, each checked at every phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chorale.credentials import Credentials
from chorale.runtime.audit import AuditLog, read_entries
from coordinator.members.roster_book import RosterBook
from coordinator.metrics import CoordinatorMetrics
from coordinator.process import Clock
from coordinator.service.access import AccessDenied, AccessGuard, Caller
from coordinator.storage.store import Store
from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from crypto.identity.certificates import Anchors, Identity, MemberId, Role
from crypto.identity.issuing import new_authority
from tests.support.ceremony import Ceremony, issue

LATER = timedelta(days=2)  # the second roster expires so much after the first

ATTEND = "/chorale.v1.Federation/Attend"
OpenBook = Callable[[], RosterBook]


@pytest.fixture
def ceremony(tmp_path: Path) -> Ceremony:
    made = Ceremony(folder=tmp_path)
    for name in ("a", "b"):
        made.enroll(Role.SILO, name)
    made.publish()
    return made


@pytest.fixture
def now() -> list[datetime]:
    return [datetime.now(UTC)]


@pytest.fixture
def credentials(ceremony: Ceremony) -> Credentials:
    return Credentials(ceremony.enroll(Role.COORDINATOR, "hub"), ceremony.anchors)


@pytest.fixture
def open_book(ceremony: Ceremony, now: list[datetime], credentials: Credentials) -> Iterator[OpenBook]:
    """The book of a coordinator on the same files; what an earlier one held is closed."""
    with ExitStack() as opened:

        def open_() -> RosterBook:
            opened.close()
            return RosterBook(
                ceremony.roster_path,
                federation=ceremony.federation,
                credentials=credentials,
                store=opened.enter_context(closing(Store(ceremony.folder / "coordinator.sqlite"))),
                clock=Clock(now=lambda: now[0]),
                audit=opened.enter_context(closing(AuditLog(ceremony.folder / "audit.jsonl"))),
                metrics=CoordinatorMetrics(),
            )

        yield open_


def refused(book: RosterBook) -> float | None:
    return book._metrics.registry.get_sample_value("chorale_coordinator_refused_rosters_total")


def check_call(book: RosterBook, identity: Identity) -> None:
    """What the guard says to this member's heartbeat."""
    resources: Any = SimpleNamespace(
        settings=SimpleNamespace(max_jobs=1, federation="test"),
        clock=book._clock,
        roster_book=book,
        authority=book._credentials.authority,
        metrics=book._metrics,
    )
    caller = Caller(member=identity.member, certificate=identity.certificate)
    AccessGuard(resources).check(caller, ATTEND)


@pytest.mark.parametrize("version", [1, 2])
def test_a_roster_of_a_phase_is_refused_once_it_has_expired(
    ceremony: Ceremony, now: list[datetime], open_book: OpenBook, version: int
) -> None:
    book = open_book()
    ceremony.enroll(Role.SILO, "c")
    now[0] += LATER
    ceremony.publish(issued=now[0])
    assert book.current.version == 2

    found = book.of_version(version)
    assert (found.version, found.silo_names) == (version, {"a", "b", "c"} if version == 2 else {"a", "b"})
    now[0] = found.expires + timedelta(seconds=1)
    with pytest.raises(RemoteProtocolError, match=f"version {version} expired") as caught:
        book.of_version(version)
    assert caught.value.code is Refusal.ROSTER


def test_a_roster_that_lists_whom_an_earlier_one_revoked_is_not_taken_over(
    ceremony: Ceremony, open_book: OpenBook
) -> None:
    """The weekly command signed the certificates of the first page, and relayed a revocation taken back."""
    book = open_book()
    ceremony.publish(without=("b",))
    assert book.current.silo_names == {"a"}
    ceremony.publish()
    assert (book.current.version, refused(book)) == (2, 1)
    entry = list(read_entries(ceremony.folder / "audit.jsonl"))[-1]
    assert (entry["event"], entry["version"]) == ("roster refused", 3)
    assert "version 3 lists a certificate of silo b that left in version 2" in entry["reason"]

    # nor after a restart, which must not be an outage
    book = open_book()
    assert (book.current.version, refused(book)) == (2, 1)
    ceremony.publish(readmitted=("b",))
    assert (book.current.version, book.current.silo_names) == (4, {"a", "b"})


def test_another_roster_of_the_version_in_use_is_told(ceremony: Ceremony, open_book: OpenBook) -> None:
    """A second machine, or a folder that was put back, signed it; it was passed over without a word."""
    book = open_book()
    ceremony.version -= 1
    ceremony.publish(without=("b",))
    assert (book.current.silo_names, refused(book)) == ({"a", "b"}, 1)
    entry = list(read_entries(ceremony.folder / "audit.jsonl"))[-1]
    assert entry["reason"] == "roster: version 1 was in use before with other content"


def test_a_start_without_a_roster_that_holds_names_what_is_wrong(
    ceremony: Ceremony, now: list[datetime], open_book: OpenBook
) -> None:
    book = open_book()
    ceremony.publish(without=("b",))
    assert book.current.version == 2
    now[0] += LATER * 3
    ceremony.publish(issued=now[0])
    with pytest.raises(ConfigError, match=r"roster\.json: roster: version 2 expired"):
        open_book()


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_roster_of_a_key_that_was_removed_is_used_for_no_phase(
    ceremony: Ceremony, open_book: OpenBook, credentials: Credentials, is_removed: bool
) -> None:
    """The file was refused and the roster that was read before stayed in use, signed with a stolen key."""
    old = credentials.authority.certificates
    key, following = new_authority(ceremony.federation, now=datetime.now(UTC), valid_days=9)
    member = MemberId(federation=ceremony.federation, role=Role.SILO, name="a")
    caller = issue(key, following, member, now=datetime.now(UTC), days=5)  # of the new key, as is right
    ceremony.adopt(caller.key, caller.certificate)
    ceremony.publish()
    credentials.authority = Anchors((*old, following))
    book = open_book()
    check_call(book, caller)
    assert book.of_version(2) is book.current
    credentials.authority = Anchors((following,) if is_removed else (following, *old))
    if not is_removed:
        assert book.of_version(2) is book.current
        check_call(book, caller)
        return
    assert book.current.version == 2  # to be shown
    with pytest.raises(RemoteProtocolError, match="version 2 is signed with no key") as caught:
        book.of_version(2)
    assert caught.value.code is Refusal.ROSTER
    with pytest.raises(AccessDenied, match="version 2 is signed with no key"):
        check_call(book, caller)


def test_a_roster_that_came_before_its_authority_is_read_again_with_it(
    ceremony: Ceremony, open_book: OpenBook, credentials: Credentials
) -> None:
    """The file stayed refused until it changed once more."""
    book = open_book()
    ceremony.key, ceremony.certificate = new_authority(
        ceremony.federation, now=datetime.now(UTC), valid_days=9
    )
    ceremony.publish()
    assert book.current.version == 1
    credentials.authority = Anchors((*credentials.authority.certificates, ceremony.certificate))
    assert book.current.version == 2
