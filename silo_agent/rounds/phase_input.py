"""x(u) of one phase: from a silo's data, its policy, the job and the global state, and nothing else.

The agent computes it once and keeps it (inputs.py); a simulation does for many silos in turn. No clock, no
ledger and no message of a session reaches this module. Source: docs/protocol.md 4, 7.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from chorale.job import Job
from chorale.privacy.protection import declared_weight
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, PolicyRefusal, QuantizationError, Refusal
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from crypto.session.cohort import CohortRule
from silo_agent.data.base import SiloData
from silo_agent.local_storage.local_state import LocalState
from silo_agent.objective import Work
from silo_agent.policy.policy import Policy
from strategies.base import PRESENCE, TOTAL, Array, PhaseContext
from strategies.phases.enrollment import ENROLLMENT
from strategies.phases.update_scale import with_mean_square

WEIGHT = "weight"  # the quantity that carries p


class DataRefusal(PolicyRefusal):
    """Refused because of what this silo's data make of the received state.

    Security: the coordinator chooses the state, so the refusal answers a question of its choice
    about one silo's data. It must be the last one. Source: docs/protocol.md 6.7.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One phase as every silo reads it from job and global state; the same for all of them."""

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
            rule=job.rule(members),
            layout=job.layout(key, state, members),
            context=job.context(key, state, members),
        )

    def refusal(self, why: str, code: Refusal) -> PolicyRefusal:
        return PolicyRefusal(self.said(why), code=code)

    def said(self, why: str) -> str:
        return f"job {self.job.id} round {self.key.round} {self.key.phase}: {why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseInput:
    """A silo's values, which nobody can change any more, and the words that they become when read."""

    values: Mapping[str, Array] = field(repr=False)
    encoder: Encoder = field(repr=False)


def phase_input(
    asked: Asked,
    *,
    silo: str,
    policy: Policy,
    load_data: Callable[[], SiloData],
    compute: Callable[[Work], Mapping[str, Array]],
    is_cancelled: Callable[[], bool],
    local: LocalState | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> PhaseInput:
    """load_data: gives them with the hold-out cut (`cut_holdout`). compute: the objective's. local: what the
    silo kept of the job, and where the method proposes what comes next. random: of the encoding.

    Raises PolicyRefusal(code=DATA) where data or counts do not allow an input, DataRefusal where it is the
    state over these data that does not, and what the objective raises.
    """
    try:
        values = taken_over(
            _values(asked, silo, policy, load_data(), compute, is_cancelled, local or LocalState())
        )
        return PhaseInput(values=values, encoder=Encoder(values, layout=asked.layout, random=random))
    except ConfigError as error:
        raise asked.refusal(str(error), Refusal.DATA) from error
    except QuantizationError as error:
        raise DataRefusal(asked.said(str(error)), code=Refusal.DATA) from error


def cut_holdout(data: SiloData, *, job: Job, policy: Policy) -> SiloData:
    """The hold-out cut as its size is summed."""
    tested = _summed(job, policy, len(data.holdout))
    return SiloData(train=data.train, holdout=data.holdout.first(tested), name=data.name)


def taken_over(values: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays that nobody can change any more, though they become words only when they are sent.

    One that owns its memory is locked, not copied: the objective gave it up. A view is copied.
    """
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    taken = {name: value if value.flags.owndata else value.copy() for name, value in arrays.items()}
    for array in taken.values():
        array.flags.writeable = False
    return {**values, **taken}


def _values(
    asked: Asked,
    silo: str,
    policy: Policy,
    data: SiloData,
    compute: Callable[[Work], Mapping[str, Array]],
    is_cancelled: Callable[[], bool],
    local: LocalState,
) -> Mapping[str, Array]:
    spec = asked.job.spec
    samples = _summed(asked.job, policy, len(data.train))
    if samples == 0 and spec.privacy is None:  # in a private job a refusal would tell the last record
        least = policy.count_granularity
        raise asked.refusal(f"fewer than {least} samples (count_granularity)", Refusal.DATA)
    if asked.key.kind == ENROLLMENT:
        return {"silos": np.array(1), "samples": np.array(samples)}
    work = Work(
        spec=spec,
        phase_kind=asked.key.kind,
        round=asked.key.round,
        silo=silo,
        state=asked.context.state,
        context=asked.context,
        data=data,
        weight=_weight(asked, samples),
        is_cancelled=is_cancelled,
        class_rows=_class_rows(asked, policy),
        local=local,
    )
    return with_mean_square(work.context, compute(work))


def _class_rows(asked: Asked, policy: Policy) -> NDArray[np.bool_] | None:
    """Classes that enough silos hold, by the sum of presence; rows of the others stay here."""
    holders_C = asked.context.state.get(PRESENCE)
    if holders_C is None:
        return None
    least = policy.min_class_holders or asked.job.spec.min_class_holders(asked.rule)
    return np.asarray(holders_C >= least)


def _summed(job: Job, policy: Policy, samples: int) -> int:
    """A count as it enters a sum: rounded, so that it tells no exact one; exact where noise covers it,
    because one record would move a rounded one by the whole granularity."""
    return samples if job.spec.privacy is not None else policy.rounded(samples)


def _weight(asked: Asked, samples: int) -> float:
    """p = n / total, with the total that enrollment left in the global state; 0 where none is sent.

    In a private job it is the declared one, which tells no count.
    """
    if all(quantity.name != WEIGHT for quantity in asked.layout.quantities):
        return 0.0
    if asked.job.spec.privacy is not None:
        return declared_weight(asked.job.spec, asked.rule.members)
    state = asked.context.state
    total = int(state[TOTAL]) if TOTAL in state else 0
    if samples > total:
        said = asked.said("more samples than enrollment counted in all silos")
        raise DataRefusal(said, code=Refusal.NOT_ENROLLED)
    return samples / total
