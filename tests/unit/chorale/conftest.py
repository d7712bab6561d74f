"""Jobs, operators and rosters for the tests of what both sides share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from cryptography import x509

from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import check_values
from crypto.identity import issuing
from crypto.identity.certificates import Anchors, Identity, MemberId, PrivateKey, Role
from crypto.identity.roster import Member, Roster, open_roster, sign_roster
from strategies.base import Array
from tests.support.ceremony import issue

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SILOS = tuple(f"clinic-{letter}" for letter in "abcd")
MakeSpec = Callable[..., JobSpec]


@dataclass(frozen=True, kw_only=True)
class Party:
    """An authority and those it enrolled."""

    authority_key: PrivateKey
    authority: Anchors
    operator: Identity
    silos: dict[str, Identity]

    @classmethod
    def enroll(cls, now: datetime) -> Party:
        key, authority = issuing.new_authority("test", now=now - timedelta(days=1), valid_days=365)
        silos = {name: _issue(key, authority, Role.SILO, name, now=now) for name in SILOS}
        operator = _issue(key, authority, Role.OPERATOR, "ops", now=now)
        return cls(authority_key=key, authority=Anchors((authority,)), operator=operator, silos=silos)

    def issue(self, role: Role, name: str, *, now: datetime = NOW) -> Identity:
        return _issue(self.authority_key, self.authority.certificates[0], role, name, now=now)

    def roster(self, *, version: int = 1, silos: Sequence[str] = SILOS, has_operator: bool = True) -> Roster:
        listed = [self.silos[name] for name in silos] + [self.operator] * has_operator
        members = [Member(one.member.role, one.member.name, one.fingerprint) for one in listed]
        signed = sign_roster(
            authority_key=self.authority_key,
            federation="test",
            version=version,
            issued=NOW - timedelta(hours=1),
            expires=NOW + timedelta(days=30),
            members=members,
        )
        return open_roster(signed, authority=self.authority, federation="test", now=NOW)


@pytest.fixture(scope="session")
def party() -> Party:
    return Party.enroll(NOW)


@pytest.fixture
def make_spec() -> MakeSpec:
    def make(**fields: Any) -> JobSpec:
        return check_values(JobSpec, job_fields() | fields, source="job.yaml")

    return make


@pytest.fixture
def state() -> dict[str, Array]:
    """A model with a BatchNorm layer, and what enrollment wrote."""
    return {
        "model/body.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model/body.bias": np.ones(2, dtype=np.float32),
        "model/norm.running_mean": np.zeros(2, dtype=np.float32),
        "model/norm.running_var": np.ones(2, dtype=np.float32),
        "model/norm.num_batches_tracked": np.array(3, dtype=np.int64),
        "method/total": np.array(400, dtype=np.int64),
    }


def job_fields() -> dict[str, Any]:
    """The least that a job says."""
    return {
        "name": "digits",
        "federation": "test",
        "not_after": NOW + timedelta(days=1),
        "silos": SILOS,
        "rounds": 10,
        "model": {"name": "mlp"},
        "classes": 10,
        "input_shape": (1, 8, 8),
        "training": {"learning_rate": 0.05},
    }


def _issue(key: PrivateKey, authority: x509.Certificate, role: Role, name: str, *, now: datetime) -> Identity:
    hosts = ("localhost", "127.0.0.1") if role is Role.COORDINATOR else ()
    return issue(key, authority, MemberId(federation="test", role=role, name=name), now=now, hosts=hosts)
