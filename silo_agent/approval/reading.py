"""The view of one job, gathered from this silo's settings, policy, ledger and installed code.

Nothing of a job's own code runs: a model of a distribution is drawn at the job's first phase, after somebody
approved it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from chorale.job import Job, SignedJob
from chorale.pinned_code import code_faults
from chorale.privacy.promise import Promise, promise_of
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec, any_spec
from chorale.spec.state import GlobalState, state_digest, state_to_bytes
from chorale.spec.training.class_rows import rows_in_words
from crypto.errors import ChoraleError, ConfigError, PolicyRefusal, Refusal
from silo_agent.account_units import account_budgets
from silo_agent.approval.asked import asked_columns
from silo_agent.approval.view import (
    JobView,
    Origin,
    OwnCode,
    Reads,
    StartingWeights,
    SummedPhase,
    changed_fields,
    difference_of,
    method_told,
    options_told,
    reads_of,
    summed_phases,
    trained_values,
)
from silo_agent.disclosure.ledger.budget import Budget
from silo_agent.disclosure.ledger.costs import PlannedCharge
from silo_agent.disclosure.ledger.ledger import Ledger, LedgerJob
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.policy.policy import MAX_STATE_BYTES, Policy, read_policy
from silo_agent.disclosure.policy.privacy_policy import refusals_of
from silo_agent.in_force import Held, not_in_force
from silo_agent.rounds.data_sets import check_read, name_for
from silo_agent.rounds.first_state import NOT_THAT_OF_THE_JOB, drawn_arrays
from silo_agent.settings import SiloSettings
from silo_agent.training.data.settings import DataSettings, check_unit, described_told, unit_told
from silo_agent.training.data.table.units import check_units

NO_BUILT_IN = "its model is not built in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What this silo could make of a job's starting weights. state: for its shapes; None where only the job's
    own code makes one. why: they are given or unknown; empty where this silo drew the same."""

    origin: Origin
    state: GlobalState | None = None
    why: str = ""


