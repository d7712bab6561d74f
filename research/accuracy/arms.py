"""What is compared: the methods, and for those that call for one a control without the part in question.

A control is a job like any other, of the product's own parts; nothing is implemented twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BASELINE = "fedavg"
CSD_STRONG = {"mu": 0.1, "tau": 10.0, "alpha": 0.9}  # the strength at which FedCSD shows on the digits
CSD_PAPER = {"mu": 0.001, "tau": 10.0, "alpha": 0.9}
SPHEREFED_PARTS = {"head": "frozen-orthonormal", "features": "unit", "loss": "sphere-mse"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A column of the comparison. strategy: as a job file says it."""

    name: str
    title: str
    strategy: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a method is compared with, and what that decides.

    without: what the control leaves out, as a phrase. sums: what a silo sends for that part alone, or "".
    """

    method: str
    control: str
    without: str
    sums: str = ""


ARMS = (
    Arm(name="fedavg", title="FedAvg", strategy={"preset": "fedavg"}),
    Arm(name="fedprox", title="FedProx", strategy={"preset": "fedprox"}),
    Arm(name="fedbabu", title="FedBABU", strategy={"preset": "fedbabu"}),
    Arm(name="moon", title="MOON", strategy={"preset": "moon"}),
    Arm(name="spherefed", title="SphereFed", strategy={"preset": "spherefed"}),
    Arm(name="spherefed_no_ffc", title="SphereFed without FFC", strategy={"parts": SPHEREFED_PARTS}),
    Arm(name="feddr_plus", title="FedDr+", strategy={"preset": "feddr_plus"}),
    Arm(
        name="feddr_plus_beta_1",
        title="FedDr+ with beta 1",
        strategy={"preset": "feddr_plus", "options": {"beta": 1.0}},
    ),
    Arm(name="feddr_plus_no_fd", title="FedDr+ without FD", strategy={"preset": "dot_regression"}),
    Arm(name="fedcsd", title="FedCSD", strategy={"preset": "fedcsd"}),
    Arm(
        name="fedcsd_uniform",
        title="FedCSD with 1/C",
        strategy={"parts": {"regularizer": "csd"}, "options": CSD_PAPER},
    ),
    Arm(
        name="fedcsd_strong",
        title="FedCSD, mu 0.1",
        strategy={"preset": "fedcsd", "options": CSD_STRONG},
    ),
    Arm(
        name="fedcsd_strong_uniform",
        title="FedCSD, mu 0.1, with 1/C",
        strategy={"parts": {"regularizer": "csd"}, "options": CSD_STRONG},
    ),
    Arm(name="feddw", title="FedDW", strategy={"preset": "feddw"}),
    Arm(
        name="feddw_identity",
        title="FedDW towards the identity",
        strategy={
            "parts": {"head": "trained-unbiased", "regularizer": "soft-labels"},
            "options": {"init_slm": "identity", "mu": 1.0},
        },
    ),
)

PROTOTYPES = "`prototypes` (C x C) and `class_presence` (C)"
CONTROLS = (
    Control(
        method="spherefed",
        control="spherefed_no_ffc",
        without="the closing calibration",
        sums="`gram` (D(D+1)/2) and `moment` (D x C)",
    ),
    Control(method="feddr_plus", control="feddr_plus_beta_1", without="weight on the distillation"),
    Control(method="feddr_plus", control="feddr_plus_no_fd", without="the distillation"),
    Control(
        method="fedcsd",
        control="fedcsd_uniform",
        without="class similarities (1/C in their place)",
        sums=PROTOTYPES,
    ),
    Control(
        method="fedcsd_strong",
        control="fedcsd_strong_uniform",
        without="class similarities (1/C in their place)",
        sums=PROTOTYPES,
    ),
    Control(
        method="feddw",
        control="feddw_identity",
        without="soft labels (the identity in their place)",
        sums="`soft_labels` (C x C), `class_counts` (C) and `class_presence` (C)",
    ),
)


def arm(name: str) -> Arm:
    """The arm of that name."""
    return next(one for one in ARMS if one.name == name)


def arms_named(names: Sequence[str] | None) -> tuple[Arm, ...]:
    """Those arms in the table's order; all for None."""
    return tuple(one for one in ARMS if names is None or one.name in names)
