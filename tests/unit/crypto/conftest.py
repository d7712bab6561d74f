"""A small federation for the tests of crypto's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from crypto.identity import issuing
from crypto.identity.certificates import Identity, MemberId, PrivateKey, Role
from tests.support.ceremony import issue

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FEDERATION = "hospitals"


@dataclass(frozen=True)
class Authority:
    key: PrivateKey
    certificate: x509.Certificate

    def issue(
        self,
        role: Role,
        name: str,
        *,
        federation: str = FEDERATION,
        hosts: Sequence[str] = (),
        now: datetime = NOW,
        valid_days: int = 30,
    ) -> Identity:
        member = MemberId(federation=federation, role=role, name=name)
        return issue(self.key, self.certificate, member, now=now, days=valid_days, hosts=hosts)


def make_authority(federation: str = FEDERATION, *, now: datetime = NOW, valid_days: int = 365) -> Authority:
    return Authority(*issuing.new_authority(federation, now=now, valid_days=valid_days))


@pytest.fixture(scope="session")
def now() -> datetime:
    return NOW


@pytest.fixture(scope="session")
def authority() -> Authority:
    # older than what it signs, so that a silo's own dates are what tests run into
    return make_authority(now=NOW - timedelta(days=1))


@pytest.fixture(scope="session")
def other_authority() -> Authority:
    return make_authority()


@pytest.fixture(scope="session")
def silo(authority: Authority) -> Identity:
    return authority.issue(Role.SILO, "clinic-a")


@pytest.fixture(scope="session")
def coordinator(authority: Authority) -> Identity:
    return authority.issue(Role.COORDINATOR, "hub", hosts=["hub.example.org", "127.0.0.1"])
