"""What the agent counts. Every label comes from a closed set and starts at zero."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge

from chorale.observability.audit_head import TEXT as TEXT_LOST
from chorale.observability.process_metrics import LoopLag
from chorale.runtime import disk
from chorale.transport.line_probe import Trouble
from chorale.v1.records_pb2 import PhaseRecord
from crypto.errors import Refusal
from strategies.declared_parts import PHASE_KINDS

PREFIX = "chorale_silo"


class Direction(StrEnum):
    UP = "up"
    DOWN = "down"


class PhaseEnd(StrEnum):
    """How a phase ended for this silo."""

    APPLIED = "applied"  # the sum counts, and this silo is in it
    LEFT_OUT = "left-out"  # the sum counts without it
    USED_UP = "used-up"

    @classmethod
    def of(cls, record: PhaseRecord, silo: str) -> PhaseEnd:
        """What the coordinator's record says of the silo."""
        if record.result != cls.APPLIED.value:
            return cls.USED_UP
        return cls.APPLIED if silo in record.cohort else cls.LEFT_OUT


class SiloMetrics:
    """One registry per process; the attributes are the metrics."""

    def __init__(self, data_sets: Sequence[str] = ("data",)) -> None:
        """data_sets: names of all that the settings have."""
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace=PREFIX, registry=self.registry)
        gauge = partial(Gauge, namespace=PREFIX, registry=self.registry)
        self.rounds = counter("rounds", "Phases that ended, by phase and result.", ["phase", "result"])
        self.sessions = counter("sessions", "Sessions this silo adverted for, by phase.", ["phase"])
        self.refusals = counter("refusals", "Refusals by this silo, by reason.", ["reason"])
        self.transferred = counter(
            "transferred_bytes", "Models and revealed sums down, vectors up.", ["direction"]
        )
        self.training_seconds = counter("training_seconds", "Time spent computing inputs.")
        self.mask_seconds = counter("mask_seconds", "Time spent encoding, masking and sending vectors.")
        self.clipped = counter("clipped_values", "Values clipped to their bound.")
        self.long_steps = counter(
            "long_steps", "Global states that moved too far beside this silo's own steps."
        )
        self.reconnects = counter("reconnects", "Times the control stream ended.")
        self.connection_failures = counter(
            "connection_failures",
            "Tries to connect that failed, by what a handshake of the agent's own then found.",
            ["reason"],
        )
        self.samples_rate = gauge(
            "samples_per_second", "Samples a second in the last training without privacy."
        )
        self.connected = gauge("connected", "1 while the control stream is up.")
        self.two_agents = gauge(
            "two_agents_timestamp_seconds",
            "When the coordinator last said that another agent uses this silo's certificate; 0: never.",
        )
        self.clock_skew = gauge("clock_skew_seconds", "This clock minus the coordinator's.")
        self.data_share = gauge("data_share", "Share of the federation's data in the last round.")
        self.epsilon_budget = gauge("epsilon_budget", "Epsilon that the data set may spend.", ["data_set"])
        self.epsilon_spent = gauge(
            "epsilon_spent", "Epsilon that private jobs have spent of a data set.", ["data_set"]
        )
        self.epsilon_planned = gauge(
            "epsilon_planned",
            "Epsilon that the newest private job plans to spend of a data set.",
            ["data_set"],
        )
        self.epsilon_planned_if_all_others_collude = gauge(
            "epsilon_planned_if_all_others_collude",
            "The same if all other silos collude with the coordinator; infinite without a bound.",
            ["data_set"],
        )
        self.unnoised_inputs = gauge(
            "unnoised_inputs", "Inputs of a data set that left without noise, ever.", ["data_set"]
        )
        self.roster_version = gauge("roster_version", "Newest roster that was accepted.")
        self.certificate_expiry = gauge(
            "certificate_expiry_timestamp_seconds", "When this silo's certificate expires."
        )
        self.credentials_refused = gauge(
            "credentials_refused",
            "1 while files of certificate, key or authority hold what was refused; the former are in use.",
        )
        self.audit_entries_lost = gauge("audit_entries_lost", TEXT_LOST)
        self._free_bytes = gauge("state_free_bytes", "Bytes free on the disk of the silo's directory.")
        self._size_bytes = gauge("state_size_bytes", "Bytes that the disk of the silo's directory has.")
        gauge(
            "gpu_memory_bytes",
            "GPU memory that training without privacy holds in this process; other processes have their own.",
        ).set_function(_gpu_memory_bytes)
        self.loop_lag = LoopLag()
        gauge("event_loop_lag_seconds", LoopLag.TEXT).set_function(self.loop_lag.longest_seconds)
        for phase in PHASE_KINDS:
            self.sessions.labels(phase=phase)
            for result in PhaseEnd:
                self.rounds.labels(phase=phase, result=result.value)
        for reason in Refusal:
            self.refusals.labels(reason=reason.value)
        for trouble in Trouble:
            self.connection_failures.labels(reason=trouble.value)
        for direction in Direction:
            self.transferred.labels(direction=direction.value)
        for data_set in data_sets:
            for of_data_set in (
                self.epsilon_budget,
                self.epsilon_spent,
                self.epsilon_planned,
                self.epsilon_planned_if_all_others_collude,
                self.unnoised_inputs,
            ):
                of_data_set.labels(data_set=data_set)

    def watch_disk(self, directory: Path) -> None:
        """Both figures are read at every scrape."""
        self._free_bytes.set_function(lambda: disk.free_bytes(directory))
        self._size_bytes.set_function(lambda: disk.size_bytes(directory))

    def watch_budget(self, data_set: str, budget: float, spent: Callable[[], tuple[float, int]]) -> None:
        """data_set: one of the settings'. spent: epsilon and unnoised inputs, read from the ledger at every
        scrape."""
        self.epsilon_budget.labels(data_set=data_set).set(budget)
        self.epsilon_spent.labels(data_set=data_set).set_function(lambda: spent()[0])
        self.unnoised_inputs.labels(data_set=data_set).set_function(lambda: float(spent()[1]))


def phase_label(kind: str) -> str | None:
    """The label of a phase kind; None for one of no closed set, which is not counted."""
    return kind if kind in PHASE_KINDS else None


def _gpu_memory_bytes() -> float:
    torch: Any = sys.modules.get("torch")  # the core never imports it
    if torch is None or not torch.cuda.is_initialized():
        return 0.0
    return float(sum(torch.cuda.memory_allocated(gpu) for gpu in range(torch.cuda.device_count())))
