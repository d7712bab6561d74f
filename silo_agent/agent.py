"""The agent of one institution: opens what is its own, then serves until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chorale.credentials import CredentialFiles
from chorale.observability import logs, tracing
from chorale.observability.logs import get_logger
from chorale.observability.probes import ProbeServer
from chorale.observability.process_metrics import add_process_metrics
from chorale.runtime import disk
from chorale.runtime.audit import AuditLog
from chorale.runtime.background_io import keep_chunks
from chorale.runtime.files import write_atomic
from chorale.runtime.service_manager import service_notifications
from chorale.runtime.software import Software, check_own_digest, own_software
from chorale.transport import tls
from chorale.transport.line_probe import probe
from chorale.transport.wire import stage_to_wire
from crypto.errors import ChoraleError, ConfigError
from crypto.identity.certificates import Role
from silo_agent.connection.own_certificates import OwnCertificates, Renewal
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.in_force import HeldPolicy, InForce
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.personal_models import PersonalModels
from silo_agent.local_storage.state_files import StateFiles
from silo_agent.metrics import PREFIX, SiloMetrics
from silo_agent.objective import load_objective
from silo_agent.rounds.first_state import FirstStates
from silo_agent.rounds.inputs.compute_process import ComputeProcess
from silo_agent.rounds.inputs.input_cache import InputCache
from silo_agent.rounds.inputs.open_data import OpenData
from silo_agent.rounds.message_handler import MessageHandler
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.revealed_sums import RevealedSums
from silo_agent.rounds.rosters import Rosters
from silo_agent.rounds.state_chain import StateChain
from silo_agent.rounds.task_checks import TaskChecks
from silo_agent.settings import SiloSettings
from silo_agent.start import AgentFailed, alone, check_whole, held_policy
from silo_agent.training.machine.entry_point import load_entry_point

if TYPE_CHECKING:
    from silo_agent.connection.control_stream import ControlStream, Outbox
    from silo_agent.connection.transfer import Transfer

log = get_logger("silo_agent.agent")

_now = partial(datetime.now, UTC)


def run(settings: SiloSettings, config: Path) -> None:
    """`chorale silo run`: until SIGTERM or Ctrl-C. config: the file of the settings. Raises ChoraleError."""
    tls.restrict_to_tls13()
    # more threads per silo than asked for would spin against each other on a shared machine
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.torch_threads))
    logs.configure(level=settings.log_level, silo=settings.name)
    keep_chunks()
    with tracing.exporting(
        settings.tracing_endpoint,
        service=tracing.Service.SILO,
        federation=settings.federation,
        instance=settings.name,
    ):
        is_loading = asyncio.run(run_agent(settings, config))
    if is_loading:  # Python would wait for the thread that imports torch; all that is kept is closed
        os._exit(0)


async def run_agent(settings: SiloSettings, config: Path | None = None) -> bool:
    """Serve until SIGTERM or SIGINT. config: the file of the settings, which is read again. Returns whether
    a thread still loads what jobs need.

    Raises ConfigError, AgentFailed, or what ends the stream.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    logs.toggle_debug_on_signal(settings.log_level)
    software = own_software()
    log.info("software", version=software.version, sha256=software.sha256 or "none", why=software.why_none)
    check_own_digest(software, expected=settings.software_digest)
    with ExitStack() as stack:
        files = CredentialFiles(
            settings.identity,
            settings.authority,
            role=Role.SILO,
            federation=settings.federation,
            name=settings.name,
            clock=_now,
        )
        credentials = OwnCertificates(*files.read())
        held = {data.name: held_policy(data, settings) for data in settings.data_sets}
        policies = {name: each.policy for name, each in held.items()}
        if settings.objective is not None:
            load_entry_point(settings.objective, field="objective")
        elif settings.devices > 1 or settings.asks_gpu:
            load_objective(settings)  # refuses what this machine does not have
        if settings.objective is None and settings.devices > 1:
            log.warning(
                "private jobs train in one process, whatever `devices` says", devices=settings.devices
            )
        stack.enter_context(alone(settings.directory))
        shutil.rmtree(settings.processes_directory, ignore_errors=True)  # of one that was killed
        audit = stack.enter_context(closing(AuditLog(settings.audit_path)))
        ledger = stack.enter_context(closing(Ledger(settings.ledger_path)))
        metrics = SiloMetrics(tuple(policies))
        check_whole(ledger, audit, settings.audit_path, metrics.audit_entries_lost)
        stack.callback(lambda: ledger.audit_trail(settings.audit_path).head.keep(audit))
        add_process_metrics(metrics.registry, PREFIX, version=software.version)
        data = await OpenData.open(settings, policies, ledger=ledger, audit=audit, metrics=metrics)
        metrics.watch_disk(settings.directory)
        metrics.certificate_expiry.set_function(lambda: credentials.certificate_expires)
        agent = _Agent(
            settings,
            software=software,
            files=files,
            credentials=credentials,
            data=data,
            ledger=ledger,
            audit=audit,
            metrics=metrics,
        )
        stack.enter_context(_probes(settings, metrics, agent))
        gc.freeze()  # what was loaded stays: a full collection would look through all of it every few rounds
        await agent.serve(held, config, stopping)
    log.info("stopped")
    return agent.is_loading


