"""The floor of private jobs: what a policy may say of it, and that no job gets below it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from chorale.privacy.accountant import epsilon
from chorale.privacy.releases import SampledGaussian
from chorale.spec.job_spec import JobSpec
from chorale.spec.strategy_spec import StrategySpec
from crypto.errors import ConfigError, Refusal
from silo_agent.disclosure.policy.in_words import described
from silo_agent.disclosure.policy.policy import Policy, load_policy
from tests.support.agents import Hub
from tests.support.refusals import refused

RECORDS = {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1}
SUMS = {"clip_norm": 0.5, "noise_multiplier": 4.0}
STATISTICS = 20.0
NUMBERS = ("epsilon", "delta", "shared_noise")


def spec(folder: Path, *, rounds: int = 3, **privacy: Any) -> JobSpec:
    given = {"statistics_noise_multiplier": STATISTICS, **privacy}
    return Hub(folder, rounds=rounds, privacy=given if privacy else None).job.spec


def sharing(folder: Path, *, steps: int = 3) -> JobSpec:
    """A job whose silos share their noise."""
    privacy = {"statistics_noise_multiplier": STATISTICS, "records": RECORDS | {"noise": "sum"}}
    return Hub(folder, rounds=steps + 2, steps=steps, spare_steps=2, privacy=privacy).job.spec


def policy(**privacy: Any) -> Policy:
    return Policy.model_validate({"federation": "test", "initial_state": "given", "privacy": privacy})


@pytest.mark.parametrize("value", ["nan", ".nan", ".inf", "-.inf", "0", "-1", "1e400"])
@pytest.mark.parametrize("field", NUMBERS)
def test_no_number_of_the_policy_is_taken_unless_it_is_finite_and_above_zero(
    tmp_path: Path, field: str, value: str
) -> None:
    """NaN passes `value <= 0`, and no spend is above NaN."""
    path = tmp_path / "policy.yaml"
    path.write_text(f"federation: test\nprivacy:\n  {field}: {value}\n...\n")
    with pytest.raises(ConfigError, match=rf"policy\.yaml: privacy\.{field}"):
        load_policy(path)


def test_no_number_comes_in_through_the_environment_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("federation: test\n...\n")
    monkeypatch.setenv("CHORALE_POLICY_PRIVACY__EPSILON", "2.5")
    assert load_policy(path).privacy.epsilon == 2.5
    monkeypatch.setenv("CHORALE_POLICY_PRIVACY__EPSILON", "nan")
    with pytest.raises(ConfigError, match="CHORALE_POLICY_PRIVACY__EPSILON"):
        load_policy(path)


def test_a_budget_above_thirty_is_refused_and_one_above_ten_is_pointed_at(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("federation: test\nprivacy:\n  epsilon: 30.5\n...\n")
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: .*at most 30, got 30\.5"):
        load_policy(path)
    assert "An epsilon above 10 protects hardly anything." in described(policy(epsilon=10.5))
    assert "hardly anything" not in described(policy(epsilon=10))
    assert Policy(federation="test").privacy.epsilon == 10.0


def test_shared_noise_is_refused_unless_the_policy_accepts_it(tmp_path: Path) -> None:
    """Such a job's epsilon rests on the other silos, which a file without the word never accepted."""
    shared = sharing(tmp_path)
    refused(
        r"noise silo, or privacy\.shared_noise: allow here, got privacy\.records\.noise sum",
        lambda: policy().check_job(shared, operator="ops"),
    )
    policy(shared_noise="allow").check_job(shared, operator="ops")
    policy().check_job(spec(tmp_path, records=RECORDS | {"noise_multiplier": 4.0}), operator="ops")


@pytest.mark.parametrize("value", ["maybe", "31", "true", "[1]", "{a: 1}"])
def test_what_is_no_word_or_number_of_shared_noise_is_said_in_one_sentence(
    tmp_path: Path, value: str
) -> None:
    """It printed pydantic's internals, once for each form."""
    path = tmp_path / "policy.yaml"
    path.write_text(f"federation: test\nprivacy: {{shared_noise: {value}}}\n...\n")
    sentence = r"privacy\.shared_noise: expected refuse, allow or a number above 0 and at most 30, got [^;]+$"
    with pytest.raises(ConfigError, match=sentence):
        load_policy(path)


def test_what_is_left_if_all_other_silos_collude_is_bounded_by_the_policy(tmp_path: Path) -> None:
    shared, own = sharing(tmp_path), spec(tmp_path, records=RECORDS)
    bounded = policy(shared_noise=5.0).privacy
    bounded.check_collusion(shared, 5.0)
    refused(
        r"epsilon 5 if all other silos collude \(privacy\.shared_noise\), got 5\.1$",
        lambda: bounded.check_collusion(shared, 5.1),
    )
    refused("got no bound$", lambda: bounded.check_collusion(shared, math.inf))
    bounded.check_collusion(own, math.inf)  # each silo adds all the noise itself
    policy(shared_noise="allow").privacy.check_collusion(shared, math.inf)


