"""What the agent counts. Every label comes from a closed set and starts at zero. Source: DESIGN 10."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge

from crypto.errors import Refusal
from strategies.registry import PHASE_KINDS

PREFIX = "chorale_silo"


class Direction(StrEnum):
    UP = "up"
    DOWN = "down"


class PhaseResult(StrEnum):
    """How a phase ended for this silo."""

    APPLIED = "applied"  # the sum counts, and this silo is in it
    LEFT_OUT = "left-out"  # the sum counts without it
    USED_UP = "used-up"


class SiloMetrics:
    """One registry per process; the attributes are the metrics."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.rounds = self._counter("rounds", "Phases that ended, by phase and result.", "phase", "result")
        self.sessions = self._counter("sessions", "Sessions this silo adverted for, by phase.", "phase")
        self.refusals = self._counter("refusals", "Times this silo said no, by reason.", "reason")
        self.transferred = self._counter("transferred_bytes", "Models down, vectors up.", "direction")
        self.training_seconds = self._counter("training_seconds", "Time spent computing inputs.")
        self.mask_seconds = self._counter("mask_seconds", "Time spent encoding, masking and sending vectors.")
        self.clipped = self._counter("clipped_values", "Values clipped to their bound.")
        self.reconnects = self._counter("reconnects", "Times the control stream ended.")
        self.samples_rate = self._gauge("samples_per_second", "Samples a second in the last training.")
        self.connected = self._gauge("connected", "1 while the control stream is up.")
        self.clock_skew = self._gauge("clock_skew_seconds", "This clock minus the coordinator's.")
        self.data_share = self._gauge("data_share", "Share of the federation's data in the last round.")
        self.epsilon_budget = self._gauge("epsilon_budget", "Epsilon that the data set may spend.")
        self.epsilon_spent = self._gauge("epsilon_spent", "Epsilon that private jobs have spent.")
        self.unnoised_inputs = self._gauge("unnoised_inputs", "Inputs that left without noise, ever.")
        self.roster_version = self._gauge("roster_version", "Newest roster that was accepted.")
        self.certificate_expiry = self._gauge(
            "certificate_expiry_timestamp_seconds", "When this silo's certificate expires."
        )
        self._gauge("gpu_memory_bytes", "GPU memory in use by training.").set_function(_gpu_memory_bytes)
        self._start_labels()

    def watch_budget(self, budget: float, spent: Callable[[], tuple[float, int]]) -> None:
        """spent: epsilon and unnoised inputs, read from the ledger whenever somebody looks."""
        self.epsilon_budget.set(budget)
        self.epsilon_spent.set_function(lambda: spent()[0])
        self.unnoised_inputs.set_function(lambda: float(spent()[1]))

    def _start_labels(self) -> None:
        for phase in PHASE_KINDS:
            self.sessions.labels(phase=phase)
            for result in PhaseResult:
                self.rounds.labels(phase=phase, result=result.value)
        for reason in Refusal:
            self.refusals.labels(reason=reason.value)
        for direction in Direction:
            self.transferred.labels(direction=direction.value)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self.registry)


def phase_label(kind: str) -> str | None:
    """The label of a phase kind; None for one of no closed set, which is not counted."""
    return kind if kind in PHASE_KINDS else None


def _gpu_memory_bytes() -> float:
    torch: Any = sys.modules.get("torch")  # the core never imports it
    if torch is None or not torch.cuda.is_initialized():
        return 0.0
    return float(torch.cuda.memory_allocated())
