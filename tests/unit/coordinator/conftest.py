"""A coordinator in this process, silos that dial it, and an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from chorale.job import SignedJob, sign_job
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_from_bytes, state_to_bytes
from chorale.transport import tls
from chorale.transport.tls import IdentityFiles
from chorale.v1 import federation_pb2 as fpb
from chorale.v1 import operations_pb2 as pb
from chorale.v1 import operations_pb2_grpc, records_pb2
from coordinator.process import Clock
from coordinator.service.hosting import Host
from coordinator.settings import CoordinatorSettings
from crypto.identity.certificates import Identity, Role
from strategies.base import Arrays
from tests.support.ceremony import Ceremony
from tests.unit.coordinator.fake_silo import FakeSilo


@dataclass(kw_only=True)
class Hub:
    """A federation of fake silos around a real coordinator; `restart` keeps its directory."""

    folder: Path
    silos: int
    overrides: dict[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    fakes: dict[str, FakeSilo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ceremony = Ceremony(folder=self.folder / "members")
        self.ceremony.enroll(Role.COORDINATOR, "hub")
        self.operator = self.ceremony.enroll(Role.OPERATOR, "ops")
        self.identities = {name: self.ceremony.enroll(Role.SILO, name) for name in self.names}
        self.ceremony.publish()
        self.stack = AsyncExitStack()

    @property
    def names(self) -> list[str]:
        return [f"silo-{place}" for place in range(self.silos)]

    @property
    def settings(self) -> CoordinatorSettings:
        values = {
            "federation": self.ceremony.federation,
            "listen": "127.0.0.1:0",
            "metrics_listen": None,
            "identity": {
                "certificate": self.ceremony.path_of(Role.COORDINATOR, "hub", "crt"),
                "key": self.ceremony.path_of(Role.COORDINATOR, "hub", "key"),
            },
            "authority": self.ceremony.certificate_path,
            "roster": self.ceremony.roster_path,
            "directory": self.folder / "hub",
            "heartbeat_seconds": 0.2,
            "reconnect_grace_seconds": 0.3,
            "stage_deadline_seconds": 5.0,
            "stage_hard_cap_seconds": 20.0,
            **self.overrides,
        }
        return CoordinatorSettings.model_validate(values)

    async def start(self) -> Host:
        self.host = Host(self.settings, clock=self.clock)
        await self.host.__aenter__()
        return self.host

    async def stop(self) -> None:
        await self.host.__aexit__(None, None, None)

    def silo(self, name: str, *, kind: type[FakeSilo] = FakeSilo, **changes: Any) -> FakeSilo:
        """A silo that dials the coordinator of this moment."""
        fake = kind(
            ceremony=self.ceremony,
            name=name,
            address=self.host.grpc_address,
            identity=self.identities[name],
            **changes,
        )
        self.fakes[name] = fake
        fake.start()
        return fake

    def start_silos(self, **changes: dict[str, Any]) -> None:
        """All silos; `changes` by name with underscores."""
        for name in self.names:
            self.silo(name, **changes.get(name.replace("-", "_"), {}))

    async def stop_silos(self) -> None:
        for fake in self.fakes.values():
            await fake.stop()

    def job(self, **fields: Any) -> tuple[SignedJob, bytes]:
        """A signed job over one parameter per silo, and its initial state."""
        state = state_to_bytes({"model/votes": np.zeros(self.silos, np.float32)})
        spec = JobSpec.model_validate(
            {
                "name": "one-hot",
                "federation": self.ceremony.federation,
                "nonce": "0" * 32,
                "not_after": datetime.now(UTC) + timedelta(days=1),
                "silos": self.names,
                "rounds": 2,
                "model": {"name": "custom"},
                "training": {"learning_rate": 0.1},
                "classes": 2,
                "input_shape": [2],
                "initial_state": state_digest(state).hex(),
                **fields,
            }
        )
        return sign_job(spec.to_yaml(), self.operator), state

    def operations(self, identity: Identity | None = None, *, options: Any = ()) -> Any:
        member = (identity or self.operator).member
        files = IdentityFiles(
            certificate=self.ceremony.path_of(member.role, member.name, "crt"),
            key=self.ceremony.path_of(member.role, member.name, "key"),
        )
        credentials = tls.channel_credentials(tls.load_identity(files), self.ceremony.anchors)
        channel = grpc.aio.secure_channel(self.host.grpc_address, credentials, options=options)
        self.stack.push_async_callback(channel.close)
        return operations_pb2_grpc.OperationsStub(channel)  # type: ignore[no-untyped-call]

    async def submit(self, **fields: Any) -> bytes:
        signed, state = self.job(**fields)
        receipt = await self.operations().SubmitJob(submission(signed, state))
        assert receipt.job_digest == signed.digest
        return signed.digest

    async def finish(self, digest: bytes) -> tuple[records_pb2.JobSummary, list[records_pb2.PhaseRecord]]:
        """Watch the job to its end."""
        records, summary = [], records_pb2.JobSummary()
        async for event in self.operations().WatchJob(pb.WatchRequest(job_digest=digest)):
            if event.HasField("record"):
                records.append(event.record)
            elif event.HasField("summary"):
                summary = event.summary
        return summary, records

    async def run(self, **fields: Any) -> tuple[bytes, records_pb2.JobSummary, list[records_pb2.PhaseRecord]]:
        """Submit a job and watch it to its end."""
        digest = await self.submit(**fields)
        return digest, *await self.finish(digest)

    async def control(self, digest: bytes, action: str, identity: Identity | None = None) -> str:
        """PAUSE, RESUME, CANCEL or SKIP_ROUND; the job's status then."""
        number = pb.ControlRequest.Action.Value(f"ACTION_{action}")
        request = pb.ControlRequest(job_digest=digest, action=number)
        return str((await self.operations(identity).ControlJob(request)).status)

    async def jobs(self) -> list[records_pb2.JobSummary]:
        return list((await self.operations().ListJobs(pb.ListJobsRequest())).jobs)

    async def restart(self, *, kind: type[FakeSilo] = FakeSilo, keeps: Sequence[str] = ()) -> None:
        """The coordinator, and all silos, which keep of what an agent has on disk all or these alone."""
        await self.stop()
        await self.stop_silos()
        kept = {name: fake.kept for name, fake in self.fakes.items()}
        await self.start()
        for name, files in kept.items():
            self.silo(name, kind=kind, **{each: files[each] for each in keeps or files})

    async def welcomed(self) -> None:
        """All silos that dialed are connected."""
        for fake in self.fakes.values():
            await fake.wait_for("welcome")

    async def state(self, digest: bytes) -> Arrays:
        return state_from_bytes(await self.fetch(digest))

    async def check_votes(self, digest: bytes, expected: Any) -> None:
        """Each round adds e_i of every silo i in its sum, by its share: one that is there twice shows."""
        np.testing.assert_allclose((await self.state(digest))["model/votes"], expected, atol=1e-6)

    async def fetch(self, digest: bytes) -> bytes:
        stream = self.operations().FetchModel(pb.FetchRequest(job_digest=digest))
        return b"".join([message.chunk.data async for message in stream if message.HasField("chunk")])


