"""What the coordinator tells this console's operator: asked by few calls, however many browsers look on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain

import grpc

from chorale.credentials import CredentialFiles
from chorale.observability.logs import get_logger
from chorale.runtime.files import Part
from chorale.spec.line_settings import LineSettings
from chorale.transport import tls
from chorale.transport.channel_options import KEEPALIVE_SECONDS, client_options
from chorale.v1 import operations_pb2 as pb
from chorale.v1.operations_pb2_grpc import OperationsStub
from chorale.v1.records_pb2 import JobSummary
from client.evidence.pack import collect
from client.evidence.verify import Verified, examine
from client.history import JobHistory
from client.operations import connect, of_job
from crypto.errors import ChoraleError, RemoteProtocolError
from crypto.identity.certificates import Identity, Role
from strategies.phases.training import TRAIN
from web.console.settings import ConsoleSettings

ASK_SECONDS = 10.0  # for an answer of the coordinator
FRESH_SECONDS = 1.0  # how old an overview may be
REPLAY_SECONDS = 5.0  # for a job's history
IDLE_SECONDS = 60.0  # a job that nobody looks at is no longer watched
MOST_WATCHED = 64  # jobs at once
RETRY_SECONDS = 2.0
GOING_ON = ("running", "paused")  # a job's status until it ends

log = get_logger("web.console.coordinator")


class Unavailable(ChoraleError):
    """The coordinator did not answer, or refused. `is_refusal`: it answered."""

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The federation at a moment. seen: Unix seconds by silo when this console saw it connected last."""

    silos: pb.ListSilosReply
    jobs: tuple[JobSummary, ...]
    seen: dict[str, float]


