"""The coordinator's settings file: where it listens, what it keeps, how long it waits."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chorale.observability.logs import LogLevel
from chorale.observability.tracing import Endpoint
from chorale.runtime.machine import memory_limit_bytes
from chorale.spec.fields import Address, Name, Sha256
from chorale.spec.settings_file import load_settings
from chorale.transport.channel_options import KEEPALIVE_SECONDS, HeartbeatSeconds, KeepaliveSeconds
from chorale.transport.tls import IdentityFiles
from chorale.transport.wire import CHUNK_BYTES

ENV_PREFIX = "CHORALE_COORDINATOR_"
GIB = 1 << 30


class CoordinatorSettings(BaseModel):
    """Everything `chorale coordinator run` reads. Paths are relative to the working directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    federation: Name = Field(description="the federation's name, as in every certificate")
    listen: Address = Field(
        description="host:port for gRPC; 0.0.0.0 is every interface of this machine, 127.0.0.1 this machine "
        "alone; port 0 takes a free one"
    )
    metrics_listen: Address | None = Field(
        default="127.0.0.1:0",
        description="host:port of /livez, /readyz, /metrics; port 0 takes a free one; null for none",
    )
    identity: IdentityFiles
    authority: Path = Field(
        description="certificate of the federation's authority, PEM, two while its key changes; never the key"
    )
    roster: Path = Field(description="the authority's signed roster; read again whenever the file changes")
    directory: Path = Field(description="jobs, checkpoints, uploads and audit log; on a local disk")
    heartbeat_seconds: HeartbeatSeconds = Field(
        default=5.0, description="time between heartbeats; certificates are checked at each"
    )
    keepalive_seconds: KeepaliveSeconds = Field(
        default=KEEPALIVE_SECONDS, description="a line on which nothing moves is pinged so often"
    )
    reconnect_grace_seconds: float = Field(
        default=15.0, ge=0, le=3600, description="how long a silo that lost its connection is waited for"
    )
    stage_deadline_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="a stage waits this long for a silo that shows no progress; longer with many silos",
    )
    stage_hard_cap_seconds: float = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="a stage waits no longer, transfers not counted; not below stage_deadline_seconds",
    )
    unmask_hard_cap_seconds: float = Field(
        default=3600.0,
        gt=0,
        le=604_800,
        description="how long a masked sum waits for its shares, and then for what silos sign of it",
    )
    min_upload_bytes_per_second: int = Field(
        default=10_000,
        ge=1,
        le=10**9,
        description="a transfer at least this fast keeps its stage open, as long as it takes at this rate",
    )
    spool_memory_megabytes: int | None = Field(
        default=None,
        ge=0,
        le=1 << 24,
        description="uploads of up to so many MiB together are held in memory, others on disk until they are "
        "added; null takes a quarter of the machine's or the container's memory",
    )
    max_jobs: int = Field(default=8, ge=1, le=1000, description="jobs that may be unfinished at once")
    max_state_bytes: int = Field(
        default=4 * GIB, ge=1024, le=256 * GIB, description="largest initial state that is accepted"
    )
    required_software: tuple[Sha256, ...] = Field(
        default=(),
        max_length=100,
        description="SHA-256 of the installed Chorale that a silo has to report, one of these, to be let in; "
        "empty: any or none. A silo says it of itself: it finds a mistake, not a lie",
    )
    log_level: LogLevel = "info"
    tracing_endpoint: Endpoint | None = Field(
        default=None, description="URL of a collector that takes spans by OTLP over HTTP; null for no tracing"
    )

    @model_validator(mode="after")
    def _caps_are_above_deadlines(self) -> CoordinatorSettings:
        if self.stage_hard_cap_seconds < self.stage_deadline_seconds:
            raise ValueError(
                f"stage_hard_cap_seconds: must be at least stage_deadline_seconds, "
                f"{self.stage_deadline_seconds:g}, got {self.stage_hard_cap_seconds:g}"
            )
        return self

    @property
    def chunk_seconds(self) -> float:
        """How long a transfer may stand still: a stage's deadline, and what the slowest chunk takes."""
        return self.stage_deadline_seconds + CHUNK_BYTES / self.min_upload_bytes_per_second

    @property
    def spool_memory_bytes(self) -> int:
        if self.spool_memory_megabytes is None:
            return memory_limit_bytes() // 4
        return self.spool_memory_megabytes << 20

    @property
    def spool_directory(self) -> Path:
        return self.directory / "spool"

    @property
    def sum_directory(self) -> Path:
        return self.directory / "sums"


def load_coordinator_settings(path: Path) -> CoordinatorSettings:
    """Raises ConfigError that names file, field and what is allowed."""
    return load_settings(CoordinatorSettings, path, ENV_PREFIX)
