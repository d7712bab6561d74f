"""A job: what must hold between its fields, and what follows from them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime
from functools import lru_cache

from pydantic import model_validator

from chorale.spec.plug_in_specs import GivenPartSpec, PlugInSpec, check_code, check_pinned
from chorale.spec.privacy_spec import PrivacySpec, check_aggregate
from chorale.spec.samples.column_specs import (
    ColumnSpec,
    check_class_names,
    check_columns,
    check_vocabulary,
    expanded,
    names_of,
    with_input_shape,
)
from chorale.spec.samples.image_specs import check_images
from chorale.spec.samples.scan_specs import check_scans
from chorale.spec.selection import check_count, check_ends, check_named, with_rounds_of_steps, with_test_share
from chorale.spec.settings_file import check_values
from chorale.spec.state import GlobalState, buffer_names, trained_names
from chorale.spec.strategy_spec import check_norm, composed_method, method_of, with_norm
from chorale.spec.training.job_fields import JobFields
from chorale.spec.training.learning_rates import check_rate, known_rates, with_rate
from chorale.spec.training.search_spec import (
    SearchSpec,
    check_private_search,
    check_search,
    halving_of,
    with_search,
    with_values,
)
from chorale.spec.training.trees_spec import check_trees, own_edges, with_trees
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity
from crypto.session.cohort import CohortRule, drawn_count
from strategies.base import PhaseContext
from strategies.checks import (
    check_adapters,
    check_models,
    check_private,
    check_steps,
    check_training,
    check_trains_head,
)
from strategies.methods import Strategy
from strategies.phases.arms import without_arm
from strategies.recipe import Rates
from strategies.tasks.base import TaskSizes

MAX_INPUT_VALUES = 1 << 24  # of one sample
NOT_SEARCHED = ("keep", "stop", "evaluate_all_every")
HELD_JOBS = 64  # as many as a silo opens at once


class JobSpec(JobFields):
    """A job as its operator signs it."""

    def check_submittable(self, *, now: datetime) -> None:
        """Raises ConfigError for a job that silos would refuse or that could not run."""
        super().check_submittable(now=now)
        if self.privacy is not None and self.privacy.unsolved:
            raise ConfigError(
                f"job {self.name}: privacy.{self.privacy.unsolved[0]} is required in a signed job"
            )
        parts = {"loss": self.strategy.loss, "regularizer": self.strategy.regularizer}
        check_pinned(self.name, self.code, self.distributions, task=self.task, parts=parts)

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
    def known_rates(self) -> Rates | None:
        """Of its method, where it trains as they were measured."""
        return known_rates(self.model_dump())

    @property
    def test_part(self) -> float:
        """Share of what is held out that the closing evaluation alone tests on."""
        return self.test_share or 0.0

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
    def columns_read(self) -> tuple[ColumnSpec, ...]:
        """Those of a table that it reads beside labels."""
        return self.inputs if self.subgroups is None else (*self.inputs, self.subgroups.as_read)

    @property
    def grows_trees(self) -> bool:
        """Whether its rounds sum the same records by input and bin, so over the same silos alone."""
        return self.method.recipe.growth is not None

    def rule(self, members: int) -> CohortRule:
        """That of every job; of one that grows trees, unless it says otherwise, over all silos: a silo that
        came later would end it."""
        rule = super().rule(members)
        return replace(rule, min_cohort=members) if self.grows_trees and self.min_cohort is None else rule

    @property
    def sums_cells(self) -> bool:
        """Whether it sums cells as an exact analysis, of which a data set answers few."""
        return self.subgroups is not None

    @property
    def computed_columns(self) -> int:
        """How many of them are standardized by what all silos compute."""
        return sum(column.standardize is not None for column in self.inputs)

    @property
    def computes_columns(self) -> bool:
        """Whether silos sum something of columns before the first round."""
        return self.computed_columns > 0 or any(column.rare == "computed" for column in self.inputs)

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
        if self.computes_columns:
            counted = [column.width for column in self.inputs if column.rare == "computed"]
            method = method.standardizing(self.computed_columns, counted)
        if method.recipe.growth is not None:
            rate = self.training.learning_rate
            assert rate is not None  # a job without a rate is refused
            method = method.growing(rate=rate, own_edges=own_edges(self.inputs))
        if self.subgroups is not None:
            method = method.tested_by(self.subgroups.partition, self.subgroups.min_cell)
        if self.evaluate_all_every is not None:
            method = method.evaluated_between_rounds()
        records = None if self.privacy is None else self.privacy.records
        if self.privacy is not None:
            method = method.under_noise()
        if self.search is not None:
            arms = tuple(arm.method for arm in self.arms)
            method = method.searched(arms, halving_of(self.search, method))
        if records is None or records.noise == "silo":
            return method
        return method.by_steps(self.training.step_optimizer(records.clip_norm, rounds=self.rounds))

    @property
    def arms(self) -> tuple[JobSpec, ...]:
        """Of a search, in order, each as the job without search that it is; else none. Raises ConfigError."""
        return () if self.search is None else _arms(self.model_dump_json())

    def rungs(self, rounds: int) -> list[tuple[int, int]]:
        """How many of so many rounds train how many arms, in order; one arm in a job without search."""
        return [(rounds, 1)] if self.search is None else self.search.rounds_by_arms(rounds)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """All that the job sums, of a model of one weight, as far as it is known without the model's state: a
        custom model may keep running means of its own. Of a search those of one arm stand for all."""
        has_buffers = self.model.norm == "batch"
        summed = self.method.quantities(has_buffers=has_buffers, update_bits=self.update_bits)
        summed = tuple(quantity for quantity in summed if without_arm(quantity.name) == quantity.name)
        if self.privacy is None:
            return summed
        return tuple(quantity for quantity in summed if quantity.discloses is not Disclosure.DIAGNOSTIC)

    @property
    def quantity_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(quantity.name for quantity in self.quantities))

    def min_class_holders(self, rule: CohortRule) -> int:
        """Fewest silos that must hold a class before its row is sent: dropouts and colluders then leave
        more than one. Source: docs/protocol.md 4."""
        return rule.colluders + 2 + len(self.silos) - rule.threshold

    @property
    def row_members(self) -> int:
        """Silos that a phase with class rows names: a round's, or all where a closing step alone sums any."""
        return len(self.silos) if self.method.recipe.statistic is None else self.named_per_round

    @model_validator(mode="before")
    @classmethod
    def _what_follows(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        filled = with_norm(with_trees(with_rounds_of_steps(values)))
        return with_rate(with_input_shape(with_test_share(with_search(filled))))

    @model_validator(mode="after")
    def _fits_together(self) -> JobSpec:
        check_named(self)
        self._check_data()
        self.check_deadlines()
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
        if self.subgroups is not None:
            self._check_subgroups(method)
        check_rate(self.training.learning_rate)
        if self.privacy is None:  # else the method is refused for it
            check_norm(method.recipe, self.model)
        check_trees(self, method, inputs=self.inputs, draws_rounds=self.draws_rounds)
        check_training(method.recipe, classes=self.classes, optimizer=self.training.optimizer)
        check_models(
            method.recipe,
            method.options,
            draws_rounds=self.draws_rounds,
            has_layers=self.model.name != "mlp" or bool(self.model.hidden),
        )
        check_count(self)
        check_ends(self, method)
        if self.search is not None:
            if self.privacy is not None:
                check_private_search(self.search, self.privacy)
            others = {name: getattr(self, name) is not None for name in NOT_SEARCHED}
            check_search(self.search, method, rounds=self.rounds, others=others)
            assert self.method.arms  # each is read as a job
        has_adapters, is_private = self.adapters is not None, self.privacy is not None
        check_adapters(method.recipe, has_adapters=has_adapters, is_private=is_private)
        if self.trains == "head":
            check_trains_head(method.recipe, has_adapters=has_adapters, is_private=is_private)
        check_aggregate(self.strategy.aggregate, self.privacy)

    def _check_subgroups(self, method: Strategy) -> None:
        if not method.task.subgroup_sums:
            raise ConfigError(
                f"subgroups: expected task classification or regression, got {method.task.word}"
            )
        if self.columns is None:
            raise ConfigError("subgroups: needs columns: it names one of a table")
        others = {
            "privacy": self.privacy is not None,
            "model custom": not self.model.is_built_in,
            f"strategy {self.strategy.name}": method.recipe.personalization.shares_nothing,
        }
        if refused := [name for name, is_there in others.items() if is_there]:
            raise ConfigError(f"subgroups: not allowed with {refused[0]}")

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
        if self.scans is not None:
            check_scans(self.scans, input_type=self.input_type, input_shape=self.input_shape)
        if self.columns is not None:
            check_columns(self.columns, self.label_column or (), input_shape=self.input_shape)
            self._check_computed()

    def _check_computed(self) -> None:
        if not self.computes_columns:
            return
        if self.input_type != "float32":
            raise ValueError(
                f"columns: standardize and rare: computed need input_type float32, got {self.input_type}"
            )
        if self.rounds == 0:
            raise ValueError(
                "columns: standardize and rare: computed not allowed with rounds: 0: a model that is "
                "evaluated has its own, which `model show` prints"
            )


@lru_cache(maxsize=HELD_JOBS)
def _arms(job: str) -> tuple[JobSpec, ...]:
    """job: JSON of its fields."""
    values = json.loads(job)
    search = SearchSpec.model_validate(values.pop("search"))
    return tuple(
        check_values(JobSpec, with_values(values, arm), source=f"search: arm {place}")
        for place, arm in enumerate(search.combinations)
    )


def phase_context(
    spec: JobSpec,
    round: int,
    state: GlobalState,
    members: int,
    *,
    public_seed: bytes,
    tests_model: bool = True,
) -> PhaseContext:
    """What a phase's quantities and server step may depend on, as coordinator and silo each gather it."""
    method = spec.method
    trained, buffers = method.summed(trained_names(state), buffer_names(state))
    return PhaseContext(
        round=round,
        members=members,
        classes=spec.classes,
        state=state,
        trained=trained,
        buffers=buffers,
        update_bound=spec.update_bound,
        update_bits=spec.update_bits,
        update_clip=None if spec.privacy is None else spec.privacy.update_clip(members),
        public_seed=public_seed,
        min_weight=spec.min_weight,
        tests_model=tests_model,
        options=method.options,
    )
