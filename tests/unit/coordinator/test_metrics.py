"""Names, help and starting values of the metrics: alerts and dashboards are built on them."""

from __future__ import annotations

import math

from prometheus_client import generate_latest

from coordinator.metrics import CoordinatorMetrics
from coordinator.reasons import FailureReason
from coordinator.storage.store import JobStatus

FAMILIES = {
    "rounds": "counter",
    "attempts": "counter",
    "session_failures": "counter",
    "stage_duration_seconds": "histogram",
    "cohort_size": "gauge",
    "clipped_values": "counter",
    "dropouts": "counter",
    "overdue": "gauge",
    "second_agents": "counter",
    "received_bytes": "counter",
    "sent_bytes": "counter",
    "refused_calls": "counter",
    "connections_without_certificate": "gauge",
    "cut_connections": "counter",
    "connected_silos": "gauge",
    "accuracy": "gauge",
    "accuracy_interval": "gauge",
    "loss_interval": "gauge",
    "loss": "gauge",
    "data_share": "gauge",
    "rounds_completed": "gauge",
    "jobs": "gauge",
    "checkpoint_timestamp_seconds": "gauge",
    "certificate_expiry_timestamp_seconds": "gauge",
    "refused_rosters": "counter",
    "credentials_refused": "gauge",
    "software_digests": "gauge",
    "roster_expiry_timestamp_seconds": "gauge",
    "roster_signed_timestamp_seconds": "gauge",
    "roster_version": "gauge",
    "audit_entries_lost": "gauge",
    "backup_timestamp_seconds": "gauge",
    "event_loop_lag_seconds": "gauge",
    "state_free_bytes": "gauge",
    "state_size_bytes": "gauge",
}


def test_families_have_their_names_types_and_help():
    families = {family.name: family for family in CoordinatorMetrics().registry.collect()}
    assert {name: family.type for name, family in families.items()} == {
        f"chorale_coordinator_{name}": kind for name, kind in FAMILIES.items()
    }
    for family in families.values():
        assert family.documentation.endswith(".")


def test_closed_labels_start_at_zero():
    metrics = CoordinatorMetrics()
    metrics.know_silos(["silo-a"])
    value = metrics.registry.get_sample_value
    prefix = "chorale_coordinator"
    for reason in FailureReason:
        assert value(f"{prefix}_session_failures_total", {"reason": reason.value}) == 0
    assert value(f"{prefix}_dropouts_total", {"silo": "silo-a", "stage": "masked"}) == 0
    assert value(f"{prefix}_rounds_total", {"phase": "train", "result": "used-up"}) == 0
    assert value(f"{prefix}_stage_duration_seconds_count", {"stage": "unmask"}) == 0
    assert value(f"{prefix}_received_bytes_total", {"kind": "upload"}) == 0
    for status in JobStatus:
        assert value(f"{prefix}_jobs", {"status": status.value}) == 0


def test_accuracy_and_loss_are_no_number_before_a_sum():
    metrics = CoordinatorMetrics()
    metrics.know_job("0123456789ab")
    for name in ("accuracy", "loss"):
        sample = metrics.registry.get_sample_value(
            f"chorale_coordinator_{name}", {"federation_job": "0123456789ab"}
        )
        assert math.isnan(sample)


def test_an_ended_jobs_series_end():
    metrics = CoordinatorMetrics()
    for job in ("0123456789ab", "ba9876543210"):
        metrics.know_job(job)
    metrics.forget_job("0123456789ab")
    metrics.forget_job("ffffffffffff")  # one that never ran
    text = generate_latest(metrics.registry)
    assert b"0123456789ab" not in text
    assert text.count(b'federation_job="ba9876543210"') == 12


def test_a_status_that_no_job_has_any_more_falls_to_zero():
    metrics = CoordinatorMetrics()
    metrics.count_jobs({JobStatus.RUNNING: 2})
    metrics.count_jobs({JobStatus.DONE: 2})
    value = metrics.registry.get_sample_value
    assert value("chorale_coordinator_jobs", {"status": "running"}) == 0
    assert value("chorale_coordinator_jobs", {"status": "done"}) == 2


def test_no_created_series_are_exposed():
    assert b"_created" not in generate_latest(CoordinatorMetrics().registry)
