"""x(u) of one phase: from a silo's data, rules of its policy, the job and the global state, and nothing else.

The agent computes it once and keeps it (input_cache.py); a simulation does for many silos in turn. No
clock, no ledger and no message of a session reaches this module. Source: docs/protocol.md 4, 7.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from chorale.job import Job
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.samples.computed_columns import computed_arrays
from chorale.spec.state import GlobalState
from chorale.spec.training.class_rows import sent_rows
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, PolicyRefusal, QuantizationError, Refusal
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from crypto.session.cohort import CohortRule
from silo_agent.training.analysis.cells import cell_counts, cell_values, noised_values, score_products
from silo_agent.training.analysis.model import model_sums
from silo_agent.training.analysis.patients import patient_counts
from silo_agent.training.analysis.table import DescribedTable
from silo_agent.training.arm_values import computed_or_nothing, local_of_arm, propose_arms
from silo_agent.training.computed_columns import column_sums, standardized
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.settings import SettingsFault
from silo_agent.training.objective import LocalState, Objective, PersonalModel, Work, forget
from strategies.analysis.counts import COUNTS
from strategies.analysis.regression import MODEL_FIT
from strategies.analysis.values import PRODUCTS, VALUES
from strategies.base import PRESENCE, TOTAL, Array, Arrays, PhaseContext, total_of
from strategies.phases.columns import COLUMN_MOMENTS
from strategies.phases.enrollment import ENROLLMENT
from strategies.update_scale import with_mean_square

WEIGHT = "weight"  # the quantity that carries p


class InputRules(Protocol):
    """What of a silo's policy decides on an input."""

    @property
    def count_granularity(self) -> int: ...
    @property
    def min_class_holders(self) -> int | None: ...
    @property
    def constant_work_records(self) -> int | None: ...

    def rounded(self, samples: int) -> int:
        """A count as it enters a sum."""


