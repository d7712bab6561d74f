"""Every small message of one session in this process: the code that silos and coordinator run.

Silos hold real certificates and a roster. What a vector is made of is left to the benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from bench.clock import Clock
from bench.federation import NAME, Federation
from crypto.cohort import CohortRule
from crypto.coordinator_session import CoordinatorSession
from crypto.layout import Layout, Quantity
from crypto.masking import Masker, UnmaskPlan
from crypto.messages import Envelopes, SessionTerms, Shares, SignedBody, UnmaskShares
from crypto.noise_terms import Noise
from crypto.reveal import PendingReveal
from crypto.silo_session import SiloSession

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BOUND = 8.0  # the default update_bound, in parameter units


class Session:
    """The stages of docs/protocol.md 5 in turn.

    setup: what each silo spends on keys, envelopes, checks and signatures, one step name per silo.
    stages: the same by stage, one step for each silo.
    message_bytes: of one silo that stayed, all but its vector. names: who is named, if not all.
    """

    def __init__(
        self, federation: Federation, *, layout: Layout, names: tuple[str, ...] | None = None
    ) -> None:
        self.setup, self.stages = Clock(), Clock()
        self.message_bytes = 0
        self._shares_bytes = 0
        self.terms = _terms(names or tuple(federation.silos), federation, layout)
        self.coordinator = CoordinatorSession(
            terms=self.terms, roster=federation.roster, authority=federation.authority, now=NOW
        )
        self._silos = {name: self._silo(federation, name) for name in self.terms.names}
        self._envelopes: dict[str, Envelopes] = {}

    def share(self) -> None:
        """ADVERTISE and SHARE of every silo."""
        for name, silo in self._silos.items():
            with self.setup.step(name), self.stages.step("advertise"):
                advert = silo.advertise()
            self.coordinator.on_advert(name, advert)
        cohort = self.coordinator.close_advertise()
        for name, silo in self._silos.items():
            with self.setup.step(name), self.stages.step("share"):
                shares = silo.receive(cohort)
            self.coordinator.on_shares(name, shares)
            # a mean: the first silo seals every pair seed, the last one none
            self._shares_bytes += _shares_size(shares)
        self._envelopes = self.coordinator.close_share()
        self.message_bytes += _size(advert) + round(self._shares_bytes / len(self._silos))

    def masker(self, name: str) -> Masker:
        """MASKED_INPUT of one silo, whose upload then counts as complete."""
        with self.setup.step(name), self.stages.step("masked input"):
            masker = self._silos[name].receive(self._envelopes[name])
        self.coordinator.on_masked(name)
        return masker

    def reveal(self, clock: Clock) -> UnmaskPlan:
        """CONSISTENCY and UNMASK of all that were masked; step `rebuild` is the coordinator's part."""
        survivors = self.coordinator.close_masked()
        for name in survivors.survivors:
            with self.setup.step(name), self.stages.step("consistency"):
                signature = self._silos[name].receive(survivors)
            self.coordinator.on_consistency(name, signature)
        request = self.coordinator.close_consistency()
        for name in survivors.survivors:
            with self.setup.step(name), self.stages.step("unmask"):
                answer = self._silos[name].receive(request)
            with clock.step("rebuild"):
                self.coordinator.on_unmask(name, answer)
        self.message_bytes += _size(signature) + _answer_size(answer)
        with clock.step("rebuild"):
            plan = self.coordinator.close_unmask()
        assert isinstance(plan, UnmaskPlan)  # nobody lies here, so nothing is left to recover
        return plan

    def setup_cpu_seconds(self, names: Sequence[str]) -> list[float]:
        """Of each of these silos, all its steps together."""
        return [self.setup.total(name).cpu_seconds for name in names]

    def _silo(self, federation: Federation, name: str) -> SiloSession:
        with self.setup.step(name), self.stages.step("terms"):
            return SiloSession(
                terms=self.terms,
                identity=federation.silos[name],
                roster=federation.roster,
                authority=federation.authority,
                ledger=_SingleUseLedger(),
                now=NOW,
            )


class _SingleUseLedger:
    """Nothing to remember: its silo takes part in one session and ends with the process."""

    def begin_attempt(self, terms: SessionTerms) -> None:
        pass

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        pass

    def write_pending(self, pending: PendingReveal) -> None:
        pass

    def mark_revealed(self, pending: PendingReveal) -> None:
        pass


def update_layout(federation: Federation, *, length: int, word: int, noise: Noise | None = None) -> Layout:
    """One update of that many values at every silo."""
    quantity = Quantity(name="delta", shape=(length,), bound=BOUND, word=word, noise=noise)
    return Layout(quantities=(quantity,), members=len(federation.silos))


def _terms(names: tuple[str, ...], federation: Federation, layout: Layout) -> SessionTerms:
    return SessionTerms(
        federation=NAME,
        job_digest=bytes(32),
        roster_version=federation.roster.version,
        roster_digest=federation.roster.digest,
        round=1,
        phase="train",
        attempt=1,
        names=names,
        rule=CohortRule.for_members(len(names)),
        layout=layout,
        state_digest=bytes(32),
    )


def _size(signed: SignedBody) -> int:
    return len(signed.body) + len(signed.signature)


def _shares_size(shares: Shares) -> int:
    return sum(_size(one) for one in (*shares.envelopes, shares.own_share))


def _answer_size(answer: UnmaskShares) -> int:
    shares = [*answer.self_mask_shares.values(), *answer.recovery_shares.values()]
    return sum(len(share) for share in shares)
