"""Sessions without sockets: a federation in memory, and an exchange that a test drives stage by stage.

Silo i contributes the one-hot vector e_i: a 2 in the sum is a replay, a 1 for a dropped silo a phantom.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from crypto.errors import PolicyRefusal, Refusal
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.identity import issuing, roster
from crypto.identity.certificates import Anchors, Identity, MemberId, PrivateKey, Role
from crypto.identity.roster import Member, Roster
from crypto.masking import masks
from crypto.masking.masks import Masker, UnmaskPlan
from crypto.session import bodies
from crypto.session.cohort import CohortRule
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import (
    Envelopes,
    LedgerMark,
    LedgerStatement,
    RecoverRequest,
    SessionTerms,
    UnmaskShares,
)
from crypto.session.reveal import PendingReveal
from crypto.session.silo_session import SiloSession
from crypto.session.sum_check import SumCheck
from tests.support.ceremony import issue

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STAGES = ("advertise", "share", "masked", "consistency", "unmask")


@dataclass(frozen=True)
class Federation:
    """n enrolled silos and the roster that lists them; `spare` is enrolled too but never named."""

    authority_key: PrivateKey
    authority: Anchors
    silos: dict[str, Identity]
    spare: Identity
    roster: Roster

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.silos))

    def issue(self, name: str, *, role: Role = Role.SILO, now: datetime = NOW, days: int = 30) -> Identity:
        """Another certificate of this authority."""
        member = MemberId(federation="test", role=role, name=name)
        hosts = ["localhost"] if role is Role.COORDINATOR else []
        return issue(
            self.authority_key, self.authority.certificates[0], member, now=now, days=days, hosts=hosts
        )

    def with_roster(self, *, version: int, without: Collection[str] = ()) -> Federation:
        """The same silos under another roster, of which some are struck."""
        listed = [*self.silos.values(), self.spare]
        members = [_member(one) for one in listed if one.member.name not in without]
        document = _roster(self.authority_key, self.authority, members, version=version)
        return dataclasses.replace(self, roster=document)


@functools.cache
def make_federation(silos: int, *, suffix: str = "") -> Federation:
    """Made once for each size: certificates cost more than sessions. suffix: of the silos' names."""
    # a federation's own certificate is older than what it signs
    key, authority = issuing.new_authority("test", now=NOW - timedelta(days=1), valid_days=365)
    names = [f"silo-{index:03}{suffix}" for index in range(silos)]
    *members, spare = (
        issue(key, authority, MemberId(federation="test", role=Role.SILO, name=name), now=NOW)
        for name in (*names, "spare")
    )
    listed = [_member(one) for one in (*members, spare)]
    document = _roster(key, Anchors((authority,)), listed, version=7)
    return Federation(
        authority_key=key,
        authority=Anchors((authority,)),
        silos=dict(zip(names, members, strict=True)),
        spare=spare,
        roster=document,
    )


def one_hot_layout(members: int) -> Layout:
    """One vector in each word size, each of m values, all of which silos check."""
    return Layout(
        members=members,
        quantities=(
            Quantity(name="counts", shape=(members,), bound=1, is_count=True, is_tagged=True),
            Quantity(name="delta", shape=(members,), bound=8.0, ring_bits=32, is_tagged=True),
            Quantity(name="half", shape=(members,), bound=1.0, ring_bits=16, is_tagged=True),
        ),
    )


def make_terms(federation: Federation, **changes: Any) -> SessionTerms:
    """Terms as every honest silo of the federation computes them."""
    names = federation.names
    terms = SessionTerms(
        federation="test",
        job_digest=b"j" * 32,
        roster_version=federation.roster.version,
        roster_digest=federation.roster.digest,
        round=1,
        phase="train",
        attempt=1,
        names=names,
        rule=CohortRule.for_members(len(names)),
        layout=one_hot_layout(len(names)),
        state_digest=b"s" * 32,
    )
    return dataclasses.replace(terms, **changes)