class DataRefusal(PolicyRefusal):
    """Refused because of what this silo's data make of the received state, or of a job without noise.

    Security: the coordinator chooses the state, the operator ranges, columns and categories, so the refusal
    answers a question of their choice about one silo's data. It must be the last one of the job.
    Source: docs/protocol.md 6.7.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRequest:
    """What a phase asks of a silo, as job and global state say it: the same of all silos, at all attempts."""

    job: Job
    key: PhaseKey
    rule: CohortRule
    layout: Layout
    context: PhaseContext = field(repr=False)

    @classmethod
    def of(cls, job: Job, key: PhaseKey, state: GlobalState, *, members: int) -> Self:
        """Raises ConfigError as Job.layout and Job.rule do."""
        return cls(
            job=job,
            key=key,
            rule=job.spec.rule(members),
            layout=job.layout(key, state, members),
            context=job.context(key, state, members),
        )

    def refusal(self, why: str, code: Refusal, *, kind: type[PolicyRefusal] = PolicyRefusal) -> PolicyRefusal:
        return kind(f"job {self.job.id} round {self.key.round} {self.key.phase}: {why}", code=code)


def phase_values(
    request: PhaseRequest,
    *,
    silo: str,
    rules: InputRules,
    load_data: Callable[[], SiloData],
    objective: Objective,
    is_cancelled: Callable[[], bool],
    seed: int,
    local: LocalState | None = None,
    keep_personal: Callable[[PersonalModel], None] = forget,
) -> Mapping[str, Array]:
    """The silo's values, now immutable.

    load_data: gives them with the hold-out cut (`cut_holdout`). seed: of shuffles and dropout. local: what
    the silo kept of the job, and where the method proposes what comes next.

    Raises DataRefusal where data, counts or the state over these data do not allow an input, and what the
    objective raises; PolicyRefusal(code=CONFIGURATION) for a SettingsFault. In a private job no record
    decides whether data are refused: PolicyRefusal(code=DATA).
    """
    with faults_refused(request):
        spec = request.job.training
        class_rows = _class_rows(request, rules)
        data = load_data()
        samples = _summed(request.job, rules, len(data.train.units))
        if samples == 0 and spec.privacy is None:  # in a private job a refusal would tell the last record
            raise _too_few(request, rules)
        if request.key.kind == ENROLLMENT:
            values: dict[str, Array] = {"silos": np.array(1), "samples": np.array(samples)}
        elif request.key.kind == COLUMN_MOMENTS:
            counted = data.train
            if spec.privacy is None:
                counted = data.train.first(samples)
                _check_enrolled(request, samples, total_of(request.context.state))
            values = dict(column_sums(counted, spec))
        else:
            values = {}
            data = standardized(data, spec, request.context.state)
            if spec.method.recipe.growth is not None:  # sums by bin tell how many records there are
                data = replace(data, train=data.train.first(samples))
            columns = computed_arrays(request.context.state)
            keep_personal = _with_columns(keep_personal, columns) if columns else keep_personal
            arms, local = request.job.arms(request.key.phase, request.context.state), local or LocalState()
            of_arms = {each.arm: local_of_arm(local, each.arm) for each in arms if each.arm is not None}
            compute = objective.compute if len(arms) == 1 else partial(computed_or_nothing, objective)
            for arm in arms:
                work = Work(
                    spec=arm.job.training,
                    phase_kind=request.key.kind,
                    round=request.key.round,
                    silo=silo,
                    state=arm.state,
                    context=arm.context(request.context),
                    data=data,
                    weight=_weight(request, samples),
                    seed=seed,
                    is_cancelled=is_cancelled,
                    class_rows=class_rows,
                    keep_personal=keep_personal,
                    local=local if arm.arm is None else of_arms[arm.arm],
                    layout=request.layout,
                    constant_work=None if spec.privacy is None else rules.constant_work_records,
                )
                found = with_mean_square(work.context, _asked(request, compute(work)))
                values |= {name + arm.suffix: value for name, value in found.items()}
            propose_arms(local, of_arms)
        return taken_over(values)


def described_values(
    request: PhaseRequest, *, rules: InputRules, load_table: Callable[[], DescribedTable]
) -> Mapping[str, Array]:
    """As `phase_values`, of an analysis. load_table: gives all records, hold-outs too."""
    with faults_refused(request):
        assert isinstance(request.job.spec, AnalysisSpec)
        table, tables = load_table(), request.job.spec.tables
        if tables.is_complete:
            table = table.complete(tables)
        is_private = request.job.spec.privacy is not None
        samples = _summed(request.job, rules, table.records)
        if samples == 0 and not is_private:
            raise _too_few(request, rules)
        if request.key.kind == ENROLLMENT:
            return {"silos": np.array(1), "samples": np.array(samples)}
        if is_private:
            return taken_over(noised_values(table, tables))
        _check_enrolled(request, samples, total_of(request.context.state))
        if request.key.kind == COUNTS:
            return taken_over(cell_counts(table, tables))
        if request.key.kind == VALUES:
            values = cell_values(table, tables, request.context.state)
            if tables.model is not None and tables.model.by_patient:
                values |= patient_counts(table, tables, request.context.state)
            return taken_over(values)
        if request.key.kind == PRODUCTS:
            return taken_over(score_products(table, tables, request.context.state))
        is_last = request.key.kind == MODEL_FIT
        return taken_over(model_sums(table, tables, request.context.state, is_last=is_last))


def encoded(
    request: PhaseRequest, values: Mapping[str, Array], *, random: Callable[[int], bytes] = os.urandom
) -> Encoder:
    """The words that the values become when read. Raises DataRefusal."""
    with faults_refused(request):
        return Encoder(values, layout=request.layout, random=random)


@contextmanager
def faults_refused(request: PhaseRequest) -> Iterator[None]:
    """Faults of settings, of data, and of values that have no words, as refusals of the phase."""
    of_data = DataRefusal if request.job.spec.privacy is None else PolicyRefusal
    try:
        yield
    except SettingsFault as error:
        raise request.refusal(str(error), Refusal.CONFIGURATION) from error
    except ConfigError as error:
        raise request.refusal(str(error), Refusal.DATA, kind=of_data) from error
    except QuantizationError as error:
        raise request.refusal(str(error), Refusal.DATA, kind=DataRefusal) from error


def cut_holdout(data: SiloData, *, job: Job, rules: InputRules) -> SiloData:
    """The hold-out cut as its size is summed."""
    return data.mapped(lambda held: held.first(_summed(job, rules, len(held))), of_train=False)


def taken_over(values: Mapping[str, Array]) -> dict[str, Array]:
    """Immutable arrays, though they become words only when they are sent.

    One that owns its memory is locked, not copied: the objective gave it up. A view is copied.
    """
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    taken = {name: value if value.flags.owndata else value.copy() for name, value in arrays.items()}
    for array in taken.values():
        array.flags.writeable = False
    return {**values, **taken}


def _class_rows(request: PhaseRequest, rules: InputRules) -> NDArray[np.bool_] | None:
    """Classes that enough silos hold, by the class-presence sum; rows of the others stay here.

    Raises PolicyRefusal where so few rows are left that the job would be another one.
    """
    holders_C = request.context.state.get(PRESENCE)
    if holders_C is None:
        return None
    spec = request.job.training
    has_row_rounds = spec.method.recipe.statistic is not None
    rule = request.rule if has_row_rounds else spec.rule(spec.row_members)
    return sent_rows(spec, holders_C, own=rules.min_class_holders, rule=rule)


def _with_columns(keep: Callable[[PersonalModel], None], columns: Arrays) -> Callable[[PersonalModel], None]:
    """A personal model's file holds mean and scale of its inputs, as a fetched one does."""
    return lambda model: keep(replace(model, arrays={**model.arrays, **columns}))


