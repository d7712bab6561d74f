"""What a private job promises: noise for the fewest honest survivors, and nothing left without any."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chorale.privacy.accountant import epsilon
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.quantity_noise import dp_sgd_steps, noised, privacy_of
from chorale.privacy.releases import DpSgd, Gaussian
from chorale.privacy.solve import MIN_USED, solve
from chorale.spec.job_spec import JobSpec, phase_context
from crypto.errors import ConfigError
from crypto.fixed_point.layout import MAX_QUANTITIES, Disclosure, Layout, Quantity
from crypto.noise.gaussian import MAX_VARIANCE, MIN_VARIANCE
from crypto.noise.sensitivity import MAX_WRAP_PROBABILITY, rotated_bound
from crypto.session.cohort import CohortRule
from strategies.base import TOTAL, Array
from strategies.checks import check_private
from strategies.declared_parts import PARTS
from strategies.presets import PRESETS
from strategies.recipe import Recipe, Regularizer
from strategies.tasks.classification import CLASSIFICATION
from tests.unit.chorale.conftest import NOW, MakeSpec

RECORDS = {"clip_norm": 1.0, "noise_multiplier": 1.1, "sample_rate": 0.1}
SUMS = {"clip_norm": 0.5, "noise_multiplier": 3.0}
WHOLE = {"clip_norm": 1.0, "sample_rate": 1.0}
BOTH_WAYS = [{"records": RECORDS}, {"sums": SUMS}]
NAMES = tuple(f"silo-{place:02}" for place in range(10))
STATE: dict[str, Array] = {
    "model/body.weight": np.zeros((8, 16), np.float32),
    "model/head.weight": np.zeros((10, 8), np.float32),
    TOTAL: np.array(400),
}


def private(make_spec: MakeSpec, *, privacy: dict[str, Any] | None = None, **fields: Any) -> JobSpec:
    """A job of ten silos at record level, unless the test says otherwise."""
    promised = {"statistics_noise_multiplier": 5.0, **({"records": RECORDS} if privacy is None else privacy)}
    return make_spec(**({"silos": NAMES, "privacy": promised} | fields))


def quantities(
    spec: JobSpec, kind: str, *, members: int = 10, state: dict[str, Array] = STATE
) -> list[Quantity]:
    raw = spec.method.phase(kind).quantities(phase_context(spec, 1, state, members, public_seed=bytes(32)))
    return list(noised(raw, spec, members))


def layout(spec: JobSpec) -> Layout:
    return Layout(quantities=tuple(quantities(spec, "train")), members=10)


def named(spec: JobSpec, kind: str, name: str, *, members: int = 10) -> Quantity:
    return next(each for each in quantities(spec, kind, members=members) if each.name == name)


class TestSpec:
    @pytest.mark.parametrize(
        ("privacy", "message"),
        [
            ({}, "privacy: expected records, sums or both"),
            ({"records": RECORDS}, "privacy.epsilon: a value is required, because statistics_noise_mult"),
            (
                {"records": {"clip_norm": 1, "sample_rate": 0.1}, "statistics_noise_multiplier": 1},
                "privacy.epsilon: a value is required, because records.noise_mult",
            ),
            ({"sums": {"clip_norm": 1}, "epsilon": 0}, "privacy.epsilon: expected more than 0, got 0"),
            ({"sums": SUMS, "epsilon": 1e9}, "privacy.epsilon: expected at most 30"),
            ({"sums": SUMS, "delta": 0.5}, "privacy.delta: expected at most 0.01, got 0.5"),
            ({"sums": SUMS, "weight": 1.5}, "privacy.weight: expected at most 1, got 1.5"),
            (
                {"records": RECORDS | {"sample_rate": 2}},
                "privacy.records.sample_rate: expected at most 1, got 2",
            ),
            ({"records": {"clip_norm": 1}}, "privacy.records.sample_rate: a value is required"),
            ({"sums": SUMS, "sigma": 1}, "privacy.sigma: unknown field"),
            (
                {"records": RECORDS | {"clip_norm": 1e-34}},
                "privacy.records.clip_norm: expected at least 1e-06, got 1e-34",
            ),
        ],
    )
    def test_each_mistake_is_one_sentence(
        self, make_spec: MakeSpec, privacy: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=f"^job.yaml: {message}"):
            make_spec(privacy=privacy)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, True])
    @pytest.mark.parametrize(
        "place",
        [
            ("delta",),
            ("epsilon",),
            ("weight",),
            ("statistics_noise_multiplier",),
            ("records", "clip_norm"),
            ("records", "noise_multiplier"),
            ("records", "sample_rate"),
            ("sums", "clip_norm"),
            ("sums", "noise_multiplier"),
        ],
    )
    def test_no_field_takes_what_is_no_number_above_zero(
        self, make_spec: MakeSpec, place: tuple[str, ...], value: float
    ) -> None:
        """NaN passes a check that refuses `<= 0`; a clip of zero divides by it; no noise is no privacy."""
        privacy: dict[str, Any] = {
            "records": dict(RECORDS),
            "sums": dict(SUMS),
            "statistics_noise_multiplier": 1.0,
        }
        inner = privacy[place[0]] if len(place) == 2 else privacy
        inner[place[-1]] = value
        with pytest.raises(ConfigError, match=f"privacy.{'.'.join(place)}: "):
            make_spec(privacy=privacy)

    def test_a_job_that_is_not_solved_cannot_be_submitted(self, make_spec: MakeSpec) -> None:
        spec = make_spec(privacy={"epsilon": 4.0, "sums": {"clip_norm": 1.0}})
        with pytest.raises(ConfigError, match="privacy.statistics_noise_multiplier is required"):
            spec.filled(nonce="ab" * 16, initial_state=b"\x01" * 32).check_submittable(now=NOW)

    def test_what_is_not_solved_makes_no_layout(self, make_spec: MakeSpec) -> None:
        spec = make_spec(silos=NAMES, privacy={"epsilon": 4.0, "sums": {"clip_norm": 1.0}})
        with pytest.raises(ConfigError, match="privacy.sums.noise_multiplier: it is null"):
            quantities(spec, "train")

    def test_batch_normalization_is_refused_with_advice(self, make_spec: MakeSpec) -> None:
        with pytest.raises(ConfigError, match="model.norm: expected group or none in a private job"):
            private(make_spec, model={"name": "resnet18"})
        private(make_spec, model={"name": "resnet18", "norm": "group"})

    def test_a_custom_model_with_running_means_has_no_private_layout(self, make_spec: MakeSpec) -> None:
        spec = private(make_spec, model={"name": "custom"})
        running = {**STATE, "model/norm.running_mean": np.zeros(2, np.float32)}
        with pytest.raises(ConfigError, match="quantity buffers: a private job cannot sum it"):
            quantities(spec, "train", state=running)
        quantities(spec, "train")

    def test_the_weight_is_declared_and_never_a_count(self, make_spec: MakeSpec) -> None:
        assert privacy_of(private(make_spec)).declared_weight(8) == 1 / 8
        quarter = privacy_of(private(make_spec, privacy={"records": RECORDS, "weight": 0.25}))
        assert quarter.declared_weight(8) == 0.25

    @pytest.mark.parametrize(
        ("epochs", "rate", "steps"), [(1, 0.1, 10), (3, 0.1, 30), (1, 0.3, 4), (2, 1.0, 2)]
    )
    def test_steps_of_dp_sgd_are_the_jobs(
        self, make_spec: MakeSpec, epochs: int, rate: float, steps: int
    ) -> None:
        spec = private(
            make_spec,
            privacy={"records": RECORDS | {"sample_rate": rate}},
            training={"learning_rate": 0.1, "local_epochs": epochs},
        )
        assert dp_sgd_steps(spec) == steps


class TestNoise:
    @pytest.mark.parametrize("members", [3, 4, 6, 7, 10])
    @pytest.mark.parametrize("raised", [None, 8])
    def test_the_fewest_honest_survivors_make_the_noise(
        self, make_spec: MakeSpec, members: int, raised: int | None
    ) -> None:
        """Scaled for n, a sum that lost silos, or that liars added no noise to, would have too little."""
        if raised is not None and raised > members:
            members = 10
        spec = private(make_spec, threshold=raised)
        rule = spec.rule(members)
        honest = max(rule.threshold, rule.min_cohort) - members // 3
        noise = named(spec, "enrollment", "samples", members=members).noise
        assert noise is not None
        assert honest < members
        assert honest * noise.variance == pytest.approx((5.0 * noise.scale) ** 2, rel=1e-12)

    def test_h_is_what_the_design_says(self) -> None:
        rules = [CohortRule.for_members(members) for members in (3, 4, 6, 9, 10)]
        assert [rule.min_honest for rule in rules] == [2, 2, 3, 4, 4]
        assert CohortRule.for_members(10, threshold=9).min_honest == 6

    @pytest.mark.parametrize("multiplier", [0.1, 1.0, 3.3, 50.0, 700.0])
    @pytest.mark.parametrize(
        ("kind", "name"), [("train", "delta"), ("train", "loss_sum"), ("enrollment", "samples")]
    )
    @pytest.mark.parametrize("ring_bits", [16, 32])
    def test_the_scale_is_the_coarsest_that_rounding_allows_or_the_finest_with_room(
        self, make_spec: MakeSpec, multiplier: float, kind: str, name: str, ring_bits: int
    ) -> None:
        multiplier = min(multiplier, 50.0) if ring_bits == 16 else multiplier  # more has no room there
        privacy = {"sums": SUMS | {"noise_multiplier": multiplier}, "statistics_noise_multiplier": multiplier}
        spec = private(make_spec, privacy=privacy, update_bits=ring_bits)
        quantity = named(spec, kind, name)
        noise = quantity.noise
        assert noise is not None
        assert math.frexp(noise.scale)[0] == 0.5
        assert MIN_VARIANCE <= noise.variance <= MAX_VARIANCE
        l2 = noise.clip_l2 or quantity.sensitivity_l2
        assert l2 is not None
        cost = math.sqrt(spec.rule(10).min_honest * noise.variance) / (multiplier * noise.scale * l2)
        assert cost >= 1 - 1e-12
        if cost > 1.001:  # then a finer scale has no room
            assert (ring_bits, name) == (16, "delta")
            twice = replace(noise, variance=3.9 * noise.variance, scale=2 * noise.scale)
            finer = replace(quantity, noise=twice)
            assert finer.wrap_probability(10) > MAX_WRAP_PROBABILITY / MAX_QUANTITIES

    def test_an_update_is_clipped_at_its_weight(self, make_spec: MakeSpec) -> None:
        spec = private(make_spec, privacy={"sums": SUMS})
        delta = named(spec, "train", "delta")
        assert delta.noise is not None
        assert delta.noise.clip_l2 == delta.bound == 0.5 / 10

    def test_a_noised_count_is_no_count(self, make_spec: MakeSpec) -> None:
        samples = named(private(make_spec), "enrollment", "samples")
        assert not samples.is_count
        assert named(private(make_spec), "enrollment", "silos").is_count

    @pytest.mark.parametrize("privacy", BOTH_WAYS)
    @pytest.mark.parametrize("preset", ["fedavg", "spherefed"])
    def test_nothing_that_depends_on_data_goes_out_as_it_is(
        self, make_spec: MakeSpec, preset: str, privacy: dict[str, Any]
    ) -> None:
        spec = private(make_spec, strategy={"preset": preset}, privacy=privacy)
        bare = {
            each.name for kind in spec.method.phases for each in quantities(spec, kind) if each.noise is None
        }
        assert bare == {"silos", "weight"} | ({"delta"} if "records" in privacy else set())
        assert "clipped" not in spec.quantity_names

    def test_a_quantity_of_which_nobody_said_what_a_record_moves_is_refused(
        self, make_spec: MakeSpec
    ) -> None:
        for privacy in BOTH_WAYS:
            with pytest.raises(ConfigError, match="quantity confusion: a private job cannot sum it, because"):
                noised([Quantity(name="confusion", bound=8.0)], private(make_spec, privacy=privacy), 10)

    @pytest.mark.parametrize("discloses", [Disclosure.FROM_UPDATE, Disclosure.TRAINED_CLASS_STATISTIC])
    def test_what_else_the_update_decides_is_refused_under_sums(
        self, make_spec: MakeSpec, discloses: Disclosure
    ) -> None:
        quantity = Quantity(name="confusion", bound=8.0, sensitivity_l2=1.0, discloses=discloses)
        noised([quantity], private(make_spec), 10)
        with pytest.raises(ConfigError, match="quantity confusion: .* what one silo changes of it"):
            noised([quantity], private(make_spec, privacy={"sums": SUMS}), 10)

    @pytest.mark.parametrize("privacy", BOTH_WAYS)
    @pytest.mark.parametrize("discloses", list(Disclosure))
    def test_what_a_quantity_discloses_decides_its_noise(
        self, make_spec: MakeSpec, discloses: Disclosure, privacy: dict[str, Any]
    ) -> None:
        quantity = Quantity(name="confusion", bound=8.0, sensitivity_l2=1.0, discloses=discloses)
        is_trained = discloses in (Disclosure.FROM_UPDATE, Disclosure.TRAINED_CLASS_STATISTIC)
        if is_trained and "sums" in privacy:
            return  # refused
        summed = noised([quantity], private(make_spec, privacy=privacy), 10)
        of_dp_sgd = {Disclosure.UPDATE, Disclosure.FROM_UPDATE} if "records" in privacy else set()
        if discloses is Disclosure.DIAGNOSTIC:
            assert summed == ()
        elif discloses in {Disclosure.CONSTANT} | of_dp_sgd:
            assert summed == (quantity,)
        else:
            assert summed[0].noise is not None
            assert (summed[0].noise.clip_l2 is not None) == (discloses is Disclosure.UPDATE)

    def test_a_job_without_privacy_keeps_its_quantities(self, make_spec: MakeSpec) -> None:
        raw = [Quantity(name="confusion", bound=8.0, discloses=each) for each in Disclosure]
        assert noised(raw, make_spec(), 4) == tuple(raw)

    def test_both_sides_make_the_same_layout(self, make_spec: MakeSpec) -> None:
        spec = private(make_spec, privacy={"sums": SUMS})
        again = JobSpec.from_yaml(spec.to_yaml(), source="job.yaml")
        one, other = (
            Layout(quantities=tuple(quantities(each, "train")), members=10) for each in (spec, again)
        )
        assert one.digest == other.digest

    @pytest.mark.parametrize(
        "changed",
        [
            {"sums": SUMS | {"clip_norm": 0.51}},
            {"sums": SUMS | {"noise_multiplier": 3.01}},
            {"sums": SUMS, "statistics_noise_multiplier": 5.01},
            {"sums": SUMS, "weight": 0.11},
        ],
    )
    def test_every_number_of_the_promise_makes_another_layout(
        self, make_spec: MakeSpec, changed: dict[str, Any]
    ) -> None:
        digests = {layout(private(make_spec, privacy=each)).digest for each in ({"sums": SUMS}, changed)}
        assert len(digests) == 2

    def test_a_narrow_word_gets_a_coarser_scale_and_never_wraps(self, make_spec: MakeSpec) -> None:
        privacy = {"sums": SUMS}
        wide, narrow = (
            Layout(
                quantities=tuple(
                    quantities(private(make_spec, privacy=privacy, update_bits=ring_bits), "train")
                ),
                members=10,
            )
            for ring_bits in (32, 16)
        )
        assert narrow.quantities[0].scale(10) < wide.quantities[0].scale(10)
        assert 0 < narrow.wrap_probability <= MAX_WRAP_PROBABILITY

    def test_a_rotated_word_has_a_narrower_bound_than_the_whole_update(self, make_spec: MakeSpec) -> None:
        """So a 16-bit word has a finer scale. What lies beyond is clipped: the norm only shrinks."""
        state = STATE | {"model/body.weight": np.zeros((512, 512), np.float32)}
        spec = private(make_spec, privacy={"sums": SUMS}, update_bits=16)
        delta = quantities(spec, "train", state=state)[0]
        assert delta.projection is not None
        assert delta.noise is not None
        assert delta.noise.clip_l2 == 0.5 / 10
        largest = rotated_bound(0.5 / 10, block=delta.projection.block, words=10 * delta.size)
        assert delta.bound == largest < 0.3 * delta.noise.clip_l2
        assert delta.wrap_probability(10) <= MAX_WRAP_PROBABILITY / 256
        wide = private(make_spec, privacy={"sums": SUMS}, update_bits=32)
        assert quantities(wide, "train", state=state)[0].bound == 0.5 / 10

    def test_noise_that_fits_no_word_is_refused(self, make_spec: MakeSpec) -> None:
        privacy = {"sums": SUMS | {"noise_multiplier": 700.0}}
        with pytest.raises(ConfigError, match="quantity delta: no scale leaves room in 16 bits for 208 val"):
            quantities(private(make_spec, privacy=privacy, update_bits=16), "train")


class TestCost:
    def test_a_enrollment_costs_one_release_of_the_counts(self, make_spec: MakeSpec) -> None:
        (release,) = JobReleases(private(make_spec), STATE).cost("enrollment", 10)
        assert isinstance(release, Gaussian)
        assert release.noise_multiplier == pytest.approx(5.0, rel=1e-9)
        assert release.failure == 0.0

    def test_training_by_records_costs_its_steps_and_the_evaluation(self, make_spec: MakeSpec) -> None:
        steps, *figures = JobReleases(private(make_spec), STATE).cost("train", 10)
        # each step draws noise for every trained parameter
        size = next(each.size for each in quantities(private(make_spec), "train") if each.name == "delta")
        assert isinstance(steps, DpSgd)
        plain = DpSgd(noise_multiplier=1.1, sample_rate=0.1, steps=10, draws=10 * size)
        assert replace(steps, distance=0.0) == plain
        assert len(figures) == 3  # evaluation spends too

    def test_an_update_counts_as_exchanged(self, make_spec: MakeSpec) -> None:
        """A record that changes makes another update of it: as if one were taken out and one put in."""
        spec = private(make_spec, privacy={"sums": SUMS})
        delta, *_ = JobReleases(spec, STATE).cost("train", 10)
        assert isinstance(delta, Gaussian)
        assert delta.noise_multiplier == pytest.approx(3.0 / 2.0, rel=1e-9)

    def test_the_cost_is_that_of_h_silos_and_not_of_all(self, make_spec: MakeSpec) -> None:
        spec = private(make_spec)
        noise = named(spec, "enrollment", "samples").noise
        (release,) = JobReleases(spec, STATE).cost("enrollment", 10)
        assert noise is not None
        assert isinstance(release, Gaussian)
        assert release.noise_multiplier == pytest.approx(math.sqrt(4 * noise.variance) / noise.scale)
        assert release.draws == 4

    def test_each_release_is_told_with_its_quantity(self, make_spec: MakeSpec) -> None:
        spec = private(make_spec, privacy={"records": RECORDS, "sums": SUMS})
        found = JobReleases(spec, STATE).of_input("train", 10)
        assert [(quantity.name, type(release)) for quantity, release in found] == [
            ("delta", DpSgd),
            *((name, Gaussian) for name in ("correct", "tested", "loss_sum")),
        ]
        assert all(quantity.noise is None for quantity, _ in found)

    def test_a_job_without_privacy_has_no_cost_to_state(self, make_spec: MakeSpec) -> None:
        with pytest.raises(ConfigError, match="privacy: the job promises none"):
            JobReleases(make_spec(), STATE).cost("enrollment", 4)

    def test_the_plan_counts_every_phase_as_often_as_it_may_come(self, make_spec: MakeSpec) -> None:
        spec = private(make_spec, rounds=20, enrollment_every=8, strategy={"preset": "spherefed"})
        planned = JobReleases(spec, {name: array for name, array in STATE.items() if name != TOTAL}).planned()
        train = JobReleases(spec, STATE).cost("train", 10)
        assert planned[train[0]] == 20
        # 3 enrollments; 3 figures in 20 rounds and once at the end; Gram and moment
        assert sum(planned.values()) == 3 + 20 + 3 * 21 + 2

    def test_the_drawing_of_silos_makes_nothing_cheaper(self, make_spec: MakeSpec) -> None:
        every, some = (private(make_spec, fraction=fraction) for fraction in (1.0, 0.5))
        assert JobReleases(some, STATE).epsilon() >= JobReleases(every, STATE).epsilon() * (1 - 1e-6)

    @pytest.mark.parametrize(
        "privacy",
        [
            {"epsilon": 8.0, "records": RECORDS | {"noise_multiplier": None}},
            {"epsilon": 4.0, "sums": {"clip_norm": 0.5}},
            pytest.param({"epsilon": 0.5, "sums": {"clip_norm": 0.5}, "delta": 1e-7}, marks=pytest.mark.soak),
            {"epsilon": 9.0, "sums": {"clip_norm": 0.5}, "statistics_noise_multiplier": 20.0},
            # all records a step: quick to solve for
            {"epsilon": 8.0, "records": WHOLE | {"noise_multiplier": 6.0}},
            {"epsilon": 8.0, "records": WHOLE, "sums": {"clip_norm": 0.5}},
        ],
    )
    def test_a_solved_job_meets_its_target(self, make_spec: MakeSpec, privacy: dict[str, Any]) -> None:
        spec = make_spec(silos=NAMES, privacy=privacy)
        solved = solve(spec, STATE)
        assert MIN_USED * privacy["epsilon"] <= JobReleases(solved, STATE).epsilon() <= privacy["epsilon"]
        assert solve(solved, STATE) is solved
        assert JobSpec.from_yaml(solved.to_yaml(), source="job.yaml") == solved
        solved.filled(nonce="ab" * 16, initial_state=b"\x01" * 32).check_submittable(now=NOW)

    def test_solving_is_deterministic(self, make_spec: MakeSpec) -> None:
        spec = make_spec(silos=NAMES, privacy={"epsilon": 8.0, "records": WHOLE})
        assert solve(spec, STATE) == solve(spec, STATE)

    def test_what_is_given_is_not_solved_for(self, make_spec: MakeSpec) -> None:
        spec = make_spec(silos=NAMES, privacy={"epsilon": 8.0, "records": RECORDS})
        solved = solve(spec, STATE).privacy
        assert solved is not None
        assert solved.records is not None
        assert solved.records.noise_multiplier == 1.1

    def test_a_target_that_the_given_noise_passes_is_refused(self, make_spec: MakeSpec) -> None:
        spec = make_spec(silos=NAMES, privacy={"epsilon": 0.1, "records": RECORDS})
        with pytest.raises(ConfigError, match="^privacy.epsilon: 0.1 cannot be met, ask for a larger one or"):
            solve(spec, STATE)

    def test_more_rounds_cost_more(self, make_spec: MakeSpec) -> None:
        costs = [JobReleases(private(make_spec, rounds=rounds), STATE).epsilon() for rounds in (1, 10, 100)]
        assert costs == sorted(costs)
        assert costs[0] < costs[2]

    def test_the_job_costs_the_sum_of_its_phases(self, make_spec: MakeSpec) -> None:
        spec = private(make_spec, rounds=3)
        parts = [
            *JobReleases(spec, STATE).cost("enrollment", 10),
            *JobReleases(spec, STATE).cost("evaluate", 10),
        ]
        parts += 3 * list(JobReleases(spec, STATE).cost("train", 10))
        assert epsilon(parts, 1e-5) == pytest.approx(JobReleases(spec, STATE).epsilon(), rel=1e-12)

    def test_updates_and_statistics_have_a_cost_of_their_own(self, make_spec: MakeSpec) -> None:
        """A report once called all of it protected by silo, though statistics are noised by record."""
        spec = private(make_spec, rounds=3, privacy={"sums": SUMS})
        delta, *figures = JobReleases(spec, STATE).cost("train", 10)
        assert JobReleases(spec, STATE).epsilon_of_updates() == pytest.approx(
            epsilon({delta: 3}, 1e-5), rel=1e-12
        )
        statistics = [
            *JobReleases(spec, STATE).cost("enrollment", 10),
            *JobReleases(spec, STATE).cost("evaluate", 10),
        ]
        cost = epsilon(statistics + 3 * figures, 1e-5)
        assert JobReleases(spec, STATE).epsilon_of_statistics() == pytest.approx(cost, rel=1e-12)

    def test_steps_of_dp_sgd_protect_no_silo(self, make_spec: MakeSpec) -> None:
        assert JobReleases(private(make_spec), STATE).epsilon_of_updates() is None


class TestMethods:
    def test_every_part_says_whether_a_private_job_may_have_it(self) -> None:
        said = [part.under_privacy for parts in PARTS.values() for part in parts]
        assert all(each and (each.why or each.records or each.sums) for each in said)

    def test_a_part_that_does_not_say_is_refused(self) -> None:
        unsaid = replace(PRESETS["fedprox"], regularizer=Regularizer(word="new"))
        with pytest.raises(ConfigError, match="strategy.regularizer: it is not declared what new costs"):
            check_private(
                unsaid, {}, CLASSIFICATION, has_records=True, has_shared_noise=False, has_sums=False
            )

    @pytest.mark.parametrize(
        ("preset", "options", "by_records", "by_sums"),
        [
            ("fedavg", {}, "", ""),
            ("fedprox", {}, "", ""),
            ("fedopt", {}, "", ""),
            ("fedntd", {}, "", ""),
            ("feddr_plus", {}, "", ""),
            ("spherefed", {}, "", ""),
            ("fedexp", {}, "", "server_update: fedexp sums the length"),
            ("fednova", {}, "", "server_update: fednova sums the silo's number of steps"),
            ("feddw", {}, "", "statistic: soft-labels sums what the silo's own trained model answers"),
            ("fedetf", {}, "loss: balanced-softmax weighs every sample by the silo's class counts", ""),
            ("fedgela", {}, "loss: client-adapted weighs every sample by the silo's class counts", ""),
            ("fedcsd", {}, "options.logit_clip: a private job needs it", "options.logit_clip: a private job"),
            ("fedcsd", {"logit_clip": 10.0}, "", ""),
        ],
    )
    def test_a_method_that_cannot_be_private_is_refused_with_its_reason(
        self, make_spec: MakeSpec, preset: str, options: dict[str, Any], by_records: str, by_sums: str
    ) -> None:
        strategy = {"preset": preset, "options": options}
        for privacy, why in (({"records": RECORDS}, by_records), ({"sums": SUMS}, by_sums)):
            if why:
                with pytest.raises(ConfigError, match=f"^job.yaml: strategy.{why}"):
                    private(make_spec, strategy=strategy, privacy=privacy)
                continue
            spec = private(make_spec, strategy=strategy, privacy=privacy)
            assert all(quantities(spec, kind) for kind in spec.method.phases)
            assert JobReleases(spec, STATE).epsilon() < math.inf

    @pytest.mark.parametrize("preset", ["feddw", "fedcsd"])
    def test_a_private_job_asks_nobody_which_classes_it_holds(self, make_spec: MakeSpec, preset: str) -> None:
        options = {"logit_clip": 10.0} if preset == "fedcsd" else {}
        spec = private(make_spec, strategy={"preset": preset, "options": options})
        assert spec.method.opening == ("enrollment",)
        assert "class_presence" not in spec.quantity_names

    def test_every_part_states_what_private_jobs_may_have_it(self) -> None:
        assert [part for parts in PARTS.values() for part in parts if part.under_privacy is None] == []

    def test_parts_of_a_recipe_are_all_its_parts(self) -> None:
        assert set(PRESETS["feddw"].parts) == set(Recipe.__dataclass_fields__) - {
            "defaults",
            "rates",
            "second_regularizer",
            "growth",
        }
