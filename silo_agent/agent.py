"""The agent of one institution: opens what is its own, then serves until it is stopped."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chorale.credentials import CredentialFiles
from chorale.job import Job
from chorale.observability import logs, tracing
from chorale.observability.logs import get_logger
from chorale.observability.probes import ProbeServer
from chorale.runtime import disk
from chorale.runtime.audit import AuditLog
from chorale.runtime.background_io import keep_chunks
from chorale.runtime.files import write_atomic
from chorale.runtime.software import Software, check_own_digest, own_software
from chorale.transport import tls
from chorale.transport.line_probe import probe
from chorale.transport.wire import stage_to_wire
from crypto.errors import ChoraleError, ConfigError, PolicyRefusal
from crypto.identity.certificates import Role
from crypto.session.reveal import PendingReveal
from silo_agent.account_units import OpenedData, open_accounts
from silo_agent.connection.own_certificates import OwnCertificates, Renewal
from silo_agent.disclosure.ledger.budget import Spend
from silo_agent.disclosure.ledger.ledger import REVEALED_EVENT, SPENT_EVENT, Ledger, spend_fields
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.in_force import HeldPolicy, InForce
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.personal_models import PersonalModels
from silo_agent.local_storage.state_files import StateFiles
from silo_agent.metrics import SiloMetrics
from silo_agent.objective import load_objective
from silo_agent.rounds.compute_process import ComputeProcess
from silo_agent.rounds.data_sets import DataSet, DataSets
from silo_agent.rounds.first_state import FirstStates
from silo_agent.rounds.input_cache import InputCache
from silo_agent.rounds.message_handler import MessageHandler
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.revealed_sums import RevealedSums
from silo_agent.rounds.rosters import Rosters
from silo_agent.rounds.state_chain import StateChain
from silo_agent.rounds.task_checks import TaskChecks
from silo_agent.settings import SiloSettings
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.own_data import check_named
from silo_agent.training.data.settings import DataSettings, rows_beyond_told
from silo_agent.training.machine.entry_point import load_entry_point
from silo_agent.training.machine.settings import Device

if TYPE_CHECKING:
    from chorale.transport.wire import PhaseKey
    from silo_agent.connection.control_stream import ControlStream, Outbox
    from silo_agent.connection.transfer import Transfer

log = get_logger("silo_agent.agent")

_now = partial(datetime.now, UTC)


class AgentFailed(ChoraleError):
    """The agent cannot start on this machine."""


def run(settings: SiloSettings, config: Path) -> None:
    """`chorale silo run`: until SIGTERM or Ctrl-C. config: the file of the settings. Raises ChoraleError."""
    tls.restrict_to_tls13()
    # more threads per silo than asked for would spin against each other on a shared machine
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.torch_threads))
    logs.configure(silo=settings.name)
    keep_chunks()
    with tracing.exporting(
        settings.tracing_endpoint,
        service=tracing.Service.SILO,
        federation=settings.federation,
        instance=settings.name,
    ):
        asyncio.run(run_agent(settings, config))


async def run_agent(settings: SiloSettings, config: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT. config: the file of the settings, which is read again.

    Raises ConfigError, AgentFailed, or what ends the stream.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
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
        held = {data.name: _policy_of(data, settings) for data in settings.data_sets}
        policies = {name: each.policy for name, each in held.items()}
        if settings.objective is not None:
            load_entry_point(settings.objective, field="objective")
        elif settings.devices > 1 or settings.device is Device.CUDA:
            load_objective(settings)  # refuses what this machine does not have
        if settings.objective is None and settings.devices > 1:
            log.warning(
                "private jobs train in one process, whatever `devices` says", devices=settings.devices
            )
        stack.enter_context(alone(settings.directory))
        shutil.rmtree(settings.processes_directory, ignore_errors=True)  # of one that was killed
        audit = stack.enter_context(closing(AuditLog(settings.audit_path)))
        ledger = stack.enter_context(closing(Ledger(settings.ledger_path)))
        _agree(ledger, audit, settings.audit_path)
        opened = await asyncio.to_thread(open_accounts, settings, policies, ledger=ledger, audit=audit)
        metrics = SiloMetrics(tuple(policies))
        metrics.watch_disk(settings.directory)
        metrics.certificate_expiry.set_function(lambda: credentials.certificate_expires)
        agent = _Agent(
            settings,
            config=config,
            software=software,
            files=files,
            credentials=credentials,
            held=held,
            opened=opened,
            ledger=ledger,
            audit=audit,
            metrics=metrics,
        )
        stack.enter_context(_probes(settings, metrics, agent))
        gc.freeze()  # what was loaded stays: a full collection would look through all of it every few rounds
        await agent.serve(stopping)
    log.info("stopped")


class _Agent:
    """Everything that lives between start and stop, put together once."""

    def __init__(
        self,
        settings: SiloSettings,
        *,
        config: Path | None,
        software: Software,
        files: CredentialFiles,
        credentials: OwnCertificates,
        held: Mapping[str, HeldPolicy],
        opened: Mapping[str, OpenedData],
        ledger: Ledger,
        audit: AuditLog,
        metrics: SiloMetrics,
    ) -> None:
        self._settings = settings
        self._config = config
        self._opened = opened
        self._held = held
        self._software = software
        self._files = files
        self._credentials = credentials
        self._ledger = ledger
        self._audit = audit
        self._metrics = metrics
        self._stream: ControlStream | None = None
        accounts = self._accounts({name: each.policy for name, each in held.items()})
        self._budgets = [each.budget for each in accounts]
        self._data_sets = DataSets(accounts, ledger=ledger)
        self._rosters = Rosters(
            credentials=credentials,
            ledger=ledger,
            data_sets=self._data_sets,
            lowest_version=settings.lowest_roster_version,
            audit=audit,
            clock=_now,
        )

    def _accounts(self, policies: Mapping[str, Policy]) -> list[DataSet]:
        """The data sets as they are opened now."""
        accounts = [
            DataSet.of(
                self._ledger,
                name=name,
                policy=policy,
                account=self._settings.data_set(name).account,
                unit=self._settings.data_set(name).unit,
                format=self._settings.data_set(name).format,
                budgets=self._opened[name].budgets,
                tell_reveal=partial(_tell_reveal, self._audit),
                tell_spend=partial(_tell_spend, self._audit),
            )
            for name, policy in policies.items()
        ]
        for each in accounts:
            self._metrics.watch_budget(each.name, each.policy.privacy.epsilon, each.budget.spent)
        return accounts

    @property
    def is_connected(self) -> bool:
        return self._stream is not None and self._stream.is_connected

    async def serve(self, stopping: asyncio.Event) -> None:
        """Until `stopping` is set or the stream ends for good."""
        # grpc reads its environment when it is imported, so not before run() has set it
        from silo_agent.connection.channel import FederationStub, dial
        from silo_agent.connection.control_stream import ControlStream, Outbox
        from silo_agent.connection.transfer import Transfer

        settings, outbox, draw = self._settings, Outbox(), random.SystemRandom().random
        for budget in self._budgets:
            budget.open_account()
        self._data_sets.any_reveals.blank_old_shares()
        if given_back := self._budgets[0].release_dead():  # of all data sets
            log.info("reservations given back", inputs=given_back)
        route = settings.route()
        renewal = Renewal(
            self._credentials,
            self._files,
            newest=lambda: self._rosters.newest,
            refused=self._metrics.credentials_refused,
        )
        stub = FederationStub(lambda: dial(settings, renewal.next_identity(), self._credentials.authority))
        transfers = Transfer(stub, metrics=self._metrics, random=draw)
        handler = self._handler(transfers, outbox)
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
        try:
            await _until_stopped(self._stream, stopping)
        finally:
            await handler.close()

    def _handler(self, transfers: Transfer, outbox: Outbox) -> MessageHandler:
        jobs = OfferedJobs(
            silo=self._settings.name,
            ledger=self._ledger,
            data_sets=self._data_sets,
            credentials=self._credentials,
            clock=_now,
        )
        checks = TaskChecks(
            credentials=self._credentials,
            jobs=jobs,
            rosters=self._rosters,
            data_sets=self._data_sets,
            first_states=FirstStates(self._settings.first_state_directory, data_sets=self._data_sets),
            metrics=self._metrics,
            clock=_now,
            files=InForce(
                self._settings,
                self._held,
                take=self._take,
                audit=self._audit,
                config=self._config,
                is_idle=lambda: self._handles.is_idle,
                open_again=self._open_again,
            ),
        )
        local, known = LocalStates(self._settings.local_directory), self._ledger.known_states()
        files = StateFiles(self._settings.cache_directory)
        self._inputs = InputCache(
            silo=self._settings.name,
            data_sets=self._data_sets,
            metrics=self._metrics,
            local=local,
            personal=PersonalModels(self._settings.personal_directory, is_revealed=self._is_revealed),
            load_data=self._load_data,
            load_objective=partial(load_objective, self._settings),
            tell_stage=lambda stage: outbox.send(stage_to_wire(stage)),
            process=ComputeProcess(
                self._settings,
                data_of=self._data_of,
                records_of=self._records_of,
                tell_records=self._tell_records,
            ),
        )
        self._handles = MessageHandler(
            credentials=self._credentials,
            rosters=self._rosters,
            jobs=jobs,
            checks=checks,
            data_sets=self._data_sets,
            inputs=self._inputs,
            local=local,
            chain=StateChain(
                silo=self._settings.name,
                known=known,
                data_sets=self._data_sets,
                local=local,
                credentials=self._credentials,
            ),
            sums=RevealedSums(
                jobs=jobs,
                rosters=self._rosters,
                known=known,
                data_sets=self._data_sets,
                files=files,
                local=local,
                downloads=transfers,
                audit=self._audit,
                metrics=self._metrics,
            ),
            files=files,
            transfers=transfers,
            audit=self._audit,
            metrics=self._metrics,
            send=outbox.send,
        )
        return self._handles

    async def _open_again(self, settings: SiloSettings) -> None:
        """Close all data sets, compare their units with the accounts, and open them, while no phase runs."""
        await self._inputs.drop_data()
        policies = self._data_sets.policies
        opened = await asyncio.to_thread(
            open_accounts, settings, policies, ledger=self._ledger, audit=self._audit
        )
        self._settings, self._opened = settings, opened
        accounts = self._accounts(policies)
        for each in accounts:
            each.budget.open_account()
        self._data_sets.replace(accounts)

    def _take(self, name: str, policy: Policy) -> None:
        self._data_sets.take(name, policy)
        self._metrics.epsilon_budget.labels(data_set=name).set(policy.privacy.epsilon)

    def _data_of(self, job: Job) -> DataSettings:
        """Raises ConfigError for data that are closed."""
        name = self._data_sets.of(job.digest).name
        closed = self._opened[name].closed
        if closed is not None:
            again = "it is read again when its settings change, or at the agent's next start"
            raise type(closed)(f"{closed} (when it was opened: {again})")
        return self._settings.data_set(name)

    def _records_of(self, settings: DataSettings) -> int | None:
        contents = self._ledger.accounts().contents(settings.name)
        return None if contents is None else contents.records

    def _tell_records(self, settings: DataSettings, count: int) -> None:
        if settings.source is not None:  # which no start of the agent reads without a job
            self._ledger.accounts().note_contents(settings.name, records=count, units=None, columns=None)

    def _load_data(self, job: Job, is_cancelled: Callable[[], bool]) -> SiloData:
        settings = self._data_of(job)
        admitted = self._opened[settings.name].admitted
        data = load_data(settings, job.spec, admitted=admitted, is_cancelled=is_cancelled)
        self._tell_records(settings, len(data.train) + len(data.holdout))
        if data.rows_beyond:
            log.warning(rows_beyond_told(settings, data.rows_beyond), job=job.id)
        return data

    def _is_revealed(self, key: PhaseKey) -> bool:
        reveals = self._data_sets.any_reveals
        return reveals.is_revealed(key.job_digest, key.round, key.phase, silo=self._settings.name)


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


def _policy_of(data: DataSettings, settings: SiloSettings) -> HeldPolicy:
    """Raises ConfigError for a policy of another federation, and for data or a function of the silo's own
    that are not there: now, not when the first job asks for them."""
    held = HeldPolicy.read(settings.policy_of(data), federation=settings.federation)
    check_named(data)
    return held


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One agent per directory: two would answer for one another from one ledger."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (directory / "agent.lock").open("w")
    except OSError as error:
        raise ConfigError(f"directory: cannot use {directory}: {(error.strerror or '').lower()}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AgentFailed(f"directory: another agent is running in {directory}") from None
        yield


def _agree(ledger: Ledger, audit: AuditLog, audit_path: Path) -> None:
    """A ledger that lost a reveal or a spend, or was put back, must not serve; what a crash left untold is
    told now."""
    try:
        ledger.check_not_put_back()
    except PolicyRefusal as error:
        raise AgentFailed(str(error)) from None
    for event in (REVEALED_EVENT, SPENT_EVENT):
        ledger.check(audit_path, event)
    for event in (REVEALED_EVENT, SPENT_EVENT):
        for untold in ledger.untold(audit_path, event):
            audit.append(event, **untold)
    ledger.decisions().tell(audit)


def _tell_reveal(audit: AuditLog, pending: PendingReveal) -> None:
    audit.append_unflushed(  # the ledger holds it durably, and tells it again if a power loss takes it
        REVEALED_EVENT,
        job=pending.job_digest,
        round=pending.round,
        phase=pending.phase,
        cohort=pending.cohort_digest,
        survivors=list(pending.survivors),
    )


def _tell_spend(audit: AuditLog, spend: Spend) -> None:
    audit.append_unflushed(SPENT_EVENT, **spend_fields(spend))  # as a reveal


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