class MemoryLedger:
    """The reveal rule in its least form (docs/protocol.md 6); `log` holds the order of its calls."""

    def __init__(self) -> None:
        self.pending: dict[tuple[bytes, int, str], PendingReveal] = {}
        self.revealed: dict[tuple[bytes, int, str], PendingReveal] = {}
        self.rosters: dict[tuple[bytes, int], int] = {}
        self.last_round: dict[bytes, int] = {}
        self.log: list[str] = []
        self.marks: list[LedgerMark] = []
        self.peers: dict[str, LedgerStatement] = {}

    def begin_attempt(self, terms: SessionTerms) -> LedgerMark:
        self.log.append("begin_attempt")
        key = (terms.job_digest, terms.round, terms.phase)
        if key in self.revealed:
            raise PolicyRefusal("ledger: this round was revealed before", code=Refusal.ALREADY_REVEALED)
        if terms.round < self.last_round.get(terms.job_digest, 0):
            raise PolicyRefusal("ledger: rounds never go back", code=Refusal.ALREADY_REVEALED)
        version = self.rosters.setdefault((terms.job_digest, terms.round), terms.roster_version)
        if version != terms.roster_version:
            raise PolicyRefusal("ledger: this round has another roster", code=Refusal.ROSTER)
        self.last_round[terms.job_digest] = terms.round
        self.pending.pop(key, None)
        self.marks.append(LedgerMark(len(self.marks) + 1, os.urandom(bodies.MARK_BYTES)))
        return self.marks[-1]

    def peer_statements(self, names: Collection[str]) -> dict[str, LedgerStatement]:
        return {name: self.peers[name] for name in names if name in self.peers}

    def check_echoes(
        self, echoes: Collection[LedgerStatement], *, is_signed: Callable[[LedgerStatement], bool]
    ) -> None:
        for echo in echoes:
            if (echo.sequence, echo.mark) not in self.marks and is_signed(echo):
                raise PolicyRefusal("ledger: it was put back", code=Refusal.LEDGER)

    def keep_statements(self, statements: Mapping[str, LedgerStatement]) -> None:
        self.peers |= statements

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        self.log.append("check_reveal")
        if terms.phase.split(".")[0] in ("class-presence", "calibrate", "fine-tune"):
            for before in self.revealed.values():
                if 0 < len(set(before.survivors) ^ set(survivors)) < terms.rule.min_cohort:
                    raise PolicyRefusal("ledger: too near to a revealed sum", code=Refusal.OVERLAPPING_COHORT)

    def write_pending(self, pending: PendingReveal) -> None:
        self.log.append("write_pending")
        self.pending[pending.job_digest, pending.round, pending.phase] = pending

    def mark_revealed(self, pending: PendingReveal) -> None:
        self.log.append("mark_revealed")
        key = (pending.job_digest, pending.round, pending.phase)
        self.revealed[key] = self.pending.pop(key)


