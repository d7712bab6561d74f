"""Parts that do not go together are refused with the reason, and every preset goes together."""

from __future__ import annotations

from typing import Any

import pytest

from crypto.errors import ConfigError
from strategies.combinations import RULES, check_recipe
from strategies.methods import strategy_for, strategy_of
from strategies.presets import PRESETS
from strategies.recipe import (
    Closing,
    Features,
    Head,
    Loss,
    Mix,
    Own,
    Recipe,
    Regularizer,
    ServerUpdate,
    StatisticName,
)
from tests.support.objectives import make_job

ETF = {"head": Head.FROZEN_ETF, "features": Features.UNIT}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"loss": Loss.DOT_REGRESSION}, "dot-regression is of cosines: .*; got head trained, features raw"),
    ({**ETF, "features": Features.RAW, "loss": Loss.DOT_REGRESSION}, "dot-regression is of cosines"),
    ({**ETF, "head": Head.FROZEN_RANDOM, "loss": Loss.DOT_REGRESSION}, "dot-regression is of cosines"),
    (
        {**ETF, "features": Features.PROJECTED_UNIT, "loss": Loss.DOT_REGRESSION},
        "dot-regression is of cosines",
    ),
    ({"features": Features.PROJECTED_UNIT}, "projected-unit features need head frozen-etf"),
    ({"features": Features.PROJECTED_UNIT, "head": Head.FROZEN_RANDOM}, "projected-unit features need"),
    ({"loss": Loss.CLIENT_ADAPTED}, "client-adapted scales a frozen head"),
    ({"loss": Loss.CLIENT_ADAPTED, "head": Head.TRAINED_UNBIASED}, "client-adapted scales a frozen head"),
    ({"loss": Loss.SPHERE_MSE, "head": Head.FROZEN_ORTHONORMAL}, "sphere-mse takes scores for cosines, and"),
    ({"loss": Loss.SPHERE_MSE, "features": Features.UNIT}, "sphere-mse takes .* which have no bias"),
    ({**ETF}, "a softmax of cosines stays nearly even"),
    ({**ETF, "loss": Loss.BALANCED_SOFTMAX}, "a softmax of cosines stays nearly even"),
    ({"closing": Closing.FFC, "head": Head.FROZEN_RANDOM}, "ffc sums products of features"),
    ({"closing": Closing.FFC, "features": Features.UNIT}, "ffc fits a head without a bias"),
    ({"mix": Mix.CONVEX}, "a convex mix shares weight .* there is no regularizer"),
    ({"statistic": StatisticName.SOFT_LABELS}, "the statistic soft-labels .* needs that regularizer"),
    (
        {"regularizer": Regularizer.SOFT_LABELS, "statistic": StatisticName.SOFT_LABELS},
        "needs head trained-unbiased",
    ),
    (
        {"statistic": StatisticName.LOGIT_PROTOTYPES},
        "the statistic logit-prototypes .* needs that regularizer",
    ),
    ({"own": Own.HEAD, "head": Head.FROZEN_RANDOM}, "an own head is one that each silo trains"),
    ({"own": Own.MODEL, "regularizer": Regularizer.PROX}, "an own part trains in its own way"),
    ({"own": Own.HEAD, "server_update": ServerUpdate.SCAFFOLD}, "an own part trains in its own way"),
    ({"own": Own.ADAPTED, "closing": Closing.PERSONAL}, "an own part trains in its own way"),
]


@pytest.mark.parametrize(("parts", "reason"), REFUSED)
def test_combination_is_refused_with_its_reason(parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^strategy: .*{reason}"):
        check_recipe(Recipe(**parts))


def test_every_rule_is_tried() -> None:
    recipes = [Recipe(**parts) for parts, _ in REFUSED]
    assert [rule.reason for rule in RULES if not any(rule.refuses(recipe) for recipe in recipes)] == []


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_goes_together_and_knows_its_own_numbers(preset: str) -> None:
    assert strategy_for(preset, {}).name == preset


@pytest.mark.parametrize(
    "base",
    [{}, {"head": Head.FROZEN_RANDOM}, {**ETF, "loss": Loss.DOT_REGRESSION}],
    ids=["avg", "babu", "dr"],
)
@pytest.mark.parametrize(
    "regularizer",
    [Regularizer.PROX, Regularizer.KD, Regularizer.NTD, Regularizer.LD, Regularizer.FD],
)
def test_regularizers_of_the_papers_table_go_with_its_losses(
    base: dict[str, Any], regularizer: Regularizer
) -> None:
    recipe = Recipe(**base, regularizer=regularizer, mix=Mix.CONVEX)
    assert strategy_of("custom", recipe, {"beta": 0.5}).options["beta"] == 0.5


def test_job_is_refused_at_submission_with_the_reason() -> None:
    with pytest.raises(ValueError, match="strategy: dot-regression is of cosines"):
        make_job({"parts": {"loss": "dot-regression"}})


@pytest.mark.parametrize(
    ("preset", "options", "message"),
    [
        ("fedprox", {"tau": 1.0}, "options.tau: unknown option, fedprox has mu"),
        ("fedprox", {"mu": -1.0}, "options.mu: .*greater than or equal to 0"),
        ("feddr_plus", {"mu": 1.0}, "options.mu: unknown option, feddr_plus has beta"),
        ("feddr_plus", {"beta": 1.1}, "options.beta: .*less than or equal to 1"),
        ("dot_regression", {"beta": 0.9}, "options.beta: unknown option"),
        ("fedntd", {"tau": 0.0}, "options.tau: .*greater than 0"),
        ("fedetf", {"balance": 0.0}, "options.balance: .*greater than 0"),
    ],
)
def test_option_is_refused_by_name(preset: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy_for(preset, options)
