"""The state that a job starts from: this silo draws it itself, and a given one needs its policy's consent.

Security: starting weights that somebody chose can be built so that sums hold single records
(docs/threat-model.md). Source: docs/protocol.md 7.12.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from chorale.job import Job
from chorale.observability.logs import get_logger
from chorale.runtime.files import write_hashed
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.state import state_parts
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from silo_agent.disclosure.policy.policy import MAX_STATE_BYTES
from silo_agent.rounds.data_sets import DataSets
from silo_agent.training.machine.entry_point import load_entry_point
from silo_agent.training.models.starting import initial_state
from strategies.analysis.method import FIRST_STATE
from strategies.base import Array

SUFFIX = ".safetensors"
TRY = "silo_agent.training.plug_ins:checked"
NOT_THAT_OF_THE_JOB = "it is not the one that follows from the job"

log = get_logger("silo_agent.rounds.first_state")


class FirstStates:
    """First states by job, each drawn once, one at a time in a thread of its own."""

    def __init__(self, folder: Path, *, data_sets: DataSets) -> None:
        """folder: of this object alone; what an earlier run left in it is deleted."""
        self._folder = folder
        self._data_sets = data_sets
        self._files: dict[bytes, Future[Path | None]] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="first-state")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in folder.iterdir():
            left.unlink()

    async def file(self, job: Job) -> Path | None:
        """The file of the job's first state as it was drawn here; None for a given one, which policy allows.

        Raises PolicyRefusal where it is given and policy does not allow it.
        """
        if isinstance(job.spec, JobSpec) and not job.spec.model.is_built_in:
            return None  # given: `Policy.check_job` allowed it
        drawing = self._files.get(job.digest)
        if drawing is None or (drawing.done() and not _is_final(drawing)):
            drawing = self._files[job.digest] = self._worker.submit(self._drawn, job)
        return await asyncio.shield(asyncio.wrap_future(drawing))

    def forget(self, job_digest: bytes) -> None:
        drawing = self._files.pop(job_digest, None)
        if drawing is not None and not drawing.cancel():
            drawing.add_done_callback(_delete)

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _drawn(self, job: Job) -> Path | None:
        started = time.monotonic()
        _try_code(job)
        try:
            log.info("drawing the first state", job=job.id, method=job.strategy.name)
            arrays = drawn_arrays(job.spec, job.signed.base, max_bytes=MAX_STATE_BYTES)
        except ConfigError as error:
            self._check_given(job, why=str(error))
            return None
        digest = write_hashed(self._folder, state_parts(arrays), suffix=SUFFIX)
        path = self._folder / f"{digest.hex()}{SUFFIX}"
        log.info("first state drawn", job=job.id, seconds=round(time.monotonic() - started, 3))
        if digest.hex() != job.spec.initial_state:
            path.unlink()
            self._check_given(job, why=NOT_THAT_OF_THE_JOB)
            return None
        return path

    def _check_given(self, job: Job, *, why: str) -> None:
        log.info("first state is given", job=job.id, why=why)
        self._data_sets.named(job.spec).policy.check_given_state(job.spec, why=why)


def _try_code(job: Job) -> None:
    """Raises PolicyRefusal where the code of the job's distributions declares something else here, or fails
    on made-up samples."""
    if not job.spec.distributions:
        return
    try:
        load_entry_point(TRY, field="code of distributions cannot run here")(job.spec)
    except ConfigError as error:
        raise PolicyRefusal(f"job {job.id}: code: {error}", code=Refusal.CODE) from error


def drawn_arrays(spec: AnySpec, base: bytes | None, *, max_bytes: int) -> Mapping[str, Array]:
    """The first state that follows from the job. base: SignedJob.base. Raises ConfigError if none does."""
    if isinstance(spec, AnalysisSpec):
        return FIRST_STATE
    if not spec.model.is_built_in:
        raise ConfigError(f"model {spec.model.name} is not built in")
    if base is None:
        raise ConfigError("initial_state is not the last line of the job")
    return initial_state(spec, base=base, max_bytes=max_bytes)


def _is_final(drawing: Future[Path | None]) -> bool:
    """A full disk may have room later; what policy says stays."""
    if drawing.cancelled():
        return False
    return drawing.exception() is None or isinstance(drawing.exception(), PolicyRefusal)


def _delete(drawing: Future[Path | None]) -> None:
    if not drawing.cancelled() and drawing.exception() is None and (path := drawing.result()) is not None:
        path.unlink(missing_ok=True)
