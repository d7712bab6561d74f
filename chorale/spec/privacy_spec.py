"""What a job promises about privacy, as its operator writes it down. Source: docs/privacy.md."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chorale.spec.fields import Number
from crypto.errors import ConfigError

MIN_DELTA, MAX_DELTA = 1e-12, 1e-2
MIN_MULTIPLIER = 1e-3  # no protection to speak of: an epsilon beyond 10^5
MAX_MULTIPLIER = 1e6  # noise beyond any use

# beyond it what the sampler is off its law, times e^epsilon, uses up delta (privacy-proofs.md, "The noise")
MAX_EPSILON = 30.0
# below it the factors of the clip leave float32, and a gradient of zero would come out as no number
MIN_CLIP_NORM = 1e-6

ClipNorm = Annotated[Number, Field(ge=MIN_CLIP_NORM, le=1e6, allow_inf_nan=False)]
Multiplier = Annotated[Number, Field(ge=MIN_MULTIPLIER, le=MAX_MULTIPLIER, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecordsSpec(_Part):
    """DP-SGD at every silo (Abadi et al. 2016): hides whether one record is among the data."""

    clip_norm: ClipNorm = Field(description="L2 norm to which each sample's gradient is clipped")
    noise_multiplier: Multiplier | None = Field(
        default=None,
        description="standard deviation of the noise, in clip norms; null: `job submit` solves for it",
    )
    sample_rate: Number = Field(
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="chance of each record to be in a step (Poisson sampling); an epoch is 1 / sample_rate "
        "steps",
    )
    noise: Literal["silo", "sum"] = Field(
        default="silo",
        description="silo: each adds all the noise that its own records need, and trains for itself between "
        "sums; sum: all silos of a sum share it, and each sum is one step of the job's `steps`",
    )


class SumsSpec(_Part):
    """Noise on the summed updates: hides a silo's whole update."""

    clip_norm: ClipNorm = Field(
        description="L2 norm to which a silo's update is clipped, in parameter units, before its weight"
    )
    noise_multiplier: Multiplier | None = Field(
        default=None,
        description="least standard deviation of the noise in a sum, in clip norms; null: `job submit` "
        "solves for it",
    )


class PrivacySpec(_Part):
    """Differential privacy of everything that a job lets out of a silo."""

    delta: Number = Field(
        default=1e-5,
        ge=MIN_DELTA,
        le=MAX_DELTA,
        allow_inf_nan=False,
        description="chance that epsilon does not hold; below 1 / samples of the smallest silo",
    )
    epsilon: Number | None = Field(
        default=None,
        gt=0,
        le=MAX_EPSILON,
        allow_inf_nan=False,
        description="target for the whole job: `job submit` solves for the multipliers that are null",
    )
    records: RecordsSpec | None = Field(default=None, description="DP-SGD; null: none")
    sums: SumsSpec | None = Field(default=None, description="noise on the summed updates; null: none")
    statistics_noise_multiplier: Multiplier | None = Field(
        default=None,
        description="of sample counts, evaluation and the method's statistics, by record, in sensitivities; "
        "null: `job submit` solves for it",
    )
    weight: Number | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="p of every silo, declared because n / total tells a count; null: 1 / silos of the round",
    )

    @property
    def unsolved(self) -> tuple[str, ...]:
        """Fields of the multipliers that are still null."""
        multipliers = {"statistics_noise_multiplier": self.statistics_noise_multiplier}
        if self.records is not None:
            multipliers["records.noise_multiplier"] = self.records.noise_multiplier
        if self.sums is not None:
            multipliers["sums.noise_multiplier"] = self.sums.noise_multiplier
        return tuple(field for field, multiplier in multipliers.items() if multiplier is None)

    @property
    def has_shared_noise(self) -> bool:
        """Whether the silos of a sum share the noise that hides a record."""
        return self.records is not None and self.records.noise == "sum"

    @property
    def unit(self) -> str:
        """What a summed update hides: `silo` where it is noised as a whole, else `record`."""
        return "record" if self.sums is None else "silo"

    def declared_weight(self, members: int) -> float:
        """p of every silo. Never n / total, which tells a count."""
        return 1.0 / members if self.weight is None else self.weight

    def update_clip(self, members: int) -> float | None:
        """L2 norm to which each silo's p * delta is clipped; None where it is not noised as a whole."""
        return None if self.sums is None else self.declared_weight(members) * self.sums.clip_norm

    @model_validator(mode="after")
    def _promises_something(self) -> PrivacySpec:
        if self.records is None and self.sums is None:
            raise ValueError("expected records, sums or both: with neither, updates would have no noise")
        if self.has_shared_noise and self.sums is not None:
            raise ValueError("sums: not allowed with records.noise: sum, which sums gradients and no updates")
        if self.has_shared_noise and self.weight is not None:
            raise ValueError("weight: not allowed with records.noise: sum, where all records weigh the same")
        return self

    @model_validator(mode="after")
    def _can_be_solved(self) -> PrivacySpec:
        if self.unsolved and self.epsilon is None:
            raise ValueError(
                f"epsilon: a value is required, because {self.unsolved[0]} is null and follows from it"
            )
        return self

    def with_multipliers(
        self,
        *,
        records: float | None = None,
        sums: float | None = None,
        statistics: float | None = None,
    ) -> PrivacySpec:
        """The same with these in place of the ones that are null; those that are given stay."""
        filled: dict[str, object] = {}
        if self.records is not None and self.records.noise_multiplier is None:
            filled["records"] = self.records.model_copy(update={"noise_multiplier": records})
        if self.sums is not None and self.sums.noise_multiplier is None:
            filled["sums"] = self.sums.model_copy(update={"noise_multiplier": sums})
        if self.statistics_noise_multiplier is None:
            filled["statistics_noise_multiplier"] = statistics
        return self.model_copy(update=filled)


class AnalysisPrivacySpec(PrivacySpec):
    """Of an analysis: noise on its counts and sums, which hides whether one record is among the data."""

    # a field that becomes one is none
    records: ClassVar[None] = None  # type: ignore[misc]
    sums: ClassVar[None] = None  # type: ignore[misc]
    weight: ClassVar[None] = None  # type: ignore[misc]

    @model_validator(mode="after")
    def _promises_something(self) -> AnalysisPrivacySpec:
        return self


def check_aggregate(aggregate: str | None, privacy: PrivacySpec | None) -> None:
    """Raises ConfigError where a private job says how updates weigh: none weighs by a number of samples."""
    if aggregate is None or privacy is None:
        return
    if privacy.has_shared_noise:
        why = "with records.noise sum every record weighs the same"
    elif aggregate == "weighted":
        why = "in a private job every silo weighs the same (privacy.weight), which tells no number of samples"
    else:
        return
    raise ConfigError(f"strategy.aggregate: {why}: expected none, got {aggregate}")
