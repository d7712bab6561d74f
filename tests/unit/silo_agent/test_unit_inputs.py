"""What a silo whose rows are of units hands over in a private job: sums over units, whole in the ring."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from crypto.fixed_point.layout import Layout
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SampleSet, SiloData
from silo_agent.training.phase_input import PhaseRequest, phase_values
from silo_agent.training.torch_objective import TorchObjective
from simulation.engine import unsigned_job
from strategies.base import TOTAL, Array, Arrays
from tests.unit.training.dp_sgd import all_digits, initial_state, make_job

SIZES = [1, 2, 3, 7, 12, 25]  # rows of the units that are held out


def of_units(samples: SampleSet, sizes: list[int]) -> SampleSet:
    taken = samples.first(sum(sizes))
    return taken.of_units(np.repeat(np.arange(len(sizes)), sizes), rows_per_unit=max(sizes))


def handed_over(spec: JobSpec, phase: str, *, has_units: bool) -> tuple[Mapping[str, Array], Layout]:
    data = all_digits(spec)
    train, holdout = of_units(data.train, [4] * 10), of_units(data.holdout, SIZES)
    if not has_units:
        train, holdout = data.train.first(len(train)), data.holdout.first(len(holdout))
    state: Arrays = {**initial_state(spec), TOTAL: np.array(100)}
    job = unsigned_job(spec, initial_state(spec))
    key = PhaseKey(job_digest=job.digest, round=int(phase == "train"), phase=phase, attempt=1)
    request = PhaseRequest.of(job, key, state, members=4)
    values = phase_values(
        request,
        silo="a",
        rules=Policy(federation="test"),
        load_data=lambda: SiloData(train=train, holdout=holdout, name="digits"),
        objective=TorchObjective(device="cpu"),
        is_cancelled=lambda: False,
        seed=1,
    )
    return values, request.layout


@pytest.fixture(scope="module")
def spec() -> JobSpec:
    privacy = {
        "records": {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.5},
        "statistics_noise_multiplier": 20.0,
    }
    return make_job(rounds=1, privacy=privacy)


def test_enrollment_counts_units(spec: JobSpec) -> None:
    assert int(handed_over(spec, "enrollment.0", has_units=True)[0]["samples"]) == 10
    assert int(handed_over(spec, "enrollment.0", has_units=False)[0]["samples"]) == 40


def test_counts_of_units_are_whole_ring_units_so_none_is_rounded(spec: JobSpec) -> None:
    """Their sensitivity has no room for rounding: a fraction of a unit would be beyond what the noise covers.
    The control: 1 / rows by itself is no whole number of units."""
    values, layout = handed_over(spec, "train", has_units=True)
    rows, _ = handed_over(spec, "train", has_units=False)
    assert (int(values["tested"]), int(rows["tested"])) == (len(SIZES), sum(SIZES))
    (correct,) = (each for each in layout.quantities if each.name == "correct")
    assert correct.noise is not None
    assert correct.noise.scale >= 1
    units = float(values["correct"]) * correct.noise.scale
    assert units == round(units)
    assert 0 < values["correct"] <= len(SIZES)
    assert (correct.noise.scale / np.array(SIZES) % 1).any()
