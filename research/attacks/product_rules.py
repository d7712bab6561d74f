"""What honest silos refuse: their own checks, rosters, ledgers and states, asked as their agents ask them.

Every attack on what silos agree to asks here, so that its figure "under the rules" comes from the product.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from chorale.job import Job, open_job, sign_job
from chorale.runtime.audit import AuditLog
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import PolicyRefusal, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.ring import Encoded, Words
from crypto.identity.certificates import Identity, Role
from crypto.masking import masks
from crypto.masking.stored_sum import StoredSum
from crypto.session.messages import RevealedSum, SessionTerms
from crypto.session.reveal import RevealLedger
from crypto.session.sum_check import SumCheck
from silo_agent.connection.own_certificates import OwnCertificates
from silo_agent.disclosure.ledger.budget import Charge
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Reveals
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.state_files import StateFiles
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds.data_sets import DataSet, DataSets
from silo_agent.rounds.first_state import FirstStates
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.revealed_sums import RevealedSums
from silo_agent.rounds.rosters import Rosters
from silo_agent.rounds.state_chain import StateChain
from silo_agent.rounds.task_checks import TaskChecks
from simulation.engine import NO_NONCE
from simulation.local_session import LocalSession
from simulation.members import Authority, Members
from strategies.base import Array, Arrays

Answer = TypeVar("Answer")

DATA_SET = "data"
OPERATOR = "operator"
ENROLLMENT, TRAIN = "enrollment.0", "train"


class Refused(Exception):
    """An honest silo would not go on: so there is no sum. The message is its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silo:
    """One silo's own memory and checks."""

    reveals: Reveals
    data_set: DataSet
    checks: TaskChecks
    chain: StateChain
    sums: RevealedSums
    files: StateFiles

    async def reserve(self, key: PhaseKey, task: pb.PhaseTask, state: Arrays) -> Charge:
        """All that MessageHandler and InputCache do before they touch the data."""
        roster, job = self.checks.job(key, task)
        self.chain.accept(key, task, job, roster=roster)
        drawn = await self.checks.first_state(key, task, job)
        if drawn is None:  # else it is downloaded
            self.files.put(state)
        else:
            self.files.take(drawn, task.state_digest)
        path = self.files.state(task.state_digest)
        _, request = self.checks.request(key, task, job, roster, path)
        use = self.data_set.use_of(request)
        return self.data_set.budget.reserve(
            job, key, request.context.state, members=request.rule.members, use=use
        )


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
        self._shown = self._folder / "sum"
        authority = Authority(spec.federation, now=self._now)
        silos = {name: authority.enroll(Role.SILO, name) for name in spec.silos}
        operator = authority.enroll(Role.OPERATOR, OPERATOR)
        roster = authority.roster({**silos, OPERATOR: operator})
        self._members = Members(authority=authority.anchors, silos=silos, roster=roster)
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
        for charge in self._reserve(state, self._terms(state, round, phase)).values():
            charge.release()

    def enroll(self, state: Arrays, samples: Mapping[str, int]) -> dict[str, Array]:
        """The state that follows from the job's opening phase, which every silo computed. Raises Refused."""
        terms = self._terms(state, 0, ENROLLMENT)
        inputs = {
            name: Encoder({"silos": np.array(1), "samples": np.array(count)}, layout=terms.layout).encode()
            for name, count in samples.items()
        }
        session, total = self._session(state, terms, inputs)
        self._shown.write_bytes(b"".join(masks.tagged_stream(terms.layout, total)))
        self._show(session)
        assert terms.layout.tagged is not None
        result = self.job.outcome(
            ENROLLMENT,
            self.job.context(_key(terms), state, len(terms.names)),
            StoredSum(self._shown, layout=terms.layout.tagged),
            survivors=len(inputs),
        )
        assert result.state is not None, result.reason
        return dict(result.state)

    def sum(
        self, state: Arrays, inputs: Mapping[str, Encoded], *, round: int, phase: str = TRAIN
    ) -> dict[str, Array]:
        """What a session of these silos reveals; the others of the job share keys and are lost then.

        The coordinator keeps the sum to itself: silos that are shown it move on to the next state.
        Raises Refused where a silo's checks or its ledger do.
        """
        terms = self._terms(state, round, phase)
        _, total = self._session(state, terms, inputs)
        return dict(ring.decode(total, layout=terms.layout))

    def _session(
        self, state: Arrays, terms: SessionTerms, inputs: Mapping[str, Encoded]
    ) -> tuple[_Session, Mapping[int, Words]]:
        """The session up to its sum. Raises Refused."""
        charges = self._reserve(state, terms)
        ledgers = {name: silo.reveals for name, silo in self._silos.items()}
        session = _Session(self._members, terms, silos=terms.names, now=self._now, ledgers=ledgers)
        _asked(session.share)
        total = ring.zeros(terms.layout)
        for name, words in inputs.items():
            masker = session.masker(name)
            if name in self._silos:  # before the first byte leaves
                _asked(partial(charges[name].spend, session.check_of(name)))
            stream = b"".join(masker.stream(words))
            ring.add_into(total, masks.vectors_from_stream(terms.layout, stream))
        _asked(session.reveal).unmask(total)
        return session, total

    def _reserve(self, state: Arrays, terms: SessionTerms) -> dict[str, Charge]:
        """Every silo is given the task. Raises Refused."""
        key, data = _key(terms), state_to_bytes(state)
        task = pb.PhaseTask(
            key=wire.key_to_wire(key),
            state_digest=state_digest(data),
            state_bytes=len(data),
            session_digest=terms.digest(),
        )
        return {
            name: _asked(partial(asyncio.run, silo.reserve(key, task, state)))
            for name, silo in self._silos.items()
        }

    def _show(self, session: _Session) -> None:
        """The sum goes to every silo in it, which checks it, computes the next state and keeps that."""
        revealed = RevealedSum(
            survivors=session.coordinator.survivors,
            signatures=session.coordinator.unmask_request(),
            sum_digest=hashlib.sha256(self._shown.read_bytes()).digest(),
            self_mask_seeds=dict(session.coordinator.self_mask_seeds),
        )
        key = _key(session.terms)
        for silo in self._silos.values():
            _asked(partial(asyncio.run, silo.sums.answer(key, revealed, own_steps={})))

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
        folder = self._folder / name
        credentials = OwnCertificates(self._members.silos[name], self._members.authority)
        ledger = Ledger(self._folder / f"{name}.sqlite", clock=clock)
        self._open.callback(ledger.close)
        audit = AuditLog(self._folder / f"{name}.jsonl")
        self._open.callback(audit.close)
        data_set = DataSet.of(ledger, name=DATA_SET, policy=self._policy)
        data_sets = DataSets([data_set], ledger=ledger)
        files, known = StateFiles(folder / "states"), ledger.known_states()
        local = LocalStates(folder / "local")
        rosters = Rosters(
            credentials=credentials,
            ledger=ledger,
            data_sets=data_sets,
            lowest_version=1,
            audit=audit,
            clock=clock,
        )
        jobs = OfferedJobs(
            silo=name, ledger=ledger, data_sets=data_sets, credentials=credentials, clock=clock
        )
        _asked(lambda: jobs.offer(self.job.signed, rosters.take(self._members.roster.signed)))
        checks = TaskChecks(
            credentials=credentials,
            jobs=jobs,
            rosters=rosters,
            data_sets=data_sets,
            first_states=FirstStates(folder / "first", data_sets=data_sets),
            metrics=SiloMetrics(),
            clock=clock,
        )
        self._open.callback(checks.close)
        sums = RevealedSums(
            jobs=jobs,
            rosters=rosters,
            known=known,
            data_sets=data_sets,
            files=files,
            local=local,
            downloads=_Downloads(self._shown),
            audit=audit,
            metrics=SiloMetrics(),
        )
        chain = StateChain(silo=name, known=known, data_sets=data_sets, local=local, credentials=credentials)
        return _Silo(
            reveals=data_set.reveals,
            data_set=data_set,
            checks=checks,
            chain=chain,
            sums=sums,
            files=files,
        )


class _Downloads:
    """The coordinator's transfers: they hand out the one sum that is being shown."""

    def __init__(self, shown: Path) -> None:
        self._shown = shown

    async def download(
        self, *, job_digest: bytes, digest: bytes, size_bytes: int, target: Path, is_kept: bool = True
    ) -> None:
        target.write_bytes(self._shown.read_bytes())


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

    def check_of(self, name: str) -> SumCheck:
        """What a silo keeps to check the sum with, once it masked."""
        return self._checks[name]

    def ledger(self, name: str) -> RevealLedger:
        return self._ledgers[name] if name in self._ledgers else super().ledger(name)


def _key(terms: SessionTerms) -> PhaseKey:
    return PhaseKey(job_digest=terms.job_digest, round=terms.round, phase=terms.phase, attempt=terms.attempt)


def _asked(act: Callable[[], Answer]) -> Answer:
    try:
        return act()
    except (PolicyRefusal, RemoteProtocolError) as refusal:
        raise Refused(str(refusal)) from refusal
