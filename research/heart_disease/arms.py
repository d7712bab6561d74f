"""What is compared: two references that are no federation, and methods as a job names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALONE, POOLED, FEDAVG = "alone", "pooled", "fedavg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A row of the tables. strategy: as a job file says it; of a reference it is FedAvg's, for its loss."""

    name: str
    title: str
    strategy: Mapping[str, Any] = field(default_factory=lambda: {"preset": FEDAVG})


def _preset(name: str, title: str) -> Arm:
    return Arm(name=name, title=title, strategy={"preset": name})


ARMS = (
    Arm(name=ALONE, title="alone"),
    Arm(name=POOLED, title="pooled"),
    _preset(FEDAVG, "FedAvg"),
    _preset("fedprox", "FedProx"),
    _preset("scaffold", "SCAFFOLD"),
    _preset("fedbabu", "FedBABU"),
    _preset("spherefed", "SphereFed"),
    _preset("feddr_plus", "FedDr+"),
    _preset("fedavg_ft", "FedAvg + fine-tuning"),
    _preset("fedper", "FedPer"),
    _preset("ditto", "Ditto"),
)
