"""One training, described in full: what makes two runs the same run, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from chorale.spec.job_spec import JobSpec
from silo_agent.training.data.settings import PartitionSettings
from strategies.phases.evaluation import ACCURACY as PERSONAL_ACCURACY

FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)


class Split(StrEnum):
    """On which samples the global model is tested."""

    VALIDATION = "validation"  # a part of each silo's training samples, which then trains nothing
    TEST = "test"  # the data set's hold-out


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Every setting of a run. job: fields of the job file. partition: of the cut, without silos and seed;
    empty where data names `files`, one for each silo.

    learning_rate: of the grid, and the job's where its training names no other. strength: of the arm's own
    option, which stands in strategy or in that other rate; None where it has none.
    data: format and name of the data set; where it lies on this machine changes nothing.
    """

    suite: str
    setting: str
    arm: str
    tested: Split
    seed: int
    learning_rate: float
    silos: int
    strategy: Mapping[str, Any]
    job: Mapping[str, Any]
    partition: Mapping[str, Any]
    data: Mapping[str, str]
    strength: float | None = None

    @property
    def key(self) -> str:
        """The same for the same settings, in any process."""
        return json.dumps(asdict(self), sort_keys=True)

    def spec(self) -> JobSpec:
        """The job, whose every seed is the trial's. Raises ConfigError."""
        fields = dict(self.job)
        training = {"learning_rate": self.learning_rate, **fields.pop("training")}
        model = {**fields.pop("model"), "seed": self.seed}
        return JobSpec.model_validate(
            {
                "name": self.suite,
                "federation": "bench",
                "not_after": FAR_AWAY,
                "silos": tuple(f"silo-{place}" for place in range(self.silos)),
                "strategy": dict(self.strategy),
                "training": training,
                "model": model,
                "seed": self.seed,
                **fields,
            }
        )

    @property
    def figure(self) -> str:
        """What the run is judged by, by the figure's name: accuracy of the one final model, or the mean over
        silos of each one's accuracy, where they have models of their own or test the one model by itself."""
        return PERSONAL_ACCURACY if PERSONAL_ACCURACY in self.spec().quantity_names else "accuracy"

    @property
    def cut(self) -> PartitionSettings:
        """How the data set is cut, as the first silo's settings say it."""
        return PartitionSettings.model_validate(
            {**self.partition, "silos": self.silos, "index": 0, "seed": self.seed}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """accuracy: the trial's figure, closing phases included; None where the run failed. failed: why.

    seconds: of CPU. source: as `source.here` says it, empty for what was measured without it.
    """

    accuracy: float | None
    seconds: float
    failed: str = ""
    source: str = ""

    @property
    def final(self) -> float:
        """0 for a run that failed: a diverged method classifies nothing."""
        return self.accuracy or 0.0
