"""The data sets of one agent, each with its own policy and account, and which of them a job is about.

A job is about one data set for good: the one that its signed text names, or the agent's only one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.kinds import AnySpec, any_spec
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, PolicyRefusal, Refusal, Rule
from crypto.session.reveal import PendingReveal
from silo_agent.disclosure.ledger.budget import Budget, Spend
from silo_agent.disclosure.ledger.data_refusals import DataRefusals
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Reveals
from silo_agent.disclosure.ledger.state_uses import StateUse
from silo_agent.disclosure.ledger.steps import Steps
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.readable import check_readable
from silo_agent.training.data.settings import LABELED_FORMATS, TABLE_FORMATS, check_unit
from silo_agent.training.data.table.units import Units, check_units
from silo_agent.training.phase_input import PhaseRequest


@dataclass(slots=True, kw_only=True)
class DataSet:
    """One data set under its policy, as the ledger accounts for it. policy: the one that is in force, which
    `DataSets.take` alone changes. account: the id of its account. unit: the column that says whose a row
    is; None where no setting names one. units: of its columns. format: how it is stored. refusals: of
    jobs without noise. failures: of private jobs: errors that nobody expects, such as too little memory."""

    name: str
    account: str
    unit: str | None
    units: Units
    format: str
    policy: Policy
    reveals: Reveals
    budget: Budget
    steps: Steps
    refusals: DataRefusals
    failures: DataRefusals

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        *,
        name: str,
        policy: Policy,
        account: str | None = None,
        unit: str | None = None,
        units: Units = MappingProxyType({}),
        format: str = "",
        budgets: Collection[float] = (),
        tell_reveal: Callable[[PendingReveal], None] = lambda _: None,
        tell_spend: Callable[[Spend], None] = lambda _: None,
    ) -> Self:
        """Of a ledger. account: None: the id is the name. budgets: as of `Budget`. tell_reveal, tell_spend:
        as of `Ledger.reveals` and `Ledger.budget`."""
        own = name if account is None else account
        return cls(
            name=name,
            account=own,
            unit=unit,
            units=units,
            format=format,
            policy=policy,
            reveals=ledger.reveals(policy=policy, data_set=own, tell=tell_reveal),
            budget=ledger.budget(policy=policy, data_set=own, budgets=budgets, tell=tell_spend),
            steps=ledger.steps(policy=policy, data_set=own),
            refusals=ledger.data_refusals(policy=policy, data_set=own),
            failures=ledger.data_refusals(policy=policy, data_set=own, is_private=True),
        )

    def use_of(self, request: PhaseRequest) -> StateUse | None:
        """What the phase makes of the state (docs/protocol.md 6.10); None where nothing is counted."""
        return StateUse.of(
            request.job,
            request.key,
            request.context.state,
            rule=request.rule,
            assumed_colluders=self.policy.colluders(request.job.spec),
        )


class DataSets:
    """Finds the data set of a job."""

    def __init__(self, data_sets: Sequence[DataSet], *, ledger: Ledger) -> None:
        self._by_name: Mapping[str, DataSet] = {each.name: each for each in data_sets}
        self._ledger = ledger
        self._by_job: dict[bytes, DataSet] = {}

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Those in force, by data set."""
        return {name: each.policy for name, each in self._by_name.items()}

    def replace(self, data_sets: Sequence[DataSet]) -> None:
        """The same data sets as they were opened again, while no phase runs."""
        self._by_name = {each.name: each for each in data_sets}
        self._by_job.clear()

    def take(self, name: str, policy: Policy) -> None:
        """Another policy of a data set from now on, also in sessions that run."""
        found = self._by_name[name]
        found.policy = policy
        for each in (found.reveals, found.budget, found.steps, found.refusals, found.failures):
            each.take(policy)
        for other in self._by_name.values():  # charged to its account, they keep to its budget
            other.budget.take_limit(found.account, policy.privacy.epsilon)

    @property
    def max_roster_age_days(self) -> float:
        """The least that a policy allows: there is one roster for all of them."""
        return min(each.policy.max_roster_age_days for each in self._by_name.values())

    @property
    def any_reveals(self) -> Reveals:
        """For questions that name a job: their answers are the same for every data set."""
        return next(iter(self._by_name.values())).reveals

    def is_revealed(self, key: PhaseKey, *, silo: str) -> bool:
        """Whether a sum of the phase was revealed with this silo in it."""
        return self.any_reveals.is_revealed(key.job_digest, key.round, key.phase, silo=silo)

    def named(self, spec: AnySpec) -> DataSet:
        """Raises PolicyRefusal(code=POLICY) for a job about none of this agent's, about an unnamed one of
        several, or that reads what the policy does not list. Security: a list is asked before every other
        rule, so its answer is one, whether or not there is such a column. The coordinator learns that field,
        and the code alone where the job names a data set, which may not be here."""
        found = self._by_name[name_for(spec, tuple(self._by_name))]
        try:
            check_read(spec, found.policy, data_set=found.name, format=found.format)
        except PolicyRefusal as error:
            raise PolicyRefusal(str(error), rule=error.rule if spec.data is None else None) from None
        return found

    def check_unit(self, spec: AnySpec) -> None:
        """Raises PolicyRefusal for a job that reads the column of its data set's units, or numbers in a unit
        without a factor. Security: the answer says which column that is, so it is for a job that was approved
        here."""
        try:
            check_unit(self.named(spec).unit, spec)
            check_units(self.named(spec).units, spec)
        except ConfigError as error:
            raise PolicyRefusal(str(error)) from None

    def of(self, job_digest: bytes) -> DataSet:
        """Of a job that this silo recorded, in this run or before. Raises PolicyRefusal."""
        found = self._by_job.get(job_digest)
        if found is None:
            found = self._by_job[job_digest] = self._recorded(job_digest)
        return found

    def forget(self, job_digest: bytes) -> None:
        self._by_job.pop(job_digest, None)

    def _recorded(self, job_digest: bytes) -> DataSet:
        spec_bytes, job_id = self._ledger.spec_bytes(job_digest), job_digest.hex()[:12]
        if spec_bytes is not None:
            try:
                return self.named(any_spec(spec_bytes, source=f"job {job_id}"))
            except ConfigError as error:
                raise PolicyRefusal(str(error), code=Refusal.JOB_INVALID) from None
        if len(self._by_name) == 1:  # recorded by a version that kept no text of jobs
            return next(iter(self._by_name.values()))
        raise PolicyRefusal(f"job {job_id}: was never offered", code=Refusal.JOB_INVALID)


def check_read(spec: AnySpec, policy: Policy, *, data_set: str, format: str) -> None:
    """Raises PolicyRefusal where the policy lists what jobs may read of the data set, and not all of this."""
    inputs = [each.name for each in spec.columns_read] if format in TABLE_FORMATS else ()
    labels = spec.label_columns if format in LABELED_FORMATS else ()
    check_readable(policy.inputs, inputs, data_set=data_set, rule=Rule.INPUTS)
    if isinstance(spec, AnalysisSpec):
        policy.analyses.check_measured(spec, data_set=data_set)
    else:
        check_readable(policy.labels, labels, data_set=data_set, rule=Rule.LABELS)


def name_for(spec: AnySpec, names: Sequence[str]) -> str:
    """The data set that a job is about, of an agent's. Raises PolicyRefusal(code=POLICY)."""
    if spec.data is None and len(names) == 1:
        return names[0]
    if spec.data is None:
        raise PolicyRefusal(f"job {spec.name}: names no data set, and this silo has several")
    if spec.data not in names:
        raise PolicyRefusal(f"job {spec.name}: this silo has no data set {spec.data}")
    return spec.data