class _Agent:
    """Everything that lives between start and stop, put together once."""

    def __init__(
        self,
        settings: SiloSettings,
        *,
        software: Software,
        files: CredentialFiles,
        credentials: OwnCertificates,
        data: OpenData,
        ledger: Ledger,
        audit: AuditLog,
        metrics: SiloMetrics,
    ) -> None:
        self._settings = settings
        self._software = software
        self._files = files
        self._credentials = credentials
        self._data = data
        self._ledger = ledger
        self._audit = audit
        self._metrics = metrics
        self._stream: ControlStream | None = None
        self._inputs: InputCache | None = None
        self._rosters = Rosters(
            credentials=credentials,
            ledger=ledger,
            data_sets=data.all,
            lowest_version=settings.lowest_roster_version,
            audit=audit,
            clock=_now,
        )

    @property
    def is_connected(self) -> bool:
        return self._stream is not None and self._stream.is_connected

    @property
    def is_loading(self) -> bool:
        return self._inputs is not None and self._inputs.is_loading_ahead

    async def serve(
        self, held: Mapping[str, HeldPolicy], config: Path | None, stopping: asyncio.Event
    ) -> None:
        """Until `stopping` is set or the stream ends for good. held, config: files that are looked at."""
        # grpc reads its environment when it is imported, so not before run() has set it
        from silo_agent.connection.channel import FederationStub, dial
        from silo_agent.connection.control_stream import ControlStream, Outbox
        from silo_agent.connection.transfer import Transfer

        settings, outbox, draw = self._settings, Outbox(), random.SystemRandom().random
        self._data.begin()
        route = settings.route()
        renewal = Renewal(
            self._credentials,
            self._files,
            newest=lambda: self._rosters.newest,
            refused=self._metrics.credentials_refused,
        )
        stub = FederationStub(lambda: dial(settings, renewal.next_identity(), self._credentials.authority))
        transfers = Transfer(stub, metrics=self._metrics, random=draw)
        handler = self._handler(held, config, transfers, outbox)
        self._stream = ControlStream(
            stub,
            target=settings.coordinator,
            probe=lambda: probe(settings.route()),
            software=self._software,
            served=handler,
            moved_bytes=lambda: transfers.moved_bytes,
            outbox=outbox,
            metrics=self._metrics,
            renewal=renewal,
            clock=_now,
            random=draw,
        )
        log.info(
            "started",
            coordinator=settings.coordinator,
            proxy=route.proxy.address if route.proxy else None,
            data=", ".join(data.name for data in settings.data_sets),
        )
        watching = asyncio.create_task(self._metrics.loop_lag.watch())
        try:
            async with service_notifications():
                await _until_stopped(self._stream, stopping)
        finally:
            watching.cancel()
            await handler.close()

    def _handler(
        self, held: Mapping[str, HeldPolicy], config: Path | None, transfers: Transfer, outbox: Outbox
    ) -> MessageHandler:
        settings, data_sets, rosters = self._settings, self._data.all, self._rosters
        own, audit, metrics = self._credentials, self._audit, self._metrics
        local, known = LocalStates(settings.local_directory), self._ledger.known_states()
        states = StateFiles(settings.cache_directory)
        inputs = self._inputs = InputCache(
            silo=settings.name,
            data_sets=data_sets,
            metrics=metrics,
            local=local,
            personal=PersonalModels(
                settings.personal_directory, is_revealed=partial(data_sets.is_revealed, silo=settings.name)
            ),
            load_data=self._data.load,
            load_table=self._data.load_table,
            load_objective=partial(load_objective, settings),
            tell_stage=lambda stage: outbox.send(stage_to_wire(stage)),
            process=ComputeProcess(settings, self._data),
        )

        async def open_again(changed: SiloSettings) -> None:
            await inputs.drop_data()
            await self._data.open_again(changed)

        files = InForce(
            settings,
            held,
            take=self._data.take,
            audit=audit,
            config=config,
            is_idle=lambda: handler.is_idle,
            open_again=open_again,
        )
        jobs = OfferedJobs(
            silo=settings.name, ledger=self._ledger, data_sets=data_sets, credentials=own, clock=_now
        )
        handler = MessageHandler(
            rosters=rosters,
            jobs=jobs,
            checks=TaskChecks(
                credentials=own,
                jobs=jobs,
                rosters=rosters,
                data_sets=data_sets,
                first_states=FirstStates(settings.first_state_directory, data_sets=data_sets),
                metrics=metrics,
                clock=_now,
                min_memory_bytes=settings.min_memory_bytes,
                files=files,
            ),
            inputs=inputs,
            local=local,
            chain=StateChain(
                silo=settings.name, known=known, data_sets=data_sets, local=local, credentials=own
            ),
            sums=RevealedSums(
                jobs=jobs,
                rosters=rosters,
                known=known,
                data_sets=data_sets,
                files=states,
                local=local,
                downloads=transfers,
                audit=audit,
                metrics=metrics,
            ),
            files=states,
            transfers=transfers,
            audit=audit,
            metrics=metrics,
            send=outbox.send,
        )
        return handler


async def _until_stopped(stream: ControlStream, stopping: asyncio.Event) -> None:
    attending = asyncio.ensure_future(stream.run())
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({attending, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if attending.done():
            attending.result()
    finally:
        for task in (attending, stopped):
            task.cancel()
            with suppress(asyncio.CancelledError, ChoraleError):
                await task


@contextmanager
def _probes(settings: SiloSettings, metrics: SiloMetrics, agent: _Agent) -> Iterator[None]:
    """/livez, /readyz and /metrics; `endpoint.json` says where."""
    if settings.metrics_listen is None:
        yield
        return
    host, _, port = settings.metrics_listen.rpartition(":")
    try:
        server = ProbeServer(
            host.strip("[]"),
            int(port),
            registry=metrics.registry,
            is_live=lambda: True,
            is_ready=lambda: agent.is_connected and disk.has_room(settings.directory),
        )
    except ConfigError as error:
        raise AgentFailed(str(error)) from None
    server.start()
    try:
        endpoint = json.dumps({"metrics": f"{host}:{server.port}"}).encode()
        write_atomic(settings.directory / "endpoint.json", endpoint + b"\n")
        yield
    finally:
        server.stop()
