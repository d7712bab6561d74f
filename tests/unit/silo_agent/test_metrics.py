"""Names, first values and closed labels of the agent's metrics; and how long it waits."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from crypto.errors import Refusal
from silo_agent.connection.backoff import Backoff
from silo_agent.metrics import SiloMetrics, phase_label
from strategies.analysis.method import Analysis
from strategies.analysis.partition import Family, Model, Partition, Tables
from strategies.declared_parts import PHASE_KINDS
from strategies.methods import strategy_for
from strategies.presets import PRESETS


def test_every_series_is_there_from_the_start_at_zero() -> None:
    text = generate_latest(SiloMetrics().registry).decode()
    for reason in Refusal:
        assert f'chorale_silo_refusals_total{{reason="{reason.value}"}} 0.0' in text
    for phase in PHASE_KINDS:
        for result in ("applied", "left-out", "used-up"):
            assert f'chorale_silo_rounds_total{{phase="{phase}",result="{result}"}} 0.0' in text
    for direction in ("up", "down"):
        assert f'chorale_silo_transferred_bytes_total{{direction="{direction}"}} 0.0' in text
    for name in (
        "chorale_silo_training_seconds_total",
        "chorale_silo_mask_seconds_total",
        "chorale_silo_reconnects_total",
        "chorale_silo_connected",
        "chorale_silo_samples_per_second",
        "chorale_silo_clock_skew_seconds",
        "chorale_silo_certificate_expiry_timestamp_seconds",
        "chorale_silo_gpu_memory_bytes",
        "chorale_silo_state_free_bytes",
        "chorale_silo_state_size_bytes",
        'chorale_silo_epsilon_budget{data_set="data"}',
        'chorale_silo_epsilon_spent{data_set="data"}',
        'chorale_silo_unnoised_inputs{data_set="data"}',
    ):
        assert f"\n{name} 0.0\n" in text
    assert "_created" not in text


def test_the_memory_of_every_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was that of the first, whichever trained."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda gpu=0: 5 * gpu)
    assert SiloMetrics().registry.get_sample_value("chorale_silo_gpu_memory_bytes") == 5.0


def test_every_metric_has_help_and_the_prefix() -> None:
    lines = generate_latest(SiloMetrics().registry).decode().splitlines()
    helps = [line.split(" ", 3) for line in lines if line.startswith("# HELP")]
    assert len(helps) >= 14
    for _, _, name, sentence in helps:
        assert name.startswith("chorale_silo_")
        assert sentence.endswith(".")


def test_the_closed_list_of_phase_kinds_is_that_of_the_methods() -> None:
    methods = [strategy_for(preset, {}) for preset in PRESETS]
    measured = Partition(parts=1, edges=(0.0, 1.0), has_mean=True)
    evaluated = strategy_for("fedavg", {}).evaluated_between_rounds().standardizing(1).tested_by(measured, 10)
    model = Model(outcome=0, family=Family.LINEAR, terms=())
    asked: list[dict[str, Any]] = [{"has_correlations": True}, {"model": model}, {"has_noise": True}]
    analyses = [
        Analysis(tables=Tables(partitions=(measured,), group=None, min_cell=10, **each)) for each in asked
    ]
    found = set().union(*(method.phases for method in [*methods, evaluated, *analyses]))
    assert found == set(PHASE_KINDS)


def test_a_phase_kind_outside_the_closed_list_gets_no_label() -> None:
    assert phase_label("train") == "train"
    assert phase_label("whatever-a-peer-says") is None


def test_backoff_grows_to_its_limit_and_starts_again_after_success() -> None:
    longest = Backoff(random=lambda: 1.0, first_seconds=1.0, max_seconds=5.0)
    assert [longest.next_seconds() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    longest.reset()
    assert longest.next_seconds() == 1.0
    shortest = Backoff(random=lambda: 0.0, first_seconds=1.0, max_seconds=5.0)
    assert shortest.next_seconds() == 0.1
