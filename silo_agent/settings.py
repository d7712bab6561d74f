"""The silo's settings file: who it is, whom it dials, what it trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Discriminator, Field, Tag, field_validator

from chorale.observability.logs import LogLevel
from chorale.observability.tracing import Endpoint
from chorale.runtime.validation_errors import MANY, ONE
from chorale.spec.fields import Address, Name, Sha256, one_or_many
from chorale.spec.line_settings import LineSettings
from chorale.spec.settings_file import load_settings
from chorale.transport.channel_options import KEEPALIVE_SECONDS, KeepaliveSeconds
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.machine.settings import MachineSettings

ENV_PREFIX = "CHORALE_SILO_"
LEDGER = "ledger.sqlite"  # in the silo's directory


class SiloSettings(MachineSettings, LineSettings):
    """Everything `chorale silo run` reads. Paths are relative to the working directory."""

    name: Name = Field(description="this silo's name, as in its certificate")
    keepalive_seconds: KeepaliveSeconds = Field(
        default=KEEPALIVE_SECONDS, description="a line on which nothing moves is pinged so often"
    )
    directory: Path = Field(description="ledger, audit log and cache; on a local disk, one agent each")
    policy: Path = Field(description="policy file: what may leave this silo")
    lowest_roster_version: int = Field(
        default=1, ge=1, description="pinned at enrollment: no older roster is ever accepted"
    )
    software_digest: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the installed Chorale that this site approved, as a release tells it; the "
        "agent starts with no other; null: with any",
    )
    metrics_listen: Address | None = Field(
        default="127.0.0.1:0",
        description="host:port of /livez, /readyz, /metrics; port 0 takes a free one; null for none",
    )
    log_level: LogLevel = "info"
    tracing_endpoint: Endpoint | None = Field(
        default=None, description="URL of a collector that takes spans by OTLP over HTTP; null for no tracing"
    )
    data: Annotated[
        Annotated[DataSettings, Tag(ONE)]
        | Annotated[tuple[DataSettings, ...], Field(min_length=1, max_length=100), Tag(MANY)],
        Discriminator(one_or_many),
    ] = Field(description="the data set that jobs train on, or a list of several, which jobs name")

    @field_validator("data")
    @classmethod
    def _has_names(
        cls, data: DataSettings | tuple[DataSettings, ...]
    ) -> DataSettings | tuple[DataSettings, ...]:
        names = [each.name for each in data] if isinstance(data, tuple) else []
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"expected a different name for each data set, got {twice[0]} twice")
        return data

    @property
    def data_sets(self) -> tuple[DataSettings, ...]:
        """One or several, in the order of the file."""
        return self.data if isinstance(self.data, tuple) else (self.data,)

    def data_set(self, name: str) -> DataSettings:
        return next(each for each in self.data_sets if each.name == name)

    def policy_of(self, data_set: DataSettings) -> Path:
        """The policy file that holds for a data set."""
        return data_set.policy or self.policy

    @property
    def min_memory_bytes(self) -> int:
        """Of a process without a job: 60 and 165 MiB in a cgroup of its own, with torch."""
        return (192 if self.objective is None else 96) << 20

    @property
    def ledger_path(self) -> Path:
        return self.directory / LEDGER

    @property
    def audit_path(self) -> Path:
        return self.directory / "audit.jsonl"

    @property
    def unit_key_path(self) -> Path:
        return self.directory / "unit.key"

    @property
    def in_force_path(self) -> Path:
        return self.directory / "in-force.json"

    @property
    def confirmed_path(self) -> Path:
        return self.directory / "confirmed"

    @property
    def local_directory(self) -> Path:
        return self.directory / "local"

    @property
    def personal_directory(self) -> Path:
        return self.directory / "personal"

    @property
    def first_state_directory(self) -> Path:
        return self.directory / "first"

    @property
    def processes_directory(self) -> Path:
        return self.directory / "processes"

    @property
    def cache_directory(self) -> Path:
        return self.directory / "cache"


def load_silo_settings(path: Path) -> SiloSettings:
    """Raises ConfigError that names file, field and what is allowed."""
    return load_settings(SiloSettings, path, ENV_PREFIX)
