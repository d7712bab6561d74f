"""Sums of an analysis under noise, drawn as silos draw it, without what comes before and after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from chorale.job import Job
from chorale.privacy.quantity_noise import noise_deviations
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.transport.wire import PhaseKey
from silo_agent.training.analysis.table import DescribedTable
from silo_agent.training.phase_input import PhaseRequest, described_values, encoded
from simulation.sums import word_sums
from strategies.analysis.method import FIRST_STATE
from strategies.analysis.noised import NOISED
from strategies.base import TOTAL, Array, Arrays
from tests.support.analyses import SILOS, Exact, analysis_job

SEX = {"name": "sex", "categories": ["f", "m"]}
AGE = {
    "name": "age",
    "edges": [18, 40, 50, 60, 70, 110],
    "show": ["mean", "median", "counts"],
    "unit": "years",
}
NOISE = {"epsilon": 2.0, "statistics_noise_multiplier": 4.0}


def noised_job(**fields: Any) -> Job:
    return analysis_job(**{"columns": [AGE, SEX], "group": "sex", "privacy": NOISE, **fields})


def table(job: Job, parts_NC: Any, z_NK: Any) -> DescribedTable:
    assert isinstance(job.spec, AnalysisSpec)
    tables, records = job.spec.tables, len(parts_NC)
    return DescribedTable(
        parts_NC=np.array(parts_NC, np.int64).reshape(records, len(tables.partitions)),
        z_NK=np.array(z_NK, np.float64).reshape(records, len(tables.measured)),
        name="ward",
    )


def request_of(job: Job, *, phase: str = f"{NOISED}.0", total: int = 1_000) -> PhaseRequest:
    key = PhaseKey(job_digest=job.digest, round=0, phase=phase, attempt=1)
    return PhaseRequest.of(job, key, {**FIRST_STATE, TOTAL: np.array(total)}, members=len(SILOS))


def values_of(request: PhaseRequest, table: DescribedTable) -> Mapping[str, Array]:
    return described_values(request, rules=Exact(), load_table=lambda: table)


def states(
    job: Job, tables: Sequence[DescribedTable], random: Callable[[int], bytes], *, draws: int
) -> Iterator[Arrays]:
    """The published state, again and again with other noise. tables: of the silos that are not lost."""
    request = request_of(job)
    inputs = [values_of(request, each) for each in tables]
    for _ in range(draws):
        words = [encoded(request, each, random=random).encode() for each in inputs]
        sums = word_sums(request.layout, words)
        result = job.next_state(request.key.phase, request.context, sums, survivors=len(tables))
        assert result.state is not None
        yield result.state


def deviation_of(request: PhaseRequest, name: str) -> float:
    """Of the noise of all silos."""
    return noise_deviations(request.layout.quantities, len(SILOS))[name]
