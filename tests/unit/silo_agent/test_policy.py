"""What a policy file may say, and what the policy then refuses."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chorale.spec.job_spec import JobSpec
from chorale.spec.privacy_spec import PrivacySpec
from chorale.spec.strategy_spec import StrategySpec, TrainingSpec
from chorale.transport import wire
from crypto.errors import ConfigError, Refusal, Rule
from crypto.fixed_point.layout import Disclosure, Quantity
from crypto.noise.sensitivity import Noise
from silo_agent.disclosure.policy import drawn_rounds
from silo_agent.disclosure.policy.analysis_policy import AnalysisPolicy
from silo_agent.disclosure.policy.in_words import described
from silo_agent.disclosure.policy.policy import Policy, load_policy
from silo_agent.disclosure.policy.privacy_policy import PrivacyPolicy
from strategies.presets import PRESETS
from tests.support.agents import Hub
from tests.support.refusals import refused
from tests.support.sessions import make_federation, make_terms

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return Hub(tmp_path).job.spec


def policy(**fields: Any) -> Policy:
    return Policy.model_validate({"federation": "test", "initial_state": "given"} | fields)


def test_a_job_within_the_policy_passes(spec: JobSpec) -> None:
    open_wide = policy(operators=["ops"], max_rounds=3, min_silos=4)
    open_wide.check_job(spec, operator="ops")


@pytest.mark.parametrize(
    ("fields", "words", "rule"),
    [
        ({"federation": "other"}, "expected other, got federation test", Rule.FEDERATION),
        ({"operators": ["alice", "bob"]}, "expected alice, bob, got operator ops", Rule.OPERATORS),
        ({"max_rounds": 2}, "expected at most 2, got 3 rounds", Rule.MAX_ROUNDS),
        ({"require_purpose": True}, "purpose", Rule.REQUIRE_PURPOSE),
        ({"min_silos": 5}, "expected at least 5, got 4 silos", Rule.MIN_SILOS),
        (
            {"allowed_quantities": ["silos"]},
            r"silos \(allowed_quantities\), got quantity samples",
            Rule.ALLOWED_QUANTITIES,
        ),
        ({"privacy": {"required": True}}, "privacy.required", Rule.REQUIRED),
    ],
)
def test_a_job_outside_the_policy_is_refused_by_name_and_only_the_field_leaves(
    spec: JobSpec, fields: dict[str, Any], words: str, rule: Rule
) -> None:
    policy().check_job(spec, operator="ops")  # the control
    error = refused(words, lambda: policy(**fields).check_job(spec, operator="ops"))
    assert error.rule is rule
    message = wire.refused_of(error)
    assert (message.code, message.rule, message.text) == (Refusal.POLICY, rule, "")


def test_a_given_initial_state_is_refused_unless_policy_says_given_or_lists_its_digest(spec: JobSpec) -> None:
    digest, other = str(spec.initial_state), "ab" * 32
    why = rf"computed here \(initial_state\), got the given one {digest}: model custom is not built in"
    refused(why, lambda: policy(initial_state="computed").check_job(spec, operator="ops"))
    refused("here or listed", lambda: policy(initial_state=[other]).check_job(spec, operator="ops"))
    policy(initial_state=[other, digest]).check_job(spec, operator="ops")
    policy(initial_state="given").check_job(spec, operator="ops")
    built_in = spec.model_copy(update={"model": spec.model.model_copy(update={"name": "mlp"})})
    Policy(federation="test").check_job(built_in, operator="ops")  # the agent looks when it draws it


def test_a_job_is_refused_for_what_its_last_phase_sums(spec: JobSpec) -> None:
    spherefed = spec.model_copy(update={"strategy": StrategySpec(preset="spherefed")})
    policy(class_statistics="allow").check_job(spherefed, operator="ops")
    message = r"no class statistics \(class_statistics: refuse\), got quantity moment"
    refused(message, lambda: policy().check_job(spherefed, operator="ops"))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_job_whose_sums_by_class_silos_see_is_refused_where_policy_says_so(
    spec: JobSpec, preset: str
) -> None:
    job = spec.model_copy(update={"strategy": StrategySpec(preset=preset)})
    anything = {"class_statistics": "allow", "local_state": "allow"}
    policy(**anything).check_job(job, operator="ops")
    recipe, refuse = job.method.recipe, policy(**anything, shared_sums="refuse")
    if recipe.statistic is None and recipe.closing.before_evaluation is None:
        refuse.check_job(job, operator="ops")
    else:
        message = r"no sums by class that silos see \(shared_sums: refuse\), got quantity \w+$"
        refused(message, lambda: refuse.check_job(job, operator="ops"))


def test_noise_does_not_make_a_shared_sum_another_one() -> None:
    refuse, seen = policy(shared_sums="refuse"), Quantity(name="moment", bound=1.0, is_tagged=True)
    noise = Noise(variance=64.0, scale=1.0)
    for quantity in (seen, replace(seen, noise=noise)):
        policy(class_statistics="allow").check_quantities([quantity])
        refused("shared_sums", lambda quantity=quantity: refuse.check_quantities([quantity]))  # type: ignore[misc]
    relaxed = policy(class_statistics="allow", shared_sums="refuse")
    relaxed.check_quantities([replace(seen, is_tagged=False)])  # the coordinator's alone
    assert "every method whose statistics by class other silos see" in described(refuse)
    assert "other silos see" not in described(policy())


@pytest.mark.parametrize("preset", ["scaffold", "moon", "fedper", "fedrep", "ditto"])
def test_a_job_whose_method_keeps_local_state_needs_leave(spec: JobSpec, preset: str) -> None:
    keeping = spec.model_copy(update={"strategy": StrategySpec(preset=preset)})
    policy(local_state="allow").check_job(keeping, operator="ops")
    message = rf"a method without local state \(local_state: refuse\), got strategy {preset}$"
    refused(message, lambda: policy().check_job(keeping, operator="ops"))


@pytest.mark.parametrize("has_records", [False, True])
def test_noise_on_sums_stands_for_leave_only_where_the_job_pays_for_it(
    spec: JobSpec, has_records: bool
) -> None:
    """Beside DP-SGD a record pays nothing for it, so it may be none at all."""
    records = {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1} if has_records else None
    privacy = {"sums": {"clip_norm": 1.0, "noise_multiplier": 50.0}, "records": records}
    keeping = spec.model_copy(
        update={
            "strategy": StrategySpec(preset="moon"),
            "privacy": PrivacySpec.model_validate(privacy | {"statistics_noise_multiplier": 50.0}),
        }
    )
    if has_records:
        refused(
            r"without local state \(local_state: refuse\)",
            lambda: policy().check_job(keeping, operator="ops"),
        )
    else:
        policy().check_job(keeping, operator="ops")


def test_a_method_whose_own_model_follows_from_the_global_one_needs_none(spec: JobSpec) -> None:
    adapted = spec.model_copy(update={"strategy": StrategySpec(preset="per_fedavg")})
    policy().check_job(adapted, operator="ops")


@pytest.mark.parametrize(
    "parts", [{"regularizer": "moon"}, {"server_update": "scaffold"}, {"personalization": "head"}]
)
def test_a_method_of_parts_needs_the_same_leave(spec: JobSpec, parts: dict[str, str]) -> None:
    strategy = StrategySpec.model_validate({"parts": parts})
    refused(
        r"\(local_state: refuse\), got strategy custom$",
        lambda: policy().check_job(spec.model_copy(update={"strategy": strategy}), operator="ops"),
    )


def test_a_job_whose_drawn_cohorts_come_too_near_is_refused(spec: JobSpec) -> None:
    drawn = spec.model_copy(update={"fraction": 0.75, "rounds": 100})  # 3 of 4: four sets, all near
    policy(max_cohort_changes=75).check_job(drawn, operator="ops")  # 99 rounds, another set in 3 of 4
    refused(
        "about 74.2 overlapping cohorts",
        lambda: policy(max_cohort_changes=74).check_job(drawn, operator="ops"),
    )


def drawn_job(spec: JobSpec, silos: int, fraction: float, rounds: int = 100) -> JobSpec:
    names = tuple(f"silo-{place:03d}" for place in range(silos))
    return spec.model_copy(update={"silos": names, "fraction": fraction, "rounds": rounds})


@pytest.mark.parametrize(
    ("silos", "fraction", "fields", "words"),
    [
        (
            30,
            0.1,
            {},
            r"expected a chance of at most 1e-06 that a round names more than 1 of 3 "
            r"colluders, got 1 by rounds of 3 of 30 silos; 9 silos a round are enough \(fraction 0\.3\)$",
        ),
        (30, 0.26, {}, r"more than 2 of 3 colluders, got 1 by rounds of 8 of 30 silos; 9 silos a round"),
        (
            200,
            0.2,
            {},
            r"got 0\.00013 by rounds of 40 of 200 silos; 48 silos a round are enough \(fraction 0\.24\)$",
        ),
        (10, 0.5, {"assumed_colluders": 2}, r"got 1 by .*; 6 silos a round are enough \(fraction 0\.6\)$"),
        (
            10,
            0.5,
            {"assumed_colluders": 4},
            r"got 1 by rounds of 5 of 10 silos; no fraction below 1 has so little$",
        ),
        (10, 0.5, {"assumed_colluders": 90}, "; no fraction below 1 has so little$"),
    ],
)
def test_a_draw_that_may_name_too_many_colluders_is_refused_with_the_smallest_that_may_not(
    spec: JobSpec, silos: int, fraction: float, fields: dict[str, Any], words: str
) -> None:
    job = drawn_job(spec, silos, fraction)
    everything = {"max_cohort_changes": 1000, **fields}
    refused(words, lambda: policy(**everything).check_job(job, operator="ops"))
    policy(**everything | {"assumed_colluders": 0}).check_job(job, operator="ops")


def test_a_draw_whose_risk_is_the_promised_one_passes(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both colluders among 3 of 20: 3 in 190, times 4, times 5 rounds, is 6 / 19."""
    job = drawn_job(spec, 20, 0.15, rounds=5)
    monkeypatch.setattr(drawn_rounds, "MAX_DRAW_RISK", Fraction(6, 19))
    policy().check_draw(job)
    monkeypatch.setattr(drawn_rounds, "MAX_DRAW_RISK", Fraction(6, 19) - Fraction(1, 10**9))
    refused("got 0.32 by rounds of 3 of 20 silos", lambda: policy().check_draw(job))


