"""Every small message of one session in this process, timed; silos hold real certificates and a roster.

What a vector is made of is left to the benchmark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import fmean

from bench.clock import Clock
from bench.federation import NAME, Federation
from crypto.fixed_point.layout import Layout, Quantity
from crypto.identity.certificates import SignedBody
from crypto.noise.sensitivity import Noise
from crypto.session.cohort import CohortRule
from crypto.session.messages import SessionTerms, Shares, UnmaskShares
from simulation.local_session import Answer, LocalSession

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BOUND = 8.0  # the default update_bound, in parameter units


class Session(LocalSession):
    """A session whose silos all come.

    setup: what each silo spends on keys, envelopes, checks and signatures, one step name per silo.
    stages: the same by stage, one step for each silo.
    message_bytes: of one silo that stayed, all but its vector. names: who is named, if not all.
    """

    def __init__(
        self, federation: Federation, *, layout: Layout, names: tuple[str, ...] | None = None
    ) -> None:
        self.setup, self.stages = Clock(), Clock()
        self._sent_bytes: defaultdict[str, list[int]] = defaultdict(list)
        named = names or tuple(federation.silos)
        super().__init__(federation, _terms(named, federation, layout), silos=named, now=NOW)

    def asked(self, name: str, stage: str, act: Callable[[], Answer]) -> Answer:
        """Its silo's step, timed."""
        with self.setup.step(name), self.stages.step(stage):
            answer = act()
        self._sent_bytes[stage].append(_sent_bytes(answer))
        return answer

    @property
    def message_bytes(self) -> int:
        # means: the first silo seals every pair seed, the last one none
        return sum(round(fmean(sizes)) for sizes in self._sent_bytes.values())

    def setup_cpu_seconds(self, names: Sequence[str]) -> list[float]:
        """Of each of these silos, all its steps together."""
        return [self.setup.total(name).cpu_seconds for name in names]


def update_layout(federation: Federation, *, length: int, word: int, noise: Noise | None = None) -> Layout:
    """One update of that many values at every silo."""
    quantity = Quantity(name="delta", shape=(length,), bound=BOUND, ring_bits=word, noise=noise)
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


def _sent_bytes(answer: object) -> int:
    """What a silo's answer to a stage weighs, without the vector."""
    match answer:
        case SignedBody(body=body, signature=signature):
            return len(body) + len(signature)
        case bytes():
            return len(answer)
        case Shares(dealing=dealing, envelopes=envelopes):
            return _sent_bytes(dealing) + sum(len(envelope) for envelope in envelopes)
        case UnmaskShares(self_mask_shares=of_own, recovery_shares=of_others):
            return sum(len(share) for share in (*of_own.values(), *of_others.values()))
        case _:
            return 0
