"""How often the coordinator and one silo wait for their storage in a round.

Between the first advert and the last share every flush delays the sum, and a silo that is killed there has
promised something. Strace slows a process down, so this is a run of its own in which no time is taken.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from bench.parties import strace
from bench.parties.files import COORDINATOR
from bench.parties.light_federation import APPLIED, LightFederation, groups_of, moments
from bench.parties.strace import Call
from chorale.runtime.audit import read_entries
from crypto.session.cohort import CohortRule

ADVERTISED, REVEALED = "advertised", "revealed"  # a silo's audit log, after the advert and before the shares
_STAGE = re.compile(
    r'"event": "stage", "state": "(?P<stage>[\w-]+)".*"round": (?P<round>\d+), "phase": "train"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushes:
    """Of the round, and of it those between the first advert and the last share; by file, and by the stage in
    which they are done."""

    coordinator_flushes: int
    coordinator_flushes_to_last_share: int
    coordinator_by_stage: Mapping[str, int]
    coordinator_by_file: Mapping[str, int]
    silo_flushes: int
    silo_flushes_to_last_share: int
    silo_by_file: Mapping[str, int]


def trace(folder: Path, *, silos: int, length: int, processes: int) -> Flushes:
    """Of the second of two rounds. One silo has a process of its own."""
    hub_trace, silo_trace = folder / "coordinator.strace", folder / "silo.strace"
    with LightFederation(
        folder,
        groups=[1, *groups_of(silos - 1, processes=processes)],
        hub_under=strace.tracer(hub_trace),
        silo_under=strace.tracer(silo_trace),
    ) as federation:
        records = federation.run_job(length=length, rounds=2)
        names = federation.files.silos
    first, second = [each for each in moments(records) if each.stage == APPLIED and each.is_training]
    of_hub = by_stage(strace.read_trace(hub_trace), round=second.round)
    last_share = _last_share([folder / name / "audit.jsonl" for name in names], round=second.round)
    to_last_share = [
        call
        for stage, calls in of_hub.items()
        for call in calls
        if stage not in (APPLIED, REVEALED) and call.moment < last_share
    ]
    of_silo = strace.read_trace(silo_trace)
    in_round = [
        call for call in of_silo if call.is_flush and first.unix_seconds < call.moment < second.unix_seconds
    ]
    return Flushes(
        coordinator_flushes=sum(map(len, of_hub.values())),
        coordinator_flushes_to_last_share=len(to_last_share),
        coordinator_by_stage={stage: len(calls) for stage, calls in of_hub.items()},
        coordinator_by_file=by_file(chain.from_iterable(of_hub.values()), folder=folder / COORDINATOR),
        silo_flushes=len(in_round),
        silo_flushes_to_last_share=len(promised(of_silo, round=second.round)),
        silo_by_file=by_file(in_round, folder=folder / names[0]),
    )


def by_stage(calls: Iterable[Call], *, round: int) -> dict[str, list[Call]]:
    """The flushes from the end of the round before to the end of this one; what comes before its first stage
    is of the last one's end, `applied`."""
    found: defaultdict[str, list[Call]] = defaultdict(list)
    stage = ""
    for call in calls:
        if (began := _STAGE.search(call.line)) is not None:
            is_before = int(began["round"]) == round - 1 and began["stage"] == APPLIED
            is_over = int(began["round"]) == round and began["stage"] == APPLIED
            is_in = int(began["round"]) == round and not is_over
            stage = began["stage"] if is_before or is_in else ""
        elif call.is_flush and stage:
            found[stage].append(call)
    return dict(found)


def _last_share(audits: Sequence[Path], *, round: int) -> float:
    """When the last of the shares that the coordinator waits for was about to leave a silo: Unix seconds."""
    left = sorted(
        datetime.fromisoformat(entry["time"]).timestamp()
        for audit in audits
        for entry in read_entries(audit)
        if _is_of(entry, REVEALED, round)
    )
    return left[CohortRule.for_members(len(audits)).threshold - 1]


def _is_of(entry: Mapping[str, Any], event: str, round: int) -> bool:
    return bool(entry["event"] == event and entry["round"] == round and entry["phase"] == "train")


def promised(calls: Sequence[Call], *, round: int) -> list[Call]:
    """The silo's flushes from its advert to its shares: between its notes of both in its audit log, each
    written before the message leaves."""
    found: list[Call] = []
    of_round = f'"round":{round},"phase":"train"'
    is_within = False
    for call in calls:
        if of_round in call.line and f'"event":"{REVEALED}"' in call.line:
            return found
        if of_round in call.line and f'"event":"{ADVERTISED}"' in call.line:
            is_within = True
        elif is_within and call.is_flush:
            found.append(call)
    raise RuntimeError("the silo's audit log does not say when it gave its shares")


def by_file(flushes: Iterable[Call], *, folder: Path) -> dict[str, int]:
    """By the name of a file in that folder, or of the folder in it; `.` is the folder itself."""
    names = (call.file.relative_to(folder) for call in flushes if call.file.is_relative_to(folder))
    return dict(sorted(Counter(name.parts[0] if name.parts else "." for name in names).items()))
