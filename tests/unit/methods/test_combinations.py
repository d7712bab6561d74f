"""Parts that do not go together are refused with the reason, and every preset goes together."""

from __future__ import annotations

from typing import Any

import pytest

from chorale.spec.strategy_spec import PartsSpec
from crypto.errors import ConfigError
from strategies.checks import check_recipe
from strategies.declared_parts import PARTS, recipe_from
from strategies.methods import strategy_for, strategy_of
from strategies.presets import PRESETS
from strategies.recipe import Recipe
from tests.support.objectives import make_job

ETF = {"head": "frozen-etf", "features": "unit"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"loss": "dot-regression"}, "dot-regression is of cosines: .*; got head trained, features raw"),
    ({**ETF, "features": "raw", "loss": "dot-regression"}, "dot-regression is of cosines"),
    ({**ETF, "head": "frozen-random", "loss": "dot-regression"}, "dot-regression is of cosines"),
    (
        {**ETF, "features": "projected-unit", "loss": "dot-regression"},
        "dot-regression is of cosines",
    ),
    ({"features": "projected-unit"}, "projected-unit features need head frozen-etf"),
    ({"features": "projected-unit", "head": "frozen-random"}, "projected-unit features need"),
    ({"loss": "client-adapted"}, "client-adapted scales a frozen head"),
    ({"loss": "client-adapted", "head": "trained-unbiased"}, "client-adapted scales a frozen head"),
    ({"loss": "sphere-mse", "head": "frozen-orthonormal"}, "sphere-mse takes scores for cosines, and"),
    ({"loss": "sphere-mse", "features": "unit"}, "sphere-mse takes .* which have no bias"),
    ({**ETF}, "a softmax of cosines stays nearly even"),
    ({**ETF, "loss": "balanced-softmax"}, "a softmax of cosines stays nearly even"),
    ({"closing": "ffc", "head": "frozen-random"}, "ffc sums products of features"),
    ({"closing": "ffc", "features": "unit"}, "ffc fits a head without a bias"),
    ({"mix": "convex"}, "a convex mix shares weight .* there is no regularizer"),
    ({"statistic": "soft-labels"}, "the statistic soft-labels .* needs one of them"),
    ({"regularizer": "class-distillation"}, "the regularizer class-distillation .* needs that statistic"),
    (
        {"regularizer": "soft-labels", "statistic": "soft-labels", "head": "frozen-random"},
        "the regularizer soft-labels moves the head's rows: it needs head trained-unbiased",
    ),
    ({"loss": "scaled-softmax", "head": "frozen-orthonormal"}, "scaled-softmax multiplies cosines"),
    (
        {"statistic": "logit-prototypes"},
        "the statistic logit-prototypes .* needs that regularizer",
    ),
    (
        {"personalization": "head", "head": "frozen-random"},
        "a head of the silo.s own is one that each silo trains",
    ),
    ({"personalization": "model", "regularizer": "prox"}, "personalization trains in its own way"),
    ({"personalization": "head", "server_update": "scaffold"}, "personalization trains in its own way"),
    ({"personalization": "body", "head": "frozen-etf"}, "a body of the silo's own leaves the head alone"),
    ({"personalization": "alone", "closing": "fine-tuning"}, "personalization alone sums nothing"),
    ({"personalization": "alone", "server_update": "fedopt"}, "personalization alone sums nothing"),
    ({"personalization": "alone", "regularizer": "kd"}, "personalization alone sums nothing"),
    ({"statistic": "feature-prototypes"}, "the statistic feature-prototypes .* needs that regularizer"),
    ({"regularizer": "feature-prototypes"}, "the regularizer feature-prototypes .* needs that statistic"),
    ({"mix": "perturbed"}, "a perturbed mix moves the weights .* needs regularizer kd"),
    ({"mix": "perturbed", "regularizer": "prox"}, "a perturbed mix moves the weights"),
    ({"closing": "ccvr", "loss": "dot-regression", **ETF}, "ccvr trains the last linear layer alone"),
    ({"personalization": "adapted", "closing": "fine-tuning"}, "personalization trains in its own way"),
]


def recipe_of(parts: dict[str, Any]) -> Recipe:
    return recipe_from(PartsSpec(**parts).model_dump())


