"""What this silo contributes to a phase: computed once and reused by every attempt at it.

Which values these are is phase_input.py's; here are when they are computed, how long they are kept and what
they cost. No message of a session reaches this module. Source: docs/protocol.md 4, 7.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chorale.job import Job
from chorale.observability.logs import get_logger
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError, SiloStage
from crypto.fixed_point.encoder import Encoder
from silo_agent.disclosure.ledger.budget import Charge
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.personal_models import PersonalModels
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds.data_sets import DataSets
from silo_agent.rounds.inputs.compute_process import ComputeProcess
from silo_agent.rounds.inputs.own_steps import own_lengths
from silo_agent.training.analysis.table import DescribedTable
from silo_agent.training.data.base import SiloData
from silo_agent.training.machine.seeding import fresh_seed
from silo_agent.training.objective import Cancelled, Objective, Work
from silo_agent.training.phase_input import (
    DataRefusal,
    PhaseRequest,
    cut_holdout,
    described_values,
    encoded,
    phase_values,
)
from strategies.analysis.method import KINDS
from strategies.base import Array

log = get_logger("silo_agent.rounds.inputs.input_cache")

# answers to a private job leave at multiples of it since their task came: the time tells no number of records
ANSWER_EVERY_SECONDS = 0.25
LoadData = Callable[[Job, Callable[[], bool]], SiloData]  # the second: is_cancelled
LoadTable = Callable[[Job, int, Callable[[], bool]], DescribedTable]
PhaseName = tuple[bytes, int, str]  # job digest, round, phase: what one input belongs to


def phase_name(key: PhaseKey) -> PhaseName:
    """The key without its attempt: all attempts at a phase have one input."""
    return key.job_digest, key.round, key.phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An input, and what it costs to send it; the charge must be spent before a byte leaves."""

    encoder: Encoder = field(repr=False)
    charge: Charge
    own_steps: Mapping[str, float] = field(repr=False)  # how far it would move each array that training reads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    state_digest: bytes
    layout_digest: bytes
    is_cancelled: threading.Event
    prepared: asyncio.Future[Prepared]
    asked_at: float  # by the cache's clock


