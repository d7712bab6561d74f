"""What happens to an analysis before it is sent, and what it would do."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from chorale.job import Job, SignedJob
from chorale.privacy.job_releases import planned_phases
from chorale.runtime.files import read_limited
from chorale.spec.analysis_spec import AnalysisSpec, first_digest
from chorale.spec.fields import check_federation, check_not_over
from chorale.spec.kinds import AnySpec
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from chorale.spec.state import state_to_bytes
from chorale.transport.wire import PhaseKey
from client.analysis.formula import with_terms
from client.errors import about, with_hint
from client.planning import RECEIVED_BYTES, SENT_BYTES, PlannedPhase, message_bytes
from client.submission import DEFAULT_LIFE, solved, spec_of
from crypto.errors import ConfigError
from strategies.analysis.method import FIRST_STATE
from strategies.base import TOTAL

KIND = "analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSubmission:
    """An analysis that is complete but for its signature. state: its initial global state, file bytes. notes:
    what it promises, or what silos' policies must allow for it to run."""

    spec: AnalysisSpec
    state: bytes
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisPlan:
    """What an analysis would do. asks: in words. cells: that the coordinator sees, exactly or with noise."""

    name: str
    asks: str
    silos: int
    cells: int
    has_noise: bool
    phases: tuple[PlannedPhase, ...]
    notes: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def read_analysis(file: Path) -> AnalysisSpec:
    """The file; not_after is filled in where it is left out. Raises ConfigError."""
    values = parse_mapping(read_limited(file, MAX_BYTES), source=str(file))
    return analysis_of(with_terms(values, source=str(file)), source=str(file))


def read_job(file: Path) -> AnySpec:
    """The file of a job of any kind, likewise."""
    values, source = parse_mapping(read_limited(file, MAX_BYTES), source=str(file)), str(file)
    return analysis_of(values, source=source) if "kind" in values else spec_of(values, source=source)


def analysis_of(values: Mapping[str, object], *, source: str, silos: Sequence[str] = ()) -> AnalysisSpec:
    """The same of a file's fields. source: what errors call them. silos: in place of the file's, if there are
    any."""
    if values.get("kind") != KIND:
        message = f"{source}: expected an analysis, with kind: {KIND}"
        raise with_hint(ConfigError(message), "a training: chorale job submit")
    filled = {"not_after": datetime.now(UTC).replace(microsecond=0) + DEFAULT_LIFE}
    given = {"silos": list(silos)} if silos else {}
    return check_values(AnalysisSpec, {**filled, **values, **given}, source=source)


def prepared_analysis(
    spec: AnalysisSpec, *, source: str, federation: str | None, now: datetime
) -> AnalysisSubmission:
    """With its nonce, its noise and the state that every analysis begins with. federation: the operator's;
    None: of any. Raises ConfigError."""
    state = state_to_bytes(FIRST_STATE)
    with about(source):
        if federation not in (None, spec.federation):
            expected = f"expected {federation}, as in the operator's settings"
            raise ConfigError(f"federation: {expected}, got {spec.federation}")
        check_federation(spec.name, len(spec.silos))
        check_not_over(spec.name, spec.not_after, now=now)
        spec, promised = solved(spec, state)
    spec = spec.filled(nonce=spec.nonce or secrets.token_hex(16), initial_state=first_digest())
    spec.check_submittable(now=now)
    return AnalysisSubmission(spec=spec, state=state, notes=tuple(promised or _notes(spec)))


def analysis_plan(submission: AnalysisSubmission) -> AnalysisPlan:
    """Where no attempt is lost."""
    spec = submission.spec
    signed = SignedJob(spec_bytes=spec.to_yaml(), signature=b"", operator_certificate=b"")
    job = Job(spec=spec, signed=signed, operator="")
    state = {**FIRST_STATE, TOTAL: np.array(1)}  # which enrollment writes; it decides no size
    phases = []
    for kind, silos, times in planned_phases(spec):
        layout = job.layout(PhaseKey(job_digest=job.digest, round=0, phase=kind, attempt=1), state, silos)
        tagged_bytes = 0 if layout.tagged is None else layout.tagged.total_bytes
        phases.append(
            PlannedPhase(
                kind=kind,
                times=times,
                silos=silos,
                arms=1,
                sent_bytes=layout.total_bytes + message_bytes(SENT_BYTES, silos),
                received_bytes=tagged_bytes + message_bytes(RECEIVED_BYTES, silos),
                quantities={quantity.name: quantity.size for quantity in layout.quantities},
            )
        )
    return AnalysisPlan(
        name=spec.name,
        asks=spec.in_words,
        silos=len(spec.silos),
        cells=spec.tables.cells,
        has_noise=spec.privacy is not None,
        phases=tuple(phases),
        notes=submission.notes,
    )


def _notes(spec: AnalysisSpec) -> list[str]:
    """What silos' policies refuse by default of exact sums."""
    notes = ["silos refuse an analysis unless analyses.exact in their policy says allow"]
    if measured := [spec.columns[place].name for place in spec.tables.measured]:
        notes.append(
            f"means of {', '.join(measured)}: silos refuse them unless analyses.measurements in their policy "
            "lists the columns"
        )
    return [*notes, "a data set answers one analysis, unless analyses.most in its policy says more"]
