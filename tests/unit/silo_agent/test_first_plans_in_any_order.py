"""One account under any jobs, phases that are given back and kills: all that left keeps to one delta."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from chorale.job import Job
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Gaussian, Release
from crypto.errors import PolicyRefusal
from silo_agent.disclosure.ledger.budget import Charge
from tests.unit.silo_agent.privacy_book import MEMBERS, STATE, SUMS, Book, by_hand, exact, private_job

# any sequence

DELTA = 1e-5
SLACK = 1e-3  # relative: of halvings, and of a block's grid


def job(noise: float, nonce: int) -> Job:
    sums = {"sums": {"clip_norm": 0.5, "noise_multiplier": noise}, "statistics_noise_multiplier": 200.0}
    return private_job(Path("unused"), SUMS | sums, nonce=nonce, rounds=3)


# a plan that the budget buys as a block, one that the filter lets through, one that is too dear
JOBS = [job(4.0, 0), job(9.0, 1), job(2.5, 2)]
PLANS = {each.digest: list(JobReleases(each.spec, STATE).planned().elements()) for each in JOBS}
MOST = 1.03 * exact(PLANS[JOBS[0].digest], DELTA)


def delta_of(releases: list[Release], epsilon: float) -> float:
    """Of Gaussian noise (Balle and Wang 2018, Theorem 8)."""
    mu = math.sqrt(math.fsum(one.noise_multiplier**-2 for one in releases if isinstance(one, Gaussian)))
    above = math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)) / 2
    return above - math.exp(epsilon) * math.erfc((epsilon / mu + mu / 2) / math.sqrt(2)) / 2


class FirstPlanMachine(RuleBasedStateMachine):
    """`left` is what was sent, by job. `first` reserved first, when nothing was reserved or sent.

    Where the first plan is that of whichever job reserved first and has something left, a sequence is found
    that has all of delta beside a plan that was bought.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="chorale-plans-"))
        self.book = Book(self.folder, epsilon=MOST, delta=DELTA, partial_jobs="allow")
        self.reserved: list[tuple[Job, Charge, list[Release]]] = []
        self.left: dict[bytes, list[Release]] = {}
        self.first: Job | None = None

    def teardown(self) -> None:
        """Then one more job takes all that there is."""
        while self.reserved:
            self.reserved.pop()[1].release()
        sent = -1
        while sent < (sent := sum(map(len, self.left.values()))):
            self.send(JOBS[1])
        self.check()
        self.book.ledger.close()
        shutil.rmtree(self.folder)

    @rule(job=st.sampled_from(JOBS), members=st.sampled_from((MEMBERS - 1, MEMBERS)))
    def begin(self, job: Job, members: int) -> None:
        """members: one may have dropped out before."""
        if not self.reserved and not self.left:
            self.first = None
        try:
            charge = self.book.reserve(job, members=members)
        except PolicyRefusal:
            return
        self.first = self.first or job
        cost = JobReleases(job.spec, STATE).cost("train", members)
        self.reserved.append((job, charge, list(cost)))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), is_sent=st.booleans())
    def end(self, data: st.DataObject, is_sent: bool) -> None:
        place = data.draw(st.integers(0, len(self.reserved) - 1), label="input")
        job, charge, cost = self.reserved.pop(place)
        if not is_sent:
            charge.release()
            return
        self._send(job, charge, cost)

    @rule(job=st.sampled_from(JOBS))
    def send(self, job: Job) -> None:
        held = len(self.reserved)
        self.begin(job, MEMBERS)
        if len(self.reserved) > held:
            self._send(*self.reserved.pop())

    @rule()
    def kill(self) -> None:
        self.book.crash()
        self.reserved.clear()

    def check(self) -> None:
        """What left is within the first plan, or within what that plan left of delta."""
        left, delta = [each for of_job in self.left.values() for each in of_job], DELTA
        assert self.book.balance.spent >= exact(left, DELTA) * (1 - SLACK)
        if not left or self.first is None:
            return
        plan = PLANS[self.first.digest]
        if exact(plan, DELTA) <= MOST < by_hand(plan, DELTA) * (1 - SLACK):
            if self.left.keys() == {self.first.digest} and kinds(left) <= kinds(plan):
                return
            delta -= delta_of(plan, MOST)
        assert by_hand(left, delta) <= MOST * (1 + SLACK)

    def _send(self, job: Job, charge: Charge, cost: list[Release]) -> None:
        charge.spend()
        self.left.setdefault(job.digest, []).extend(cost)


def kinds(releases: list[Release]) -> Counter[float]:
    """By their noise: a sum of fewer silos is the same release otherwise."""
    return Counter(each.noise_multiplier for each in releases if isinstance(each, Gaussian))


TestAnySequence = pytest.mark.gate(FirstPlanMachine.TestCase)
TestAnySequence.settings = settings(
    max_examples=12,
    stateful_step_count=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