def _asked(request: PhaseRequest, values: Mapping[str, Array]) -> Mapping[str, Array]:
    """Without the test of the model where the round has none: a silo's own objective may test always."""
    if request.context.tests_model:
        return values
    asked = {quantity.name for quantity in request.layout.quantities}
    return {name: value for name, value in values.items() if name in asked}


def _too_few(request: PhaseRequest, rules: InputRules) -> PolicyRefusal:
    why = f"fewer than {rules.count_granularity} samples (count_granularity)"
    return request.refusal(why, Refusal.DATA, kind=DataRefusal)


def _summed(job: Job, rules: InputRules, samples: int) -> int:
    """A count as it enters a sum: rounded, so that it tells no exact one; exact where noise covers it,
    because one record would move a rounded one by the whole granularity."""
    return samples if job.spec.privacy is not None else rules.rounded(samples)


def _weight(request: PhaseRequest, samples: int) -> float:
    """p = n / total, with the total that enrollment left in the global state; 0 where none is sent.

    In a private job it is the declared one, and where silos weigh the same 1 / R: neither tells a count.
    """
    if all(quantity.name != WEIGHT for quantity in request.layout.quantities):
        return 0.0
    spec = request.job.training
    if spec.privacy is not None:
        return spec.privacy.declared_weight(request.rule.members)
    if spec.strategy.aggregate == "uniform":
        return 1.0 / len(spec.silos)
    state = request.context.state
    try:
        total = total_of(state) if TOTAL in state else 0
    except ConfigError as error:  # whatever the data are
        raise request.refusal(str(error), Refusal.DATA) from error
    _check_enrolled(request, samples, total)
    return samples / total


def _check_enrolled(request: PhaseRequest, samples: int, total: int) -> None:
    if samples > total:
        why = "more samples than enrollment counted in all silos"
        raise request.refusal(why, Refusal.NOT_ENROLLED, kind=DataRefusal)
