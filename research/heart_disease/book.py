"""Outcomes that are finished, one JSON line each, so that a run that was killed continues where it stood."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from research.heart_disease.arms import Arm
from research.heart_disease.hospitals import job
from research.heart_disease.runs import Outcome


class Book:
    """A file that only grows; a torn last line is cut off.

    A line's key holds the jobs, not the code: after a change of how silos train, start with another file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._outcomes: dict[str, Outcome] = {}
        path.touch()
        whole = path.read_bytes().rpartition(b"\n")[0]
        for line in whole.splitlines():
            fields = json.loads(line)
            key = fields.pop("key")
            self._outcomes[key] = Outcome(**fields)
        os.truncate(path, len(whole) + bool(whole))

    def find(self, arm: Arm, seed: int, rates: Sequence[float]) -> Outcome | None:
        return self._outcomes.get(_key(arm, seed, rates))

    def write(self, outcome: Outcome, arm: Arm, rates: Sequence[float]) -> None:
        key = _key(arm, outcome.seed, rates)
        self._outcomes[key] = outcome
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, **asdict(outcome)}) + "\n")


def _key(arm: Arm, seed: int, rates: Sequence[float]) -> str:
    """The arm, its job at every rate, and so columns and seed."""
    jobs = b"".join(job(arm, seed=seed, rate=rate).to_yaml() for rate in rates)
    return f"{arm.name}-{seed}-{hashlib.sha256(jobs).hexdigest()[:16]}"
