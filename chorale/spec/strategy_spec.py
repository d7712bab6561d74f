"""The training method as a job names it: a preset or parts, its numbers, what a distribution adds, and how
the optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from chorale.spec.fields import Finite, SpecPart, in_words
from chorale.spec.plug_in_specs import GivenPartSpec, ModelSpec, TaskSpec
from crypto.errors import ConfigError
from strategies.declared_parts import PARTS, part_named, recipe_from
from strategies.exact import whole_power
from strategies.methods import Strategy, strategy_of
from strategies.parts.losses import TASK_LOSS, given_loss
from strategies.parts.regularizers import NO_REGULARIZER, given_regularizer
from strategies.published import PUBLISHED, published_recipe
from strategies.recipe import Part, Recipe
from strategies.server_optimizer import StepOptimizer
from strategies.tasks.base import TaskSizes

Option = Annotated[bool | Finite | str | None, in_words("a finite number, true or false, text or null")]


def _words(field: str) -> WithJsonSchema:
    """For the reference of settings: the words that the registry has for a field."""
    return WithJsonSchema({"type": "string", "enum": [part.word for part in PARTS[field]]})


class PartsSpec(SpecPart):
    """A method by its parts, in place of a preset."""

    head: Annotated[str, _words("head")] = Field(default="trained", description="the last linear layer")
    features: Annotated[str, _words("features")] = Field(default="raw", description="what the head is given")
    loss: Annotated[str, _words("loss")] = Field(default="task", description="what a silo minimizes")
    regularizer: Annotated[str, _words("regularizer")] = Field(
        default="none", description="what is added to the loss"
    )
    mix: Annotated[str, _words("mix")] = Field(
        default="additive",
        description="loss + mu R, beta loss + (1 - beta) R, or loss at weights moved along R",
    )
    second_regularizer: Annotated[str, _words("second_regularizer")] | None = Field(
        default=None, description="added to that, times the option second_mu; null: none"
    )
    server_update: Annotated[str, _words("server_update")] = Field(
        default="weighted-mean", description="what the mean delta does to the model"
    )
    statistic: Annotated[str, _words("statistic")] | None = Field(
        default=None, description="summed with the deltas; null: none"
    )
    personalization: Annotated[str, _words("personalization")] = Field(
        default="none", description="what of the model is each silo's own in every round"
    )
    closing: Annotated[str, _words("closing")] = Field(
        default="none", description="what follows the last round"
    )

    @field_validator("*")
    @classmethod
    def _is_declared(cls, word: str | None, info: ValidationInfo) -> str | None:
        if word is not None:
            try:
                part_named(str(info.field_name), word)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return word


class StrategySpec(SpecPart):
    """Which method trains: a preset, or its parts."""

    preset: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="the method's name, such as fedavg; null with parts, else fedavg",
    )
    parts: PartsSpec | None = Field(default=None, description="the method by its parts, without a preset")
    as_published: Literal["paper", "code"] | None = Field(
        default=None,
        description="a preset as its paper prints it or as its authors' code computes it, of "
        f"{', '.join(sorted(PUBLISHED))}; null: Chorale's own reading",
    )
    aggregate: Literal["weighted", "uniform"] | None = Field(
        default=None,
        description="weighted: a silo's update weighs by its share of the samples; uniform: every silo's "
        "weighs the same; null: weighted, in a private job by the declared weight",
    )
    options: dict[str, Option] = Field(
        default_factory=dict, max_length=64, description="the method's own numbers; fedavg has none"
    )
    loss: GivenPartSpec | None = Field(
        default=None,
        description="a loss of an installed distribution, in place of the task's own; null: none",
    )
    regularizer: GivenPartSpec | None = Field(
        default=None,
        description="a regularizer of an installed distribution, for a method that has none; null: none",
    )

    @property
    def name(self) -> str:
        """What the method is called in reports."""
        return self.preset or ("custom" if self.parts else "fedavg")

    @property
    def recipe(self) -> Recipe:
        """Raises ConfigError for an unknown preset, and for a part of a distribution where the method has its
        own."""
        if self.parts is None:
            recipe = published_recipe(self.name, self.as_published)
        else:
            recipe = recipe_from(self.parts.model_dump())
        loss, regularizer = self.loss, self.regularizer
        if loss is not None:
            self._check_place("loss", loss, taken=recipe.loss, free=TASK_LOSS)
            given = given_loss(loss.name, is_mean=loss.is_mean is not False)
            recipe = replace(recipe, loss=given, rates=None)
        if regularizer is not None:
            self._check_place("regularizer", regularizer, taken=recipe.regularizer, free=NO_REGULARIZER)
            added = given_regularizer(regularizer.name, is_mean=regularizer.is_mean is not False)
            recipe = replace(recipe, regularizer=added, rates=None)
        return recipe

    def _check_place(self, field: str, given: GivenPartSpec, *, taken: Part, free: Part) -> None:
        if taken is not free:
            raise ConfigError(
                f"strategy.{field}: {self.name} has {taken} itself; {given.name} of {given.source} takes the "
                f"place of {field} {free} alone"
            )

    @model_validator(mode="after")
    def _one_of_both(self) -> StrategySpec:
        if self.preset is not None and self.parts is not None:
            raise ValueError("parts: not allowed with preset")
        if self.as_published is not None and self.parts is not None:
            raise ValueError("as_published: not allowed with parts, which no paper published")
        return self


class ScheduleSpec(SpecPart):
    """How the learning rate changes from round to round."""

    kind: Literal["constant", "step", "milestones", "cosine"] = Field(
        default="constant",
        description="constant; step: times gamma every step_rounds rounds; milestones: times gamma after "
        "each of those rounds; cosine: half a wave down to zero after the last round",
    )
    step_rounds: int = Field(default=10, ge=1, le=100_000, description="rounds between two steps")
    milestones: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] = Field(
        default=(), max_length=100, description="last rounds before the rate falls, such as [160, 240]"
    )
    gamma: float = Field(default=0.1, gt=0, le=1, description="factor of one step")
    USED: ClassVar[Mapping[str, tuple[str, ...]]] = {  # by kind, the other fields that it reads
        "constant": (),
        "step": ("step_rounds", "gamma"),
        "milestones": ("milestones", "gamma"),
        "cosine": (),
    }

    @model_validator(mode="after")
    def _has_milestones(self) -> ScheduleSpec:
        if (self.kind == "milestones") != bool(self.milestones):
            raise ValueError(
                "milestones: expected a list with kind: milestones, and none with any other kind"
            )
        return self


class TrainingSpec(SpecPart):
    """Local training at a silo, in one round."""

    local_epochs: int | None = Field(
        default=1, ge=1, le=1_000, description="passes over the silo's data; null with local_steps"
    )
    local_steps: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="steps of one batch, the same number at every silo, in place of local_epochs: a silo "
        "whose data end sooner shuffles them and goes on",
    )
    batch_size: int = Field(
        default=32,
        ge=1,
        le=65_536,
        description="samples of one step; with batch normalization at least 2, and a last batch of one is "
        "left out",
    )
    optimizer: Literal["sgd", "adam"] = Field(
        default="sgd",
        description="adam has betas 0.9 and 0.999 and no momentum; new in each round at a silo, one for "
        "all of a job's steps",
    )
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="in the first round; null: the preset's own, which is for classification by sgd with "
        "momentum 0.9, without privacy and adapters",
    )
    momentum: float = Field(
        default=0.9,
        ge=0,
        lt=1,
        description="of sgd; from zero in each round, or at the first of a job's steps",
    )
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="L2 penalty")
    schedule: ScheduleSpec = Field(default=ScheduleSpec(), description="learning rate by round")

    @model_validator(mode="before")
    @classmethod
    def _steps_in_place_of_epochs(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("local_steps") is not None:
            return {"local_epochs": None, **values}
        return values

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> TrainingSpec:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError("local_steps: expected local_epochs or local_steps, not both")
        if self.local_epochs is None and self.local_steps is None:
            raise ValueError("local_epochs: expected a number, or local_steps in its place")
        return self

    def with_epochs(self, epochs: int) -> TrainingSpec:
        """The same training for so many passes over the silo's data."""
        return self.model_copy(update={"local_epochs": epochs, "local_steps": None})

    def passes_over(self, samples: int) -> float:
        """How often a round goes over so many samples."""
        if self.local_epochs is not None:
            return self.local_epochs
        assert self.local_steps is not None
        return self.local_steps * min(self.batch_size, samples) / max(samples, 1)

    @property
    def has_exact_rates(self) -> bool:
        """Whether every machine computes the same learning rates to the last bit."""
        return self.schedule.kind != "cosine"

    def step_optimizer(self, clip_norm: float, *, rounds: int) -> StepOptimizer:
        """What the server does with the gradients of a job of steps."""
        return StepOptimizer(
            batch_size=self.batch_size,
            clip_norm=clip_norm,
            kind=self.optimizer,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            rate=partial(self.rate_at, rounds=rounds),
        )

    def rate_at(self, round: int, *, rounds: int) -> float:
        """Learning rate in a round, counted from 1. rounds: of the job."""
        schedule, first = self.schedule, self.learning_rate
        assert first is not None  # a job without a rate is refused
        if schedule.kind == "step":
            return first * whole_power(schedule.gamma, (round - 1) // schedule.step_rounds)
        if schedule.kind == "milestones":
            return first * whole_power(schedule.gamma, sum(last < round for last in schedule.milestones))
        if schedule.kind == "cosine":
            return first * 0.5 * (1.0 + math.cos(math.pi * (round - 1) / rounds))
        return first


@lru_cache(maxsize=64)  # as many jobs as a silo opens at once; its policy asks several times a phase
def composed_method(strategy: str, task: str | None, sizes: TaskSizes, *, allow_unusual: bool) -> Strategy:
    """The method of a job, from the JSON of its fields, put together once. Raises ConfigError."""
    spec = None if task is None else TaskSpec.model_validate_json(task)
    return method_of(StrategySpec.model_validate_json(strategy), spec, sizes, allow_unusual=allow_unusual)


def method_of(
    strategy: StrategySpec, task: TaskSpec | None, sizes: TaskSizes, *, allow_unusual: bool
) -> Strategy:
    """Raises ConfigError."""
    declared = (task or TaskSpec()).declared(sizes)
    return strategy_of(
        strategy.name, strategy.recipe, strategy.options, declared, allow_unusual=allow_unusual
    )


def with_norm(values: Mapping[object, object]) -> dict[object, object]:
    """A job's fields, with batch normalization where the method keeps it at the silo and a network of
    Chorale's own is named without any."""
    model = values.get("model")
    if isinstance(model, dict) and model.get("from") is None and model.get("source") is None:
        with suppress(ValueError, ConfigError):
            strategy = StrategySpec.model_validate(values.get("strategy") or {})
            if strategy.recipe.personalization.needs_running_means:
                return {**values, "model": {"norm": "batch", **model}}
    return dict(values)


def check_norm(recipe: Recipe, model: ModelSpec) -> None:
    """Raises ConfigError; of a model of others its arrays say it (Strategy.own)."""
    own = recipe.personalization
    if own.needs_running_means and model.source is None and model.norm != "batch":
        raise ConfigError(
            f"model.norm: expected batch with personalization {own}, which keeps it at the silo, "
            f"got {model.norm}"
        )
