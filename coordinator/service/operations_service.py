"""chorale.v1.Operations, the operators' side: jobs, their progress, their models.

gRPC codes are set here and nowhere below. Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from chorale.job import SignedJob
from chorale.runtime import disk
from chorale.runtime.disk import NoRoom
from chorale.spec.state import state_from_file
from chorale.transport import wire
from chorale.transport.chunks import chunk_of
from chorale.v1 import federation_pb2, operations_pb2_grpc, records_pb2
from chorale.v1 import operations_pb2 as pb
from coordinator.jobs.evidence import evidence_of
from coordinator.jobs.job_manager import JobManager, TooManyJobs
from coordinator.members.attendance import Attendance
from coordinator.resources import Resources
from coordinator.service.access import caller_of
from coordinator.service.service_errors import Context, errors_as_codes
from coordinator.service.streams import received, send
from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import Role
from crypto.identity.roster import Member

MAX_SUBMISSIONS = 4  # of one operator at once


class OperationsService(operations_pb2_grpc.OperationsServicer):
    """What operators ask for. A job is its signer's, not of who hands it in; the others may watch it."""

    def __init__(self, *, resources: Resources, job_manager: JobManager) -> None:
        self._resources = resources
        self._job_manager = job_manager
        self._submissions: Counter[str] = Counter()  # under way, by operator

    async def SubmitJob(
        self, request_iterator: AsyncIterator[pb.SubmitMessage], context: Context
    ) -> pb.SubmitReceipt:
        """The signed job first, then its initial state. Handing it in twice is no error. One operator may
        have so many under way: each may take `max_state_bytes` of disk."""
        path = self._resources.settings.spool_directory / f"submit-{secrets.token_hex(8)}"
        async with errors_as_codes(context):
            operator = caller_of(context).member.name
            if self._submissions[operator] >= MAX_SUBMISSIONS:
                raise TooManyJobs(f"submit: {MAX_SUBMISSIONS} jobs of {operator} are being handed in already")
            self._submissions[operator] += 1
            try:
                seconds = self._resources.settings.chunk_seconds
                messages = received(request_iterator, seconds=seconds, what="submit")
                return await self._submit(messages, path)
            except (OSError, sqlite3.OperationalError) as error:
                directory = self._resources.settings.directory
                if not disk.is_full(error, directory):
                    raise
                raise NoRoom(
                    f"submit: {disk.full_in_words(directory)}: try it again when there is room"
                ) from error
            finally:
                self._submissions[operator] -= 1
                path.unlink(missing_ok=True)
        raise AssertionError("unreachable: errors end the call")

    async def _submit(self, messages: AsyncIterator[pb.SubmitMessage], path: Path) -> pb.SubmitReceipt:
        first = await anext(aiter(messages), None)
        if first is None or first.WhichOneof("kind") != "job":
            raise RemoteProtocolError("submit: expected the signed job first")
        signed = SignedJob.from_wire(first.job)
        if self._resources.store.job(signed.digest) is None:
            job = await self._job_manager.check(signed)
            await self._receive(messages, path)
            await asyncio.to_thread(state_from_file, path)  # a bad file takes no time of the event loop
            self._job_manager.submit(job, path)
        return pb.SubmitReceipt(job_digest=signed.digest)

    async def _receive(self, messages: AsyncIterator[pb.SubmitMessage], path: Path) -> None:
        """The chunks of the initial state, in order. Raises RemoteProtocolError beyond `max_state_bytes`."""
        limit = self._resources.settings.max_state_bytes
        with path.open("xb") as file:
            async for message in messages:
                if message.WhichOneof("kind") != "chunk":
                    raise RemoteProtocolError("submit: expected chunks of the initial state")
                chunk = chunk_of(message.chunk)
                if chunk.offset != file.tell():
                    raise RemoteProtocolError(
                        f"submit: chunk at offset {chunk.offset}, expected {file.tell()}"
                    )
                if chunk.offset + len(chunk.data) > limit:
                    raise RemoteProtocolError(f"submit: the initial state exceeds {limit} bytes")
                file.write(chunk.data)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsReply:
        return pb.ListJobsReply(jobs=[self._job_manager.summary(row) for row in self._resources.store.jobs()])

    async def WatchJob(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.JobEvent]:
        """The job's summary and records, and each change of them until it has ended."""
        async with errors_as_codes(context):
            async for event in self._job_manager.watch(request.job_digest, once=request.once):
                yield event

    async def ControlJob(self, request: pb.ControlRequest, context: Context) -> records_pb2.JobSummary:
        """Pause, resume or cancel one's own job, or any as an admin; the answer is its summary."""
        async with errors_as_codes(context):
            caller = caller_of(context).member.name
            return await self._job_manager.control(request.job_digest, request.action, caller=caller)
        raise AssertionError("unreachable: errors end the call")

    async def FetchModel(  # type: ignore[override]  # a coroutine that writes, so that each write has a deadline
        self, request: pb.FetchRequest, context: Context
    ) -> None:
        """The job, then the global state that it hands out: for the job's operator alone."""
        async with errors_as_codes(context):
            row, path = self._job_manager.model(request.job_digest, caller=caller_of(context).member.name)
            seconds = self._resources.settings.chunk_seconds
            with path.open("rb") as file:
                message = pb.FetchMessage(summary=self._job_manager.summary(row), job=row.signed.to_wire())
                await send(context, message, seconds=seconds, what="fetch")
                offset = 0
                while data := await asyncio.to_thread(file.read, wire.CHUNK_BYTES):
                    message = pb.FetchMessage(chunk=federation_pb2.Chunk(offset=offset, data=data))
                    await send(context, message, seconds=seconds, what="fetch")
                    offset += len(data)

    async def FetchEvidence(  # type: ignore[override]  # as FetchModel
        self, request: pb.EvidenceRequest, context: Context
    ) -> None:
        """What the coordinator can show of a job, and its word on the rest: for the job's operator alone."""
        async with errors_as_codes(context):
            row, path = self._job_manager.model(request.job_digest, caller=caller_of(context).member.name)
            summary = self._job_manager.summary(row)
            messages = await asyncio.to_thread(evidence_of, self._resources, row, summary, path)
            seconds = self._resources.settings.chunk_seconds
            for message in messages:
                await send(context, message, seconds=seconds, what="evidence")

    async def ListSilos(self, request: pb.ListSilosRequest, context: Context) -> pb.ListSilosReply:
        """The silos on the roster, which of them are connected, and what they say that they run."""
        roster = self._resources.roster_book.current
        silos = [
            _status(member, self._resources.attendance)
            for member in roster.members
            if member.role is Role.SILO
        ]
        own = self._resources.software
        return pb.ListSilosReply(
            roster_version=roster.version,
            silos=silos,
            software_version=own.version,
            software_digest=bytes.fromhex(own.sha256),
        )


def _status(member: Member, attendance: Attendance) -> pb.SiloStatus:
    connection = attendance.connections.get(member.name)
    status = pb.SiloStatus(name=member.name, certificate_sha256=member.fingerprint)
    status.two_agents = attendance.has_two_agents(member.name)
    if connection is not None:
        status.connected = True
        status.certificate_expires_unix_seconds = connection.certificate_expires.timestamp()
        status.software_version = connection.software.version
        status.software_digest = bytes.fromhex(connection.software.sha256)
    return status