def test_groups_are_as_many_draws_as_there_are_groups(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both colluders among 4 of 20: 6 in 190, times 4, times 5 groups, however many rounds there are."""
    job = drawn_job(spec, 20, 0.2, rounds=500).model_copy(update={"draw": "groups"})
    once = job.model_copy(update={"rounds": 1})  # the other groups have no turn
    for risk, checked, message in (
        (0.6, job, "got 0.63 by rounds of 4 of 20 silos"),
        (0.64, job, None),
        (0.1, job, r"10 silos a round are enough \(fraction 0\.5\)"),
        (0.13, once, None),
        (0.64, drawn_job(spec, 20, 0.2), "got 1 by rounds"),
    ):
        monkeypatch.setattr(drawn_rounds, "MAX_DRAW_RISK", Fraction(str(risk)))
        if message is None:
            policy().check_draw(checked)
        else:
            refused(message, partial(policy().check_draw, checked))


def test_rounds_that_each_draw_a_new_set_may_be_refused(spec: JobSpec) -> None:
    careful = policy(drawn_rounds="refuse", assumed_colluders=0)
    job = drawn_job(spec, 20, 0.2)
    refused(r"of groups that are drawn once \(draw: groups\)", lambda: careful.check_draw(job))
    careful.check_draw(job.model_copy(update={"draw": "groups"}))
    careful.check_draw(drawn_job(spec, 20, 1.0))
    policy(assumed_colluders=0).check_draw(job)
    assert "every job whose rounds each draw a new set of silos" in described(careful)


def test_statistics_in_rounds_that_each_draw_a_new_set_are_refused_by_default(spec: JobSpec) -> None:
    """`update_bound: 1e-7` made FedCSD's model stand still at any rate: 16 rounds of 4 of 12 silos gave each
    silo's prototypes to 4e-4 (docs/decisions/0031-statistics-of-drawn-rounds.md)."""
    takes = {"class_statistics": "allow", "assumed_colluders": 0, "max_cohort_changes": 1_000}
    fields = {"classes": 10, "input_shape": [4], "model": {"name": "mlp", "hidden": [8]}}
    silos = [f"silo-{place:02d}" for place in range(12)]
    given = {**spec.model_dump(exclude_unset=True), **fields, "silos": silos}
    for preset in ("fedcsd", "feddw", "fedavg"):
        jobs = {
            fraction: JobSpec.model_validate({**given, "strategy": {"preset": preset}, "fraction": fraction})
            for fraction in (0.5, 1.0)
        }
        default, open_one = policy(**takes), policy(**takes, drawn_rounds="with_statistics")
        refusals = [str(each) for each in default.refusals(jobs[0.5], operator="olga")]
        assert any("by drawn_rounds: allow" in each for each in refusals) == (preset != "fedavg")
        for passes, job in (
            (default, jobs[1.0]),
            (default, jobs[0.5].model_copy(update={"draw": "groups"})),
            (open_one, jobs[0.5]),
        ):
            found = [each.rule for each in passes.refusals(job, operator="olga")]
            assert Rule.DRAWN_ROUNDS not in found
    assert "where rounds each draw a new set of silos" in described(policy())


def test_a_draw_without_colluders_or_of_all_silos_passes(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn_rounds, "MAX_DRAW_RISK", Fraction(0))
    policy().check_draw(drawn_job(spec, 19, 0.2))  # one colluder is never more than a third
    policy().check_draw(drawn_job(spec, 30, 0.3))
    policy(assumed_colluders=0).check_draw(drawn_job(spec, 30, 0.1))
    policy(assumed_colluders=30).check_draw(drawn_job(spec, 30, 1.0))
    policy(assumed_colluders=30).check_draw(drawn_job(spec, 30, 0.99))  # ceil(29.7)


def test_terms_are_checked_beyond_the_job() -> None:
    terms = make_terms(make_federation(4), attempt=3)
    everything = {"class_statistics": "allow"}
    policy(**everything).check_terms(terms)
    refused("federation test", lambda: policy(**everything | {"federation": "x"}).check_terms(terms))
    refused(
        "at least 5 silos, got 4",
        lambda: policy(**everything, min_silos=5).check_terms(terms),
        Refusal.COHORT_TOO_SMALL,
    )
    refused("got quantity counts", lambda: policy(allowed_quantities=["delta"]).check_terms(terms))


def test_what_nobody_has_classified_counts_as_a_class_statistic() -> None:
    unknown = [Quantity(name="delta", bound=1.0)]
    refused("no class statistics", lambda: policy().check_quantities(unknown))
    policy(class_statistics="allow").check_quantities(unknown)


@pytest.mark.parametrize("discloses", list(Disclosure))
def test_a_policy_refuses_by_what_a_quantity_discloses(discloses: Disclosure) -> None:
    bare = Quantity(name="confusion", bound=1.0, discloses=discloses)
    by_class = (Disclosure.CLASS_STATISTIC, Disclosure.TRAINED_CLASS_STATISTIC, Disclosure.BIN_STATISTIC)
    if discloses in by_class:
        refused("no class statistics", lambda: policy().check_quantities([bare]))
        policy().check_quantities([bare], is_private=True)
    elif discloses is Disclosure.CELL:
        refused("no analyses without noise", lambda: policy().check_quantities([bare]))
        policy(analyses={"exact": "allow"}).check_quantities([bare])
    else:
        policy().check_quantities([bare])
    policy().check_quantities([replace(bare, noise=Noise(variance=64.0, scale=1.0))])


def test_sample_counts_are_rounded_down() -> None:
    assert [policy().rounded(samples) for samples in (0, 9, 10, 109)] == [0, 0, 10, 100]
    assert policy(count_granularity=1).rounded(109) == 109


def test_the_description_shows_every_field_and_what_is_refused() -> None:
    text = described(policy(operators=["alice"], max_cohort_changes=0))
    for name in Policy.model_fields.keys() - {"privacy", "analyses"}:
        assert f"{name}: " in text
    for name in AnalysisPolicy.model_fields:
        assert f"analyses.{name}: " in text
    for name in PrivacyPolicy.model_fields:
        assert f"privacy.{name}: " in text
    assert "operators: [alice]" in text
    assert "privacy.required: false  #" in text  # as the file writes it
    assert "labels: null" in text
    assert "- every job that is not approved here (chorale silo approve)" in text
    assert "- every statistic by class" in text
    assert "- every analysis without noise" in text
    assert "- every method with local state whose sums have no noise" in text
    assert "- operators other than alice" in text
    assert "more than 0 overlapping cohorts" in text
    assert "- starting weights" not in text
    computed = described(policy(initial_state="computed"))
    assert "initial_state: computed  #" in computed
    assert "- starting weights that this silo does not draw itself\n" in computed
    relaxed = described(policy(approval="automatic", class_statistics="allow", local_state="allow"))
    assert "not approved" not in relaxed
    assert "statistic by class without" not in relaxed
    assert "with local state whose" not in relaxed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("min_silos: 2", "min_silos"),
        ("count_granularity: 0", "count_granularity"),
        ("approval: sometimes", "approval"),
        ("max_roster_age_days: 0", "max_roster_age_days"),
        ("unheard_of: 1", "unheard_of"),
        (
            "initial_state: chosen",
            "initial_state: expected computed, given or a list of SHA-256 digests, got .chosen.",
        ),
        ("initial_state: [ab]", "initial_state: expected computed, given or a list of SHA-256 digests"),
        ("initial_state: []", "initial_state: expected computed, given or a list of SHA-256 digests"),
    ],
)
def test_a_policy_file_out_of_range_names_file_and_field(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"federation: test\n{line}\n...\n")
    with pytest.raises(ConfigError, match=rf"policy\.yaml: .*{words}"):
        load_policy(path)


