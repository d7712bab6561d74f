"""What honest silos refuse: their own checks, rosters and ledgers, asked as their agents ask them.

Every attack on what silos agree to asks here, so that its figure "under the rules" comes from the product.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from chorale.job import Job, open_job, sign_job
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto import encoding
from crypto.errors import PolicyRefusal, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.ring import Encoded
from crypto.identity.certificates import Identity, Role
from crypto.masking import masks
from crypto.session.messages import SessionTerms
from crypto.session.reveal import RevealLedger
from silo_agent.ledger.ledger import Ledger
from silo_agent.ledger.reveals import Reveals
from silo_agent.policy.policy import Policy
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.rosters import Rosters
from silo_agent.rounds.task_checks import TaskChecks
from simulation.engine import NO_NONCE
from simulation.local_session import LocalSession
from simulation.members import Authority, Members
from strategies.base import Array, Arrays

Answer = TypeVar("Answer")
FloatArray = NDArray[np.float64]

DATA_SET = "data"
OPERATOR = "operator"
ENROLLMENT, TRAIN = "enrollment.0", "train"


class Refused(Exception):
    """An honest silo would not go on: so there is no sum. The message is its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silo:
    """One silo's own memory and checks."""

    reveals: Reveals
    checks: TaskChecks


class HonestSilos:
    """The silos of a job that an operator signed with this first state, each with its own ledger.

    The ledgers' folder goes when the `with` block ends. has_rules: False for silos that take any state and
    sign any sum. Raises Refused where their policy refuses the job.
    """

    def __init__(self, spec: JobSpec, first: Arrays, *, policy: Policy, has_rules: bool = True) -> None:
        self._now = datetime.now(UTC)
        self._policy = policy
        self._has_rules = has_rules
        self._open = ExitStack()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority(spec.federation, now=self._now)
        silos = {name: authority.enroll(Role.SILO, name) for name in spec.silos}
        operator = authority.enroll(Role.OPERATOR, OPERATOR)
        roster = authority.roster({**silos, OPERATOR: operator})
        self._members = Members(authority=authority.certificate, silos=silos, roster=roster)
        self.job = self._signed(spec, first, operator)
        try:
            self._silos = {name: self._silo(name) for name in spec.silos} if has_rules else {}
        except Refused:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def check_state(self, state: Arrays, *, round: int, phase: str) -> None:
        """What every silo checks of a state before it touches its data. Raises Refused."""
        path = self._folder / "state"
        data = state_to_bytes(state)
        path.write_bytes(data)
        terms = self._terms(state, round, phase)
        key = PhaseKey(job_digest=self.job.digest, round=round, phase=phase, attempt=1)
        task = pb.PhaseTask(
            key=wire.key_to_wire(key),
            state_digest=state_digest(data),
            state_bytes=len(data),
            session_digest=terms.digest(),
        )
        for silo in self._silos.values():
            _asked(partial(_request, silo.checks, key, task, path))

    def enroll(self, state: Arrays, samples: Mapping[str, int]) -> dict[str, Array]:
        """The job's opening phase, in a session. Raises Refused."""
        self.check_state(state, round=0, phase=ENROLLMENT)
        terms = self._terms(state, 0, ENROLLMENT)
        inputs = {
            name: Encoder({"silos": np.array(1), "samples": np.array(count)}, layout=terms.layout).encode()
            for name, count in samples.items()
        }
        sums = self.sum(state, inputs, round=0, phase=ENROLLMENT)
        key = PhaseKey(job_digest=self.job.digest, round=0, phase=ENROLLMENT, attempt=1)
        context = self.job.context(key, state, len(terms.names))
        result = self.job.apply(ENROLLMENT, context, sums, survivors=len(inputs))
        assert result.state is not None, result.reason
        return dict(result.state)

    def sum(
        self, state: Arrays, inputs: Mapping[str, Encoded], *, round: int, phase: str = TRAIN
    ) -> dict[str, Array]:
        """What a session of these silos reveals; the others of the job share keys and are lost then.

        Raises Refused where a silo's ledger does.
        """
        terms = self._terms(state, round, phase)
        return _asked(lambda: self._session(terms, inputs))

    def _session(self, terms: SessionTerms, inputs: Mapping[str, Encoded]) -> dict[str, Array]:
        ledgers = {name: silo.reveals for name, silo in self._silos.items()}
        session = _Session(self._members, terms, silos=terms.names, now=self._now, ledgers=ledgers)
        session.share()
        total = ring.zeros(terms.layout)
        for name, words in inputs.items():
            stream = b"".join(session.masker(name).stream(words))
            ring.add_into(total, masks.vectors_from_stream(terms.layout, stream))
        session.reveal().unmask(total)
        return ring.decode(total, layout=terms.layout)

    def _terms(self, state: Arrays, round: int, phase: str) -> SessionTerms:
        return self.job.terms(
            roster=self._members.roster,
            round=round,
            phase=phase,
            attempt=1,
            state=state,
            state_digest=state_digest(state_to_bytes(state)),
        )

    def _signed(self, spec: JobSpec, first: Arrays, operator: Identity) -> Job:
        digest = state_digest(state_to_bytes(first))
        filled = spec.filled(nonce=spec.nonce or NO_NONCE, initial_state=digest)
        signed = sign_job(filled.to_yaml(), operator)
        return open_job(signed, roster=self._members.roster, authority=self._members.authority, now=self._now)

    def _silo(self, name: str) -> _Silo:
        """As silo_agent/agent.py puts one together."""
        clock: Callable[[], datetime] = lambda: self._now  # noqa: E731
        ledger = Ledger(self._folder / f"{name}.sqlite", clock=clock)
        self._open.callback(ledger.close)
        reveals = ledger.reveals(policy=self._policy, data_set=DATA_SET)
        rosters = Rosters(
            identity=self._members.silos[name],
            authority=self._members.authority,
            policy=self._policy,
            ledger=ledger,
            reveals=reveals,
            lowest_version=1,
            clock=clock,
        )
        jobs = OfferedJobs(
            silo=name, ledger=ledger, policy=self._policy, authority=self._members.authority, clock=clock
        )
        _asked(lambda: jobs.offer(self.job.signed, rosters.take(self._members.roster.signed)))
        checks = TaskChecks(
            identity=self._members.silos[name],
            authority=self._members.authority,
            policy=self._policy,
            jobs=jobs,
            rosters=rosters,
            reveals=reveals,
            budget=ledger.budget(policy=self._policy, data_set=DATA_SET),
            clock=clock,
        )
        return _Silo(reveals=reveals, checks=checks)


