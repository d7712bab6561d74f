"""What a person needs to know of a job to approve or reject it.

Everything is computed at this silo: from the signed job, the silo's policy and its ledger. Nothing here runs
code of a distribution, and text that an operator chose stays text: the program that shows it escapes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import numpy as np

from chorale.privacy.job_releases import planned_phases
from chorale.privacy.promise import Promise
from chorale.privacy.quantity_noise import noise_deviations, noised
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec, any_context
from chorale.spec.selection import is_by_groups
from chorale.spec.state import GlobalState, trained_names
from crypto.errors import PolicyRefusal, Refusal
from crypto.fixed_point.layout import Disclosure, Quantity
from silo_agent.approval.asked import AskedColumn
from silo_agent.disclosure.ledger.accounts import Contents
from silo_agent.disclosure.ledger.costs import BudgetBalance, PlannedCharge
from silo_agent.disclosure.ledger.decisions import PersonsDecision
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.training.data.settings import LABELED_FORMATS, TABLE_FORMATS, DataSettings, reading_in_words
from silo_agent.training.data.table.derived import stored_names
from silo_agent.training.data.table.units import units_in_words
from strategies.analysis.method import FIRST_STATE
from strategies.base import MODEL, TOTAL
from strategies.parts.heads import HEAD
from strategies.phases.arms import without_arm
from strategies.phases.trees import at_widest

UNCOMPARED = ("nonce", "initial_state")  # of every job its own; the starting weights are told by themselves
BUDGET_FIELD = "privacy.epsilon"
OPTIONS = "options"  # of a model or another part: any names, each with any value, of which null is one
# what stands first of a job's fields and of its changes: what is read, then what the sums may tell of it
READS = (
    *("purpose", "reference", "data", "columns", "label_column", "classes", "task", "subgroups"),
    *("input_shape", "input_type", "vocabulary", "scans", "normalize", "augment"),
)
DISCLOSES = (
    *("privacy", "strategy", "silos", "threshold", "min_cohort", "fraction", "draw", "evaluate_all_every"),
    *(
        "model",
        "code",
        "adapters",
        "trains",
        "rounds",
        "search",
        "steps",
        "spare_steps",
        "update_bound",
        "update_bits",
    ),
)


class Origin(StrEnum):
    """Where a job's starting weights come from."""

    COMPUTED = "computed"  # this silo drew the same from the job
    GIVEN = "given"  # an operator's own
    UNKNOWN = "unknown"  # only the job's own code can draw them, and it has not run


