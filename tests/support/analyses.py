"""All phases of an analysis in one process, over tables of several silos: sums as words, without masks."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.job import Job, SignedJob
from chorale.spec.analysis_spec import AnalysisSpec, first_digest
from chorale.spec.settings_file import check_values
from chorale.transport.wire import PhaseKey, phase_kind
from silo_agent.training.analysis.table import DescribedTable, load_table
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.phase_input import PhaseRequest, described_values, encoded
from simulation.sums import word_sums
from strategies.analysis.method import FIRST_STATE
from strategies.base import Arrays

SILOS = ("clinic-a", "clinic-b", "clinic-c", "clinic-d")
Rows = Sequence[Mapping[str, Any]]


class Exact:
    """Rules of a policy that round nothing."""

    count_granularity = 1
    min_class_holders = None
    constant_work_records = None

    def rounded(self, samples: int) -> int:
        return samples


def analysis_job(**fields: Any) -> Job:
    values = {
        "kind": "analysis",
        "name": "described",
        "federation": "wards",
        "silos": list(SILOS),
        "not_after": "2030-01-01T00:00:00Z",
        **fields,
    }
    spec = check_values(AnalysisSpec, values, source="analysis")
    spec = spec.filled(nonce="0" * 32, initial_state=first_digest())
    signed = SignedJob(spec_bytes=spec.to_yaml(), signature=b"", operator_certificate=b"")
    return Job(spec=spec, signed=signed, operator="operator")


def unevenly(rows: Rows) -> list[Rows]:
    """Over four silos: half of them, a quarter, an eighth and the rest."""
    count = len(rows)
    ends = [0, count // 2, count * 3 // 4, count * 7 // 8, count]
    return [rows[first:last] for first, last in pairwise(ends)]


def read(folder: Path, job: Job, parts: Sequence[Rows], *, unit: str | None = None) -> list[DescribedTable]:
    """Each silo's file, as the silo reads it. unit: the column that says whose a record is."""
    found = []
    for name, rows in zip(SILOS, parts, strict=True):
        path = folder / f"{name}.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        given: dict[str, object] = {"format": "csv", "path": str(path), "name": "ward"}
        if unit is not None:
            given |= {"unit": unit, "max_rows_per_unit": 40}
        settings = check_values(DataSettings, given, source="silo")
        assert isinstance(job.spec, AnalysisSpec)
        found.append(load_table(settings, job.spec))
    return found


def binned(
    time_N: Sequence[float], is_event_N: Sequence[bool], *, edges: Sequence[float], bins: Sequence[int]
) -> NDArray[np.int64]:
    """Times as a curve or a Cox model counts them, in places of declared bins: events at the first one of
    their bin, records that are censored at the last one of theirs. bins: of each, those censored first."""
    last = len(edges) - 2
    place_N = np.minimum(np.searchsorted(edges, time_N, side="right") - 1, last)
    found = []
    for place, is_event in zip(place_N.tolist(), is_event_N, strict=True):
        mine = bins[last + 1 :] if is_event else bins[: last + 1]
        inside = [each for each in range(last + 1) if mine[each] == mine[place]]
        found.append(inside[0] if is_event else inside[-1])
    return np.array(found)


def states_of(job: Job, tables: Sequence[DescribedTable]) -> list[tuple[str, Arrays]]:
    """The state after each phase, up to the last or to one that was not applied."""
    state: Arrays = dict(FIRST_STATE)
    step: tuple[int, str] | None = (0, job.opening)
    found, rng = [], np.random.default_rng(5)
    while step is not None:
        key = PhaseKey(job_digest=job.digest, round=step[0], phase=step[1], attempt=0)
        job.check_phase(key.round, key.phase)
        request = PhaseRequest.of(job, key, state, members=len(tables))
        words = [
            encoded(
                request,
                described_values(request, rules=Exact(), load_table=lambda table=table: table),
                random=rng.bytes,
            ).encode()
            for table in tables
        ]
        assert not any(each.clipped_total for each in words)
        sums = word_sums(request.layout, words)
        result = job.next_state(key.phase, request.context, sums, survivors=len(tables))
        assert result.state is not None, result.reason
        state = result.state
        found.append((phase_kind(key.phase), state))
        step = job.next_after(*step)
    return found
