"""A collector of OpenTelemetry traces on loopback: takes OTLP over HTTP and keeps every span."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Attributes = dict[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A span and the process that sent it."""

    span: Span
    process: Attributes

    @property
    def attributes(self) -> Attributes:
        return read(self.span.attributes)

    @property
    def service(self) -> str:
        return str(self.process["service.name"])

    @property
    def trace(self) -> bytes:
        return self.span.trace_id


@dataclass(slots=True)
class Collector:
    endpoint: str = ""
    spans: list[Received] = field(default_factory=list)
    requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self.requests += 1
            for resource in request.resource_spans:
                process = read(resource.resource.attributes)
                spans = [span for scope in resource.scope_spans for span in scope.spans]
                self.spans += [Received(span=span, process=process) for span in spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that runs until the end of the context."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def read(pairs: object) -> Attributes:
    """The attributes by name: text and whole numbers, and nothing else may come."""
    found: Attributes = {}
    for pair in pairs:  # type: ignore[attr-defined]
        assert isinstance(pair, KeyValue)
        kind = pair.value.WhichOneof("value")
        assert kind in ("string_value", "int_value"), pair
        found[pair.key] = getattr(pair.value, kind)
    return found
