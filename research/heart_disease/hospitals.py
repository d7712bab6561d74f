"""The hospitals' records as the example's own files read them, split again for every seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from chorale.spec.job_spec import JobSpec
from research.heart_disease.arms import Arm
from silo_agent.training.data.base import SampleSet, SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.partition import split_holdout
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.machine.seeding import derive_seed

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "heart-disease"
DATA = ROOT / ".." / "shared" / "data" / "heart_disease"  # next to the checkout; `--data` names another
VALIDATION_SHARE = 0.25  # of the records that are not held out
FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One hospital's records. tuning: train cut again, with its validation records held out.

    test: the hold-out, whole; an agent would cut it to a multiple of its policy's count_granularity.
    """

    final: SiloData
    tuning: SiloData

    @property
    def test(self) -> SampleSet:
        return self.final.holdout


def job(arm: Arm, *, seed: int, rate: float) -> JobSpec:
    """The example's job with the arm's method, and one seed for weights and shuffles."""
    values = _example("job")
    values |= {"not_after": FAR_AWAY, "strategy": dict(arm.strategy), "seed": seed}
    values |= {"model": {**values["model"], "seed": seed}}
    values |= {"training": {**values["training"], "learning_rate": rate}}
    return JobSpec.model_validate(values)


def splits(spec: JobSpec, folder: Path, *, seed: int) -> dict[str, Split]:
    """By hospital. A hold-out is drawn from the data set's name, so each seed has a name of its own."""
    return {name: _split(name, spec, folder, seed) for name in spec.silos}


def _split(name: str, spec: JobSpec, folder: Path, seed: int) -> Split:
    own = _example(name)["data"]
    fields: Mapping[str, Any] = {**own, "path": folder / own["path"], "name": f"{name}-{seed}"}
    final = load_data(DataSettings.model_validate(fields), spec)
    rng = np.random.default_rng(derive_seed("validation", name, seed))
    kept, held = split_holdout(final.train.labels, fraction=VALIDATION_SHARE, rng=rng)
    tuning = SiloData(train=final.train.take(kept), holdout=final.train.take(held), name=final.name)
    return Split(final=final, tuning=tuning)


@cache
def _text(name: str) -> bytes:
    return (EXAMPLE / f"{name}.yaml").read_bytes()


def _example(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(_text(name)))