def read_view(
    ledger: Ledger,
    settings: SiloSettings,
    job_id: str,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> JobView:
    """What a person is shown of an offered job, under the policy file as it is now, and with the overrides of
    the agent that runs.

    Raises ConfigError unless the id is that of one job whose text is here, and for a policy that cannot be
    read.
    """
    job = ledger.job(job_id)
    spec = _spec_of(job)
    refusals = [PolicyRefusal(each, code=Refusal.SETTINGS) for each in not_in_force(settings)]
    data_set: DataSettings | None = None
    try:
        data_set = settings.data_set(name_for(spec, [each.name for each in settings.data_sets]))
        check_unit(data_set.unit, spec)
        check_units(data_set.units, spec)
    except (PolicyRefusal, ConfigError) as error:
        refusals.append(PolicyRefusal(str(error)))
    policy_file = settings.policy if data_set is None else settings.policy_of(data_set)
    digest, policy = read_policy(policy_file)
    running = Held.of_running(settings)
    if running is not None and data_set is not None:
        held = running.policies.get(data_set.name)
        if held is not None and held.digest == digest:
            policy = held.policy  # the agent's environment overrides the file, and not this command's
    if spec.not_after <= clock():
        late = f"job {job.id}: not_after: {spec.not_after.isoformat()} has passed"
        refusals.append(PolicyRefusal(late, code=Refusal.JOB_INVALID))
    if data_set is not None:
        found = refusals_of(check_read, spec, policy, data_set=data_set.name, format=data_set.format)
        refusals += found
    refusals += policy.refusals(spec, operator=job.operator)
    code = _own_code(spec, refusals)
    drawn = _drawn(job, spec, policy)
    if drawn.origin is Origin.GIVEN and isinstance(spec, JobSpec) and spec.model.is_built_in:
        refusals += refusals_of(policy.check_given_state, spec, why=drawn.why)
    phases = _phases(spec, drawn.state, refusals)
    promise, no_promise = _promise(spec, drawn.state)
    if promise is not None and isinstance(spec, JobSpec):
        cost = promise.epsilon_if_all_others_collude
        refusals += refusals_of(policy.privacy.check_collusion, spec, cost)
    budget: Budget | None = None
    if data_set is not None:
        budgets = account_budgets(settings, data_set.account)
        budget = ledger.budget(policy=policy, data_set=data_set.account, budgets=budgets)
    charge: PlannedCharge | None = None
    if budget is not None and data_set is not None:
        refusals += _account_refusals(ledger, policy, data_set, budget, job, spec, drawn.state)
        if promise is not None and drawn.state is not None:
            charge = budget.planned_charge(_as_signed(job, spec), drawn.state)
    before, decisions = _previous(ledger, job), ledger.decisions()
    given = decisions.given(job.job_digest, policies=[digest])
    training = spec if isinstance(spec, JobSpec) else None
    return JobView(
        id=job.id,
        job_digest=job.job_digest,
        name=job.name,
        operator=job.operator,
        offered=job.offered,
        not_after=spec.not_after,
        decision=job.decision,
        is_over=job.is_over,
        stops_data=job.stops_data,
        decisions=tuple(decisions.of(job.job_digest)),
        required_approvals=policy.required_approvals,
        approved_by=given.counted,
        taken_back=given.taken_back,
        policy=digest,
        data_set=None if data_set is None else data_set.name,
        has_unit=data_set is not None and data_set.unit is not None,
        objective=None if training is None else settings.objective,
        reads=None if data_set is None else _reads(ledger, data_set, spec),
        asks=asked_columns(spec),
        method=method_told(spec),
        parameters=None if drawn.state is None else trained_values(drawn.state),
        unusual=() if training is None else training.method.passed_over,
        class_rows="" if training is None else rows_in_words(training, own=policy.min_class_holders),
        phases=phases,
        is_private=spec.privacy is not None,
        promise=promise,
        no_promise=no_promise,
        balance=None if budget is None else budget.balance(),
        charge=charge,
        refusals=tuple(difference_of(each) for each in refusals),
        previous=None if before is None else before.id,
        changes=() if before is None else changed_fields(_spec_of(before), spec),
        weights=StartingWeights(origin=drawn.origin, sha256=spec.initial_state or "", description=drawn.why),
        code=code,
        job=spec.model_dump(mode="json", by_alias=True),
    )


def policy_digests(settings: SiloSettings) -> frozenset[bytes]:
    """Of the policies that hold now, for all data sets. Raises ConfigError."""
    return frozenset(read_policy(settings.policy_of(each))[0] for each in settings.data_sets)


def signed_bytes(job: LedgerJob) -> bytes:
    """What the operator signed, whose SHA-256 is the job's digest. Raises ConfigError where it is missing."""
    if job.spec_bytes is None:
        raise ConfigError(
            f"job {job.id}: expected its text in the ledger; a recovery recorded it without, and the "
            "agent writes it when the coordinator offers the job again"
        )
    return job.spec_bytes


def _spec_of(job: LedgerJob) -> AnySpec:
    """Raises ConfigError."""
    return any_spec(signed_bytes(job), source=f"job {job.id}")


def _unsigned(job: LedgerJob) -> SignedJob:
    """Of bytes whose signature was checked before the ledger took them."""
    return SignedJob(spec_bytes=job.spec_bytes or b"", signature=b"", operator_certificate=b"")


def _as_signed(job: LedgerJob, spec: AnySpec) -> Job:
    return Job(spec=spec, signed=_unsigned(job), operator=job.operator)


def _own_code(spec: AnySpec, refusals: list[PolicyRefusal]) -> tuple[OwnCode, ...]:
    """Code that is not Chorale's, and how this silo's copy compares, by its files alone."""
    faults = code_faults(spec)
    refusals += [PolicyRefusal(fault, code=Refusal.CODE) for fault in faults.values()]
    digests = {each.distribution: each.sha256 or "" for each in spec.code or ()}
    return tuple(
        OwnCode(
            field=field,
            name=each.name,
            distribution=str(each.source),
            sha256=digests.get(str(each.source), ""),
            options=options_told(each.options),
            difference=faults.get(str(each.source), ""),
        )
        for field, each in (spec.plug_ins if isinstance(spec, JobSpec) else {}).items()
    )


def _drawn(job: LedgerJob, spec: AnySpec, policy: Policy) -> Drawn:
    if spec.distributions:  # to draw them runs code that nobody has allowed yet
        return Drawn(origin=Origin.UNKNOWN, why="its own code makes them, at its first phase")
    signed = _unsigned(job)
    try:
        state = drawn_arrays(spec, signed.base, max_bytes=MAX_STATE_BYTES)
    except ConfigError as error:
        return Drawn(origin=Origin.GIVEN, why=str(error))
    except Exception as error:  # options of any operator, which no model has tried
        return Drawn(origin=Origin.GIVEN, why=f"drawing them fails with {type(error).__name__}")
    if state_digest(state_to_bytes(state)).hex() == spec.initial_state:
        return Drawn(origin=Origin.COMPUTED, state=state)
    return Drawn(origin=Origin.GIVEN, state=state, why=NOT_THAT_OF_THE_JOB)


def _phases(
    spec: AnySpec, state: GlobalState | None, refusals: list[PolicyRefusal]
) -> tuple[SummedPhase, ...]:
    try:
        return summed_phases(spec, state)
    except ConfigError as error:
        refusals.append(PolicyRefusal(str(error), code=Refusal.JOB_INVALID))
        return ()


def _promise(spec: AnySpec, state: GlobalState | None) -> tuple[Promise | None, str]:
    """What a private job costs here, or why that is not known."""
    if spec.privacy is None:
        return None, ""
    if state is None:
        return None, f"what it costs is found out at its first phase: {NO_BUILT_IN}"
    try:
        return promise_of(spec, state), ""
    except ChoraleError as error:
        return None, f"what it costs cannot be told: {error}"


def _account_refusals(
    ledger: Ledger,
    policy: Policy,
    data_set: DataSettings,
    budget: Budget,
    job: LedgerJob,
    spec: AnySpec,
    state: GlobalState | None,
) -> list[PolicyRefusal]:
    """What the data set has no room for."""
    is_private = spec.privacy is not None
    reveals, found = ledger.reveals(policy=policy, data_set=data_set.account), list[PolicyRefusal]()
    if spec.sums_cells:
        found += refusals_of(reveals.check_analysis, job.job_digest)
    if isinstance(spec, AnalysisSpec) and not is_private:
        return found
    counted = ledger.data_refusals(policy=policy, data_set=data_set.account, is_private=is_private)
    found += refusals_of(counted.check, job.job_digest)
    if is_private and state is not None:
        found += refusals_of(budget.check_plan, _as_signed(job, spec), state)
    return found


def _previous(ledger: Ledger, job: LedgerJob) -> LedgerJob | None:
    """The last other job of this operator that was approved here, by a person or by policy."""
    decisions = ledger.decisions()

    def approved_at(each: LedgerJob) -> datetime:
        return max([each.offered, *(said.when for said in decisions.of(each.job_digest))])

    known = [
        each
        for each in ledger.jobs()
        if each.operator == job.operator
        and each.job_digest != job.job_digest
        and each.decision in (Decision.APPROVED, Decision.SUSPENDED)
        and each.spec_bytes is not None
    ]
    return max(known, key=approved_at, default=None)


def _reads(ledger: Ledger, data_set: DataSettings, spec: AnySpec) -> Reads:
    contents = ledger.accounts().contents(data_set.name)
    return reads_of(spec, data_set, contents, record=_record_told(data_set, spec))


def _record_told(data_set: DataSettings, spec: AnySpec) -> str:
    """What a record is there; nothing where only a function of the institution knows."""
    if data_set.unit is None and (data_set.source is not None or data_set.module is not None):
        return ""
    told, part = unit_told(data_set, has_units=data_set.unit is not None), data_set.partition
    if isinstance(spec, AnalysisSpec):
        told = described_told(data_set, least=spec.min_cell if spec.privacy is None else None)
    return told if part is None else f"{told}; this silo's are part {part.index + 1} of {part.silos} of them"
