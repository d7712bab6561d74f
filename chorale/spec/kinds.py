"""The kinds of jobs: which file is which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec, phase_context
from chorale.spec.settings_file import check_values, parse_mapping
from chorale.spec.state import GlobalState
from crypto.errors import ConfigError
from strategies.base import PhaseContext

AnySpec: TypeAlias = JobSpec | AnalysisSpec


def any_spec(data: bytes, *, source: str) -> AnySpec:
    """A job's file. Raises ConfigError that names file, field and what is allowed."""
    return any_spec_of(parse_mapping(data, source=source), source=source)


def signed_spec(data: bytes, *, source: str) -> AnySpec:
    """Of bytes in the form in which jobs are signed. Raises ConfigError as `JobSpec.from_yaml`.

    Security: a comment, or a value in other words, would tell people what no silo was asked.
    """
    spec = any_spec(data, source=source)
    if spec.to_yaml() != data:
        raise ConfigError(f"{source}: expected a job as Chorale writes it, got other bytes")
    return spec


def any_context(
    spec: AnySpec,
    round: int,
    state: GlobalState,
    members: int,
    *,
    public_seed: bytes = bytes(32),
    tests_model: bool = True,
) -> PhaseContext:
    """As `phase_context`."""
    if isinstance(spec, JobSpec):
        return phase_context(spec, round, state, members, public_seed=public_seed, tests_model=tests_model)
    return PhaseContext(
        round=round, members=members, classes=0, state=state, trained=(), public_seed=public_seed
    )


def any_spec_of(values: Mapping[str, Any], *, source: str) -> AnySpec:
    """Of a file's fields: an analysis says its kind, a training has none. Raises ConfigError."""
    if "kind" in values:
        return check_values(AnalysisSpec, values, source=source)
    return check_values(JobSpec, values, source=source)
