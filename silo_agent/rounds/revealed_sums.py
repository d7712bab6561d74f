"""The end of a phase at a silo: check the revealed sum, compute the next global state, sign it.

Nothing here trusts the coordinator. t signatures say which silos are in the sum, tags that it is their sum,
and the method's own server step what follows from it. Source: docs/protocol.md 5.9, 5.10, 7.9.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from chorale.job import Job
from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog
from chorale.spec.state import GlobalState, state_from_file
from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Layout
from crypto.identity.certificates import SignedBody
from crypto.masking.stored_sum import StoredSum
from crypto.session import bodies
from crypto.session.messages import NextState, RevealedSum
from crypto.session.sum_check import SumCheck
from silo_agent.disclosure.ledger.known_states import KnownState, KnownStates, Position
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.state_files import StateFiles
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds.data_sets import DataSets
from silo_agent.rounds.inputs.own_steps import step_lengths
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.rosters import Rosters
from strategies.phases.enrollment import draw_seed_in

MAX_LOGGED_ARRAYS = 20
MAX_BAD_SUMS = 1  # phases of a job whose sum may fail its check before the job is suspended

log = get_logger("silo_agent.rounds.revealed_sums")


class Downloads(Protocol):
    """silo_agent.connection.transfer has it."""

    def download(
        self, *, job_digest: bytes, digest: bytes, size_bytes: int, target: Path, is_kept: bool
    ) -> Awaitable[None]: ...


class RevealedSums:
    """Answers revealed sums; the same sum always gets the same answer, also after a restart."""

    def __init__(
        self,
        *,
        jobs: OfferedJobs,
        rosters: Rosters,
        known: KnownStates,
        data_sets: DataSets,
        files: StateFiles,
        local: LocalStates,
        downloads: Downloads,
        audit: AuditLog,
        metrics: SiloMetrics,
    ) -> None:
        self._jobs = jobs
        self._rosters = rosters
        self._known = known
        self._data_sets = data_sets
        self._files = files
        self._local = local
        self._downloads = downloads
        self._audit = audit
        self._metrics = metrics
        self._fetching: Counter[bytes] = Counter()
        self._computing = 0

    @property
    def fetching(self) -> frozenset[bytes]:
        """Digests of the sums that are on their way."""
        return frozenset(+self._fetching)

    @property
    def is_computing(self) -> bool:
        """Whether a state is being written that is not yet the newest known."""
        return self._computing > 0

    async def answer(
        self, key: PhaseKey, revealed: RevealedSum, *, own_steps: Mapping[str, float]
    ) -> SignedBody:
        """This silo's statement on the phase, durable before it is returned.

        own_steps: how far this silo by itself moves each array that training reads; empty if not known.

        Raises PolicyRefusal or RemoteProtocolError: code STATE where a later state is known; code SUM where
        the sum is not that of the named silos, which the second time suspends the job here.
        """
        job = self._jobs.approved(key.job_digest, self._rosters.current)
        if (signed := self._known.signed(key)) is not None:
            return signed
        check = self._known.check_of(key)
        if check is None:
            raise RemoteProtocolError("revealed sum: this silo has no part in it", code=Refusal.STAGE)
        if self._known.has_bad_sum(key):
            # Security: a wrong sum passes with 2^-66 if it is the only one that is tried
            raise RemoteProtocolError("revealed sum: another sum of this phase failed", code=Refusal.SUM)
        check.check_survivors(revealed.survivors, revealed.signatures)
        reveals = self._data_sets.of(key.job_digest).reveals
        reveals.settle(key.job_digest, key.round, key.phase, revealed.survivors)
        self._check_not_behind(key, job.position(key.round, key.phase))
        try:
            signed, steps = await self._answer(key, revealed, job, check)
        except RemoteProtocolError as error:
            if error.code is Refusal.SUM:
                self._note_bad_sum(key, str(error))
            raise
        self._compare(key, steps, own_steps)
        return signed

    async def _answer(
        self, key: PhaseKey, revealed: RevealedSum, job: Job, check: SumCheck
    ) -> tuple[SignedBody, Mapping[str, float]]:
        """The statement, and how far each array that training reads moved."""
        before = self._files.state(check.state_digest)
        if not before.exists():
            raise PolicyRefusal("revealed sum: the global state before it is not here", code=Refusal.STATE)
        state = await asyncio.to_thread(state_from_file, before)
        layout = job.layout(key, state, check.members)
        if layout.digest != check.layout_digest or layout.tagged is None:
            raise RemoteProtocolError("revealed sum: of another layout", code=Refusal.TERMS)
        path = self._files.sum(revealed.sum_digest)
        self._fetching[revealed.sum_digest] += 1
        try:
            await self._downloads.download(
                job_digest=key.job_digest,
                digest=revealed.sum_digest,
                size_bytes=layout.tagged.total_bytes,
                target=path,
                is_kept=False,  # an agent that starts deletes it
            )
            self._computing += 1
            try:
                following = await asyncio.to_thread(
                    self._computed,
                    job,
                    key,
                    state,
                    path,
                    layout=layout.tagged,
                    check=check,
                    revealed=revealed,
                )
                return self._settled(key, revealed, check, following), following.steps
            finally:
                self._computing -= 1
        finally:
            self._fetching[revealed.sum_digest] -= 1
            path.unlink(missing_ok=True)  # the state that follows from it is kept

    def _computed(
        self,
        job: Job,
        key: PhaseKey,
        state: GlobalState,
        path: Path,
        *,
        layout: Layout,
        check: SumCheck,
        revealed: RevealedSum,
    ) -> _NextState:
        """The next global state, on disk. Blocks. Raises RemoteProtocolError(code=SUM) for a false sum."""
        check.check_sum(np.memmap(path, np.uint8, "r").data, layout, revealed.survivors)
        seeds = None
        if job.opens_draw(key.round, key.phase):
            check.check_self_mask_seeds(revealed.self_mask_seeds, revealed.survivors)
            seeds = revealed.self_mask_seeds
        result = job.outcome(
            key.phase,
            job.context(key, state, check.members),
            StoredSum(path, layout=layout),
            survivors=len(revealed.survivors),
            self_mask_seeds=seeds,
        )
        following = state if result.state is None else result.state
        return _NextState(
            digest=check.state_digest if following is state else self._files.put(following),
            draw_seed=draw_seed_in(following),
            is_applied=result.state is not None,
            position=job.position(key.round, key.phase),
            steps={} if following is state else step_lengths(job, key.phase, state, following),
        )

    def _settled(
        self, key: PhaseKey, revealed: RevealedSum, check: SumCheck, following: _NextState
    ) -> SignedBody:
        said = NextState(
            federation=check.federation,
            session_digest=check.session_digest,
            cohort_digest=check.cohort_digest,
            sender=check.name,
            survivors=revealed.survivors,
            parent_digest=check.state_digest,
            sum_digest=revealed.sum_digest,
            next_digest=following.digest,
            draw_seed=following.draw_seed,
        )
        self._check_not_behind(key, following.position)
        signed = bodies.sign(self._rosters.own_in(key.job_digest, key.round, key.phase), said)
        newest = KnownState(
            position=following.position, state_digest=following.digest, draw_seed=following.draw_seed
        )
        # t silos signed that this silo's input is in the sum, whose effect it knows; before the outcome is
        # recorded, because what is recorded is not computed again after a crash
        self._local.settle(key, is_applied=following.is_applied and check.name in revealed.survivors)
        self._known.sign(key, signed, newest)
        log.info(
            "next state computed",
            job=key.job_digest.hex()[:12],
            round=key.round,
            phase=key.phase,
            applied=following.is_applied,
            state=following.digest.hex()[:12],
        )
        return signed

    def _check_not_behind(self, key: PhaseKey, position: Position) -> None:
        """No later state may be known: it need not follow from this sum, and local state goes with it."""
        newest = self._known.newest(key.job_digest)
        if newest is not None and newest.position > position:
            raise PolicyRefusal("revealed sum: a later global state is known here", code=Refusal.STATE)

    def _compare(self, key: PhaseKey, steps: Mapping[str, float], own_steps: Mapping[str, float]) -> None:
        """A state that moved too far is computed and signed like any other; this silo gives no more input."""
        exceeded = self._data_sets.of(key.job_digest).steps.note(key, steps=steps, own=own_steps)
        if not exceeded:
            return
        self._metrics.long_steps.inc()
        log.error(
            "global state moved too far", arrays=exceeded[:MAX_LOGGED_ARRAYS], job=key.job_digest.hex()[:12]
        )
        self._audit.append(
            "long_step",
            job=key.job_digest.hex(),
            round=key.round,
            phase=key.phase,
            arrays=", ".join(exceeded[:MAX_LOGGED_ARRAYS]),
        )

    def _note_bad_sum(self, key: PhaseKey, reason: str) -> None:
        """It cannot be said who lied: a silo that sent false tags, or the coordinator."""
        count = self._known.note_bad_sum(key)
        self._audit.append(
            "sum_refused", job=key.job_digest.hex(), round=key.round, phase=key.phase, reason=reason
        )
        if count > MAX_BAD_SUMS:
            self._jobs.suspend(key.job_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NextState:
    """Of a phase that is over. is_applied: whether the sum changed anything, or may have. steps: how far each
    array that training reads moved."""

    digest: bytes
    draw_seed: bytes
    is_applied: bool
    position: Position
    steps: Mapping[str, float]
