"""What one job with n silos costs: each round by stage, and the opening phase.

The opening phase is a round without a vector: the same silos, the same session and its messages, and a sum
of a few words. What it writes is what a round writes beyond its vectors, and what its stage MASKED takes is
what the relay of the envelopes takes there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.parties.files import COORDINATOR
from bench.parties.light_federation import APPLIED, LightFederation, Moment, groups_of, moments
from bench.parties.meter import Meter, Used


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCosts:
    """stages: of a steady round, mean of those after the first, by name; what lies between two rounds counts
    for the last stage of the first one, `applied`. opening: of the opening phase. stage_peak_bytes: the most
    memory in a stage of the same rounds. All are empty where no round followed another. status: how the job
    ended.
    """

    agents_per_process: Sequence[int]
    rounds_applied: int
    failed_attempts: int
    status: str
    idle_bytes: int
    peak_bytes: int
    database_bytes: int
    stages: Mapping[str, Used] = field(default_factory=dict)
    opening: Mapping[str, Used] = field(default_factory=dict)
    stage_peak_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def round(self) -> Used | None:
        return Used.sum(self.stages.values()) if self.stages else None

    @property
    def message_cpu_seconds(self) -> float:
        """Of the coordinator: the stage in which the envelopes come, and their relay to the silos."""
        return self.stages["share"].cpu_seconds + self.opening["masked"].cpu_seconds


def measure(folder: Path, *, silos: int, length: int, rounds: int, processes: int) -> JobCosts:
    """A job of one round more than that, which warms up."""
    groups = groups_of(silos, processes=processes)
    with LightFederation(folder, groups=groups) as federation:
        idle = federation.hub.memory()
        with Meter(federation.hub, federation.silos) as meter:
            records = federation.run_job(length=length, rounds=rounds + 1)
    found = moments(records)
    applied = [each for each in found if each.stage == APPLIED and each.is_training]
    steady = found[found.index(applied[0]) : found.index(applied[-1]) + 1] if applied else []
    steady_rounds = max(1, len(applied) - 1)
    return JobCosts(
        agents_per_process=groups,
        rounds_applied=len(applied),
        failed_attempts=sum(record["event"] == "attempt failed" for record in records),
        status=str(records[-1]["status"]),
        idle_bytes=idle,
        peak_bytes=meter.most_bytes(-math.inf, math.inf),
        database_bytes=sum(path.stat().st_size for path in (folder / COORDINATOR).glob("*.sqlite*")),
        stages={name: used / steady_rounds for name, used in _by_stage(steady, meter).items()},
        opening=_by_stage([each for each in found if each.phase == found[0].phase], meter),
        stage_peak_bytes=_peaks(steady, meter),
    )


def _by_stage(found: Iterable[Moment], meter: Meter) -> dict[str, Used]:
    """What was used in each stage, in all its attempts together."""
    parts: defaultdict[str, list[Used]] = defaultdict(list)
    for began, ended in pairwise(found):
        parts[began.stage].append(meter.at(ended.unix_seconds) - meter.at(began.unix_seconds))
    return {stage: Used.sum(used) for stage, used in parts.items()}


def _peaks(found: Iterable[Moment], meter: Meter) -> dict[str, int]:
    most: defaultdict[str, int] = defaultdict(int)
    for began, ended in pairwise(found):
        held = meter.most_bytes(began.unix_seconds, ended.unix_seconds)
        most[began.stage] = max(most[began.stage], held)
    return dict(most)