async def submission(signed: SignedJob, state: bytes) -> AsyncIterator[pb.SubmitMessage]:
    yield pb.SubmitMessage(job=signed.to_wire())
    yield pb.SubmitMessage(chunk=fpb.Chunk(offset=0, data=state))


@pytest.fixture
async def make_hub(tmp_path: Path) -> AsyncIterator[Callable[..., Hub]]:
    hubs: list[Hub] = []

    def make(silos: int = 4, **overrides: Any) -> Hub:
        hubs.append(Hub(folder=tmp_path / f"hub-{len(hubs)}", silos=silos, overrides=overrides))
        return hubs[-1]

    yield make
    for hub in hubs:
        await hub.stop_silos()
        await hub.stack.aclose()
        if hasattr(hub, "host"):
            await hub.stop()


@pytest.fixture
def start_hub(make_hub: Callable[..., Hub]) -> Callable[..., Awaitable[Hub]]:
    """A hub whose coordinator runs."""

    async def start(silos: int = 4, **overrides: Any) -> Hub:
        hub = make_hub(silos, **overrides)
        await hub.start()
        return hub

    return start


@pytest.fixture
def attended_hub(start_hub: Callable[..., Awaitable[Hub]]) -> Callable[..., Awaitable[Hub]]:
    """A hub that all silos dial; silo_0=...: what is odd about one of them, the others are settings."""

    async def start(silos: int = 4, **fields: Any) -> Hub:
        odd = {name: fields.pop(name) for name in [*fields] if name.startswith("silo_")}
        hub = await start_hub(silos, **fields)
        hub.start_silos(**odd)
        return hub

    return start