@dataclass(slots=True, kw_only=True)
class Watched:
    """One job as it is told. `changed` is replaced with each news; `trouble` says why there are none."""

    digest: bytes
    history: JobHistory = field(default_factory=JobHistory)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = ""
    has_ended: bool = False
    readers: int = 0
    used: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def spec_bytes(self) -> bytes:
        """The job as it was signed; none where the coordinator sent another than the one asked for."""
        signed = self.history.signed
        if signed is None or hashlib.sha256(signed.spec_bytes).digest() != self.digest:
            return b""
        return signed.spec_bytes

    @property
    def is_replayed(self) -> bool:
        """Whether the records so far are there: as many rounds as the summary counts, or all of them."""
        summary = self.history.summary
        if self.has_ended or summary.status not in GOING_ON:
            return self.has_ended
        if len(self.history.records) < summary.rounds_completed:  # before they are counted one by one
            return False
        applied = sum(record.result == "applied" for record in self.history.of_kind(TRAIN))
        return applied >= summary.rounds_completed

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Coordinator:
    """The coordinator, as this console's own identity sees it."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        identity: Identity,
        *,
        settings: LineSettings,
        clock: Callable[[], float],
    ) -> None:
        self.own_name = identity.member.name
        self._settings = settings
        self._stub: OperationsStub = OperationsStub(channel)
        self._clock = clock
        self._overview: Overview | None = None
        self._asked = float("-inf")
        self._asking = asyncio.Lock()
        self._seen: dict[str, float] = {}
        self._watched: dict[bytes, Watched] = {}

    async def overview(self) -> Overview:
        """Silos and jobs, newest first. Raises Unavailable."""
        async with self._asking:
            if self._overview is None or self._clock() - self._asked > FRESH_SECONDS:
                with _as_unavailable():
                    silos = await self._stub.ListSilos(pb.ListSilosRequest(), timeout=ASK_SECONDS)  # type: ignore[misc]
                    listed = await self._stub.ListJobs(pb.ListJobsRequest(), timeout=ASK_SECONDS)  # type: ignore[misc]
                now = datetime.now(UTC).timestamp()
                self._seen |= {silo.name: now for silo in silos.silos if silo.connected}
                jobs = sorted(listed.jobs, key=lambda job: -job.submitted_unix_seconds)
                self._overview = Overview(silos=silos, jobs=tuple(jobs), seen=dict(self._seen))
                self._asked = self._clock()
            return self._overview

    async def try_once(self) -> None:
        """Say in the log what pages would say. No error: both may be repaired while the console runs."""
        try:
            await self.overview()
        except Unavailable as error:
            log.warning(
                "coordinator refuses this console" if error.is_refusal else "coordinator does not answer",
                operator=self.own_name,
                reason=str(error),
            )

    async def job(self, job_id: str) -> JobSummary | None:
        """The one job whose digest is this, in hexadecimal. Raises Unavailable."""
        jobs = (await self.overview()).jobs
        return next((job for job in jobs if job.job_digest.hex() == job_id), None)

    @asynccontextmanager
    async def watched(self, digest: bytes) -> AsyncIterator[Watched]:
        """A job, with all that was told of it so far. Raises Unavailable where its history does not come."""
        self._sweep()
        job = self._watched.get(digest)
        if job is None:
            if len(self._watched) >= MOST_WATCHED:
                raise Unavailable(f"{MOST_WATCHED} jobs are looked at already: try again in a minute")
            job = self._watched[digest] = Watched(digest=digest)
            job.task = asyncio.create_task(self._follow(digest, job))
        job.readers += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(REPLAY_SECONDS):
                    while not job.is_replayed and not job.trouble:
                        await job.changed.wait()
            if not job.history.summary.job_digest:
                raise Unavailable(job.trouble or "the coordinator does not tell of this job")
            yield job
        finally:
            job.readers -= 1
            job.used = self._clock()

    async def cancel(self, digest: bytes) -> JobSummary:
        """Raises Unavailable with what the coordinator said."""
        request = pb.ControlRequest(job_digest=digest, action=pb.ControlRequest.ACTION_CANCEL)
        with _as_unavailable():
            summary: JobSummary = await self._stub.ControlJob(request, timeout=ASK_SECONDS)  # type: ignore[misc]
        self._overview = None
        return summary

    async def model(self, digest: bytes) -> Iterator[Part]:
        """The bytes that `chorale job fetch` writes: with facts of the signed job, none of the coordinator's.

        Raises ChoraleError before the first of them.
        """

        def parts() -> Iterator[Part]:
            with connect(self._settings) as (operations, _):
                yield from operations.fetch(digest)[1]

        fetched = parts()
        first = await asyncio.to_thread(next, fetched, b"")
        return chain([first], fetched)

    async def evidence(self, digest: bytes) -> bytes:
        """What `chorale job evidence` writes, signed by this console's identity. Raises ChoraleError."""

        def collected() -> bytes:
            with connect(self._settings) as (operations, identity):
                authority = tls.load_authority(self._settings.authority)
                return collect(operations, digest, identity=identity, authority=authority)

        return await asyncio.to_thread(collected)

    async def proof(self, digest: bytes) -> Verified:
        """What that evidence proves, under this console's own authority, and what is unproved. Raises
        ChoraleError."""
        data = await self.evidence(digest)
        authority = tls.load_authority(self._settings.authority)
        return await asyncio.to_thread(examine, data, authority=authority)

    async def close(self) -> None:
        tasks = [job.task for job in self._watched.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, digest: bytes, job: Watched) -> None:
        """Until the job ends; through a restart of the coordinator, too."""
        while not job.has_ended:
            try:
                async for event in self._stub.WatchJob(pb.WatchRequest(job_digest=digest)):  # type: ignore[attr-defined]
                    job.history.add(of_job(event, digest))
                    job.trouble = ""
                    job.tell()
                job.has_ended = True
            except (grpc.aio.AioRpcError, RemoteProtocolError) as error:
                job.trouble = _words(error) if isinstance(error, grpc.aio.AioRpcError) else str(error)
                log.warning("a job's stream broke", job=digest.hex()[:12], reason=job.trouble)
                job.tell()
                await asyncio.sleep(RETRY_SECONDS)
        job.tell()

    def _sweep(self) -> None:
        """Forget jobs that nobody looked at for a while."""
        now = self._clock()
        for digest, job in list(self._watched.items()):
            if job.readers == 0 and now - job.used > IDLE_SECONDS:
                if job.task is not None:
                    job.task.cancel()
                del self._watched[digest]


@asynccontextmanager
async def connected(settings: ConsoleSettings, *, clock: Callable[[], float]) -> AsyncIterator[Coordinator]:
    """The coordinator, as the operator of the settings. Raises ConfigError for bad files."""
    identity, authority = CredentialFiles(
        settings.identity,
        settings.authority,
        role=Role.OPERATOR,
        federation=settings.federation,
        clock=partial(datetime.now, UTC),
    ).read()
    options = client_options(settings.route(), keepalive_seconds=KEEPALIVE_SECONDS)
    credentials = tls.channel_credentials(identity, authority)
    async with grpc.aio.secure_channel(settings.coordinator, credentials, options=options) as channel:
        coordinator = Coordinator(channel, identity, settings=settings, clock=clock)
        try:
            yield coordinator
        finally:
            await coordinator.close()


class _as_unavailable:
    """Turns what gRPC raises into Unavailable."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            is_refusal = error.code() not in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.UNKNOWN,
            )
            raise Unavailable(_words(error), is_refusal=is_refusal) from None


def _words(error: grpc.aio.AioRpcError) -> str:
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return "the coordinator does not answer; this page tries again"
    return f"the coordinator refused: {error.details() or error.code().name.lower()}"
