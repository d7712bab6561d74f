"""What happens to an analysis before it is sent, and what it would do."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from chorale.runtime.files import read_limited
from chorale.spec.analysis_spec import AnalysisSpec, first_digest
from chorale.spec.kinds import AnySpec
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from chorale.spec.state import state_to_bytes
from client.errors import about, with_hint
from client.formula import with_terms
from client.planning import PlannedPhase, phases_of
from client.submission import Submission, check_basics, filled_in, solved, spec_of
from crypto.errors import ConfigError
from strategies.analysis.method import FIRST_STATE
from strategies.base import TOTAL

KIND = "analysis"


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


def read_analysis(file: Path) -> AnalysisSpec:
    """The file; not_after is filled in where it is left out. Raises ConfigError."""
    return analysis_of(parse_mapping(read_limited(file, MAX_BYTES), source=str(file)), source=str(file))


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
    return check_values(
        AnalysisSpec, filled_in(with_terms(values, source=source), silos=silos), source=source
    )


def prepared_analysis(
    spec: AnalysisSpec, *, source: str, federation: str | None, now: datetime
) -> Submission[AnalysisSpec]:
    """With its nonce, its noise and the state that every analysis begins with; its notes say what a private
    one promises. federation: the operator's; None: of any. Raises ConfigError."""
    state = state_to_bytes(FIRST_STATE)
    with about(source):
        check_basics(spec, federation=federation, now=now)
        spec, promised = solved(spec, state)
    spec = spec.filled(nonce=spec.nonce or secrets.token_hex(16), initial_state=first_digest())
    spec.check_submittable(now=now)
    return Submission(spec=spec, state=state, notes=tuple(promised or _notes(spec)))


def analysis_plan(submission: Submission[AnalysisSpec]) -> AnalysisPlan:
    """Where no attempt is lost."""
    spec = submission.spec
    return AnalysisPlan(
        name=spec.name,
        asks=spec.in_words,
        silos=len(spec.silos),
        cells=spec.tables.cells,
        has_noise=spec.privacy is not None,
        # enrollment writes the total; it decides no size
        phases=phases_of(spec, {**FIRST_STATE, TOTAL: np.array(1)}),
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