class InputCache:
    """Computes one input at a time, in a thread of its own, concurrently with the event loop.

    process: computes those of private jobs; None: the thread, too. pause: the thread's sleep; None: until it
    is closed, at most.
    """

    def __init__(
        self,
        *,
        silo: str,
        data_sets: DataSets,
        metrics: SiloMetrics,
        local: LocalStates,
        personal: PersonalModels,
        load_data: LoadData,
        load_table: LoadTable,
        load_objective: Callable[[], Objective],
        tell_stage: Callable[[SiloStage | None], None],
        process: ComputeProcess | None = None,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._silo = silo
        self._data_sets = data_sets
        self._metrics = metrics
        self._local = local
        self._personal = personal
        self._load_data, self._load_table = load_data, load_table
        self._tell_stage = tell_stage
        self._objective = _MeasuredObjective(load=load_objective, metrics=metrics)
        self._is_closing = threading.Event()
        self._process, self._pause = process, pause or self._is_closing.wait
        self._clock, self._sleep = clock, sleep
        self._data: dict[bytes, SiloData] = {}
        self._tables: dict[bytes, DescribedTable] = {}
        self._entries: dict[PhaseName, _Entry] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        self._ahead: Future[None] | None = None

    @property
    def is_loading_ahead(self) -> bool:
        """Whether a thread imports torch, which nothing can end but the end of this process."""
        return self._ahead is not None and self._ahead.running()

    def warm_ahead(self) -> None:
        """Begin, once, to load what jobs need here: the process of private ones where every policy wants them
        private, else the objective. Nobody waits for it.

        Security: settings and policies alone decide, and no data are touched.
        """
        if self._ahead is None:
            is_private = all(policy.privacy.required for policy in self._data_sets.policies.values())
            self._ahead = self._worker.submit(self._warm_ahead, is_private)

    def _warm_ahead(self, is_private: bool) -> None:
        started = time.monotonic()
        try:
            self._computing(is_private).warm_up()
        except Exception as error:  # an author's, torch's; the first task tries again and says it
            if not self._is_closing.is_set():
                log.warning("training not loaded", error=type(error).__name__, reason=str(error))
        else:
            log.info("training loaded", seconds=round(time.monotonic() - started, 3))

    def _computing(self, is_private: bool) -> _MeasuredObjective | ComputeProcess:
        return self._process if self._process is not None and is_private else self._objective

    async def warm_up(self, job: Job) -> None:
        """Load the objective, and torch with it, where the job's inputs are computed, and say so: that may
        take half a minute.

        Security: before the data are touched, so that how long it took tells nothing of them.
        """
        if isinstance(job.spec, AnalysisSpec):
            return
        warm = self._computing(job.spec.privacy is not None)
        if warm.is_warm:
            return
        self._tell_stage(SiloStage.LOADING_TORCH)
        try:
            await asyncio.get_running_loop().run_in_executor(self._worker, warm.warm_up)
        finally:
            self._tell_stage(None)

    async def get(self, request: PhaseRequest, *, state_digest: bytes) -> Prepared:
        """The phase's only input, its cost reserved before the data were touched.

        Raises PolicyRefusal(code=STATE) for another state or layout than the first attempt's,
        PolicyRefusal(code=BUDGET) where the data set's budget does not cover it,
        PolicyRefusal(code=POLICY) where too many were refused for the data set, and what
        `phase_values` raises. Of a job without noise that is counted before it is raised, of a private one it
        is raised when an input would be returned.
        """
        name, layout_digest = phase_name(request.key), request.layout.digest
        entry = self._entries.get(name)
        if entry is None:
            self._drop_unsent(request.key.job_digest)
            cancelled = threading.Event()
            computing = asyncio.get_running_loop().run_in_executor(
                self._worker, self._compute, request, state_digest, cancelled.is_set, self._clock()
            )
            # its attempt may be gone by then, and nothing else would look at the error
            computing.add_done_callback(lambda done: done.cancelled() or done.exception())
            entry = self._entries[name] = _Entry(
                state_digest=state_digest,
                layout_digest=layout_digest,
                is_cancelled=cancelled,
                prepared=computing,
                asked_at=self._clock(),
            )
        if (state_digest, layout_digest) != (entry.state_digest, entry.layout_digest):
            raise request.refusal("another global state or layout than before", Refusal.STATE)
        try:
            prepared = await asyncio.shield(entry.prepared)
        except asyncio.CancelledError:
            raise
        except BaseException:
            # nothing was computed, so a later attempt may try again
            if self._entries.get(name) is entry:
                del self._entries[name]
            await self._answer_time(request.job, entry)
            raise
        await self._answer_time(request.job, entry)
        return prepared

    async def _answer_time(self, job: Job, entry: _Entry) -> None:
        """Of a private job: the next multiple of ANSWER_EVERY_SECONDS since the phase's input was first
        asked for, by whichever attempt. Security: the time it took tells how many records were drawn."""
        if job.spec.privacy is not None:
            await self._sleep((entry.asked_at - self._clock()) % ANSWER_EVERY_SECONDS)

    def drop_phase(self, key: PhaseKey) -> None:
        """The phase is over: its input is never needed again."""
        if phase_name(key) in self._entries:
            self._drop(phase_name(key))

    def drop_older(self, key: PhaseKey) -> None:
        """Rounds before the key's: the ledger refuses them once this silo adverted for a later one."""
        for name in [name for name in self._entries if name[0] == key.job_digest and name[1] < key.round]:
            self._drop(name)

    def drop_job(self, job_digest: bytes) -> None:
        self._data.pop(job_digest, None)
        self._tables.pop(job_digest, None)
        if self._process is not None:
            with suppress(RuntimeError):  # closed meanwhile
                self._worker.submit(self._process.forget, job_digest)
        for name in [name for name in self._entries if name[0] == job_digest]:
            self._drop(name)

    async def drop_data(self) -> None:
        """Data are read again for each job, once what is being computed is done."""
        for name in list(self._entries):
            self._drop(name)
        for held in (self._data, self._tables):
            await asyncio.get_running_loop().run_in_executor(self._worker, held.clear)
        if self._process is not None:
            await asyncio.get_running_loop().run_in_executor(self._worker, self._process.close)

    def close(self) -> None:
        """Ask running training to stop; it looks between batches."""
        for entry in self._entries.values():
            entry.is_cancelled.set()
        self._entries.clear()
        self._is_closing.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            self._process.end()

    def _drop_unsent(self, job_digest: bytes) -> None:
        """Drop the job's unsent inputs: it has one phase at a time."""
        for name in [name for name in self._entries if name[0] == job_digest]:
            prepared = self._entries[name].prepared
            is_sent = _has_result(prepared) and prepared.result().charge.is_spent
            if not is_sent:
                self._drop(name)

    def _drop(self, name: PhaseName) -> None:
        """It is not asked for again; what it reserved and did not spend is given back."""
        entry = self._entries.pop(name)
        entry.is_cancelled.set()
        if entry.prepared.done():
            self._give_back(entry.prepared)  # at once, so that it comes before the next reservation
        else:
            entry.prepared.add_done_callback(self._give_back)

    def _give_back(self, prepared: asyncio.Future[Prepared]) -> None:
        if _has_result(prepared) and not prepared.result().charge.is_spent:
            with suppress(RuntimeError):  # closed meanwhile: the next process gives it back
                self._worker.submit(prepared.result().charge.release)

    def _compute(
        self, request: PhaseRequest, state_digest: bytes, is_cancelled: Callable[[], bool], asked_at: float
    ) -> Prepared:
        job, key = request.job, request.key
        data_set = self._data_sets.of(job.digest)
        # here, where one input is computed at a time, so that none slips through
        (data_set.refusals if job.spec.privacy is None else data_set.failures).check(job.digest)
        charge = data_set.budget.reserve(
            job, key, request.context.state, members=request.rule.members, use=data_set.use_of(request)
        )
        try:
            if isinstance(job.spec, AnalysisSpec):
                return Prepared(encoder=self._described(request, is_cancelled), charge=charge, own_steps={})
            local = self._local.begin(key.job_digest)
            tuned = job.arms(key.phase, request.context.state)[0].job  # of a search, whose model is tuned
            started = time.monotonic()
            if self._process is not None and job.spec.privacy is not None:
                values = self._process.values(
                    request,
                    policy=data_set.policy,
                    seed=fresh_seed(),
                    local=local,
                    is_cancelled=is_cancelled,
                    until_look=partial(self._until_look, asked_at),
                )
            else:
                values = phase_values(
                    request,
                    silo=self._silo,
                    rules=data_set.policy,
                    load_data=partial(self._own_data, job, is_cancelled),
                    objective=self._objective,
                    is_cancelled=is_cancelled,
                    seed=fresh_seed(),
                    local=local,
                    keep_personal=partial(self._personal.keep, job=tuned, key=key, global_model=state_digest),
                )
            encoder = encoded(request, values)
            self._report(request, encoder, seconds=time.monotonic() - started)
            if is_cancelled():
                raise Cancelled("the input is no longer wanted")
            self._local.hold(key, local)
            if is_cancelled():  # while it was written: the job may have ended, and nothing would delete it
                self._local.give_up(key)
                raise Cancelled("the input is no longer wanted")
            has_steps = encoder.layout.tagged is not None and job.strategy.reads_state(key.kind)
            own_steps = own_lengths(job, key, request.context, values) if has_steps else {}
            return Prepared(encoder=encoder, charge=charge, own_steps=own_steps)
        except BaseException as error:
            charge.release()  # nothing left
            if isinstance(error, Exception):
                if is_cancelled():  # what is not counted does not leave
                    raise Cancelled("the input is no longer wanted") from error
                self._count(request, error)
            raise

    def _described(self, request: PhaseRequest, is_cancelled: Callable[[], bool]) -> Encoder:
        """The input of an analysis, which keeps nothing here between phases."""
        started = time.monotonic()
        values = described_values(
            request,
            rules=self._data_sets.of(request.job.digest).policy,
            load_table=partial(self._own_table, request, is_cancelled),
        )
        encoder = encoded(request, values)
        self._report(request, encoder, seconds=time.monotonic() - started)
        return encoder

    def _until_look(self, asked_at: float) -> None:
        """Until the middle between two times at which an answer may leave, so that what is taken then, and
        takes its time, still leaves at the next."""
        self._pause((asked_at + ANSWER_EVERY_SECONDS / 2 - self._clock()) % ANSWER_EVERY_SECONDS)

    def _count(self, request: PhaseRequest, error: Exception) -> None:
        """Durable before the refusal leaves. Security: other failures may be due to the data, too: a private
        job takes memory by the number of records, times what the job chooses."""
        data_set = self._data_sets.of(request.job.digest)
        refusals, is_of_data = data_set.refusals, isinstance(error, DataRefusal)
        if request.job.spec.privacy is not None:
            refusals, is_of_data = data_set.failures, False
            if isinstance(error, RemoteProtocolError):
                return
        if isinstance(error, Cancelled | PolicyRefusal) and not is_of_data:
            return
        counted = refusals.record(request.job.digest, suspends=is_of_data)
        log.warning(
            "refusal counted",
            job=request.job.id,
            data_set=data_set.name,
            counted=counted,
            max_data_refusals=data_set.policy.max_data_refusals,
            is_closed=counted > data_set.policy.max_data_refusals,
        )

    def _report(self, request: PhaseRequest, encoder: Encoder, *, seconds: float) -> None:
        self._metrics.training_seconds.inc(seconds)
        self._metrics.clipped.inc(encoder.clipped_total)
        log.info(
            "input ready",
            job=request.job.id,
            round=request.key.round,
            phase=request.key.phase,
            seconds=round(seconds, 3),
            clipped=encoder.clipped_total,
        )

    def _own_data(self, job: Job, is_cancelled: Callable[[], bool]) -> SiloData:
        """Loaded once per job, and again where somebody withdrew; the hold-out cut as its size is summed."""
        held = self._data.get(job.digest)
        if held is None or not held.is_current:
            data, policy = self._load_data(job, is_cancelled), self._data_sets.of(job.digest).policy
            self._data[job.digest] = cut_holdout(data, job=job, rules=policy)
        return self._data[job.digest]

    def _own_table(self, request: PhaseRequest, is_cancelled: Callable[[], bool]) -> DescribedTable:
        """As `_own_data`, of an analysis, whose exact sums are all of the same records: counts with and
        without one would be that record."""
        job, data_set = request.job, self._data_sets.of(request.job.digest)
        held = self._tables.get(job.digest)
        if held is None or not held.is_current:
            most = data_set.policy.most_records
            held = self._tables[job.digest] = self._load_table(job, most, is_cancelled)
        if request.key.kind in KINDS and not data_set.reveals.are_first_records(job.digest, held.digest):
            why = "other records than the analysis counted first"
            raise request.refusal(why, Refusal.DATA, kind=DataRefusal)
        return held


@dataclass(slots=True, kw_only=True)
class _MeasuredObjective:
    """The silo's objective, loaded for the first phase, and how fast it trains."""

    load: Callable[[], Objective]
    metrics: SiloMetrics
    loaded: Objective | None = None

    @property
    def is_warm(self) -> bool:
        return self.loaded is not None

    def warm_up(self) -> Objective:
        if self.loaded is None:
            self.loaded = self.load()
        return self.loaded

    def compute(self, work: Work) -> Mapping[str, Array]:
        objective = self.warm_up()
        started = time.monotonic()
        values = objective.compute(work)
        # Security: in a private job the number of records is what noise hides
        if work.phase_kind == "train" and work.spec.privacy is None:
            samples = len(work.data.train)
            seen = samples * work.spec.training.passes_over(samples)
            self.metrics.samples_rate.set(seen / max(time.monotonic() - started, 1e-9))
        return values


def _has_result(work: asyncio.Future[Any]) -> bool:
    return work.done() and not work.cancelled() and work.exception() is None
