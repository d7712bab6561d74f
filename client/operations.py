"""The operator's end of the Operations service: mutual TLS, bounded messages, jobs found by id."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from chorale.credentials import CredentialFiles
from chorale.job import SignedJob
from chorale.runtime.files import Part
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.kinds import any_spec
from chorale.spec.line_settings import LineSettings
from chorale.spec.model_file import analysis_facts, facts_of, with_facts
from chorale.transport import tls
from chorale.transport.channel_options import KEEPALIVE_SECONDS, client_options
from chorale.transport.chunks import chunk_of
from chorale.transport.line_probe import Trouble, probe
from chorale.transport.wire import CHUNK_BYTES
from chorale.v1 import federation_pb2, operations_pb2
from chorale.v1.records_pb2 import JobSummary
from client.errors import (
    UNKNOWN_HOST_HINT,
    UNREACHABLE_HINT,
    UNTRUSTED_HINT,
    peer_error,
    printable,
    with_hint,
)
from client.history import JobHistory
from client.results import results_of
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.certificates import Identity, Role
from strategies.tasks.temperature import TEMPERATURE

if TYPE_CHECKING:
    import grpc

    from chorale.v1.operations_pb2_grpc import OperationsStub

T = TypeVar("T")
M = TypeVar("M", bound=Message)

RECONNECT_SECONDS = 1.0  # between two looks at a coordinator that stops while it still answers
LOOK_SECONDS = 1.0  # a Ctrl-C that comes as a wait begins does not end it: then the next one does not begin
MAX_WAITING = 16  # messages of a stream that are here and not taken yet
MAX_RECONNECT_SECONDS = 5.0  # between two tries to reach one that does not


class Operations:
    """One connection of one operator."""

    def __init__(self, channel: grpc.Channel) -> None:
        from chorale.v1.operations_pb2_grpc import OperationsStub

        self._stub: OperationsStub = OperationsStub(channel)
        self._channel = channel

    def close(self) -> None:
        """End what is under way, from any thread."""
        self._channel.close()

    def submit(self, signed: SignedJob, state: bytes) -> bytes:
        """Send a job and its initial state; returns the job digest."""
        job = federation_pb2.SignedJob(
            spec=signed.spec_bytes,
            signature=signed.signature,
            operator_certificate=signed.operator_certificate,
        )
        chunks = (
            federation_pb2.Chunk(offset=offset, data=state[offset : offset + CHUNK_BYTES])
            for offset in range(0, len(state), CHUNK_BYTES)
        )
        messages = (operations_pb2.SubmitMessage(chunk=chunk) for chunk in chunks)
        first = operations_pb2.SubmitMessage(job=job)
        digest = self._stub.SubmitJob(chain([first], messages)).job_digest
        if digest != signed.digest:
            raise RemoteProtocolError("coordinator: it acknowledged another job than the one submitted")
        return digest

    def jobs(self) -> list[JobSummary]:
        return list(printed(self._stub.ListJobs(operations_pb2.ListJobsRequest())).jobs)

    def silos(self) -> operations_pb2.ListSilosReply:
        return printed(self._stub.ListSilos(operations_pb2.ListSilosRequest()))

    def find(self, job_id: str) -> bytes:
        """Digest of the one job that begins with this id. Raises ConfigError unless it is one."""
        known = [job.job_digest for job in self.jobs()]
        found = [digest for digest in known if job_id and digest.hex().startswith(job_id.lower())]
        if len(found) != 1:
            what = f"{len(found)} begin" if found else "none begins"
            raise with_hint(
                ConfigError(f"job {job_id}: expected the id of one job, {what} with it"), "chorale job list"
            )
        return found[0]

    def watch(self, job_digest: bytes) -> Iterator[operations_pb2.JobEvent]:
        """The signed job, all records so far, then each new one, until the job ends.

        A coordinator that goes away meanwhile is waited for: a summary says so, and what was reported before
        comes again when it is back. Raises RemoteProtocolError for another job than the one asked for.
        """
        import grpc

        request, summary = operations_pb2.WatchRequest(job_digest=job_digest), JobSummary()
        while True:
            try:
                # wait_for_ready: from the second time on; a first one that fails says why
                stream = self._stub.WatchJob(request, wait_for_ready=bool(summary.job_digest))
                for event in read_aside(stream):
                    is_summary = event.WhichOneof("kind") == "summary"
                    summary = event.summary if is_summary else summary
                    yield of_job(event, job_digest)
                return
            except grpc.RpcError as error:
                if not summary.job_digest or error.code() not in _gone():
                    raise
            lost = JobSummary()
            lost.CopyFrom(summary)
            lost.state = lost.progress = "waiting for the coordinator, which is away"
            lost.ClearField("awaited")
            yield operations_pb2.JobEvent(summary=lost)
            time.sleep(RECONNECT_SECONDS)

    def history(self, job_digest: bytes) -> JobHistory:
        """The job as it stands now. Raises RemoteProtocolError for another job than the one asked for."""
        history = JobHistory()
        request = operations_pb2.WatchRequest(job_digest=job_digest, once=True)
        for event in read_aside(self._stub.WatchJob(request)):
            history.add(of_job(event, job_digest))
        return history

    def control(self, job_digest: bytes, action: str) -> JobSummary:
        """action: pause, resume, skip_round or cancel."""
        number = operations_pb2.ControlRequest.Action.Value(f"ACTION_{action.upper()}")
        request = operations_pb2.ControlRequest(job_digest=job_digest, action=number)
        return printed(self._stub.ControlJob(request))

    def evidence(self, job_digest: bytes) -> Iterator[operations_pb2.EvidenceMessage]:
        """What the coordinator shows of a job, as it arrives: client.evidence makes an archive of it."""
        return iter(self._stub.FetchEvidence(operations_pb2.EvidenceRequest(job_digest=job_digest)))

    def fetch(self, job_digest: bytes, *, also_untrained: bool = False) -> tuple[JobSummary, Iterator[Part]]:
        """The job, and its model as a file with facts, as the bytes arrive.

        Raises RemoteProtocolError, and ConfigError before the first round, unless also_untrained.
        """
        stream = iter(self._stub.FetchModel(operations_pb2.FetchRequest(job_digest=job_digest)))
        first = next(stream, None)
        if first is None or first.WhichOneof("kind") != "summary":
            raise RemoteProtocolError("coordinator: expected the job before its model")
        spec_bytes = first.job.spec
        if hashlib.sha256(spec_bytes).digest() != job_digest:
            raise RemoteProtocolError("coordinator: the model comes with another job than the one asked for")
        try:
            spec = any_spec(spec_bytes, source=f"job {job_digest.hex()[:12]}")
        except ConfigError:  # not readable by this version
            return printed(first.summary), with_facts(_model_bytes(stream), {})
        if isinstance(spec, AnalysisSpec):
            return printed(first.summary), with_facts(_model_bytes(stream), analysis_facts(spec_bytes))
        is_untrained = spec.rounds and not first.summary.rounds_completed and first.summary.status != "done"
        if is_untrained and not also_untrained:
            raise ConfigError(
                f"job {job_digest.hex()[:12]}: no round was applied, so there is no trained model"
            )
        closing: Mapping[str, float | None] = {}
        round, arm = first.summary.model_round, None
        if TEMPERATURE in spec.method.task.asked or spec.arms:
            history = self.history(job_digest)
            closing, arm = results_of(history).closing, history.arm_after(round, spec)
        facts = facts_of(spec, job_digest=job_digest, round=round, closing=closing, arm=arm)
        return printed(first.summary), with_facts(_model_bytes(stream), facts)


def of_job(event: operations_pb2.JobEvent, job_digest: bytes) -> operations_pb2.JobEvent:
    """With texts that can be shown. Raises RemoteProtocolError for another job than the one asked for."""
    kind = event.WhichOneof("kind")
    digest = (
        hashlib.sha256(event.job.spec).digest() if kind == "job" else getattr(event, kind or "").job_digest
    )
    if digest != job_digest:
        raise RemoteProtocolError("coordinator: it tells of another job than was asked for")
    return printed(event)


def printed(message: M) -> M:
    """The message, whose texts are parts of lines now: `printable`. In place."""
    for field, value in message.ListFields():
        if isinstance(value, str):
            setattr(message, field.name, printable(value))
        elif isinstance(value, Message):
            printed(value)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            _print_names(value)
        elif field.type == FieldDescriptor.TYPE_STRING:
            value[:] = map(printable, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value:
                printed(each)
    return message


def _print_names(values: Any) -> None:
    """Those of a map. None of its values has a text."""
    for name in [each for each in values if isinstance(each, str) and not each.isprintable()]:
        if isinstance(values[name], Message):
            values[printable(name)].CopyFrom(values[name])
        else:
            values[printable(name)] = values[name]
        del values[name]


def _gone() -> frozenset[grpc.StatusCode]:
    """How a call ends whose coordinator stops or is killed, or whose line is cut."""
    from grpc import StatusCode

    return frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.INTERNAL, StatusCode.UNKNOWN})


@contextmanager
def connect(settings: LineSettings) -> Iterator[tuple[Operations, Identity]]:
    """A connection as this operator, and the identity it uses.

    Raises ConfigError for bad files; a call that fails inside is raised as peer_error has it.
    """
    tls.restrict_to_tls13()
    import grpc

    identity, authority = CredentialFiles(
        settings.identity,
        settings.authority,
        role=Role.OPERATOR,
        federation=settings.federation,
        clock=partial(datetime.now, UTC),
    ).read()
    route = settings.route()
    credentials = tls.channel_credentials(identity, authority)
    options = (
        *client_options(route, keepalive_seconds=KEEPALIVE_SECONDS),
        ("grpc.max_reconnect_backoff_ms", round(1000 * MAX_RECONNECT_SECONDS)),
    )
    with grpc.secure_channel(settings.coordinator, credentials, options=options) as channel:
        try:
            yield Operations(channel), identity
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise peer_error(error) from None
            with ThreadPoolExecutor(1) as aside:  # a notebook's own thread has a loop already
                failed = aside.submit(asyncio.run, probe(route)).result()
            if failed.trouble is Trouble.NONE:  # the coordinator gave the reason itself
                raise peer_error(error) from None
            hint = UNTRUSTED_HINT if failed.trouble.is_distrust else UNREACHABLE_HINT
            if failed.trouble is Trouble.UNKNOWN_HOST:
                hint = UNKNOWN_HOST_HINT
            raise with_hint(failed, hint) from None


def read_aside(stream: Iterable[T]) -> Iterator[T]:
    """The items of a stream, read by a thread of its own, and what it raises.

    A Ctrl-C that meets gRPC's compiled code is swallowed there; one that meets a queue is not. A peer that
    sends faster than its items are taken waits: MAX_WAITING of them at most lie here.
    """
    items: queue.Queue[tuple[T | None, Exception | None]] = queue.Queue(MAX_WAITING)
    is_left = threading.Event()

    def read() -> None:
        try:
            for item in stream:
                items.put((item, None))
                if is_left.is_set():
                    return
            items.put((None, None))
        except Exception as error:
            items.put((None, error))

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            try:
                item, error = items.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        is_left.set()
        with suppress(queue.Empty):  # room for the thread that may wait for it
            while True:
                items.get_nowait()


def _model_bytes(stream: Iterator[operations_pb2.FetchMessage]) -> Iterator[bytes]:
    expected = 0
    for message in stream:
        chunk = chunk_of(message.chunk)
        if chunk.offset != expected:
            raise RemoteProtocolError(
                f"coordinator: model chunk at offset {chunk.offset}, expected {expected}"
            )
        expected += len(chunk.data)
        yield bytes(chunk.data)