def test_the_environment_overrides_the_policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("federation: test\nmin_silos: 4\n...\n")
    monkeypatch.setenv("CHORALE_POLICY_MIN_SILOS", "6")
    assert load_policy(path).min_silos == 6
    assert load_policy(path).approval.value == "manual"


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"learning_rate": 20.0}, r"at most 10, got learning_rate 20"),
        ({"learning_rate": 1e-7}, r"at least 1e-06, got learning_rate 1e-07"),
        (
            {"learning_rate": 0.1, "schedule": {"kind": "milestones", "milestones": [1], "gamma": 1e-9}},
            r"at least 1e-06, got learning_rate 1e-10",
        ),
        (
            {"learning_rate": 0.1, "schedule": {"kind": "step", "step_rounds": 1, "gamma": 1e-3}},
            "at least 1e-06, got learning_rate",
        ),
        ({"learning_rate": 1e-7, "schedule": {"kind": "cosine"}}, "at least 1e-06, got learning_rate"),
    ],
)
def test_a_learning_rate_that_moves_nothing_or_too_much_is_refused(
    spec: JobSpec, training: dict[str, object], words: str
) -> None:
    given = spec.model_copy(update={"training": TrainingSpec.model_validate(training), "rounds": 5})
    refused(words, lambda: policy().check_job(given, operator="ops"))


