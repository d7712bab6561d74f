"""Jobs whose silos share their noise: what they say, what they refuse, and when their training ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from chorale.job import Job, sign_job
from chorale.privacy.quantity_noise import dp_sgd_steps
from chorale.spec.job_spec import JobSpec, phase_context
from crypto.errors import ConfigError
from strategies.base import Array
from strategies.server_optimizer import STEPS
from tests.unit.chorale.conftest import MakeSpec, Party, job_fields

RECORDS = {"clip_norm": 1.0, "noise_multiplier": 3.0, "sample_rate": 0.2, "noise": "sum"}
SHARED = {"records": RECORDS, "statistics_noise_multiplier": 5.0}
STATE: dict[str, Array] = {
    "model/body.weight": np.zeros((4, 6), np.float32),
    "model/head.weight": np.zeros((10, 4), np.float32),
    "model/head.bias": np.zeros(10, np.float32),
}


def fields_of(**fields: Any) -> dict[str, Any]:
    """50 steps, unless the test says otherwise; momentum 0."""
    values = {**job_fields(), "steps": 50, "privacy": SHARED} | fields
    values["training"] = {"learning_rate": 1.0, "batch_size": 16, "momentum": 0.0} | fields.get(
        "training", {}
    )
    if "rounds" not in fields:
        del values["rounds"]
    return values


def make(**fields: Any) -> JobSpec:
    return JobSpec.from_yaml(yaml.safe_dump(plain(fields_of(**fields))).encode(), source="job.yaml")


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """As YAML has it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@pytest.mark.parametrize(
    ("steps", "given", "spare"), [(50, None, 2), (200, None, 10), (50, 0, 0), (50, 7, 7)]
)
def test_rounds_are_steps_and_spare_ones(steps: int, given: int | None, spare: int) -> None:
    spec = make(steps=steps, spare_steps=given)
    assert (spec.steps, spec.spare_steps, spec.rounds) == (steps, spare, steps + spare)
    assert spec.count == f"{steps} steps"
    again = JobSpec.from_yaml(spec.to_yaml(), source="job.yaml")  # as it is signed: all three of them
    assert (again, again.to_yaml()) == (spec, spec.to_yaml())


def test_a_file_without_the_new_words_means_noise_of_each_silo(make_spec: MakeSpec) -> None:
    own = {name: value for name, value in RECORDS.items() if name != "noise"}
    spec = make_spec(privacy={"records": own, "statistics_noise_multiplier": 5.0})
    assert spec.privacy is not None
    assert (spec.privacy.has_shared_noise, spec.trains, spec.steps) == (False, "all", None)
    assert "delta" in spec.quantity_names


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": None, "rounds": 5}, "steps: a value is required with .*, in place of rounds"),
        # A file without either word was told of rounds; who wrote them was told of steps.
        ({"steps": None}, "steps: a value is required with privacy.records.noise: sum$"),
        # The sum of two fields was told as a third, which the file does not have.
        (
            {"steps": 20, "spare_steps": 100_000},
            r"steps and spare_steps: expected at most 100000 together, got 20 \+ 100000",
        ),
        ({"rounds": 50}, r"rounds: expected none beside steps, or steps \+ spare_steps, 50 \+ 2, got 50"),
        ({"privacy": None}, "steps: needs .*; other jobs have rounds"),
        (
            {"privacy": None, "steps": None, "spare_steps": 1, "rounds": 5},
            "spare_steps: needs privacy.rec",
        ),
        ({"training": {"local_epochs": 2}}, "training.local_epochs: a step sums one gradient: expected 1"),
        (
            {"training": {"schedule": {"kind": "cosine"}}},
            "training.schedule.kind: silos compute the server's",
        ),
        ({"update_bits": 16}, "update_bits: noise in the sum needs 32 or 64 bits a number, got 16"),
        (
            {"keep": {"metric": "loss", "best": "lowest"}},
            "keep: not allowed with steps, where only",
        ),
        (
            {"stop": {"metric": "loss", "best": "lowest", "rounds": 3}},
            "stop: not allowed with steps",
        ),
        (
            {"privacy": {**SHARED, "sums": {"clip_norm": 1.0, "noise_multiplier": 3.0}}},
            "privacy.sums: not allowed with records.noise: sum",
        ),
        (
            {"privacy": {**SHARED, "weight": 0.25}},
            "privacy.weight: not allowed with records.noise: sum,",
        ),
        (
            {"strategy": {"preset": "fedopt"}, "training": {"momentum": 0.9}},
            "training.optimizer: fedopt is the optimizer of the server's steps: expected sgd with momentum "
            "0, got sgd with momentum 0.9",
        ),
        (
            {"trains": "head", "strategy": {"preset": "fedbabu"}},
            "trains: head is all that is trained, and frozen-random leaves it out of the sum",
        ),
    ],
)
def test_what_steps_cannot_have_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^job.yaml: {message}"):
        make(**fields)