def test_a_job_that_costs_too_much_if_all_others_collude_is_refused_when_it_is_offered(
    tmp_path: Path,
) -> None:
    """It was refused at its enrollment, after a person had approved it."""
    job = sharing(tmp_path, steps=20)
    assert job.rule(job.named_per_round).min_honest == 2  # one of them has half of the noise's variance
    one = SampledGaussian(noise_multiplier=math.sqrt(2.0), sample_rate=0.1, draws=0)
    alone = epsilon({one: 22}, 1e-5)
    above, below = (policy(shared_noise=most) for most in (1.01 * alone, 0.99 * alone))
    above.check_job(job, operator="ops")
    refused(
        rf"at most epsilon {0.99 * alone:g} if all other silos collude .*, got {alone:.4g}$",
        lambda: below.check_job(job, operator="ops"),
    )


def test_a_job_of_too_many_steps_is_told_its_steps(tmp_path: Path) -> None:
    """The number of rounds was told, which the job's file does not have."""
    strict = Policy.model_validate({"federation": "test", "initial_state": "given", "max_rounds": 4})
    refused(
        "expected at most 4, got 3 steps and 2 spare ones$",
        lambda: strict.check_job(sharing(tmp_path), operator="ops"),
    )


def test_a_step_counts_once_for_the_policy_whatever_a_pass_would_have(tmp_path: Path) -> None:
    """Steps were counted as passes of 1 / sample_rate steps each, and good jobs were refused."""
    policy(shared_noise="allow", epsilon=2.0).check_job(sharing(tmp_path, steps=20), operator="ops")
    refused(
        "for 22 steps of training",
        lambda: policy(shared_noise="allow", epsilon=0.5).check_job(
            sharing(tmp_path, steps=20), operator="ops"
        ),
        Refusal.BUDGET,
    )


def test_a_job_without_privacy_is_refused_where_privacy_is_required(tmp_path: Path) -> None:
    policy().check_job(spec(tmp_path), operator="ops")
    refused("privacy.required", lambda: policy(required=True).check_job(spec(tmp_path), operator="ops"))


def test_absurd_settings_are_refused_with_their_epsilon(tmp_path: Path) -> None:
    """Stock settings whose epsilon is in the hundreds are a known mistake."""
    stock = spec(tmp_path, rounds=50, records=RECORDS | {"noise_multiplier": 0.8})
    refused(
        r"at most epsilon 10 for a data set \(delta 1e-05\), got [0-9.]+ for 50 rounds of training",
        lambda: policy().check_job(stock, operator="ops"),
        Refusal.BUDGET,
    )
    policy(partial_jobs="allow").check_job(stock, operator="ops")
    absurd = spec(tmp_path, rounds=50, records=RECORDS | {"noise_multiplier": 0.2})
    refused(
        "for one round of training",
        lambda: policy(partial_jobs="allow").check_job(absurd, operator="ops"),
        Refusal.BUDGET,
    )


def test_a_quantity_that_no_method_sums_is_a_slip_of_the_pen(tmp_path: Path) -> None:
    """It would refuse every job, and nobody would notice."""
    path = tmp_path / "policy.yaml"
    path.write_text("federation: test\nallowed_quantities: [delta, sample]\n...\n")
    with pytest.raises(ConfigError, match=r"quantities: expected quantities of .* samples,.* got sample"):
        load_policy(path)


def test_class_statistics_under_noise_need_no_leave(tmp_path: Path) -> None:
    private = spec(tmp_path, records=RECORDS).model_copy(update={"strategy": StrategySpec(preset="feddw")})
    policy(partial_jobs="allow").check_job(private, operator="ops")
    refused(
        "no class statistics",
        lambda: policy().check_job(private.model_copy(update={"privacy": None}), operator="ops"),
    )


def test_local_state_needs_no_leave_where_noise_covers_a_whole_silo(tmp_path: Path) -> None:
    moon = {"strategy": StrategySpec(preset="moon")}
    of_silos, of_records = spec(tmp_path, sums=SUMS), spec(tmp_path, records=RECORDS)
    policy(partial_jobs="allow").check_job(of_silos.model_copy(update=moon), operator="ops")
    refused(
        "without local state",
        lambda: policy(partial_jobs="allow").check_job(of_records.model_copy(update=moon), operator="ops"),
    )


def test_the_description_shows_the_budget() -> None:
    text = described(policy(epsilon=4.0, required=True))
    for line in (
        "privacy.epsilon: 4.0",
        "- private jobs once the data set has spent epsilon 4 at delta 1e-05",
        "- private jobs that plan more than is left",
        "- every job without privacy",
        "- private jobs whose silos share their noise (privacy.records.noise: sum)",
    ):
        assert line in text
    shared = described(policy(shared_noise=5.0))
    assert "share their noise" not in shared
    assert (
        "- private jobs with shared noise that cost more than epsilon 5 if all other silos collude" in shared
    )
    relaxed = described(policy(partial_jobs="allow"))
    assert "- private jobs that plan more" not in relaxed
    assert "every job without privacy" not in relaxed
