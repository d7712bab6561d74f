"""Every declared part is computed at a silo, and a job that names another is told which there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from crypto.errors import ConfigError
from silo_agent.training.parts import computed_parts as registry
from silo_agent.training.parts.computed_parts import computed
from strategies.declared_parts import PARTS, PHASE_KINDS
from strategies.parts.losses import TASK_LOSS
from strategies.presets import PRESETS
from strategies.recipe import Loss, Part
from tests.support.objectives import make_job

COMPUTED: Mapping[str, Mapping[Any, Any]] = {
    "loss": registry.LOSSES,
    "regularizer": registry.REGULARIZERS,
    "server_update": registry.SERVER_UPDATES,
    "statistic": registry.STATISTICS,
    "personalization": registry.PERSONALIZATIONS,
}


@pytest.mark.parametrize("field", COMPUTED)
def test_silo_computes_what_is_declared_and_nothing_else(field: str) -> None:
    assert set(COMPUTED[field]) == set(PARTS[field])


@pytest.mark.parametrize("field", PARTS)
def test_a_word_names_one_part_of_its_field(field: str) -> None:
    words = [part.word for part in PARTS[field]]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_no_part_that_a_job_cannot_name(preset: str) -> None:
    assert all(part in PARTS[field] for field, part in PRESETS[preset].parts.items())


@pytest.mark.parametrize("preset", PRESETS)
def test_phases_of_a_method_are_among_those_that_metrics_count(preset: str) -> None:
    assert set(make_job({"preset": preset}).method.phases) <= set(PHASE_KINDS)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"loss": "hinge"}, "strategy.parts.loss\n.*expected one of task, .*, got hinge"),
        (
            {"statistic": "mean"},
            "parts.statistic\n.*expected one of soft-labels, logit-prototypes, feature-prototypes, got mean",
        ),
    ],
)
def test_an_unknown_word_is_told_the_known_ones(parts: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_job({"parts": parts})


def test_a_part_that_this_silo_lacks_is_refused_in_a_sentence() -> None:
    lacking: Mapping[Part, str] = {TASK_LOSS: "computed"}
    with pytest.raises(ConfigError, match="strategy: of Loss this silo has task, got new"):
        computed(Loss(word="new"), lacking)