class QuantityNoise(StrEnum):
    """What hides single records in a sum."""

    NONE = "none"
    NOT_NEEDED = "not needed"  # the number does not depend on the data
    IN_SUM = "in the sum"
    IN_TRAINING = "in the training"  # DP-SGD, and what follows from it


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedQuantity:
    """One quantity of a phase, as the method declares it.

    values: numbers that a silo adds to the sum, of trees at their widest level; None where only the job's own
    code knows. tells: what the sum is about. sensitivity_l2: how far one record moves it, or one silo where
    is_by_silo; None: nothing bounds it but `bound`, the largest magnitude of a number. noise_deviation: of
    the noise in one number of the sum of all named silos, in the quantity's own units; 0 where noise is not
    in the sum.
    """

    name: str
    values: int | None
    tells: str
    bound: float
    sensitivity_l2: float | None
    is_by_silo: bool
    noise: QuantityNoise
    noise_deviation: float
    is_seen_by_silos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedPhase:
    """A kind of phase. times: how often the job plans it. silos: how many it names."""

    kind: str
    times: int
    silos: int
    quantities: tuple[SummedQuantity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDifference:
    """What this silo would refuse of the job. field: the policy field that refuses, or the code of another
    reason."""

    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field of the job that differs from the job before. None: it is not there. Values are JSON."""

    field: str
    before: str | None
    now: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingWeights:
    """description: what is known of them, or why nothing is."""

    origin: Origin
    sha256: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCode:
    """Code that is not Chorale's and that the job runs on this silo's data.

    field: of the job. sha256: of the distribution's files, as signed. difference: how this silo's copy
    compares, empty where it is the same. options: JSON.
    """

    field: str
    name: str
    distribution: str
    sha256: str
    options: str
    difference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What a job reads of this silo's data.

    record: what one is. inputs and labels: columns as the job names them, a range as one; None where the
    format has no names for them, so that the job reads all there is. classes: by the job, where it names
    them. mapped, dropped: this silo's own texts of labels or folders that are a class of the job, and that no
    job uses. unread: columns of the table that it does not read; None where they are not known. contents:
    None where no agent has read the data yet. read_as: what the silo's settings make of a table's texts, a
    line each.
    """

    data_set: str
    format: str
    record: str
    unit: str | None
    inputs: tuple[str, ...] | None
    labels: tuple[str, ...] | None
    classes: tuple[str, ...]
    mapped: Mapping[str, int | str]
    dropped: tuple[str, ...]
    unread: tuple[str, ...] | None
    contents: Contents | None
    read_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as it is put before a person.

    job: every field of it, as signed. reads: None where this silo has no data set for the job. asks: of an
    analysis. method: its name, task and rounds. parameters: of the model; None where only the job's own code
    knows. unusual: rules that the job's parts break and that it passes over. class_rows: which this silo
    sends; "" where it holds none back. promise: what a private job's plan costs; None without noise, or where
    it is not known, and `no_promise` says why. balance: of the data set; None where this silo has none for
    the job. charge: what it would add there; None where that is not known. has_unit: a record there is all
    rows of one unit, such as a patient. objective: what trains in place of Chorale by the silo's settings.
    refusals: what the policy refuses, so that an approval changes nothing. previous: id of the last approved
    job of this operator. decisions: by people, oldest first. is_over, stops_data: as LedgerJob has them.
    approved_by: people whose approval waits for another person's. taken_back: those whose approval was under
    another policy. policy: digest of its file.
    """

    id: str
    job_digest: bytes
    name: str
    operator: str
    offered: datetime
    not_after: datetime
    decision: Decision
    is_over: bool
    stops_data: bool
    decisions: tuple[PersonsDecision, ...]
    required_approvals: int
    approved_by: tuple[str, ...]
    taken_back: tuple[str, ...]
    policy: bytes
    data_set: str | None
    has_unit: bool
    objective: str | None
    reads: Reads | None
    asks: tuple[AskedColumn, ...]
    method: str
    parameters: int | None
    unusual: tuple[str, ...]
    class_rows: str
    phases: tuple[SummedPhase, ...]
    is_private: bool
    promise: Promise | None
    no_promise: str
    balance: BudgetBalance | None
    charge: PlannedCharge | None
    refusals: tuple[PolicyDifference, ...]
    previous: str | None
    changes: tuple[FieldChange, ...]
    weights: StartingWeights
    code: tuple[OwnCode, ...]
    job: Mapping[str, Any]

    @property
    def noise_told(self) -> str:
        """Whether the sums carry noise, and what they can tell without it."""
        if self.is_private:
            return "its sums carry noise, or follow from training with noise"
        records = "records" if self.asks else "training records"
        return (
            f"it has no noise, so its sums can hold single {records} and tell who was in the data "
            "(privacy.required in the policy refuses such jobs)"
        )


def reads_of(spec: AnySpec, settings: DataSettings, contents: Contents | None, *, record: str) -> Reads:
    """What the job reads of a data set. Opens no data. As `Reads`."""
    has_names = settings.format in TABLE_FORMATS
    inputs = tuple(each.name for each in spec.columns or ()) if has_names else None
    labels: tuple[str, ...] | None = ()
    if isinstance(spec, JobSpec):
        labels = spec.label_column if settings.format in LABELED_FORMATS else None
        if inputs is not None and spec.subgroups is not None:
            inputs = (*inputs, spec.subgroups.name)
    unread = None
    if has_names and contents is not None and contents.columns is not None:
        wanted = [*(each.name for each in spec.columns_read), *spec.label_columns]
        read = {*stored_names(wanted, settings.derive), settings.unit}
        unread = tuple(name for name in contents.columns if name not in read)
    return Reads(
        data_set=settings.name,
        format=str(settings.format),
        record=record,
        unit=settings.unit,
        inputs=inputs,
        labels=labels,
        classes=spec.class_names if isinstance(spec, JobSpec) else (),
        mapped=settings.labels,
        dropped=settings.drop,
        unread=unread,
        contents=contents,
        read_as=(*reading_in_words(settings), *(units_in_words(settings.units, spec) if has_names else ())),
    )


def in_order(fields: Iterable[str]) -> list[str]:
    """Fields of a job, those first that say what is read, then those that say what the sums may tell."""
    places = {name: place for place, name in enumerate((*READS, *DISCLOSES))}
    return sorted(fields, key=lambda field: places.get(field.partition(".")[0], len(places)))


def summed_phases(spec: AnySpec, state: GlobalState | None) -> tuple[SummedPhase, ...]:
    """Every quantity that the job sums, phase by phase, as its method declares them.

    state: any of its global states, for the shapes; None where only the job's own code makes one. Raises
    ConfigError for a private job that cannot protect one of them.
    """
    phases = []
    for kind, silos, times in planned_phases(spec):
        shown = _quantities(spec, kind, _stand_in(spec, 2) if state is None else state, silos)
        # what is the same of two models that share no size holds of any
        other = _quantities(spec, kind, _stand_in(spec, 3), silos) if state is None else shown
        quantities = tuple(
            _summed(each, spec, silos, is_sized=each.size == twin.size)
            for each, twin in zip(shown, other, strict=True)
        )
        phases.append(SummedPhase(kind=kind, times=times, silos=silos, quantities=quantities))
    return tuple(phases)


def trained_values(state: GlobalState) -> int:
    """Parameters of the model."""
    return sum(math.prod(state[MODEL + name].shape) for name in trained_names(state))


def changed_fields(before: AnySpec, now: AnySpec) -> tuple[FieldChange, ...]:
    """Every field that two jobs differ in, as `in_order`."""
    old, new = (_fields(each.model_dump(mode="json", by_alias=True)) for each in (before, now))
    return tuple(
        FieldChange(field=field, before=old.get(field), now=new.get(field))
        for field in in_order(dict.fromkeys([*new, *old]))
        if field not in UNCOMPARED and old.get(field) != new.get(field)
    )


def options_told(options: Mapping[str, Any]) -> str:
    """What a plug-in is given, on one line; nothing where it is given nothing."""
    return json.dumps(options) if options else ""


def difference_of(refusal: PolicyRefusal) -> PolicyDifference:
    named = refusal.rule or refusal.code
    field = BUDGET_FIELD if refusal.code is Refusal.BUDGET else named.value
    return PolicyDifference(field=field, message=str(refusal).removeprefix("policy: "))


def method_told(spec: AnySpec) -> str:
    if isinstance(spec, AnalysisSpec):
        return spec.in_words
    searched = (
        "" if spec.search is None else f"; {spec.search.in_words(spec.rounds)}; each arm sums all of it"
    )
    task = spec.method.task.word
    return f"{spec.strategy.name}, task {task}; {spec.count}, {_named_told(spec)}{searched}"


def _fields(values: Mapping[str, Any], prefix: str = "", *, of_options: bool = False) -> dict[str, str]:
    """Dotted names of all fields that are set, each with its value as JSON."""
    found: dict[str, str] = {}
    for name, value in values.items():
        field = prefix + json.dumps(name)[1:-1]  # keys of options are any text
        parts = value if isinstance(value, list) else []
        if parts and all(isinstance(each, dict) and "name" in each for each in parts):
            found[f"{field}.names"] = json.dumps([each["name"] for each in parts])  # and in which order
            value = {each["name"]: each for each in parts}
        if isinstance(value, dict):
            found |= _fields(value, f"{field}.", of_options=name == OPTIONS)
        elif value is not None or of_options:
            found[field] = json.dumps(value)
    return found


def _quantities(spec: AnySpec, kind: str, state: GlobalState, silos: int) -> tuple[Quantity, ...]:
    shapes = at_widest({**state, TOTAL: np.array(1)})  # enrollment writes it; it decides no size
    context = any_context(spec, 1, shapes, silos)
    summed = spec.method.phase(kind).quantities(context)
    of_one_arm = tuple(each for each in summed if without_arm(each.name) == each.name)  # as are the others
    return noised(of_one_arm, spec, silos)


def _stand_in(spec: AnySpec, size: int) -> dict[str, Any]:
    if isinstance(spec, AnalysisSpec):
        return dict(FIRST_STATE)
    has_means = spec.method.recipe.personalization.needs_running_means
    means = {f"{MODEL}norm.running_mean": np.ones(size, np.float32)} if has_means else {}
    return means | {
        f"{MODEL}backbone.weight": np.ones(size, np.float32),
        HEAD: np.ones((size, size + 1), np.float32),
    }


def _summed(quantity: Quantity, spec: AnySpec, silos: int, *, is_sized: bool = True) -> SummedQuantity:
    noise, clip_l2 = QuantityNoise.NONE, None
    if quantity.noise is not None:
        noise, clip_l2 = QuantityNoise.IN_SUM, quantity.noise.clip_l2
    elif quantity.discloses is Disclosure.CONSTANT:
        noise = QuantityNoise.NOT_NEEDED
    elif spec.privacy is not None:
        noise = QuantityNoise.IN_TRAINING
    return SummedQuantity(
        name=quantity.name,
        values=quantity.size if is_sized else None,
        tells=quantity.discloses.value,
        bound=quantity.bound,
        sensitivity_l2=quantity.sensitivity_l2 if clip_l2 is None else clip_l2,
        is_by_silo=clip_l2 is not None,
        noise=noise,
        noise_deviation=noise_deviations([quantity], silos).get(quantity.name, 0.0),
        is_seen_by_silos=quantity.is_tagged,
    )


def _named_told(spec: AnySpec) -> str:
    """Which silos a round is of."""
    if not spec.draws_rounds:
        return "all of the silos in each"
    how = "groups that take turns" if is_by_groups(spec) else "a new draw each time"
    return f"{spec.named_per_round} of the silos in each, {how}"
