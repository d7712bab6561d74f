"""What is compared: the methods, and for those that call for one a control without the part in question.

A control is a job like any other, of the product's own parts; nothing is implemented twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from chorale.spec.strategy_spec import StrategySpec
from strategies.parts.closing.ffc import FFC
from strategies.parts.closing.fine_tuning import NO_CLOSING
from strategies.parts.heads import UNIT
from strategies.parts.personalization import NO_PERSONALIZATION
from strategies.presets import PRESETS

BASELINE = "fedavg"
SPHEREFED_PARTS = {"head": "frozen-orthonormal", "features": "unit", "loss": "sphere-mse"}
BETAS = (0.9, 0.99, 0.999)
UNTRAINED = 1e-9  # a learning rate at which one round moves no float32 weight by more than its rounding
CSD_MUS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)  # the paper's own is the first
DW_MUS = (0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A method or a control. strategy: as a job file says it, without the option that is its strength.

    option: the name of its strength (beta, mu), empty where it has none. strengths: the grid.
    published: its preset's default, which is the strength of its paper, or between two of its paper's.
    scales_rate: its job has no such option. Its method weighs the loss by it, and so the step: this control
    takes a learning rate weighed alike. job: fields in place of the setting's, `training` one by one.
    """

    name: str
    title: str
    strategy: Mapping[str, Any]
    option: str = ""
    strengths: tuple[float, ...] = ()
    published: float | None = None
    scales_rate: bool = False
    job: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_trained(self) -> bool:
        """Whether learning rates make a difference to it."""
        return "learning_rate" not in self.job.get("training", {})

    @property
    def has_unit_features(self) -> bool:
        """Whether features are scaled to length one before the head."""
        return StrategySpec.model_validate(self.strategy).recipe.features is UNIT

    @property
    def grid(self) -> tuple[float | None, ...]:
        """Its strengths, the published one first; None alone where it has none."""
        others = tuple(one for one in self.strengths if one != self.published)
        return (self.published, *others)

    def at(self, strength: float | None) -> dict[str, Any]:
        """Its `strategy` of a job, with that strength."""
        if strength is None or self.scales_rate:
            return dict(self.strategy)
        options = {**self.strategy.get("options", {}), self.option: strength}
        return {**self.strategy, "options": options}

    def job_in(self, job: Mapping[str, Any], *, rate: float, strength: float | None) -> dict[str, Any]:
        """A setting's job as this arm runs it where the grid says `rate`."""
        training = {**job["training"], **self.job.get("training", {})}
        if self.scales_rate and strength is not None:
            training["learning_rate"] = rate * strength
        return {**job, **self.job, "training": training}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A method beside its control."""

    method: str
    control: str


_ARMS = (
    Arm(name="fedavg", title="FedAvg", strategy={"preset": "fedavg"}),
    Arm(name="fedprox", title="FedProx", strategy={"preset": "fedprox"}),
    Arm(name="fedbabu", title="FedBABU", strategy={"preset": "fedbabu"}),
    Arm(name="moon", title="MOON", strategy={"preset": "moon"}),
    Arm(name="spherefed", title="SphereFed", strategy={"preset": "spherefed"}),
    Arm(name="spherefed_no_ffc", title="SphereFed without FFC", strategy={"parts": SPHEREFED_PARTS}),
    Arm(
        name="spherefed_untrained",
        title="FFC on the first model",
        strategy={"preset": "spherefed"},
        job={"rounds": 1, "training": {"learning_rate": UNTRAINED, "local_epochs": 1}},
    ),
    Arm(
        name="feddr_plus",
        title="FedDr+",
        strategy={"preset": "feddr_plus"},
        option="beta",
        strengths=BETAS,
        published=0.9,
    ),
    Arm(
        name="feddr_plus_no_fd",
        title="FedDr+ without distillation",
        strategy={"preset": "dot_regression"},
        option="beta",
        strengths=BETAS,
        published=0.9,
        scales_rate=True,
    ),
    Arm(
        name="fedcsd",
        title="FedCSD",
        strategy={"preset": "fedcsd"},
        option="mu",
        strengths=CSD_MUS,
        published=0.001,
    ),
    Arm(
        name="fedcsd_uniform",
        title="FedCSD with 1/C",
        strategy={"parts": {"regularizer": "csd"}, "options": {"tau": 10.0, "alpha": 0.9}},
        option="mu",
        strengths=CSD_MUS,
        published=0.001,
    ),
    Arm(
        name="feddw",
        title="FedDW",
        strategy={"preset": "feddw"},
        option="mu",
        strengths=DW_MUS,
        published=1.0,
    ),
    Arm(
        name="feddw_identity",
        title="FedDW toward the identity",
        strategy={
            "parts": {"head": "trained-unbiased", "regularizer": "soft-labels"},
            "options": {"init_slm": "identity"},
        },
        option="mu",
        strengths=DW_MUS,
        published=1.0,
    ),
)
COMPARED = tuple(one.name for one in _ARMS)
_PRESETS = tuple(  # but those that train what is common as another one does
    Arm(name=preset, title=f"`{preset}`", strategy={"preset": preset})
    for preset, recipe in PRESETS.items()
    if preset not in COMPARED
    and recipe.closing in (NO_CLOSING, FFC)
    and recipe.personalization is NO_PERSONALIZATION
)
ARMS: Mapping[str, Arm] = MappingProxyType({one.name: one for one in (*_ARMS, *_PRESETS)})

CONTRASTS = (
    Contrast(method="spherefed", control="spherefed_no_ffc"),
    Contrast(method="spherefed", control="spherefed_untrained"),
    Contrast(method="feddr_plus", control="feddr_plus_no_fd"),
    Contrast(method="fedcsd", control="fedcsd_uniform"),
    Contrast(method="feddw", control="feddw_identity"),
)
