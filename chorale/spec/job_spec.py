"""The job file: everything a silo needs to know of a job, and all it lets decide about its input.

Silos check these values and never infer them. Source: docs/protocol.md 3 and 7.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from chorale.runtime import plain_yaml
from chorale.spec.column_specs import (
    Classes,
    ColumnSpec,
    LabelColumns,
    check_class_names,
    check_columns,
    check_vocabulary,
    expanded,
    names_of,
)
from chorale.spec.fields import (
    MAX_SIMULATED_SILOS,
    DataSetName,
    Moment,
    Name,
    Nonce,
    OneLine,
    Sha256,
    SpecPart,
    check_federation,
    check_not_over,
)
from chorale.spec.image_specs import NormalizeSpec, Transforms, check_images
from chorale.spec.plug_in_specs import (
    AdaptersSpec,
    CodeSpec,
    GivenPartSpec,
    ModelSpec,
    PlugInSpec,
    TaskSpec,
    check_code,
    check_pinned,
)
from chorale.spec.privacy_spec import PrivacySpec, check_aggregate
from chorale.spec.selection import (
    MAX_ROUNDS,
    Draw,
    KeepSpec,
    StopSpec,
    check_count,
    check_ends,
    check_named,
    with_rounds_of_steps,
)
from chorale.spec.settings_file import check_values, parse_mapping
from chorale.spec.strategy_spec import StrategySpec, TrainingSpec, composed_method, method_of
from chorale.transport.wire import MAX_SILOS
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity
from crypto.session.cohort import SMALLEST_FEDERATION, CohortRule, drawn_count
from strategies.checks import (
    check_adapters,
    check_models,
    check_private,
    check_steps,
    check_training,
    check_trains_head,
)
from strategies.methods import Strategy
from strategies.tasks.base import TaskSizes

MAX_INPUT_VALUES = 1 << 24  # of one sample


class JobSpec(SpecPart, serialize_by_alias=True):
    """A job as its operator signs it."""

    name: Name = Field(description="the job's name: lower-case letters, digits and inner hyphens")
    federation: Name = Field(description="the federation it belongs to")
    purpose: OneLine | None = Field(
        default=None,
        description="what the model is for, in a sentence; institutions read it first; null: not said",
    )
    reference: OneLine | None = Field(
        default=None, description="number of the ethics vote or of the project; null: none"
    )
    nonce: Nonce | None = Field(
        default=None,
        description="32 random hex digits that keep two equal jobs apart; `job submit` fills them in",
    )
    not_after: Moment = Field(
        description="no session starts after this time, such as 2027-01-31T00:00:00Z; where it is left out, "
        "`job submit` takes the 30th day from then"
    )
    data: DataSetName | None = Field(
        default=None,
        description="name of the silos' data set that is trained on; null: the only one of each silo",
    )
    silos: tuple[Name, ...] = Field(
        min_length=SMALLEST_FEDERATION,
        max_length=MAX_SIMULATED_SILOS,
        description=f"names of all silos of the job; at most {MAX_SILOS}, but in a simulation",
    )
    rounds: int = Field(
        ge=0,
        le=MAX_ROUNDS,
        description="of training, used-up ones included; 0: evaluation alone; left out where the job says "
        "steps, and then steps + spare_steps",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="of training with privacy.records.noise sum, in place of rounds: each sums one gradient",
    )
    spare_steps: int | None = Field(
        default=None,
        ge=0,
        le=MAX_ROUNDS,
        description="further steps, paid for in advance, for those whose sum is lost; null: a twentieth of "
        "steps, at least 2",
    )
    keep: KeepSpec | None = Field(
        default=None, description="whose round's model is handed out; null: the last's"
    )
    stop: StopSpec | None = Field(default=None, description="when rounds end early; null: never")
    fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the silos that each round names, by a draw of what all silos contribute to",
    )
    draw: Draw | None = Field(
        default=None,
        description="what a fraction below 1 draws: each of the rounds (null), or groups, which take turns",
    )
    evaluate_all_every: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="rounds between tests of the model on all silos' hold-outs; null: at the end alone",
    )
    threshold: int | None = Field(
        default=None,
        ge=SMALLEST_FEDERATION,
        le=MAX_SIMULATED_SILOS,
        description="silos needed to unmask a sum; null: two thirds of the named ones and one, never fewer",
    )
    min_cohort: int | None = Field(
        default=None,
        ge=SMALLEST_FEDERATION,
        le=MAX_SIMULATED_SILOS,
        description="fewest silos in a sum; null: a third of the named ones and two more, never fewer",
    )
    strategy: StrategySpec = Field(default=StrategySpec(), description="the training method")
    allow_unusual: bool | None = Field(
        default=None,
        description="true: parts may go together that a rule calls of little use, for ablations; each rule "
        "that is passed over is shown; null: such jobs are refused",
    )
    model: ModelSpec = Field(description="the network")
    task: TaskSpec | None = Field(
        default=None, description="what the model is trained for; null: classification, by accuracy and loss"
    )
    code: tuple[CodeSpec, ...] | None = Field(
        default=None,
        max_length=16,
        description="the distributions that `from` names, with the digests of their files; `job "
        "submit` fills them in",
    )
    classes_as_written: Classes = Field(
        default=0,
        alias="classes",
        description="names of the classes or labels in order, by which silos find them; or how many, where "
        "data hold numbers: labels from 0, intervals of a survival task, tokens of a vocabulary, numbers of "
        "a regression target; 0 where the task has none",
    )
    input_shape: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        min_length=1,
        max_length=4,
        description="shape of one sample: (channels, height, width), or (columns,)",
    )
    input_type: Literal["float32", "int64"] = Field(
        default="float32", description="of a sample's values: numbers, or int64 such as the tokens of a text"
    )
    vocabulary: int | None = Field(
        default=None,
        ge=1,
        le=1 << 31,
        description="values of int64 inputs, 0 to vocabulary - 1; null: `classes` of token tasks, or any",
    )
    normalize: NormalizeSpec | None = Field(
        default=None, description="of images by channel, wherever the model is run; null: as the data are"
    )
    adapters: AdaptersSpec | None = Field(
        default=None,
        description="trains LoRA adapters and the named head alone, beside weights that stay as they are; "
        "null: all weights are trained",
    )
    augment: Transforms | None = Field(
        default=None,
        description="random transforms of training images, in order and before `normalize`; null: none",
    )
    columns: tuple[ColumnSpec, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1_000,
        description="columns of a table (csv, parquet, sql), in the order of the input",
    )
    label_column: LabelColumns | None = Field(
        default=None,
        description="heading of the label in a table; a list, or a range such as l0..l13, where a label is "
        "several numbers",
    )
    training: TrainingSpec = Field(description="local SGD")
    trains: Literal["all", "head"] = Field(
        default="all",
        description="all parameters, or those of the last linear layer alone: the others stay as they are in "
        "the first weights",
    )
    privacy: PrivacySpec | None = Field(
        default=None, description="differential privacy; null: masks alone, and the sums go out as they are"
    )
    update_bound: float = Field(
        default=8.0, gt=0, le=1e6, description="largest p * delta of a parameter; what lies beyond is clipped"
    )
    update_bits: Literal[16, 32, 64] = Field(
        default=32,
        description="bits of a summed parameter; 32 takes the bytes of float32, 16 half of them, rotated and "
        "scaled to the updates of the round before: the first round takes 32",
    )
    min_weight: float = Field(
        default=0.0, ge=0, le=1, description="least share of the federation's data for a round to be applied"
    )
    max_attempts: int = Field(
        default=5, ge=1, le=100, description="sessions tried for one phase of one round"
    )
    enrollment_every: int = Field(
        default=10, ge=1, le=100_000, description="rounds that must lie between two repeated enrollments"
    )
    train_deadline_seconds: float = Field(
        default=600.0, ge=1, le=604_800, description="time to train; heartbeats of a silo at work extend it"
    )
    train_hard_cap_seconds: float = Field(
        default=3_600.0,
        ge=1,
        le=604_800,
        description="time after which even a silo at work is left out; not below train_deadline_seconds",
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="of shuffling and dropout in a simulation; a silo draws its own",
    )
    initial_state: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the initial global state, the last line of a signed job",
    )

    @classmethod
    def from_yaml(cls, data: bytes, *, source: str) -> JobSpec:
        """Raises ConfigError that names file, field and what is allowed."""
        return check_values(cls, parse_mapping(data, source=source), source=source)

    def to_yaml(self) -> bytes:
        """The job as a file; these bytes are signed, and their SHA-256 is the job digest."""
        values = self.model_dump(mode="json", exclude_none=True)
        return plain_yaml.dump(values).encode()

    def base(self) -> bytes:
        """SHA-256 of the job as a file without `initial_state`, which is its last line: what the first state
        follows from. Source: docs/protocol.md 7.12."""
        unsigned = self.model_copy(update={"initial_state": None})
        return hashlib.sha256(unsigned.to_yaml()).digest()

    def filled(self, *, nonce: str | None, initial_state: bytes | None) -> JobSpec:
        """The job as it is signed. initial_state: the state's digest; None where it is yet to be known."""
        digest = None if initial_state is None else initial_state.hex()
        values = self.model_dump() | {"nonce": nonce, "initial_state": digest}
        return check_values(JobSpec, values, source=self.name)

    def check_submittable(self, *, now: datetime) -> None:
        """Raises ConfigError for a job that silos would refuse or that could not run."""
        if self.nonce is None or self.initial_state is None:
            raise ConfigError(f"job {self.name}: nonce and initial_state are required in a signed job")
        if self.privacy is not None and self.privacy.unsolved:
            raise ConfigError(
                f"job {self.name}: privacy.{self.privacy.unsolved[0]} is required in a signed job"
            )
        check_federation(self.name, len(self.silos))
        parts = {"loss": self.strategy.loss, "regularizer": self.strategy.regularizer}
        check_pinned(self.name, self.code, self.distributions, task=self.task, parts=parts)
        check_not_over(self.name, self.not_after, now=now)

    @property
    def class_names(self) -> tuple[str, ...]:
        """None where the job says how many there are."""
        return self.classes_as_written if isinstance(self.classes_as_written, tuple) else ()

    @property
    def classes(self) -> int:
        written = self.classes_as_written
        return written if isinstance(written, int) else len(written)

    @property
    def input_values(self) -> int | None:
        """How many values an int64 input has, from 0; None: any."""
        return self.classes if self.method.task.has_tokens else self.vocabulary

    @property
    def plug_ins(self) -> dict[str, PlugInSpec | GivenPartSpec]:
        """What the job names of installed distributions, by field."""
        named = {
            "model": self.model,
            "task": self.task,
            "strategy.loss": self.strategy.loss,
            "strategy.regularizer": self.strategy.regularizer,
        }
        return {field: each for field, each in named.items() if each is not None and each.source is not None}

    @property
    def distributions(self) -> tuple[str, ...]:
        """Whose code the job runs beside Chorale's own, sorted."""
        return tuple(sorted({str(each.source) for each in self.plug_ins.values()}))

    def learning_rate_at(self, round: int) -> float:
        """Learning rate in a round, counted from 1."""
        return self.training.rate_at(round, rounds=self.rounds)

    @property
    def count(self) -> str:
        """How much training the job asks for: `10 rounds`, or `50 steps`."""
        return f"{self.rounds} rounds" if self.steps is None else f"{self.steps} steps"

    @property
    def named_per_round(self) -> int:
        """ceil(q R): silos that a round names while all of them are on the roster."""
        return drawn_count(len(self.silos), self.fraction)

    @property
    def draws_rounds(self) -> bool:
        """Whether a round names fewer silos than the job has."""
        return self.named_per_round < len(self.silos)

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        """The columns of a table, one for each name of a range."""
        return tuple(expanded(self.columns or ()))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Headings of what a record's label is made of; none where the data is no table."""
        return tuple(name for heading in self.label_column or () for name in names_of(heading))

    @property
    def sizes(self) -> TaskSizes:
        return TaskSizes(classes=self.classes, input_shape=self.input_shape)

    @property
    def method(self) -> Strategy:
        task = None if self.task is None else self.task.model_dump_json()
        strategy = self.strategy.model_dump_json()
        method = composed_method(strategy, task, self.sizes, allow_unusual=bool(self.allow_unusual))
        if self.trains == "head":
            method = replace(method, trains_head_alone=True)
        if self.evaluate_all_every is not None:
            method = method.evaluated_between_rounds()
        if self.privacy is None:
            return method
        records, under_noise = self.privacy.records, method.under_noise()
        if records is None or not self.privacy.has_shared_noise:
            return under_noise
        return under_noise.by_steps(self.training.step_optimizer(records.clip_norm, rounds=self.rounds))

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """All that the job sums, of a model of one weight, as far as it is known without the model's state: a
        custom model may keep running means of its own."""
        has_buffers = self.model.norm == "batch"
        summed = self.method.quantities(has_buffers=has_buffers, update_bits=self.update_bits)
        if self.privacy is None:
            return summed
        return tuple(quantity for quantity in summed if quantity.discloses is not Disclosure.DIAGNOSTIC)

    @property
    def quantity_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(quantity.name for quantity in self.quantities))

    def rule(self, members: int) -> CohortRule:
        """Sizes for m named silos; the job's own values raise the defaults, never lower them.

        Raises ConfigError if m is below 3 or below what the job asks for. Source: docs/protocol.md 3.1.
        """
        default = CohortRule.for_members(members)
        return CohortRule.for_members(
            members,
            threshold=max(default.threshold, self.threshold or 0),
            min_cohort=max(default.min_cohort, self.min_cohort or 0),
        )

    def min_class_holders(self, rule: CohortRule) -> int:
        """Fewest silos that must hold a class before its row is sent: dropouts and colluders then leave
        more than one. Source: docs/protocol.md 4."""
        return rule.colluders + 2 + len(self.silos) - rule.threshold

    @model_validator(mode="before")
    @classmethod
    def _rounds_of_steps(cls, values: object) -> object:
        return with_rounds_of_steps(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _fits_together(self) -> JobSpec:
        check_named(self)
        self._check_data()
        if self.train_hard_cap_seconds < self.train_deadline_seconds:
            raise ValueError(
                "train_hard_cap_seconds: expected at least train_deadline_seconds, "
                f"{self.train_deadline_seconds:g}, got {self.train_hard_cap_seconds:g}"
            )
        try:
            check_code(self.code, self.distributions, model=self.model, plug_ins=self.plug_ins)
            # the smallest named set decides: there the defaults are lowest and the room is least
            CohortRule.for_members(self.named_per_round, threshold=self.threshold, min_cohort=self.min_cohort)
            method = method_of(self.strategy, self.task, self.sizes, allow_unusual=bool(self.allow_unusual))
            self._check_method(method)
            check_vocabulary(
                self.vocabulary, self.input_type, method.task, is_private=self.privacy is not None
            )
            if self.privacy is not None:
                self._check_private(method, self.privacy)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def _check_method(self, method: Strategy) -> None:
        if self.adapters is not None and self.model.norm == "batch":
            raise ConfigError(
                "model.norm: expected group or none with adapters, got batch, whose running means "
                "belong to no adapter"
            )
        if self.task is None or self.task.source is None or self.task.target is not None:
            self._check_target(method.task.target.shape)
        check_class_names(self.class_names, method.task)
        check_training(method.recipe, classes=self.classes, optimizer=self.training.optimizer)
        check_models(
            method.recipe,
            method.options,
            draws_rounds=self.draws_rounds,
            has_layers=self.model.name != "mlp" or bool(self.model.hidden),
        )
        check_count(self)
        check_ends(self, method)
        has_adapters, is_private = self.adapters is not None, self.privacy is not None
        check_adapters(method.recipe, has_adapters=has_adapters, is_private=is_private)
        if self.trains == "head":
            check_trains_head(method.recipe, has_adapters=has_adapters, is_private=is_private)
        check_aggregate(self.strategy.aggregate, self.privacy)

    def _check_private(self, method: Strategy, privacy: PrivacySpec) -> None:
        if self.model.norm == "batch":
            raise ConfigError(
                "model.norm: expected group or none in a private job, got batch, which mixes the "
                "records of a batch and sends means without noise"
            )
        check_private(
            method.recipe,
            method.options,
            method.task,
            has_records=privacy.records is not None,
            has_shared_noise=privacy.has_shared_noise,
            has_sums=privacy.sums is not None,
        )
        if privacy.has_shared_noise:
            check_steps(method.recipe, self.training, update_bits=self.update_bits)

    def _check_target(self, target_shape: tuple[int, ...]) -> None:
        check_images(
            self.normalize,
            self.augment,
            input_type=self.input_type,
            input_shape=self.input_shape,
            target_shape=target_shape,
        )
        expected, found = math.prod(target_shape), len(self.label_columns)
        if self.columns is not None and found != expected:
            raise ConfigError(f"label_column: expected {expected} columns for the task's labels, got {found}")

    def _check_data(self) -> None:
        if math.prod(self.input_shape) > MAX_INPUT_VALUES:
            raise ValueError(f"input_shape: expected at most {MAX_INPUT_VALUES} values in one sample")
        if self.columns is not None:
            check_columns(self.columns, self.label_column or (), input_shape=self.input_shape)