@pytest.mark.parametrize(
    ("preset", "why"),
    [
        ("fedprox", "regularizer: prox compares the trained model with the received one"),
        ("fedntd", "regularizer: ntd compares the trained model with the received one"),
        ("moon", "regularizer: moon compares with the model that the silo sent last"),
        ("fedexp", "server_update: fedexp stretches the step by the lengths of the silos' own updates"),
        ("fednova", "server_update: fednova divides by the local steps, and silos take none"),
        ("scaffold", "server_update: scaffold keeps a silo's gradients without noise"),
        ("feddw", "regularizer: soft-labels pulls at the weights alone"),
    ],
)
def test_a_method_that_needs_local_steps_is_refused_and_noise_of_each_silo_stays(
    preset: str, why: str
) -> None:
    strategy = {"preset": preset}
    with pytest.raises(ConfigError, match=f"^job.yaml: strategy.{why}"):
        make(strategy=strategy)
    if preset != "scaffold":
        own = {**SHARED, "records": {**RECORDS, "noise": "silo"}}
        make(strategy=strategy, privacy=own, steps=None, rounds=3)


def test_private_job_says_no_weights_by_samples() -> None:
    own = {"steps": None, "rounds": 3, "privacy": {**SHARED, "records": {**RECORDS, "noise": "silo"}}}
    with pytest.raises(ConfigError, match="strategy.aggregate: in a private job every silo weighs the same"):
        make(**own, strategy={"aggregate": "weighted"})
    assert make(**own, strategy={"aggregate": "uniform"}).strategy.aggregate == "uniform"
    with pytest.raises(
        ConfigError, match="strategy.aggregate: .*every record weighs the same: expected none"
    ):
        make(strategy={"aggregate": "uniform"})


@pytest.mark.parametrize("preset", ["fedavg", "fedopt", "fedbabu", "spherefed", "dot_regression"])
def test_every_mean_of_losses_of_single_records_may_share_its_noise(preset: str) -> None:
    spec = make(strategy={"preset": preset})
    (step,) = spec.method.phase("train").quantities(phase_context(spec, 1, STATE, 4, public_seed=bytes(32)))
    assert (step.name, "delta" in spec.quantity_names) == ("gradient", False)


def test_a_round_is_one_step_of_dp_sgd_where_noise_of_each_silo_takes_an_epoch() -> None:
    """A policy that counted an epoch a round refused jobs of steps for five times their cost."""
    own = {**SHARED, "records": {**RECORDS, "noise": "silo"}}
    assert dp_sgd_steps(make(privacy=own, steps=None, rounds=3)) == 5
    by_steps = {"learning_rate": 0.1, "local_steps": 7}
    assert dp_sgd_steps(make(privacy=own, steps=None, rounds=3, training=by_steps)) == 7
    assert dp_sgd_steps(make()) == 1


def test_trains_head_leaves_every_other_parameter_out_of_the_sum() -> None:
    context = phase_context(make(trains="head"), 1, STATE, 4, public_seed=bytes(32))
    assert context.trained == ("head.bias", "head.weight")
    assert make(trains="head").method.needs_head == "trains head"
    everything = phase_context(make(), 1, STATE, 4, public_seed=bytes(32))
    assert everything.trained == ("body.weight", "head.bias", "head.weight")


def test_no_session_begins_once_all_steps_are_taken(party: Party) -> None:
    """A hostile coordinator cannot take the spare ones for further training."""
    spec = make().filled(nonce="ab" * 16, initial_state=bytes(32))
    job = Job(spec=spec, signed=sign_job(spec.to_yaml(), party.operator), operator="ops")
    given = {"roster": party.roster(), "phase": "train", "attempt": 1, "state_digest": bytes(32)}
    assert job.terms(round=51, state=STATE | {STEPS: np.array(49)}, **given).round == 51
    with pytest.raises(ConfigError, match="train: expected no round after 50 steps"):
        job.terms(round=51, state=STATE | {STEPS: np.array(50)}, **given)
    assert job.next_after(50, "train", steps=49) == (51, "train")
    assert job.next_after(50, "train", steps=50) == (52, "evaluate.0")