@dataclass
class Exchange:
    """One session, one method a stage; a dropped silo sends nothing from that stage on.

    What left each silo is in `sent` (shares), `masked` (vectors) and `answers` (what it signed); the last
    message to it in `last_messages`; what it keeps to check the sum in `checks`.
    """

    federation: Federation
    terms: SessionTerms
    coordinator: CoordinatorSession
    silos: dict[str, SiloSession]
    ledgers: dict[str, MemoryLedger]
    dropped: set[str] = field(default_factory=set)
    maskers: dict[str, Masker] = field(default_factory=dict)
    masked: dict[str, bytes] = field(default_factory=dict)
    checks: dict[str, SumCheck] = field(default_factory=dict)
    sent: dict[str, UnmaskShares] = field(default_factory=dict)
    answers: dict[str, list[Any]] = field(default_factory=dict)  # Advert, Shares, Consistency
    last_messages: dict[str, Any] = field(default_factory=dict)
    hooks: dict[str, Callable[[], object]] = field(default_factory=dict)  # run when a stage opens
    plan: UnmaskPlan | None = None

    def tell(self, name: str, message: Any) -> Any:
        """Give a silo a message of the coordinator; its answer."""
        self.last_messages[name] = message
        return self.silos[name].receive(message)

    def advertise(self, drop: Collection[str] = ()) -> None:
        for name in self._staying("advertise", self.terms.names, drop):
            self.answers[name] = [self.silos[name].advertise()]
            self.coordinator.on_advert(name, self.answers[name][-1])

    def share(self, drop: Collection[str] = ()) -> None:
        cohort = self.coordinator.close_advertise()
        for name in self._staying("share", self.coordinator.cohort, drop):
            self.answers[name].append(self.tell(name, cohort))
            self.coordinator.on_shares(name, self.answers[name][-1])

    def mask(self, drop: Collection[str] = ()) -> None:
        envelopes = self.coordinator.close_share()
        for name in self._staying("masked", self.coordinator.sharers, drop):
            self.mask_one(name, envelopes[name])
            self.upload(name)

    def consistency(self, drop: Collection[str] = ()) -> None:
        survivors = self.coordinator.close_masked()
        for name in self._staying("consistency", self.coordinator.survivors, drop):
            self.answers[name].append(self.tell(name, survivors))
            self.coordinator.on_consistency(name, self.answers[name][-1])

    def unmask(self, drop: Collection[str] = ()) -> UnmaskPlan | dict[str, RecoverRequest]:
        request = self.coordinator.close_consistency()
        for name in self._staying("unmask", self.coordinator.survivors, drop):
            self.sent[name] = self.tell(name, request)
            self.coordinator.on_unmask(name, self.sent[name])
        return self.close_unmask()

    def close_unmask(self) -> UnmaskPlan | dict[str, RecoverRequest]:
        closed = self.coordinator.close_unmask()
        if isinstance(closed, UnmaskPlan):
            self.plan = closed
        return closed

    def recover(self, requests: Mapping[str, RecoverRequest]) -> None:
        for name, request in requests.items():
            self.coordinator.on_recovered(name, self.tell(name, request))
        self.plan = self.coordinator.close_recover()

    def mask_one(self, name: str, envelopes: Envelopes) -> None:
        """One silo of U2 learns its masks, and what it will check the sum with."""
        self.maskers[name] = self.tell(name, envelopes)
        check = self.silos[name].sum_check
        if check is not None:
            self.checks[name] = check

    def upload(self, name: str) -> None:
        """The masked vector of one silo, and word to the coordinator that it is there."""
        encoded = Encoder(one_hot(self.terms, name), layout=self.terms.layout).encode()
        self.masked[name] = b"".join(self.maskers[name].stream(encoded))
        self.coordinator.on_masked(name)

    def run(self, drops: Mapping[str, Collection[str]] | None = None) -> np.ndarray[Any, Any]:
        """All stages; the revealed sum of the one-hot vectors."""
        drops = drops or {}
        self.run_until("unmask", drops)
        closed = self.unmask(drops.get("unmask", ()))
        if not isinstance(closed, UnmaskPlan):
            self.recover(closed)
        return self.revealed()

    def run_until(self, stage: str, drops: Mapping[str, Collection[str]] | None = None) -> None:
        """All stages before this one."""
        steps = {
            "advertise": self.advertise,
            "share": self.share,
            "masked": self.mask,
            "consistency": self.consistency,
        }
        for name in STAGES[: STAGES.index(stage)]:
            steps[name]((drops or {}).get(name, ()))

    def revealed(self) -> np.ndarray[Any, Any]:
        """The decoded sum, the same in every word size; every silo that can check it does."""
        sums = self.unmasked()
        for name in self.checks if self.terms.layout.tagged is not None else ():
            self.check(name, self.tagged_stream(sums))
        decoded = ring.decode(sums, layout=self.terms.layout)
        assert np.array_equal(decoded["counts"], decoded["delta"])
        assert np.array_equal(decoded["counts"], decoded["half"])
        return decoded["counts"]

    def unmasked(self) -> dict[int, ring.Words]:
        assert self.plan is not None
        sums = self.masked_sum(self.plan.survivors)
        self.plan.unmask(sums)
        return sums

    def tagged_stream(self, sums: Mapping[int, ring.Words]) -> bytes:
        """What silos fetch of a sum."""
        return b"".join(masks.tagged_stream(self.terms.layout, sums))

    def check(self, name: str, stream: bytes) -> None:
        """All that a silo of U2 checks of a revealed sum, from its row of the ledger."""
        check, survivors = SumCheck.from_bytes(self.checks[name].to_bytes()), self.coordinator.survivors
        assert self.terms.layout.tagged is not None
        check.check_survivors(survivors, self.coordinator.unmask_request())
        check.check_sum(stream, self.terms.layout.tagged, survivors)
        check.check_self_mask_seeds(self.coordinator.self_mask_seeds, survivors)

    def masked_sum(self, names: Collection[str]) -> dict[int, ring.Words]:
        layout = self.terms.layout
        sums = ring.zeros(layout)
        for name in names:
            ring.add_into(sums, masks.vectors_from_stream(layout, self.masked[name]))
        return sums

    def expected(self) -> np.ndarray[Any, Any]:
        """1 for every survivor, 0 for every other silo."""
        return indicator(self.terms, self.coordinator.survivors)

    def nothing_left(self) -> bool:
        """Whether no masked vector and no share has left any silo."""
        return not self.masked and not self.sent and not any(one.revealed for one in self.ledgers.values())

    def _staying(self, stage: str, names: Collection[str], drop: Collection[str]) -> list[str]:
        self.hooks.get(stage, lambda: None)()
        self.dropped |= set(drop)
        return [name for name in names if name not in self.dropped]


