"""Accounts after any sequence of jobs, dropouts, kills, renames, overlaps, new rows, other accounts and a
ledger that was put back: no loss is missing."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chorale.job import Job
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Release
from crypto.errors import PolicyRefusal
from crypto.fixed_point.layout import Side
from tests.unit.silo_agent.account_book import AccountBook, numbers
from tests.unit.silo_agent.privacy_book import MEMBERS, STATE, SUMS, exact, private_job

JOBS = [
    private_job(Path("unused"), SUMS | {"sums": {"clip_norm": 0.5, "noise_multiplier": 12.0}}, rounds=20),
    private_job(
        Path("unused"), SUMS | {"sums": {"clip_norm": 0.5, "noise_multiplier": 9.0}}, nonce=1, rounds=20
    ),
]
NAMES = ("wards", "trial", "stations")
MOST = 10.0
DELTA = 1e-5
HOLDOUTS = (0.2, 0.7)
ACCOUNTS = ("data", "wards")
ROWS = st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True)


class AccountMachine(RuleBasedStateMachine):
    """`lost` is the truth: every release that was computed from a row and left, whatever its data set's name
    was then. `sides` are those on which it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="chorale-accounts-"))
        self.book = AccountBook(self.folder, epsilon=MOST)
        self.lost: dict[int, Counter[Release]] = {}
        self.sides: dict[int, set[bool]] = {}
        self.is_recovered = False
        self.book.write("wards", range(4))
        self.book.start()

    def teardown(self) -> None:
        self.book.stop()
        shutil.rmtree(self.folder)

    def settings_of(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in self.book.fields[name].items() if key in ("account", "holdout")}

    @property
    def running(self) -> list[str]:
        return sorted(self.book.fields.keys() & self.book.sets.keys())

    @rule(
        name=st.sampled_from(NAMES),
        rows=ROWS,
        holdout=st.sampled_from(HOLDOUTS),
        account=st.sampled_from(ACCOUNTS),
    )
    def write_and_start(self, name: str, rows: list[int], holdout: float, account: str) -> None:
        self.book.write(name, rows, holdout=holdout, account=account)
        self.book.start()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), rows=ROWS)
    def write_while_it_runs(self, data: st.DataObject, rows: list[int]) -> None:
        """Other rows under a name, those of another data set among them."""
        name = data.draw(st.sampled_from(self.running), label="name")
        self.book.write(name, rows, **self.settings_of(name))

    @rule(name=st.sampled_from(NAMES), after=st.sampled_from(NAMES))
    def rename_and_start(self, name: str, after: str) -> None:
        if name in self.book.fields and after not in self.book.fields:
            self.book.rename(name, after)
            self.book.start()

    @precondition(lambda self: len(self.book.fields) > 1)
    @rule(data=st.data())
    def drop_one_and_start(self, data: st.DataObject) -> None:
        del self.book.fields[data.draw(st.sampled_from(sorted(self.book.fields)), label="name")]
        self.book.start()

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        job=st.sampled_from(JOBS),
        how=st.sampled_from(("sent", "sent", "sent", "given back", "killed")),
        members=st.sampled_from((MEMBERS, MEMBERS - 1)),
    )
    def answer(self, data: st.DataObject, job: Job, how: str, members: int) -> None:
        """members: one silo may have dropped out before."""
        name = data.draw(st.sampled_from(self.running), label="name")
        try:
            charge = self.book.reserve(name, job, members=members)
        except PolicyRefusal:
            return
        used = numbers(self.book.load(name))
        if how != "sent":
            charge.release() if how == "given back" else self.book.start()
            return
        charge.spend()
        releases = Counter(JobReleases(job.spec, STATE).cost("train", members))
        for is_held_out, rows in enumerate(used):
            others = Side.TRAIN if is_held_out else Side.HOLDOUT  # of which this side's records lose nothing
            for each in rows:
                self.lost.setdefault(each, Counter()).update(
                    {release: times for release, times in releases.items() if release.side is not others}
                )
                self.sides.setdefault(each, set()).add(bool(is_held_out))

    @precondition(lambda self: self.running and not self.is_recovered)
    @rule(data=st.data(), more=ROWS, after=st.sampled_from(NAMES))
    def go_on_after_a_snapshot_and_put_it_back(
        self, data: st.DataObject, more: list[int], after: str
    ) -> None:
        """Rejected jobs do not go on; these may, and their plans are more than the budget."""
        copy = self.book.snapshot()
        name = data.draw(st.sampled_from(self.running), label="name")
        rows = {row for side in numbers(self.book.load(name)) for row in side}
        self.book.write(name, rows | set(more), **self.settings_of(name))
        self.rename_and_start(name, after)
        for job in JOBS:
            self.answer(data, job, "sent", MEMBERS)
        self.book.put_back(copy, JOBS, restarts=1)
        self.is_recovered = True

    @invariant()
    def every_record_has_an_account_that_holds_all_that_it_lost(self) -> None:
        charges, fixed = self.book.charges(), self.book.fixed()
        for each, lost in self.lost.items():
            owner = self.book.owner(each)
            assert lost <= charges.get(owner, Counter()), (each, owner)
            assert len(self.sides[each]) == 1 or not fixed[owner], (each, owner)

    @invariant()
    def no_data_set_shows_less_than_its_records_lost_and_none_lost_more_than_its_budget(self) -> None:
        for name in self.running:
            each = self.book.sets[name]
            spent = each.budget.spent()[0]
            assert spent <= MOST * (1 + 1e-9) or self.is_recovered
            for row in sum(numbers(self.book.load(name)), []):  # noqa: RUF017  a few rows
                assert self.book.owner(row) == self.book.settings.data_set(name).account
                assert spent >= exact(list(self.lost.get(row, Counter()).elements()), DELTA) * (1 - 1e-6)


TestAnySequence = AccountMachine.TestCase
TestAnySequence.settings = settings(
    max_examples=10,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
