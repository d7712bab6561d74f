"""The coordinator's server: gRPC over mutual TLS 1.3, probes, and an orderly start and end.

Source: docs/protocol.md 8.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from chorale.observability.logs import get_logger
from chorale.observability.probes import ProbeServer
from chorale.runtime import disk
from chorale.runtime.files import write_atomic
from chorale.transport import channel_options, tls
from chorale.transport.wire import MAX_MESSAGE_BYTES
from chorale.v1 import federation_pb2, operations_pb2, operations_pb2_grpc
from coordinator.jobs.job_manager import JobManager
from coordinator.members.attendance import Farewell, Leaving
from coordinator.process import Clock
from coordinator.resources import Resources, open_resources
from coordinator.service.access import AccessGuard, AccessInterceptor
from coordinator.service.connections import Connections, max_connections
from coordinator.service.federation_service import FederationService
from coordinator.service.operations_service import OperationsService
from coordinator.settings import CoordinatorSettings
from crypto.errors import ChoraleError, ConfigError

ENDPOINT_FILE = "endpoint.json"
DRAIN_SECONDS = 5.0  # calls that are under way may end by themselves
SERVICES = (
    federation_pb2.DESCRIPTOR.services_by_name["Federation"].full_name,
    operations_pb2.DESCRIPTOR.services_by_name["Operations"].full_name,
)
MOST_CONNECTIONS = "grpc.max_allowed_incoming_connections"
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.server_handshake_timeout_ms", 20_000),  # a peer without a certificate holds a descriptor as long
    ("grpc.max_connection_idle_ms", 300_000),  # without a call on it: a silo always has one
    ("grpc.so_reuseport", 0),  # else a second coordinator would share the port in silence
    ("grpc.max_concurrent_streams", 100),  # of one connection; eight jobs take a silo about 25
    *channel_options.WINDOW,
)

log = get_logger("coordinator.server")


class AddressTaken(ChoraleError):
    """Something else listens there already, or the address is not this machine's."""


class Host:
    """One running coordinator. Entering starts it, leaving drains and stops it."""

    resources: Resources
    job_manager: JobManager

    def __init__(self, settings: CoordinatorSettings, *, clock: Clock | None = None) -> None:
        self.grpc_address = ""
        self.metrics_address: str | None = None
        self._settings = settings
        self._clock = clock or Clock()
        self._health = health.aio.HealthServicer()
        self._is_serving = False

    async def __aenter__(self) -> Self:
        """Serve, resume the stored jobs, and say where the coordinator listens, in the log and in a file:
        port 0 takes a free one."""
        with ExitStack() as closing:
            self.resources = closing.enter_context(open_resources(self._settings, self._clock))
            self.job_manager = JobManager(self.resources)
            probes = self._open_probes(closing)
            self._server, port = self._new_server()
            await self._server.start()
            self.job_manager.resume_all()
            for service in ("", *SERVICES):
                await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
            self._is_serving = True
            watched = (
                self._watch_files(),
                self._connections.watch(port),
                self.resources.metrics.loop_lag.watch(),
            )
            self._watching = [asyncio.create_task(each) for each in watched]
            self.grpc_address = _with_port(self._settings.listen, port)
            if probes is not None and self._settings.metrics_listen is not None:
                self.metrics_address = _with_port(self._settings.metrics_listen, probes.port)
            endpoint = {"grpc": self.grpc_address, "metrics": self.metrics_address}
            write_atomic(self._settings.directory / ENDPOINT_FILE, json.dumps(endpoint).encode())
            self._closing = closing.pop_all()
        log.info("listening", **endpoint, spool_memory_bytes=self._settings.spool_memory_bytes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """No new work, every stream ended with a reason, jobs left as they are stored."""
        log.info("draining")
        self._is_serving = False
        for task in self._watching:
            task.cancel()
        await self._health.enter_graceful_shutdown()
        await self.job_manager.stop()
        for connection in self.resources.attendance.connections.values():
            connection.end(Farewell(why=Leaving.DRAINING, sentence="the coordinator is shutting down"))
        await self._server.stop(DRAIN_SECONDS)
        self.resources.audit.append("stopped")
        log.info("stopped")
        self._closing.close()

    def _new_server(self) -> tuple[grpc.aio.Server, int]:
        """The server, bound to its address, and its port. Raises AddressTaken."""
        guard, most = AccessGuard(self.resources), max_connections()
        self._connections = Connections(self.resources.metrics, most=most)
        options = (
            *OPTIONS,
            (MOST_CONNECTIONS, most),
            *channel_options.server_keepalive(self._settings.keepalive_seconds),
        )
        server = grpc.aio.server(interceptors=[AccessInterceptor(guard, self._connections)], options=options)
        federation = FederationService(resources=self.resources, job_manager=self.job_manager, guard=guard)
        operations = OperationsService(resources=self.resources, job_manager=self.job_manager)
        server.add_generic_rpc_handlers([federation.handlers()])
        operations_pb2_grpc.add_OperationsServicer_to_server(operations, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        own = self.resources.credentials
        credentials = tls.server_credentials(lambda: (own.identity, own.authority))
        try:
            return server, server.add_secure_port(self._settings.listen, credentials)
        except RuntimeError:
            raise AddressTaken(
                f"listen: cannot listen on {self._settings.listen}: it is in use or not of this machine"
            ) from None

    def _open_probes(self, closing: ExitStack) -> ProbeServer | None:
        """Probes and metrics, where the settings ask for them. Raises AddressTaken."""
        if self._settings.metrics_listen is None:
            return None
        host, _, port = self._settings.metrics_listen.rpartition(":")
        try:
            probes = ProbeServer(
                host.strip("[]"),
                int(port),
                registry=self.resources.metrics.registry,
                is_live=lambda: True,
                is_ready=lambda: self._is_serving and disk.has_room(self._settings.directory),
            )
        except ConfigError as error:
            raise AddressTaken(str(error)) from None
        probes.start()
        closing.callback(probes.stop)
        return probes

    async def _watch_files(self) -> None:
        """Take over a new roster, certificate or authority within a heartbeat, also if no call comes."""
        while True:
            await asyncio.sleep(self._settings.heartbeat_seconds)
            self.resources.refresh()


def stop_signal() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"
