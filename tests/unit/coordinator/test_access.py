"""Who gets in, asked of a real server over real mutual TLS."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chorale.v1 import federation_pb2 as pb
from chorale.v1 import operations_pb2
from coordinator.process import Clock
from coordinator.service.access import ALLOWED, COMMON_METHODS, FEDERATION_METHODS, OPERATIONS_METHODS
from crypto.errors import ConfigError
from crypto.identity.certificates import Role
from tests.support.rpc_errors import rpc_fails


async def test_operator_may_list_jobs(start_hub):
    hub = await start_hub()
    reply = await hub.operations().ListJobs(operations_pb2.ListJobsRequest())
    assert not reply.jobs


async def test_silo_may_not_call_operations(start_hub):
    hub = await start_hub()
    stub = hub.operations(hub.identities["silo-0"])
    with rpc_fails("PERMISSION_DENIED", "not allowed to a silo"):
        await stub.ListJobs(operations_pb2.ListJobsRequest())


async def test_silo_may_not_stream_from_operations(start_hub):
    hub = await start_hub()
    stub = hub.operations(hub.identities["silo-0"])
    with pytest.raises(grpc.aio.AioRpcError, match="not allowed to a silo"):
        await anext(aiter(stub.FetchModel(operations_pb2.FetchRequest(job_digest=b"j" * 32))))


async def test_member_that_is_not_on_the_roster_is_refused_by_name(make_hub):
    hub = make_hub()
    hub.ceremony.publish(without=("silo-1",))
    await hub.start()
    fake = hub.silo("silo-1")
    error = await fake.wait_for("error")
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "does not list this certificate of silo silo-1" in error.details()


async def test_new_certificate_of_a_known_name_is_refused_until_the_roster_lists_it(start_hub):
    hub = await start_hub()
    hub.ceremony.enroll(Role.SILO, "silo-1")
    fake = hub.silo("silo-1")
    assert "does not list this certificate" in (await fake.wait_for("error")).details()
    hub.ceremony.publish()
    again = hub.silo("silo-1")
    await again.wait_for("welcome")


async def test_silo_revoked_by_a_new_roster_loses_its_stream_within_a_heartbeat(start_hub):
    hub = await start_hub()
    revoked, kept = hub.silo("silo-1"), hub.silo("silo-2")
    await revoked.wait_for("welcome")
    await kept.wait_for("welcome")

    hub.ceremony.publish(without=("silo-1",))

    error = await revoked.wait_for("error")
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "version 2 does not list" in error.details()
    assert await kept.wait_for("roster")
    await kept.wait_for("heartbeat", count=3)


async def test_certificate_that_expires_during_the_connection_ends_it(make_hub):
    moved = timedelta()
    hub = make_hub()
    hub.clock = Clock(now=lambda: datetime.now(UTC) + moved)
    hub.identities["silo-1"] = hub.ceremony.enroll(Role.SILO, "silo-1", days=1)
    hub.ceremony.publish()
    await hub.start()
    fake = hub.silo("silo-1")
    await fake.wait_for("heartbeat")

    moved = timedelta(days=1, minutes=10)

    error = await fake.wait_for("error")
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "certificate" in error.details()


async def test_expired_roster_lets_nobody_in(make_hub):
    moved = timedelta()
    hub = make_hub()
    hub.clock = Clock(now=lambda: datetime.now(UTC) + moved)
    for name in hub.names:
        hub.identities[name] = hub.ceremony.enroll(Role.SILO, name, days=9)
    hub.ceremony.publish()
    await hub.start()
    moved = timedelta(days=6)
    fake = hub.silo("silo-0")
    assert "has expired" in (await fake.wait_for("error")).details()


async def test_older_roster_is_never_taken_back(make_hub):
    hub = make_hub()
    old = hub.ceremony.roster_path.read_bytes()
    hub.ceremony.publish(without=("silo-1",))
    await hub.start()
    hub.ceremony.roster_path.write_bytes(old)
    assert hub.host.resources.roster_book.current.version == 2
    fake = hub.silo("silo-1")
    assert "version 2 does not list" in (await fake.wait_for("error")).details()
    await hub.stop()
    with pytest.raises(ConfigError, match="is version 1, expected at least 2"):
        await hub.start()
    hub.ceremony.version = 1
    hub.ceremony.publish(without=("silo-1",))
    del hub.host


async def test_health_may_be_asked_by_every_member(start_hub):
    hub = await start_hub()
    async with hub.silo("silo-0").channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service="chorale.v1.Federation"))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_table_allows_every_method_to_one_role_and_nothing_else():
    services = {
        f"/{service.full_name}/{method.name}"
        for file in (pb.DESCRIPTOR, operations_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert services == FEDERATION_METHODS | OPERATIONS_METHODS
    assert ALLOWED[Role.SILO] == FEDERATION_METHODS | COMMON_METHODS
    assert ALLOWED[Role.OPERATOR] == OPERATIONS_METHODS | COMMON_METHODS
    assert Role.COORDINATOR not in ALLOWED