def make_session(silos: int = 5, **changes: Any) -> Exchange:
    """An exchange among n silos under honest terms; `changes` are fields of the terms."""
    return make_exchange(make_federation(silos), **changes)


def make_exchange(
    federation: Federation, *, ledgers: dict[str, MemoryLedger] | None = None, **changes: Any
) -> Exchange:
    terms = make_terms(federation, **changes)
    ledgers = ledgers or {name: MemoryLedger() for name in terms.names}
    return Exchange(
        federation=federation,
        terms=terms,
        coordinator=make_coordinator(federation, terms),
        silos={name: make_silo(federation, terms, name, ledgers[name]) for name in terms.names},
        ledgers=ledgers,
    )


def make_coordinator(federation: Federation, terms: SessionTerms) -> CoordinatorSession:
    return CoordinatorSession(terms=terms, roster=federation.roster, authority=federation.authority, now=NOW)


def make_silo(
    federation: Federation, terms: SessionTerms, name: str, ledger: MemoryLedger | None = None
) -> SiloSession:
    return SiloSession(
        terms=terms,
        identity=federation.silos[name],
        roster=federation.roster,
        authority=federation.authority,
        ledger=ledger or MemoryLedger(),
        now=NOW,
    )


def one_hot(terms: SessionTerms, name: str) -> dict[str, Any]:
    vector = indicator(terms, [name])
    return {"counts": vector, "delta": vector.astype(np.float64), "half": vector.astype(np.float64)}


def indicator(terms: SessionTerms, names: Collection[str]) -> np.ndarray[Any, Any]:
    return np.array([int(name in names) for name in terms.names], np.int64)


def _member(one: Identity) -> Member:
    return Member(role=Role.SILO, name=one.member.name, fingerprint=one.fingerprint)


def _roster(key: PrivateKey, authority: Anchors, members: list[Member], *, version: int) -> Roster:
    signed = roster.sign_roster(
        authority_key=key,
        federation="test",
        version=version,
        issued=NOW,
        expires=NOW + timedelta(days=30),
        members=members,
    )
    return roster.open_roster(signed, authority=authority, federation="test", now=NOW)
