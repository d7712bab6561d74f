"""What a job is known to sum before any party has its model: a silo's policy judges that at the offer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chorale.job import Job, SignedJob
from chorale.spec.job_spec import JobSpec
from chorale.spec.strategy_spec import TrainingSpec
from chorale.transport.wire import PhaseKey
from crypto.fixed_point.layout import CLIPPED, RING_BITS, Disclosure
from silo_agent.disclosure.ledger.signed_sets import DIFFERENCED_KINDS
from silo_agent.training.models.starting import initial_state
from strategies.analysis.partition import Partition
from strategies.base import TOTAL, Array
from strategies.methods import strategy_for
from strategies.phases.step import GRADIENT
from strategies.presets import PRESETS
from tests.support.objectives import make_job
from tests.support.simulation import phases
from tests.support.task_samples import TASK_JOBS, job_of


def in_real_layouts(spec: JobSpec) -> set[str]:
    """Of every phase, from the job's own model."""
    job = Job(
        spec=spec, signed=SignedJob(spec_bytes=b"", signature=b"", operator_certificate=b""), operator="ops"
    )
    state: dict[str, Array] = {**initial_state(spec), TOTAL: np.array(400)}
    keys = [
        PhaseKey(job_digest=bytes(32), round=round, phase=kind, attempt=1) for round, kind in phases(spec)
    ]
    return {quantity.name for key in keys for quantity in job.layout(key, state, members=4).quantities}


@pytest.mark.parametrize(
    "fields",
    [{}, {"model": {"name": "cnn", "norm": "batch"}}, {"model": {"name": "cnn", "norm": "group"}}],
    ids=["mlp", "batch", "group"],
)
@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "fedbn"])  # it refuses group
def test_names_known_from_the_job_are_those_of_its_layouts(preset: str, fields: dict[str, Any]) -> None:
    spec = make_job({"preset": preset}, rounds=1, **fields)
    assert set(spec.quantity_names) == in_real_layouts(spec)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_fedbn_sums_no_running_means(name: str) -> None:
    spec = make_job({"preset": "fedbn"}, rounds=1, model={"name": name})
    assert set(spec.quantity_names) == in_real_layouts(spec)
    assert "buffers" not in spec.quantity_names


def test_options_change_what_is_known_to_be_summed() -> None:
    spec = make_job({"preset": "fedcsd", "options": {"count_weighted": True}}, rounds=1)
    assert set(spec.quantity_names) == in_real_layouts(spec)
    assert "class_counts" in spec.quantity_names


# as docs/privacy.md and docs/threat-model.md say; a new quantity stands here before it is summed
DISCLOSED = {
    Disclosure.CONSTANT: {"silos", "weight"},
    Disclosure.UPDATE: {"delta", GRADIENT},
    Disclosure.FROM_UPDATE: {"delta_mean_square", "update_sq_norm", "normalizer"},
    Disclosure.STATISTIC: {
        *("samples", "correct", "tested", "loss_sum", "buffers", "gram", "control_delta"),
        *("personal_accuracy", "personal_accuracy_square", "personal_silos"),
    },
    Disclosure.CLASS_STATISTIC: {
        *("class_presence", "class_counts", "prototypes", "prototype_sums", "moment"),
        *("class_feature_sums", "class_feature_products"),
        *("column_counts", "column_sums", "column_squares", "category_counts"),
    },
    Disclosure.BIN_STATISTIC: {"bin_gradients", "bin_hessians", "bin_records"},
    Disclosure.TRAINED_CLASS_STATISTIC: {"soft_labels", "feature_sums"},
    Disclosure.CELL: {"subgroup_records", "subgroup_correct"},
    Disclosure.DIAGNOSTIC: {CLIPPED},
}


def test_every_quantity_says_what_it_discloses() -> None:
    """Policies and private jobs go by nothing else: a wrong word here lets a class statistic out bare."""
    methods = [
        *(strategy_for(preset, {}) for preset in PRESETS),
        strategy_for("fedcsd", {"count_weighted": True, "logit_clip": 10.0}),
        strategy_for("fedavg", {}).standardizing(2, [3]),
        strategy_for("trees", {}),
        strategy_for("fedavg", {}).tested_by(Partition(parts=2), 10),
        strategy_for("fedavg", {}).by_steps(TrainingSpec(learning_rate=0.1).step_optimizer(1.0, rounds=1)),
    ]
    found: dict[Disclosure, set[str]] = {}
    for method in methods:
        for bits in RING_BITS:
            for quantity in method.quantities(has_buffers=True, update_bits=bits):
                found.setdefault(quantity.discloses, set()).add(quantity.name)
    assert found == DISCLOSED


# sums of these kinds over nearly the same silos are counted, or are over the one model (protocol 6)
COMPARED_OTHERWISE = {"enrollment", "train", "prototypes", "evaluate", "evaluate-all"}


def test_every_kind_of_phase_is_refused_over_nearly_the_same_silos_or_compared_otherwise() -> None:
    """A new kind stands in one of the two lists before a silo takes part in two sums of it (protocol 6.3)."""
    found = {kind for preset in PRESETS for kind in strategy_for(preset, {}).standardizing(1).phases}
    found |= set(make_job({"preset": "fedavg"}, rounds=2, evaluate_all_every=1).method.phases)
    assert found == DIFFERENCED_KINDS | COMPARED_OTHERWISE


def test_every_sum_of_a_task_says_whether_it_is_by_class() -> None:
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for name in TASK_JOBS:
        task = job_of(name).method.task
        for each in (*task.round_sums, *task.closing_sums):
            found[each.quantity.discloses.is_by_class].add(each.name)
    # sums of targets: of a column of classes that a regression takes for its label, counts of classes
    of_targets = {"target_sum", "target_square_sum"}
    assert found[True] == {"confusion", "scores", "overlap", "times"} | of_targets
    assert found[False] == {
        *("tested", "loss_sum", "correct", "labels_right", "absolute_error", "squared_error"),
        *("dice_sum", "pixels_right", "brier_sum"),
        *("calibration_tested", "calibration_right", "calibration_confidence", "tempered_losses"),
        *("tokens", "tokens_right", "token_loss"),
    }


def test_a_job_knows_what_its_layouts_disclose() -> None:
    known = {each.name: each.discloses for each in make_job({"preset": "spherefed"}, rounds=1).quantities}
    assert known["moment"] is Disclosure.CLASS_STATISTIC
    assert known[CLIPPED] is Disclosure.DIAGNOSTIC
