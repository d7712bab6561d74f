"""x(u): what this silo contributes to a phase, computed once and reused by every attempt at it.

It depends on the silo's data, its policy, the job and the global state alone; no message of a
session reaches this module. Source: docs/protocol.md 4, 7.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.job import Job
from chorale.logs import get_logger
from chorale.privacy import declared_weight
from chorale.wire import PhaseKey
from crypto.encoder import Encoder
from crypto.errors import ConfigError, PolicyRefusal, QuantisationError, Refusal
from crypto.messages import SessionTerms
from silo_agent.budget import Budget, Charge
from silo_agent.data.base import SiloData
from silo_agent.metrics import SiloMetrics
from silo_agent.objective import Cancelled, Objective, Work
from silo_agent.policy import Policy
from strategies.base import PRESENCE, TOTAL, Array, Arrays
from strategies.update_scale import with_mean_square

log = get_logger("silo_agent.inputs")

WEIGHT = "weight"  # the quantity that carries p
PhaseName = tuple[bytes, int, str]  # job digest, round, phase: what one input belongs to


class DataRefusal(PolicyRefusal):
    """Refused because of what this silo's data make of the received state.

    Security: the coordinator chooses the state, so the refusal answers a question of its choice
    about one silo's data. It must be the last one. Source: docs/protocol.md 6.7.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One phase of one job, as every attempt at it sees it."""

    job: Job
    key: PhaseKey
    terms: SessionTerms
    state: Arrays = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An input, and what it costs to send it; the charge must be spent before a byte leaves."""

    encoder: Encoder = field(repr=False)
    charge: Charge


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    state_digest: bytes
    layout_digest: bytes
    is_cancelled: threading.Event
    prepared: asyncio.Future[Prepared]


class Inputs:
    """Computes one input at a time, in a thread of its own, while the event loop goes on."""

    def __init__(
        self,
        *,
        silo: str,
        policy: Policy,
        budget: Budget,
        metrics: SiloMetrics,
        load_data: Callable[[Job], SiloData],
        load_objective: Callable[[], Objective],
    ) -> None:
        self._silo = silo
        self._policy = policy
        self._budget = budget
        self._metrics = metrics
        self._load_data = load_data
        self._load_objective = load_objective
        self._objective: Objective | None = None
        self._data: dict[bytes, SiloData] = {}
        self._entries: dict[PhaseName, _Entry] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")

    async def get(self, request: Request) -> Prepared:
        """The phase's only input, its cost reserved before the data were touched.

        Raises PolicyRefusal(code=STATE) for another state or layout than the first attempt's,
        PolicyRefusal(code=BUDGET) where the data set's budget does not cover it, and
        PolicyRefusal(code=DATA) where data or counts do not allow one, DataRefusal where it is the
        state over these data that does not.
        """
        name = _name(request.key)
        entry = self._entries.get(name)
        if entry is None:
            self._drop_unsent(request.key.job_digest)
            entry = self._entries[name] = self._start(request)
        digests = request.terms.state_digest, request.terms.layout.digest
        if digests != (entry.state_digest, entry.layout_digest):
            raise _refusal(request, "another global state or layout than before", Refusal.STATE)
        try:
            return await asyncio.shield(entry.prepared)
        except asyncio.CancelledError:
            raise
        except BaseException:
            # nothing was computed, so a later attempt may try again
            if self._entries.get(name) is entry:
                del self._entries[name]
            raise

    def drop_phase(self, key: PhaseKey) -> None:
        """The phase is over: its input is never needed again."""
        entry = self._entries.pop(_name(key), None)
        if entry is not None:
            self._drop(entry)

    def drop_older(self, key: PhaseKey) -> None:
        """Rounds before the key's: the ledger refuses them once this silo adverted for a later one."""
        for name in [name for name in self._entries if name[0] == key.job_digest and name[1] < key.round]:
            self._drop(self._entries.pop(name))

    def drop_job(self, job_digest: bytes) -> None:
        self._data.pop(job_digest, None)
        for name in [name for name in self._entries if name[0] == job_digest]:
            self._drop(self._entries.pop(name))

    def close(self) -> None:
        """Ask running training to stop; it looks between batches."""
        for entry in self._entries.values():
            entry.is_cancelled.set()
        self._entries.clear()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _drop_unsent(self, job_digest: bytes) -> None:
        """A job has one phase at a time: who asks for the next has given up what did not leave before."""
        for name in [name for name in self._entries if name[0] == job_digest]:
            prepared = self._entries[name].prepared
            is_sent = _has_result(prepared) and prepared.result().charge.is_spent
            if not is_sent:
                self._drop(self._entries.pop(name))

    def _drop(self, entry: _Entry) -> None:
        """Nobody will ask for it again; what it reserved and did not spend is given back."""
        entry.is_cancelled.set()
        if entry.prepared.done():
            self._give_back(entry.prepared)  # at once, so that it comes before the next reservation
        else:
            entry.prepared.add_done_callback(self._give_back)

    def _give_back(self, prepared: asyncio.Future[Prepared]) -> None:
        if _has_result(prepared):
            with suppress(RuntimeError):  # closed meanwhile: the next process gives it back
                self._worker.submit(prepared.result().charge.release)

    def _start(self, request: Request) -> _Entry:
        cancelled = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(
            self._worker, self._compute, request, cancelled.is_set
        )
        work.add_done_callback(_look_at)  # its attempt may be gone by then
        return _Entry(
            state_digest=request.terms.state_digest,
            layout_digest=request.terms.layout.digest,
            is_cancelled=cancelled,
            prepared=work,
        )

    def _compute(self, request: Request, is_cancelled: Callable[[], bool]) -> Prepared:
        charge = self._budget.reserve(
            request.job, request.key, request.state, members=request.terms.rule.members
        )
        try:
            encoder = self._encoder(request, is_cancelled)
            if is_cancelled():
                raise Cancelled("the input is no longer wanted")
            return Prepared(encoder=encoder, charge=charge)
        except BaseException:
            charge.release()  # nothing left
            raise

    def _encoder(self, request: Request, is_cancelled: Callable[[], bool]) -> Encoder:
        started = time.monotonic()
        try:
            values = _taken_over(self._values(request, is_cancelled))
            encoder = Encoder(values, layout=request.terms.layout)
        except ConfigError as error:
            raise _refusal(request, str(error), Refusal.DATA) from error
        except QuantisationError as error:
            raise DataRefusal(_said(request, str(error)), code=Refusal.DATA) from error
        seconds = time.monotonic() - started
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
        return encoder

    def _values(self, request: Request, is_cancelled: Callable[[], bool]) -> Mapping[str, Array]:
        data = self._own_data(request.job)
        samples = self._summed(request.job, len(data.train))
        is_private = request.job.spec.privacy is not None
        if samples == 0 and not is_private:  # in a private job a refusal would tell the last record
            least = self._policy.count_granularity
            raise _refusal(request, f"fewer than {least} samples (count_granularity)", Refusal.DATA)
        if request.key.kind == "roll-call":
            return {"silos": np.array(1), "samples": np.array(samples)}
        work = Work(
            spec=request.job.spec,
            phase_kind=request.key.kind,
            round=request.key.round,
            silo=self._silo,
            state=request.state,
            context=request.job.context(request.key, request.state, request.terms.rule.members),
            data=data,
            weight=_weight(request, samples),
            is_cancelled=is_cancelled,
            class_rows=self._class_rows(request),
        )
        return self._trained(work, samples=len(data.train))

    def _trained(self, work: Work, *, samples: int) -> Mapping[str, Array]:
        if self._objective is None:
            self._objective = self._load_objective()
        started = time.monotonic()
        values = self._objective.compute(work)
        if work.phase_kind == "train":
            seen = samples * work.spec.training.local_epochs
            self._metrics.samples_rate.set(seen / max(time.monotonic() - started, 1e-9))
        return with_mean_square(work.context, values)

    def _class_rows(self, request: Request) -> NDArray[np.bool_] | None:
        """Classes that enough silos hold, by the sum of presence; rows of the others stay here."""
        holders_C = request.state.get(PRESENCE)
        if holders_C is None:
            return None
        least = self._policy.min_class_holders or request.job.spec.min_class_holders(request.terms.rule)
        return np.asarray(holders_C >= least)

    def _own_data(self, job: Job) -> SiloData:
        """Loaded once per job, the hold-out cut as its size is summed."""
        if job.digest not in self._data:
            data = self._load_data(job)
            tested = self._summed(job, len(data.holdout))
            self._data[job.digest] = SiloData(
                train=data.train, holdout=data.holdout.first(tested), name=data.name
            )
        return self._data[job.digest]

    def _summed(self, job: Job, samples: int) -> int:
        """A count as it enters a sum: rounded, so that it tells no exact one; exact where noise covers it,
        because one record would move a rounded one by the whole granularity."""
        return samples if job.spec.privacy is not None else self._policy.rounded(samples)


