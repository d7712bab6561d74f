"""The privacy ledger after any sequence of phases, uploads and kills: what really left, and no less."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chorale.job import Job
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Release
from crypto.errors import PolicyRefusal
from silo_agent.disclosure.ledger.budget import Charge
from silo_agent.disclosure.ledger.ledger import Ledger
from tests.support.sessions import NOW
from tests.unit.silo_agent.privacy_book import MEMBERS, STATE, SUMS, Book, by_hand, exact, private_job

# any sequence


JOBS = [
    private_job(Path("unused"), SUMS),
    private_job(Path("unused"), SUMS | {"sums": {"clip_norm": 0.5, "noise_multiplier": 2.0}}, nonce=1),
    private_job(Path("unused"), None, nonce=2),
]
KINDS = {"enrollment.0": "enrollment", "train": "train", "evaluate.0": "evaluate"}
MOST = 6.0
DELTA = 1e-5
SLACK = 1e-4  # relative: both look for the least budget by halving
GRID = 1e-2  # relative, and upward: the ledger's filter asks at fewer points than the one by hand


class Input:
    """As a silo has it in memory. cost: None without privacy."""

    def __init__(self, charge: Charge, cost: list[Release] | None) -> None:
        self.charge, self.cost = charge, cost
        self.is_charged = False
        self.has_left = False


class LedgerMachine(RuleBasedStateMachine):
    """Jobs, phases, attempts, uploads and kills in any order, compared with a model that keeps plain lists.

    `left` is the truth: what bytes of were sent. `charged` is what should be spent, kills between the two
    included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="chorale-budget-"))
        self.book = Book(self.folder, epsilon=MOST, delta=DELTA)
        self.inputs: list[Input] = []
        self.left: list[Release] = []
        self.charged: list[Release] = []
        self.unnoised = 0
        self.rounds = 0

    def teardown(self) -> None:
        self.book.ledger.close()
        shutil.rmtree(self.folder)

    @rule(job=st.sampled_from(JOBS), phase=st.sampled_from(sorted(KINDS)))
    def begin_phase(self, job: Job, phase: str) -> None:
        self.rounds += 1
        private = job.spec.privacy is not None
        cost = list(JobReleases(job.spec, STATE).cost(KINDS[phase], MEMBERS)) if private else None
        reserved = [release for each in self.inputs if not each.is_charged for release in each.cost or []]
        after = by_hand(self.charged + reserved + (cost or []), DELTA)
        try:
            charge = self.book.reserve(job, round=self.rounds, phase=phase)
        except PolicyRefusal:
            assert cost is not None, "a job without privacy has no budget to pass"
            assert after > MOST * (1 - GRID), "refused what fits"
            return
        assert cost is None or after <= MOST * (1 + SLACK), "let in what does not fit"
        self.inputs.append(Input(charge, cost))

    @precondition(lambda self: self.inputs)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        """An attempt reaches its upload; later attempts send the same input again."""
        chosen = data.draw(st.sampled_from(self.inputs), label="input")
        self._spend(chosen)
        if not chosen.has_left:
            chosen.has_left = True
            self.left += chosen.cost or []

    @precondition(lambda self: self.inputs)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """The phase is over for this silo; its input leaves the memory."""
        chosen = self.inputs.pop(data.draw(st.integers(0, len(self.inputs) - 1), label="input"))
        chosen.charge.release()

    @rule()
    def kill(self) -> None:
        self.book.crash()
        self.inputs.clear()

    @precondition(lambda self: self.inputs)
    @rule(data=st.data())
    def kill_between_spend_and_first_byte(self, data: st.DataObject) -> None:
        self._spend(data.draw(st.sampled_from(self.inputs), label="input"))
        self.kill()

    @rule()
    def look(self) -> None:
        """A command of this machine, concurrent with the agent."""
        ledger = Ledger(self.folder / "ledger.sqlite", clock=lambda: NOW)
        seen = ledger.budget(policy=self.book.policy, data_set="data").balance()
        assert seen == self.book.balance
        ledger.close()

    @invariant()
    def the_ledger_is_never_below_the_truth(self) -> None:
        spent, unnoised = self.book.budget.spent()
        assert spent >= exact(self.left, DELTA)
        charged = by_hand(self.charged, DELTA)
        assert charged * (1 - SLACK) <= spent <= charged * (1 + GRID)
        assert spent <= MOST * (1 + SLACK)
        assert unnoised == self.unnoised

    def _spend(self, chosen: Input) -> None:
        chosen.charge.spend()
        if not chosen.is_charged:
            chosen.is_charged = True
            self.charged += chosen.cost or []
            self.unnoised += chosen.cost is None


TestAnySequence = LedgerMachine.TestCase
TestAnySequence.settings = settings(
    max_examples=25, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
