"""chorale.v1.Federation, the silos' side: one control stream each, downloads, uploads.

gRPC codes are set here and nowhere below. Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import grpc

from chorale.observability.logs import get_logger
from chorale.runtime.background_io import Pieces
from chorale.runtime.software import Software, told_digest
from chorale.transport import wire
from chorale.transport.chunks import Chunk, check_chunk, chunk_to_wire, upload_from_wire
from chorale.v1 import federation_pb2 as pb
from coordinator.jobs.attempt_runner import AttemptRunner
from coordinator.jobs.job_manager import JobManager
from coordinator.members.attendance import Connection, Farewell, Leaving
from coordinator.metrics import Transfer
from coordinator.resources import Resources
from coordinator.service.access import AccessDenied, AccessGuard, Caller, caller_of
from coordinator.service.service_errors import Context, abort, errors_as_codes
from coordinator.service.streams import received, send
from coordinator.storage.spool import Spool
from crypto.errors import RemoteProtocolError
from crypto.identity.roster import Roster

SERVICE = "chorale.v1.Federation"
ATTEND = f"/{SERVICE}/Attend"
MAX_VERSION = 64  # characters that are kept of what a silo calls its software
HELLO_SECONDS = 20.0  # a stream that says nothing holds no place
FAREWELL_CODES = {
    Leaving.REPLACED: grpc.StatusCode.ABORTED,
    Leaving.SECOND_AGENT: grpc.StatusCode.ALREADY_EXISTS,
    Leaving.TOO_SLOW: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Leaving.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Leaving.REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    Leaving.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Leaving.FAILED: grpc.StatusCode.INTERNAL,
}

log = get_logger("coordinator.federation")


class FederationService:
    """Identity is the certificate's; no field of a message says who speaks."""

    def __init__(self, *, resources: Resources, job_manager: JobManager, guard: AccessGuard) -> None:
        self._resources = resources
        self._job_manager = job_manager
        self._guard = guard
        resources.roster_book.listeners.append(self._push_roster)

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server dispatches to: as generated, but that chunks are framed by
        chorale.transport.chunks."""
        methods: dict[str, Any] = {
            "Attend": grpc.stream_stream_rpc_method_handler(
                self.Attend, pb.SiloMessage.FromString, pb.CoordinatorMessage.SerializeToString
            ),
            "Download": grpc.unary_stream_rpc_method_handler(
                self.Download, pb.DownloadRequest.FromString, chunk_to_wire
            ),
            "Upload": grpc.stream_stream_rpc_method_handler(
                self.Upload, upload_from_wire, pb.UploadReceipt.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def Attend(
        self, request_iterator: AsyncIterator[pb.SiloMessage], context: Context
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        """The silo's control stream: hello and welcome, then heartbeats and session messages."""
        caller = caller_of(context)
        software, agent = await self._check_hello(request_iterator, context)
        connection = Connection(
            caller.member.name,
            certificate_expires=caller.certificate.not_valid_after_utc,
            software=software,
            agent=agent,
        )
        welcome = pb.Welcome(
            protocol_version=wire.PROTOCOL_VERSION,
            software_version=self._resources.software.version,
            unix_seconds=self._resources.clock.unix_seconds(),
            heartbeat_seconds=self._resources.settings.heartbeat_seconds,
            roster=wire.signed_body_to_wire(self._resources.roster_book.current.signed),
        )
        yield pb.CoordinatorMessage(welcome=welcome)
        tasks = [
            asyncio.create_task(self._serve(connection, self._read(connection, request_iterator, caller))),
            asyncio.create_task(self._serve(connection, self._beat(connection, caller))),
            asyncio.create_task(self._leave_at_end(connection)),
        ]
        try:
            async with aclosing(connection.outgoing()) as messages:
                async for message in messages:
                    log.debug("message sent", silo=connection.silo, kind=message.WhichOneof("kind"))
                    yield message
        finally:
            for task in tasks:
                task.cancel()
            self._resources.attendance.leave(connection)
        if connection.farewell is not None:
            await abort(context, FAREWELL_CODES[connection.farewell.why], connection.farewell.sentence)

    async def Download(self, request: pb.DownloadRequest, context: Context) -> None:
        """The bytes of a global state or of a revealed sum, from an offset on, as chunks."""
        caller, seconds = caller_of(context), self._resources.settings.chunk_seconds
        async with errors_as_codes(context):
            runner = self._job_manager.runner(wire.checked_digest(request.job_digest, what="job digest"))
            path = runner.download(caller.member.name, wire.checked_digest(request.digest, what="digest"))
            sent = self._resources.metrics.sent_bytes.labels(kind=Transfer.DOWNLOAD.value)
            meter, clock = self._resources.line_rates.meter(caller.member.name), self._resources.clock
            offset, total_bytes = request.offset, path.stat().st_size
            if offset > total_bytes:
                raise RemoteProtocolError("download: the offset is beyond the end of the file")
            with path.open("rb", buffering=0) as file:
                pieces = Pieces(file, size=wire.CHUNK_BYTES)
                while offset < total_bytes and (data := await pieces.at(offset)):
                    # framed before the next piece is read
                    await send(context, Chunk(offset, data), seconds=seconds, what="download")
                    offset += len(data)
                    sent.inc(len(data))
                    meter.note(len(data), now=clock.monotonic())
                    runner.on_download(caller.member.name, sent_bytes=len(data))

    async def Upload(
        self, request_iterator: AsyncIterator[pb.UploadMessage | Chunk], context: Context
    ) -> AsyncIterator[pb.UploadReceipt]:
        """One masked vector: header, receipt with the offset to resume from, chunks, end, receipt."""
        caller = caller_of(context)
        counted = self._resources.metrics.received_bytes.labels(kind=Transfer.UPLOAD.value)
        meter, clock = self._resources.line_rates.meter(caller.member.name), self._resources.clock
        async with errors_as_codes(context):
            attempt, spool = await self._open_upload(caller.member.name, request_iterator)
            yield pb.UploadReceipt(received_bytes=spool.received_bytes, complete=spool.is_complete)
            if spool.is_complete:
                return
            seconds = attempt.standstill_seconds
            async for message in received(request_iterator, seconds=seconds, what="upload"):
                if isinstance(message, Chunk):
                    chunk_bytes = len(check_chunk(message).data)
                    await spool.append(message.offset, message.data)
                    framed_bytes = chunk_bytes + wire.CHUNK_FRAME_BYTES
                    attempt.on_upload_progress(caller.member.name, chunk_bytes=framed_bytes)
                    meter.note(framed_bytes, now=clock.monotonic())
                    counted.inc(chunk_bytes)
                    continue
                if message.WhichOneof("kind") != "end":
                    raise RemoteProtocolError("upload: expected a chunk or the end")
                await spool.settle(message.end.sha256)
                attempt.finish_upload(caller.member.name, spool, message.end.sha256)
                yield pb.UploadReceipt(received_bytes=spool.received_bytes, complete=True)
                return

    async def _open_upload(
        self, silo: str, messages: AsyncIterator[pb.UploadMessage | Chunk]
    ) -> tuple[AttemptRunner, Spool]:
        """The attempt that the header names, and where the vector goes. Raises RemoteProtocolError."""
        seconds = self._resources.settings.chunk_seconds
        first = await anext(received(messages, seconds=seconds, what="upload"), None)
        if not isinstance(first, pb.UploadMessage) or first.WhichOneof("kind") != "header":
            raise RemoteProtocolError("upload: expected a header first")
        key = wire.key_from_wire(first.header.key)
        attempt = self._job_manager.runner(key.job_digest).attempt_for(silo, key)
        spool = attempt.open_upload(silo, first.header.total_bytes)
        spool.begin_stream()
        attempt.on_upload_progress(silo, chunk_bytes=first.ByteSize())
        return attempt, spool

    async def _check_hello(
        self, messages: AsyncIterator[pb.SiloMessage], context: Context
    ) -> tuple[Software, bytes]:
        """What the silo says that it runs, and which process it is. Ends the call of a silo that says nothing
        in time, speaks another version of the protocol, or reports software that the settings do not list."""
        async with errors_as_codes(context):
            first = None
            with suppress(TimeoutError):
                async with asyncio.timeout(HELLO_SECONDS):
                    first = await anext(aiter(messages), None)
        if first is None or first.WhichOneof("kind") != "hello":
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "control stream: expected a hello first")
        if first.hello.protocol_version != wire.PROTOCOL_VERSION:
            await abort(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"protocol version: this coordinator speaks {wire.PROTOCOL_VERSION}, "
                f"the silo {first.hello.protocol_version}; upgrade the older side",
            )
        async with errors_as_codes(context):
            sha256 = told_digest(first.hello.software_digest)
            if len(first.hello.agent) not in (0, wire.AGENT_BYTES):
                raise RemoteProtocolError(f"hello: agent: expected {wire.AGENT_BYTES} bytes or none")
        required = self._resources.settings.required_software
        if required and sha256 not in required:
            await abort(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"software: this silo reports {sha256 or 'no digest'}, which required_software of the "
                "coordinator does not list; install the release that the federation agreed on",
            )
        version = first.hello.software_version[:MAX_VERSION]
        shown = "".join(each if each.isprintable() else "?" for each in version)  # to operators, in evidence
        return Software(version=shown, sha256=sha256), first.hello.agent

    async def _serve(self, connection: Connection, work: Coroutine[Any, Any, None]) -> None:
        """Do a part of a connection's work. Whatever it raises ends the connection: a silo whose messages
        nobody reads must not count as connected."""
        try:
            await work
        except AccessDenied as denied:
            connection.end(Farewell(why=Leaving.REFUSED, sentence=str(denied)))
        except RemoteProtocolError as error:
            connection.end(Farewell(why=Leaving.MALFORMED, sentence=str(error)))
        except (grpc.RpcError, grpc.aio.BaseError, grpc.aio.UsageError):
            connection.end()
        except Exception:
            log.exception("control stream failed", silo=connection.silo)
            sentence = "control stream: the coordinator had an internal error"
            connection.end(Farewell(why=Leaving.FAILED, sentence=sentence))

    async def _read(
        self, connection: Connection, messages: AsyncIterator[pb.SiloMessage], caller: Caller
    ) -> None:
        """Join, and pass the silo's messages on until it closes its side; every heartbeat is a check."""
        self._resources.attendance.join(connection)
        if connection.ended.is_set():
            return
        self._job_manager.tell_ended(connection.silo)
        async for message in messages:
            if connection.ended.is_set():
                return
            kind = message.WhichOneof("kind")
            log.debug("message received", silo=connection.silo, kind=kind)
            if kind == "heartbeat":
                self._guard.check(caller, ATTEND)
            self._resources.attendance.deliver(caller.member.name, message)
        connection.end()

    async def _beat(self, connection: Connection, caller: Caller) -> None:
        """Heartbeats, each after a check of certificate and current roster."""
        while not connection.ended.is_set():
            await asyncio.sleep(self._resources.settings.heartbeat_seconds)
            self._guard.check(caller, ATTEND)
            beat = pb.Heartbeat(unix_seconds=self._resources.clock.unix_seconds())
            connection.send(pb.CoordinatorMessage(heartbeat=beat))

    async def _leave_at_end(self, connection: Connection) -> None:
        """At once, however long the call lasts: gRPC ends it when the silo reads what it was sent."""
        await connection.ended.wait()
        self._resources.attendance.leave(connection)

    def _push_roster(self, roster: Roster) -> None:
        """To all that are connected, also to those that it revokes: their next heartbeat is refused."""
        update = pb.RosterUpdate(roster=wire.signed_body_to_wire(roster.signed))
        message = pb.CoordinatorMessage(roster=update)
        for connection in self._resources.attendance.connections.values():
            connection.send(message)