def _weight(request: Request, samples: int) -> float:
    """p = n / total, with the total that roll-call left in the global state; 0 where none is sent.

    In a private job it is the declared one, which tells no count.
    """
    if all(quantity.name != WEIGHT for quantity in request.terms.layout.quantities):
        return 0.0
    if request.job.spec.privacy is not None:
        return declared_weight(request.job.spec, request.terms.rule.members)
    total = int(request.state[TOTAL]) if TOTAL in request.state else 0
    if samples > total:
        said = _said(request, "more samples than roll-call counted in all silos")
        raise DataRefusal(said, code=Refusal.NOT_ENROLLED)
    return samples / total


def _taken_over(values: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays that nobody can change any more, though they become words only when they are sent.

    One that owns its memory is locked, not copied: the objective gave it up. A view is copied.
    """
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    taken = {name: value if value.flags.owndata else value.copy() for name, value in arrays.items()}
    for array in taken.values():
        array.flags.writeable = False
    return {**values, **taken}


def _name(key: PhaseKey) -> PhaseName:
    return key.job_digest, key.round, key.phase


def _has_result(work: asyncio.Future[Any]) -> bool:
    return work.done() and not work.cancelled() and work.exception() is None


def _look_at(work: asyncio.Future[Prepared]) -> None:
    if not work.cancelled():
        work.exception()


def _refusal(request: Request, why: str, code: Refusal) -> PolicyRefusal:
    return PolicyRefusal(_said(request, why), code=code)


def _said(request: Request, why: str) -> str:
    return f"job {request.job.id} round {request.key.round} {request.key.phase}: {why}"
