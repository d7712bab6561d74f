"""The agent of one institution: opens what is its own, then serves until it is stopped."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509

from chorale.observability import logs, tracing
from chorale.observability.logs import get_logger
from chorale.observability.probes import ProbeServer
from chorale.runtime.audit import AuditLog
from chorale.runtime.background_io import keep_chunks
from chorale.runtime.files import read_limited, write_atomic
from chorale.transport import tls, wire
from crypto.errors import ChoraleError, ConfigError
from crypto.identity.certificates import Identity, Role
from crypto.session.reveal import PendingReveal
from silo_agent.data.loading import load_data
from silo_agent.ledger.budget import Spend
from silo_agent.ledger.ledger import REVEALED_EVENT, SPENT_EVENT, Ledger, spend_fields
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.personal_models import PersonalModels
from silo_agent.local_storage.state_files import StateFiles
from silo_agent.metrics import SiloMetrics
from silo_agent.objective import load_objective
from silo_agent.policy.policy import Policy, load_policy
from silo_agent.rounds.first_state import FirstStates
from silo_agent.rounds.input_cache import InputCache
from silo_agent.rounds.message_handler import MessageHandler
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.revealed_sums import RevealedSums
from silo_agent.rounds.rosters import Rosters
from silo_agent.rounds.state_chain import StateChain
from silo_agent.rounds.task_checks import TaskChecks
from silo_agent.settings import SiloSettings

if TYPE_CHECKING:
    from chorale.transport.wire import PhaseKey
    from silo_agent.connection.control_stream import ControlStream, Outbox
    from silo_agent.connection.transfer import Transfer

log = get_logger("silo_agent.agent")

_now = partial(datetime.now, UTC)


class AgentFailed(ChoraleError):
    """The agent cannot start on this machine."""


def run(settings: SiloSettings) -> None:
    """`chorale silo run`: until SIGTERM or Ctrl-C. Raises ChoraleError."""
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
        asyncio.run(run_agent(settings))


async def run_agent(settings: SiloSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError, AgentFailed, or what ends the stream."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with ExitStack() as stack:
        authority = tls.load_authority(settings.authority)
        identity = _own_identity(settings, authority)
        policy = load_policy(settings.policy)
        if policy.federation != settings.federation:
            expected = f"expected {settings.federation}, got {policy.federation}"
            raise ConfigError(f"{settings.policy}: federation: {expected}")
        path = settings.data.path
        if path is not None and not path.exists():  # noticed now, not when the first job asks for data
            raise ConfigError(f"data.path: {path}: no such file or directory")
        stack.enter_context(_alone(settings.directory))
        audit = stack.enter_context(closing(AuditLog(settings.audit_path)))
        ledger = stack.enter_context(closing(Ledger(settings.ledger_path)))
        _agree(ledger, audit, settings.audit_path)
        metrics = SiloMetrics()
        metrics.certificate_expiry.set(identity.certificate.not_valid_after_utc.timestamp())
        agent = _Agent(
            settings,
            identity=identity,
            authority=authority,
            policy=policy,
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
        identity: Identity,
        authority: x509.Certificate,
        policy: Policy,
        ledger: Ledger,
        audit: AuditLog,
        metrics: SiloMetrics,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._authority = authority
        self._policy = policy
        self._ledger = ledger
        self._audit = audit
        self._metrics = metrics
        self._stream: ControlStream | None = None
        self._reveals = ledger.reveals(
            policy=policy, data_set=settings.data.name, tell=partial(_tell_reveal, audit)
        )
        self._budget = ledger.budget(
            policy=policy, data_set=settings.data.name, tell=partial(_tell_spend, audit)
        )
        metrics.watch_budget(policy.privacy.epsilon, self._budget.spent)
        self._rosters = Rosters(
            identity=identity,
            authority=authority,
            policy=policy,
            ledger=ledger,
            reveals=self._reveals,
            lowest_version=settings.lowest_roster_version,
            clock=_now,
        )

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
        self._budget.open_account()
        self._reveals.blank_old_shares()
        if given_back := self._budget.release_dead():
            log.info("reservations given back", inputs=given_back)
        async with dial(settings, read_limited(settings.authority, tls.MAX_PEM_BYTES)) as channel:
            stub = FederationStub(channel)
            transfers = Transfer(stub, metrics=self._metrics, random=draw)
            handler = self._handler(transfers, outbox)
            self._stream = ControlStream(
                stub,
                target=settings.coordinator,
                proxy=settings.proxy,
                software_version=wire.software_version(),
                served=handler,
                moved_bytes=lambda: transfers.moved_bytes,
                outbox=outbox,
                rosters=self._rosters,
                metrics=self._metrics,
                check_own_certificate=partial(_check_own, self._identity, self._authority, settings),
                clock=_now,
                random=draw,
            )
            log.info(
                "started",
                coordinator=settings.coordinator,
                proxy=settings.proxy,
                policy=str(settings.policy),
            )
            try:
                await _until_stopped(self._stream, stopping)
            finally:
                await handler.close()

    def _handler(self, transfers: Transfer, outbox: Outbox) -> MessageHandler:
        steps = self._ledger.steps(policy=self._policy, data_set=self._settings.data.name)
        jobs = OfferedJobs(
            silo=self._settings.name,
            ledger=self._ledger,
            policy=self._policy,
            authority=self._authority,
            clock=_now,
        )
        checks = TaskChecks(
            identity=self._identity,
            authority=self._authority,
            policy=self._policy,
            jobs=jobs,
            rosters=self._rosters,
            reveals=self._reveals,
            budget=self._budget,
            steps=steps,
            first_states=FirstStates(self._settings.first_state_directory, policy=self._policy),
            clock=_now,
        )
        local, known = LocalStates(self._settings.local_directory), self._ledger.known_states()
        files = StateFiles(self._settings.cache_directory)
        inputs = InputCache(
            silo=self._settings.name,
            policy=self._policy,
            budget=self._budget,
            metrics=self._metrics,
            local=local,
            personal=PersonalModels(self._settings.personal_directory, is_revealed=self._is_revealed),
            load_data=lambda job, is_cancelled: load_data(
                self._settings.data, job.spec, is_cancelled=is_cancelled
            ),
            load_objective=partial(load_objective, self._settings),
        )
        return MessageHandler(
            identity=self._identity,
            rosters=self._rosters,
            jobs=jobs,
            checks=checks,
            reveals=self._reveals,
            inputs=inputs,
            local=local,
            chain=StateChain(
                silo=self._settings.name,
                known=known,
                reveals=self._reveals,
                local=local,
                authority=self._authority,
            ),
            sums=RevealedSums(
                identity=self._identity,
                jobs=jobs,
                rosters=self._rosters,
                known=known,
                reveals=self._reveals,
                steps=steps,
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

    def _is_revealed(self, key: PhaseKey) -> bool:
        return self._reveals.is_revealed(key.job_digest, key.round, key.phase, silo=self._settings.name)


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


def _own_identity(settings: SiloSettings, authority: x509.Certificate) -> Identity:
    identity = tls.load_identity(settings.identity)
    _check_own(identity, authority, settings)
    if identity.member.name != settings.name:
        raise ConfigError(
            f"{settings.identity.certificate}: expected a certificate of silo {settings.name}, "
            f"got {identity.member.name}"
        )
    return identity


def _check_own(identity: Identity, authority: x509.Certificate, settings: SiloSettings) -> None:
    tls.check_own_certificate(
        identity,
        authority=authority,
        role=Role.SILO,
        federation=settings.federation,
        now=_now(),
        path=settings.identity.certificate,
    )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
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
            raise AgentFailed(f"directory: another agent runs in {directory}") from None
        yield


def _agree(ledger: Ledger, audit: AuditLog, audit_path: Path) -> None:
    """A ledger that lost a reveal or a spend must not serve; what a crash left untold is told now."""
    for event in (REVEALED_EVENT, SPENT_EVENT):
        ledger.check(audit_path, event)
    for event in (REVEALED_EVENT, SPENT_EVENT):
        for untold in ledger.untold(audit_path, event):
            audit.append(event, **untold)
    ledger.tell_grants(audit)


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
            is_ready=lambda: agent.is_connected,
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