def test_a_cosine_schedule_may_end_at_zero(spec: JobSpec) -> None:
    training = TrainingSpec.model_validate({"learning_rate": 0.1, "schedule": {"kind": "cosine"}})
    long = spec.model_copy(update={"training": training, "rounds": 1_000})
    assert long.learning_rate_at(1_000) < 1e-6
    policy().check_job(long, operator="ops")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"server_learning_rate": 1e-4}, r"at least 0.001"),
        ({"server_learning_rate": 20.0}, r"at most 10"),
        ({"server_momentum": 0.95}, r"at most 10, got server_learning_rate 20"),
        ({"server_optimizer": "adam", "server_learning_rate": 50.0}, "at most 10, got server"),
    ],
)
def test_a_server_rate_beyond_the_policys_is_refused(
    spec: JobSpec, options: dict[str, object], words: str
) -> None:
    def job(**more: object) -> JobSpec:
        strategy = StrategySpec.model_validate({"preset": "fedopt", "options": more})
        return spec.model_copy(update={"strategy": strategy})

    refused(words, lambda: policy().check_job(job(**options), operator="ops"))
    for fine in ({}, {"server_optimizer": "adam"}, {"server_optimizer": "yogi", "server_momentum": 0.99}):
        policy().check_job(job(**fine), operator="ops")


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_rates_of_every_preset_are_within_the_policys(spec: JobSpec, preset: str) -> None:
    given = spec.model_copy(update={"strategy": StrategySpec(preset=preset)})
    policy(local_state="allow", class_statistics="allow").check_job(given, operator="ops")


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("job*.yaml")), ids=lambda path: path.stem)
def test_the_rates_of_every_example_are_within_the_policys(path: Path) -> None:
    text = path.read_bytes() + b"\nnot_after: 2100-01-01T00:00:00Z\n" * (
        b"\nnot_after:" not in path.read_bytes()
    )
    example = JobSpec.from_yaml(text, source=path.name)
    refusals = Policy(federation=example.federation).refusals(example, operator="ops")
    assert [each.rule for each in refusals if "learning_rate" in str(each.rule)] == []
