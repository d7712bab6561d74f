"""A coordinator that tells of many silos and a long job over the real service; none of it happened."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from chorale.job import SignedJob, sign_job
from chorale.transport import tls
from chorale.v1 import operations_pb2 as pb
from chorale.v1.records_pb2 import Awaited, JobSummary, LeftOut, PhaseRecord
from crypto.identity.certificates import Identity, Role
from tests.support.federation import COORDINATOR, OPERATOR, LocalFederation

SILOS, ROUNDS = 50, 500
NAMES = [f"hospital-{place:02}" for place in range(SILOS)]


@contextmanager
def large_federation(federation: LocalFederation) -> Iterator[JobSummary]:
    """Serves in place of the federation's coordinator; the job that it tells of."""
    tls.restrict_to_tls13()
    import grpc

    from chorale.v1 import operations_pb2_grpc

    ceremony = federation.ceremony
    identity, operator = (
        Identity.load(
            ceremony.path_of(role, name, "crt").read_bytes(), ceremony.path_of(role, name, "key").read_bytes()
        )
        for role, name in ((Role.COORDINATOR, COORDINATOR), (Role.OPERATOR, OPERATOR))
    )
    spec = federation.job_spec(name="heart-mlp", silos=NAMES, rounds=ROUNDS + 20)
    signed = sign_job(spec.to_yaml(), operator)
    summary = _summary(signed)

    class Service(operations_pb2_grpc.OperationsServicer):
        def ListSilos(self, request: Any, context: Any) -> pb.ListSilosReply:
            return silos()

        def ListJobs(self, request: Any, context: Any) -> pb.ListJobsReply:
            return pb.ListJobsReply(jobs=[summary])

        def WatchJob(self, request: Any, context: Any) -> Iterator[pb.JobEvent]:
            yield pb.JobEvent(job=signed.to_wire())
            yield pb.JobEvent(summary=summary)
            for round in range(1, ROUNDS + 1):
                yield pb.JobEvent(record=record(summary.job_digest, round))
            while context.is_active():  # a job that goes on
                stopping.wait(0.1)
                if stopping.is_set():
                    return

    stopping = threading.Event()
    server = grpc.server(ThreadPoolExecutor(8))
    operations_pb2_grpc.add_OperationsServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(lambda: (identity, ceremony.anchors)))
    server.start()
    federation.endpoint = {"grpc": f"127.0.0.1:{port}"}
    try:
        yield summary
    finally:
        stopping.set()
        server.stop(0).wait()


def _summary(signed: SignedJob) -> JobSummary:
    return JobSummary(
        job_digest=signed.digest,
        name="heart-mlp",
        status="running",
        state="waiting for hospital-07, hospital-31",
        strategy="fedavg",
        operator=OPERATOR,
        rounds=ROUNDS + 20,
        rounds_completed=ROUNDS,
        silos=NAMES,
        main_figure="accuracy",
        submitted_unix_seconds=datetime.now(UTC).timestamp() - 3600,
        float32_bytes=180_000,
        progress=f"round {ROUNDS + 1}, train: masked, 48 of 50",
        awaited=[
            Awaited(silo="hospital-07", why="loading torch"),
            Awaited(silo="hospital-31", why="connection"),
        ],
        model_round=ROUNDS,
    )


def silos() -> pb.ListSilosReply:
    expires = (datetime.now(UTC) + timedelta(days=200)).timestamp()
    silos = [
        pb.SiloStatus(
            name=name,
            connected=place != 31,
            certificate_expires_unix_seconds=expires - (195 if place == 4 else place) * 86_400,
            software_version="1.0.0",
            certificate_sha256=bytes([place]) * 32,
        )
        for place, name in enumerate(NAMES)
    ]
    return pb.ListSilosReply(roster_version=12, silos=silos, software_version="1.0.0")


def record(digest: bytes, round: int) -> PhaseRecord:
    late = [LeftOut(silo=NAMES[round % SILOS], stage="masked", reason="deadline")] if round % 40 == 0 else []
    reached = 1 - math.exp(-round / 90)
    return PhaseRecord(
        job_digest=digest,
        round=round,
        phase="train",
        attempts=1 + (round % 97 == 0),
        result="applied",
        cohort=[name for name in NAMES if name not in [each.silo for each in late]],
        left_out=late,
        data_share=1 - 0.02 * len(late),
        figures={"accuracy": 0.1 + 0.8 * reached + 0.01 * math.sin(round), "loss": 2.3 - 2.0 * reached},
        state_digest=bytes(32),
        wall_seconds=3.2 + math.sin(round),
        upload_bytes=740_000,
        quantities=["delta", "weight", "correct", "tested", "loss_sum"],
        verified_by=50 - len(late),
        threshold=34,
    )
