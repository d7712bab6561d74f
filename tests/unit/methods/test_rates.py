"""Learning rates of presets: the committed tables that they follow from, and the jobs that get them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chorale.spec.job_spec import JobSpec
from client.submission import rate_notes
from research.accuracy.arms import ARMS
from research.accuracy.catalog import SUITES
from research.accuracy.page import evidence
from research.accuracy.report import Report
from strategies.parts.closing.fine_tuning import NO_CLOSING
from strategies.parts.personalization import NO_PERSONALIZATION
from strategies.presets import PRESETS

ROOT = Path(__file__).parents[3]
MEASURED = [
    Report.from_json(entry["report"]) for name in SUITES if (entry := evidence.read(ROOT, name)) is not None
]


def learned(preset: str) -> set[float]:
    """Rates at which, on some cut, its mean accuracy at its own strength is more than half of the way from
    chance to its best there."""
    rates = set[float]()
    for found in MEASURED:
        for setting in found.settings:
            own, choice = ARMS[preset].published, found.choices.get((setting, preset))
            tuning = {} if choice is None else choice.validation
            tested = {
                (cell.rate, cell.strength): cell.mean
                for cell in found.cells.values()
                if (cell.setting, cell.arm) == (setting, preset)
            }
            for kind in (tuning, tested):
                by_rate = {rate: accuracy for (rate, strength), accuracy in kind.items() if strength == own}
                best, chance = max(by_rate.values(), default=0.0), 1 / found.classes[setting]
                half = max((best + chance) / 2, chance + 0.1)
                rates |= {rate for rate, accuracy in by_rate.items() if accuracy > half}
    return rates


@pytest.mark.parametrize("preset", [name for name in PRESETS if name in ARMS])  # one declaration each
def test_a_preset_declares_the_range_of_the_rates_at_which_it_learned(preset: str) -> None:
    rates = PRESETS[preset].rates
    assert rates is not None
    assert (rates.least, rates.most) == (min(learned(preset)), max(learned(preset)))
    assert rates.least <= rates.default <= rates.most


def test_a_preset_without_tables_has_the_rates_of_the_one_that_trains_alike() -> None:
    """What silos train in common is the same: it ends otherwise, or keeps something at the silo."""
    own: dict[str, Any] = {
        "closing": NO_CLOSING,
        "personalization": NO_PERSONALIZATION,
        "rates": None,
        "defaults": {},
    }

    for name in PRESETS.keys() - ARMS.keys() - {"fedproto"}:  # whose regularizer is its own
        plain = replace(PRESETS[name], **own).parts
        alike = [PRESETS[other] for other in PRESETS if other in ARMS]
        rates = [recipe.rates for recipe in alike if replace(recipe, **own).parts == plain]
        assert PRESETS[name].rates in rates, name


def job(training: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    values = {
        "name": "rates",
        "federation": "heart",
        "silos": ["a", "b", "c"],
        "rounds": 1,
        "not_after": "2100-01-01T00:00:00Z",
        "model": {"name": "mlp"},
        "classes": 10,
        "input_shape": [4],
        **fields,
    }
    return values if training is None else {**values, "training": training}


@pytest.mark.parametrize("training", [None, {}, {"learning_rate": None, "local_epochs": 3}])
@pytest.mark.parametrize("preset", ["fedavg", "spherefed", "feddr_plus"])
def test_a_job_without_a_rate_is_signed_with_its_presets(
    preset: str, training: dict[str, Any] | None
) -> None:
    spec = JobSpec.model_validate(job(training, strategy={"preset": preset}))
    own = PRESETS[preset].rates
    assert own is not None
    assert f"learning_rate: {own.default}\n" in spec.to_yaml().decode()
    again = JobSpec.from_yaml(spec.to_yaml(), source="job.yaml")
    assert again == spec
    assert again.learning_rate_at(1) == own.default


OTHERWISE: tuple[dict[str, Any], ...] = (
    {"training": {"optimizer": "adam"}},
    {"training": {"momentum": 0.5}},
    {"strategy": {"parts": {"head": "trained"}}},
    {"strategy": {"preset": "feddw", "as_published": "code"}},
    {"strategy": {"loss": {"name": "huber", "from": "losses==1.0", "is_mean": True}}},
    {"task": {"name": "multi-label"}},
    {"trains": "head"},
    {"privacy": {"epsilon": 1.0, "records": {"clip_norm": 1.0, "sample_rate": 0.1}}},
)


@pytest.mark.parametrize("fields", OTHERWISE, ids=str)
def test_a_job_that_trains_otherwise_than_rates_were_measured_needs_one_and_gets_no_warning(
    fields: dict[str, Any],
) -> None:
    values = {**job({}), **fields}
    with pytest.raises(ValueError, match=r"training\.learning_rate: a value is required: only a preset"):
        JobSpec.model_validate(values)
    given = {**values, "training": {**values["training"], "learning_rate": 50.0}}
    assert rate_notes(JobSpec.model_validate(given)) == []


def test_a_rate_at_which_a_preset_was_never_seen_to_learn_is_warned_of() -> None:
    rates = PRESETS["fedavg"].rates
    assert rates is not None
    for rate, is_known in ((rates.least, True), (rates.most, True), (rates.least / 2, False), (3.0, False)):
        notes = rate_notes(JobSpec.model_validate(job({"learning_rate": rate})))
        learned = f"fedavg was seen to learn at {rates.least:g} to {rates.most:g} alone"
        expected = f"training.learning_rate {rate:g}: {learned}; its own rate is {rates.default:g}"
        assert notes == ([] if is_known else [expected])
