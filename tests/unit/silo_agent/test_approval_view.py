"""The view of a job beside what a session really sums, and what people decide beside what the ledger does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from chorale.privacy.quantity_noise import noise_deviations
from chorale.runtime.audit import AuditLog, read_entries
from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Rule
from silo_agent.approval.view import QuantityNoise, changed_fields, summed_phases
from silo_agent.disclosure.ledger.decisions import Given, Grants
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.models.starting import initial_state
from simulation.engine import unsigned_job
from strategies.base import TOTAL
from strategies.presets import PRESETS
from tests.support.settings import job_spec
from tests.unit.silo_agent.reveal_book import Book

RECORDS = {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1}
SUMS = {"clip_norm": 1.0, "noise_multiplier": 2.0}
STATE = {
    "model/body.weight": np.zeros((4, 6), np.float32),
    "model/head.weight": np.zeros((3, 4), np.float32),
    "model/head.bias": np.zeros(3, np.float32),
}
NORMALIZED = STATE | {
    f"model/norm.{name}": np.zeros(4, np.float32)
    for name in ("weight", "bias", "running_mean", "running_var")
}
JOBS: dict[str, dict[str, Any]] = {preset: {"strategy": {"preset": preset}} for preset in PRESETS} | {
    "records": {"privacy": {"records": RECORDS, "statistics_noise_multiplier": 4.0}},
    "sums": {"privacy": {"sums": SUMS, "statistics_noise_multiplier": 4.0}},
    "metrics": {"task": {"metrics": ["confusion", "curves", "calibration"]}},
    "16 bits": {"update_bits": 16},
}


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    opened = Book(tmp_path)
    yield opened
    opened.ledger.close()


def spec_of(**changes: Any) -> JobSpec:
    shape = {"model": {"name": "mlp"}, "classes": 3, "input_shape": [1, 2, 3]}
    jobs = {"name": "job", "silos": ["a", "b", "c", "d", "e"], "rounds": 20, "enrollment_every": 8}
    return job_spec(**shape | jobs | changes)


@pytest.mark.parametrize("name", JOBS)
def test_view_lists_what_the_layout_of_each_phase_sums(name: str) -> None:
    spec = spec_of(**JOBS[name])
    state = NORMALIZED if name == "fedbn" else STATE
    job = unsigned_job(spec, state)
    phases = summed_phases(spec, state)
    assert [phase.kind for phase in phases] == list(job.strategy.phases)
    for phase, unsized in zip(phases, summed_phases(spec, None), strict=True):
        key = PhaseKey(job_digest=job.digest, round=2, phase=phase.kind, attempt=1)
        quantities = job.layout(key, {**state, TOTAL: np.array(1)}, phase.silos).quantities
        deviations = noise_deviations(quantities, phase.silos)
        assert [each.name for each in phase.quantities] == [each.name for each in quantities]
        for shown, quantity, guess in zip(phase.quantities, quantities, unsized.quantities, strict=True):
            assert shown.values == quantity.size
            assert shown.noise_deviation == deviations.get(quantity.name, 0.0)
            assert (shown.noise is QuantityNoise.IN_SUM) == (quantity.noise is not None)
            assert (guess.name, guess.values or shown.values) == (
                shown.name,
                shown.values,
            )  # never a wrong size
            if spec.privacy is None:
                assert shown.noise in (QuantityNoise.NONE, QuantityNoise.NOT_NEEDED)
                assert shown.sensitivity_l2 == quantity.sensitivity_l2
    times = {phase.kind: phase.times for phase in phases}
    assert (times["enrollment"], times["train"], times["evaluate"]) == (3, 20, 1)


def test_of_trees_the_widest_level_is_shown_and_that_it_tells_answers_by_bin() -> None:
    """The first round, of the base score, sums one number each."""
    spec = spec_of(strategy={"preset": "trees", "options": {"depth": 4, "bins": 8}}, model={"name": "trees"})
    (train,) = (phase for phase in summed_phases(spec, initial_state(spec)) if phase.kind == "train")
    shown = {each.name: (each.values, each.tells) for each in train.quantities if "bin" in each.name}
    trees, nodes, inputs, bins = 3, 8, 6, 9
    told = (trees * nodes * inputs * bins, "answers by bin of columns")
    assert shown == dict.fromkeys(("bin_gradients", "bin_hessians", "bin_records"), told)


def test_of_a_search_one_arms_sums_stand_for_all_and_its_tests_are_seen_by_silos() -> None:
    values = {"training.learning_rate": [0.1, 0.3, 1.0]}
    found, plain = (
        {phase.kind: phase for phase in summed_phases(spec_of(training={}, **fields), STATE)}
        for fields in ({"search": {"values": values}}, {})
    )
    names = [each.name for each in found["train"].quantities]
    assert names == [each.name for each in plain["train"].quantities]
    seen, seen_before = (
        {each.name for each in phases["train"].quantities if each.is_seen_by_silos}
        for phases in (found, plain)
    )
    assert seen - seen_before == {"tested", "loss_sum"}


def test_update_under_noise_of_the_sum_is_told_by_silo_and_that_of_dp_sgd_as_in_training() -> None:
    def update(name: str) -> Any:
        phases = {phase.kind: phase for phase in summed_phases(spec_of(**JOBS[name]), STATE)}
        return next(each for each in phases["train"].quantities if each.name == "delta")

    summed, trained = update("sums"), update("records")
    assert (summed.noise, summed.is_by_silo) == (QuantityNoise.IN_SUM, True)
    assert math.isclose(summed.sensitivity_l2, SUMS["clip_norm"] / 5)  # p is a fifth
    assert (trained.noise, trained.is_by_silo, trained.noise_deviation) == (
        *(QuantityNoise.IN_TRAINING, False, 0.0),
    )


def test_changed_fields_are_those_that_differ_and_never_the_nonce() -> None:
    before = spec_of(nonce="1" * 32, initial_state="2" * 64, task={"metrics": ["confusion"]})
    now = spec_of(nonce="3" * 32, initial_state="4" * 64, silos=["a", "b", "c"], min_cohort=3)
    changes = {each.field: (each.before, each.now) for each in changed_fields(before, now)}
    assert changes["silos"] == ('["a", "b", "c", "d", "e"]', '["a", "b", "c"]')
    assert changes["min_cohort"] == (None, "3")
    assert changes["task.metrics"] == ('["confusion"]', None)
    assert not {"nonce", "initial_state", "name", "rounds"} & changes.keys()
    assert changed_fields(before, before) == ()
    parts = [
        {"name": "net", "from": "models==1.0", "options": options} for options in ({}, {"crop": None, "a": 1})
    ]
    models = [
        spec_of(model=part) for part in parts
    ]  # null is a value, and `options` with one is not `not set`
    assert [(each.field, each.before, each.now) for each in changed_fields(*models)] == [
        ("model.options.crop", None, "null"),
        ("model.options.a", None, "1"),
    ]


def test_policy_lists_every_rule_and_raises_the_first() -> None:
    policy = Policy(federation="test", max_rounds=5, operators=("ann",), privacy={"required": True})
    spec = spec_of(rounds=10, strategy={"preset": "scaffold"})
    rules = [each.rule for each in policy.refusals(spec, operator="bo")]
    assert rules == [Rule.OPERATORS, Rule.MAX_ROUNDS, Rule.LOCAL_STATE, Rule.REQUIRED]
    with pytest.raises(PolicyRefusal, match="got operator bo"):
        policy.check_job(spec, operator="bo")
    assert list(Policy(federation="test").refusals(spec_of(), operator="bo")) == []


def test_nobody_approves_where_policy_alone_decides() -> None:
    with pytest.raises(ValidationError, match="required_approvals: expected 1 with approval: automatic"):
        Policy(federation="test", approval="automatic", required_approvals=2)


def test_an_approval_before_a_suspension_or_a_rejection_does_not_count_after_it(book: Book) -> None:
    decisions, job = book.ledger.decisions(), book.job.digest
    for stop in (
        lambda: book.ledger.suspend(job),
        lambda: decisions.reject(job, by="Cy", reason="stop"),
        lambda: book.ledger.data_refusals(policy=book.policy, data_set="data").record(job, suspends=True),
    ):
        assert decisions.approve(job, by="Ann", required=2) == 1
        stop()
        assert decisions.given(job, policies=()) == Given()
        assert decisions.approve(job, by="Bo", required=2) == 1
        assert book.ledger.decision(job) is not Decision.APPROVED
        assert decisions.approve(job, by="Ann", required=2) == 0
        assert book.ledger.decision(job) is Decision.APPROVED


def test_two_people_resume_a_stopped_data_set_and_grant_what_both_named(book: Book) -> None:
    """Else one of them could grant a job what the policy keeps for two."""
    decisions, job = book.ledger.decisions(), book.job.digest
    steps = book.ledger.steps(policy=book.policy, data_set="data")
    assert not book.ledger.jobs()[0].waits(book.now)
    with book.ledger._database.transaction() as connection:
        connection.execute("INSERT INTO stopped_data_sets (data_set, job_digest) VALUES ('data', ?)", (job,))
    book.ledger.note_over(job)  # what it stopped is stopped all the same
    assert book.ledger.jobs()[0].waits(book.now)
    first = Grants(cohort_changes=5, data_refusals=2)
    assert decisions.approve(job, by="Ann", required=2, grants=first, account="data") == 1
    with pytest.raises(PolicyRefusal, match="moved too far"):
        steps.check_runs()
    second = Grants(cohort_changes=3)
    assert decisions.approve(job, by="Bo", required=2, grants=second, account="data") == 0
    steps.check_runs()
    with closing(AuditLog(book.folder / "audit.jsonl")) as log:
        decisions.tell(log)
        decisions.tell(log)
    entries = [(each["event"], each.get("by"), each.get("changes")) for each in read_entries(log_path(book))]
    assert entries == [
        ("job_approved", "Ann", None),
        ("job_approved", "Bo", None),
        ("cohort changes granted", None, 3),
    ]


def log_path(book: Book) -> Path:
    return book.folder / "audit.jsonl"