class _Session(LocalSession):
    """Silos with the ledgers that are given, and no memory where none is."""

    def __init__(
        self,
        members: Members,
        terms: SessionTerms,
        *,
        silos: tuple[str, ...],
        now: datetime,
        ledgers: Mapping[str, RevealLedger],
    ) -> None:
        self._ledgers = ledgers
        super().__init__(members, terms, silos=silos, now=now)

    def ledger(self, name: str) -> RevealLedger:
        return self._ledgers[name] if name in self._ledgers else super().ledger(name)


def _request(checks: TaskChecks, key: PhaseKey, task: pb.PhaseTask, path: Path) -> None:
    roster, job = checks.job(key, task)
    checks.request(key, task, job, roster, path)


def _asked(act: Callable[[], Answer]) -> Answer:
    try:
        return act()
    except (PolicyRefusal, RemoteProtocolError) as refusal:
        raise Refused(str(refusal)) from refusal


# the draw of `fraction`, docs/protocol.md 3.2

MAX_DRAW_RISK = 1e-6
OPENINGS = 4  # of a job that can be revealed, and so chosen from


def draw_seed(job_digest: bytes, self_mask_seeds: Mapping[str, bytes]) -> bytes:
    """What a job's rounds are drawn by."""
    return encoding.digest("draw", job_digest, [self_mask_seeds[name] for name in sorted(self_mask_seeds)])


def drawn(silos: Sequence[str], seed: bytes, round: int, members: int) -> tuple[str, ...]:
    """Whom a round names."""
    ranked = sorted(silos, key=lambda name: encoding.digest("named-set", seed, round, name))
    return tuple(sorted(ranked[:members]))


def default_colluders(silos: int) -> int:
    """How many a silo assumes."""
    return max(1, silos // 10)


def draw_risk(silos: int, members: int, *, colluders: int, rounds: int) -> Fraction:
    """What a silo says of a job: the hypergeometric tail, times the rounds, times the openings."""
    wrong = sum(
        math.comb(colluders, named) * math.comb(silos - colluders, members - named)
        for named in range(members // 3 + 1, min(colluders, members) + 1)
    )
    return min(Fraction(1), Fraction(wrong, math.comb(silos, members)) * rounds * OPENINGS)


def smallest_draw(silos: int, *, at_least: int, colluders: int, rounds: int) -> int:
    """The fewest silos of a round that a silo accepts; all of them need no draw."""
    sizes = range(at_least, silos)
    risks = ((size, draw_risk(silos, size, colluders=colluders, rounds=rounds)) for size in sizes)
    return next((size for size, risk in risks if risk <= MAX_DRAW_RISK), silos)


# the steps of a state, docs/protocol.md 6

MAX_STEP_RATIO = 3.0


def longest_step(
    toward: FloatArray, *, moved: FloatArray, own: FloatArray, own_moved: FloatArray
) -> FloatArray:
    """The step of one array toward a place that is as long as no silo objects to.

    toward: all the way. moved: since the first state. own, own_moved: one row a silo, its own step of this
    round and the sum of all its own steps. A step, and what the steps add up to, is at most MAX_STEP_RATIO
    times a silo's own.
    """
    length, far = float(np.linalg.norm(toward)), float(np.linalg.norm(moved))
    longest, farthest = (
        MAX_STEP_RATIO * float(np.linalg.norm(steps, axis=1).min()) for steps in (own, own_moved)
    )
    if far > farthest:  # the way back
        return -moved * min(1.0 - farthest / far, longest / far)
    if length == 0.0:
        return toward
    across = float(np.vdot(moved, toward)) / length
    until_farthest = math.sqrt(across**2 + farthest**2 - far**2) - across
    return toward * min(1.0, longest / length, until_farthest / length)