@pytest.mark.parametrize(("parts", "reason"), REFUSED)
def test_combination_is_refused_with_its_reason(parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^strategy: .*{reason}"):
        check_recipe(recipe_of(parts), {})


def test_every_rule_is_tried() -> None:
    refused = set()
    for recipe in (recipe_of(parts) for parts, _ in REFUSED):
        needs = (need for part in recipe.parts.values() for need in part.needs)
        refused |= {need.reason for need in needs if not need.holds(recipe)}
    assert refused == {need.reason for parts in PARTS.values() for part in parts for need in part.needs}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_goes_together_and_knows_its_own_numbers(preset: str) -> None:
    assert strategy_for(preset, {}).name == preset


@pytest.mark.parametrize(
    "base",
    [{}, {"head": "frozen-random"}, {**ETF, "loss": "dot-regression"}],
    ids=["avg", "babu", "dr"],
)
@pytest.mark.parametrize(
    "regularizer",
    ["prox", "kd", "ntd", "ld", "fd"],
)
def test_regularizers_of_the_papers_table_go_with_its_losses(base: dict[str, Any], regularizer: str) -> None:
    recipe = recipe_of({**base, "regularizer": regularizer, "mix": "convex"})
    assert strategy_of("custom", recipe, {"beta": 0.5}).options["beta"] == 0.5


def test_job_is_refused_at_submission_with_the_reason() -> None:
    with pytest.raises(ValueError, match="strategy: dot-regression is of cosines"):
        make_job({"parts": {"loss": "dot-regression"}})


@pytest.mark.parametrize(
    ("preset", "options", "message"),
    [
        ("fedprox", {"tau": 1.0}, "options.tau: unknown option, fedprox has mu"),
        ("fedprox", {"mu": -1.0}, "options.mu: expected at least 0, got -1"),
        ("feddr_plus", {"mu": 1.0}, "options.mu: unknown option, feddr_plus has beta"),
        ("feddr_plus", {"beta": 1.1}, "options.beta: expected at most 1"),
        ("dot_regression", {"beta": 0.9}, "options.beta: unknown option"),
        ("fedntd", {"tau": 0.0}, "options.tau: expected more than 0"),
        ("fedetf", {"balance": 0.0}, "options.balance: expected more than 0"),
    ],
)
def test_option_is_refused_by_name(preset: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy_for(preset, options)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"loss": "sphere-mse"}, "sphere-mse takes scores for cosines, and only before"),
        (
            {"loss": "sphere-mse", "head": "frozen-orthonormal"},
            "sphere-mse takes scores for cosines, and only",
        ),
        (
            {"loss": "sphere-mse", "features": "unit"},
            "sphere-mse takes scores for cosines, which have no bias",
        ),
        ({**ETF}, "a softmax of cosines stays nearly even"),
        ({**ETF, "features": "raw", "loss": "dot-regression"}, "dot-regression is of cosines"),
        ({"loss": "client-adapted"}, "client-adapted scales a frozen head"),
        ({"closing": "ffc", "head": "frozen-random"}, "ffc sums products of features at unit length"),
        ({"loss": "scaled-softmax", "head": "frozen-orthonormal"}, "scaled-softmax multiplies cosines"),
    ],
)
def test_unusual_job_passes_over_a_rule_and_says_which(parts: dict[str, Any], reason: str) -> None:
    job = make_job({"parts": parts}, allow_unusual=True)
    assert any(rule.startswith(reason) for rule in job.method.passed_over)
    with pytest.raises(ValueError, match=f"{reason}.*allow_unusual: true passes over this rule"):
        make_job({"parts": parts})


HARD = [
    (parts, reason)
    for parts, reason in REFUSED
    if not any(
        need.is_advice
        for part in recipe_of(parts).parts.values()
        for need in part.needs
        if not need.holds(recipe_of(parts))
    )
]


@pytest.mark.parametrize(("parts", "reason"), HARD)
def test_rule_that_keeps_a_bound_or_a_promise_is_never_passed_over(
    parts: dict[str, Any], reason: str
) -> None:
    """Sums that nothing uses, and products of features without a bound, stay refused."""
    with pytest.raises(ConfigError, match=reason):
        check_recipe(recipe_of(parts), {}, allow_unusual=True)


def test_usual_job_passes_over_nothing() -> None:
    assert make_job({"preset": "spherefed"}, allow_unusual=True).method.passed_over == ()


@pytest.mark.parametrize(
    ("preset", "options", "least"),
    [
        ("feddw", {}, 1),
        ("feddw", {"init_slm": "identity"}, 0),
        ("fedcsd", {}, 1),
        ("fedcsd", {"missing_prototypes": "identity"}, 0),
        ("fedcsd", {"similarity": False}, 0),
        ("fedproto", {}, 1),
        ("feddistill_plus", {}, 1),
        ("feddistill_plus", {"init_slm": "identity"}, 0),
        ("ccvr", {}, 2),
        ("spherefed", {}, 0),
    ],
)
def test_a_method_says_how_many_class_rows_it_needs(preset: str, options: dict[str, Any], least: int) -> None:
    assert strategy_for(preset, options).least_rows == least


def test_every_part_that_holds_rows_back_says_how_many_it_needs() -> None:
    """One that says nothing would run as another method without a word."""
    for field in ("statistic", "closing"):
        for part in PARTS[field]:
            sums_rows = field == "statistic" or getattr(part, "least_class_samples", 0) > 0
            assert (part.least_rows({}) > 0) == sums_rows, part


def test_rows_under_noise_are_needed_of_nobody() -> None:
    assert strategy_for("feddw", {}).under_noise().least_rows == 0
