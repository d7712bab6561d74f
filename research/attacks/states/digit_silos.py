"""Silos that hold the digits, asked for a round's sum by the product's own code."""

# N = records, D = pixels

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.job import Job
from chorale.privacy.solve import solve
from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from crypto.fixed_point.ring import Encoded
from research.attacks.digits import job
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_partition
from silo_agent.training.data.settings import DataFormat, DataSettings, PartitionKind, PartitionSettings
from silo_agent.training.models.starting import initial_state
from silo_agent.training.phase_input import PhaseRequest
from simulation.engine import NO_NONCE, unsigned_job
from simulation.silos import Compute, SilosHere, built_in
from simulation.sums import word_sums
from strategies.base import TOTAL, Array, Arrays

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "job.yaml"
EPSILON, DELTA = 8.0, 1e-5  # of the noise
OTHER_NOISE = 100.0  # of the statistics, which these attacks do not look at
# as an operator would choose it: clipped gradients of many records are so small else that rounding hides them
NOISED_RATE, NOISED_BITS = 10.0, 64
FloatArray = NDArray[np.float64]


class Training(StrEnum):
    FULL = "full"  # one step over all of a silo's records
    EXAMPLE = "example"  # the block of docs/examples/job.yaml


class DigitSilos:
    """Parts of the digits by silo, dealt at random, and a job of an mlp over them.

    policy: fields in which the silos' policy differs from the default.
    """

    def __init__(
        self,
        silos: int,
        *,
        width: int,
        training: Training,
        noise: bool = False,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        block = _block(training)
        fields_of_job: dict[str, Any] = {"nonce": NO_NONCE}
        if noise and training is Training.FULL:
            block["learning_rate"], fields_of_job["update_bits"] = NOISED_RATE, NOISED_BITS
        plain = job("fedavg", silos=silos, hidden=(width,), training=block, rounds=1_000, **fields_of_job)
        parts = load_partition(_settings(silos), plain)
        self.data: Mapping[str, SiloData] = dict(zip(plain.silos, parts, strict=True))
        fields = {"federation": plain.federation, "approval": "automatic"} | dict(policy or {})
        self.policy = Policy.model_validate(fields)
        self.spec = self._noised(plain, training) if noise else plain
        self.first: Arrays = initial_state(self.spec, base=self.spec.base())

    @cached_property
    def total(self) -> int:
        """What enrollment sums."""
        return sum(self.counts.values())

    @cached_property
    def counts(self) -> dict[str, int]:
        """What each silo adds to enrollment."""
        return {name: self.policy.rounded(len(part.train)) for name, part in self.data.items()}

    @cached_property
    def records_ND(self) -> FloatArray:
        """All that the silos train on."""
        return _flat(*(part.train.features for part in self.data.values()))

    @cached_property
    def public_ND(self) -> FloatArray:
        """Records of the same kind that no silo trains on."""
        return _flat(*(part.holdout.features for part in self.data.values()))

    def enrolled(self, state: Arrays) -> dict[str, Array]:
        """The state as enrollment leaves it."""
        return {**state, TOTAL: np.array(self.total)}

    def inputs(self, state: Arrays, *, round: int = 1) -> tuple[PhaseRequest, dict[str, Encoded]]:
        """x(u) of every silo in a round of training: what it would mask."""
        made = self._job(state)
        key = PhaseKey(job_digest=made.digest, round=round, phase="train", attempt=1)
        here = SilosHere(made, self.data, policy=self.policy, objective=built_in(Compute(device="cpu")))
        request = PhaseRequest.of(made, key, state, members=len(self.data))
        found = {}
        for answer in here.answers(key, state, self.spec.silos, {}, as_words=True):
            assert answer.encoded is not None, answer.message
            found[answer.silo] = answer.encoded
        return request, found

    def sums(self, state: Arrays, *, round: int = 1) -> dict[str, Array]:
        """What a coordinator is shown of that round: masks cancel in it."""
        request, inputs = self.inputs(state, round=round)
        return dict(word_sums(request.layout, inputs.values()))

    def _job(self, state: Arrays) -> Job:
        return unsigned_job(self.spec, state)

    def _noised(self, plain: JobSpec, training: Training) -> JobSpec:
        """Record-level noise at EPSILON, spent in this one round."""
        rate = 1.0
        if training is Training.EXAMPLE:
            rate = plain.training.batch_size * len(self.data) / len(self.records_ND)
        privacy: dict[str, Any] = {
            "delta": DELTA,
            "epsilon": EPSILON,
            "statistics_noise_multiplier": OTHER_NOISE,
            "records": {"clip_norm": 1.0, "sample_rate": rate},
        }
        spec = plain.model_copy(update={"rounds": 1}).model_dump() | {"privacy": privacy}
        return solve(JobSpec.model_validate(spec), self.enrolled(initial_state(plain)))


def _block(training: Training) -> dict[str, Any]:
    if training is Training.FULL:
        return {"local_epochs": 1, "batch_size": 1 << 16}
    return JobSpec.from_yaml(EXAMPLE.read_bytes(), source=EXAMPLE.name).training.model_dump()


def _settings(silos: int) -> DataSettings:
    partition = PartitionSettings(kind=PartitionKind.IID, silos=silos, index=0)
    return DataSettings(format=DataFormat.DIGITS, partition=partition)


def _flat(*features: NDArray[Any]) -> FloatArray:
    joined_N = np.concatenate(features)
    return joined_N.reshape(len(joined_N), -1).astype(np.float64)
