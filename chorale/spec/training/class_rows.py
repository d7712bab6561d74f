"""Of how many classes a job's sums get rows: for people before it starts, and for silos once they counted.

With fewer rows than its parts need a method is another one. Then silos refuse the job, unless it says
`allow_silent_statistics`. Source: docs/protocol.md 4, docs/decisions/0037-few-silos.md.

C = classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import PolicyRefusal, Rule
from crypto.session.cohort import CohortRule
from strategies.base import Array
from strategies.phases.enrollment import CLASS_PRESENCE


def rows_in_words(spec: JobSpec, *, own: int | None = None) -> str:
    """Before anybody counted: the rule, and what follows from it; "" for a method that holds back no rows.

    own: min_class_holders of the silo's policy; None: the default of all silos.
    """
    if CLASS_PRESENCE not in spec.method.opening:
        return ""
    silos, needed = len(spec.silos), spec.method.least_rows
    least = own or spec.min_class_holders(spec.rule(spec.row_members))
    most = spec.classes if least <= silos else 0
    rule = (
        f"0 to {most} of {spec.classes} are sent, of the classes that {least} of {silos} silos hold "
        f"(min_class_holders{'' if own else ' by default'}), known before round 1"
    )
    if needed == 0:
        public = f" ({way})" if (way := _public(spec)) else ""
        return f"{rule}; without them it is the same method{public}"
    if spec.allow_silent_statistics:
        return f"{rule}; without them it is another method (allow_silent_statistics)"
    return f"{rule}; with fewer than {needed} silos refuse the job: {ways_out(spec, most_holders=silos)}"


def sent_rows(spec: JobSpec, holders_C: Array, *, own: int | None, rule: CohortRule) -> NDArray[np.bool_]:
    """Classes whose rows a silo sends. own: as in `rows_in_words`. rule: of the phase that sums them.

    Security: it follows from the signed job, a policy and the sum of class presence, which all silos and the
    coordinator know, and from nothing of this silo's data. Raises PolicyRefusal where they are too few.
    """
    least = own or spec.min_class_holders(rule)
    is_sent_C = np.asarray(holders_C >= least)
    needed = 0 if spec.allow_silent_statistics else spec.method.least_rows
    sent = int(np.count_nonzero(is_sent_C))
    if sent >= needed:
        return is_sent_C
    most_holders = int(np.sort(holders_C)[-needed]) if own is None else 0
    raise PolicyRefusal(
        f"policy: expected class rows of at least {needed} of {spec.classes} classes, got {sent}: a row is "
        f"sent where {least} of {len(spec.silos)} silos hold its class (min_class_holders), and without rows "
        f"{spec.strategy.name} is another method; {ways_out(spec, most_holders=most_holders)}",
        rule=Rule.MIN_CLASS_HOLDERS,
    )


def check_reachable(spec: JobSpec, own: int | None) -> None:
    """Before anybody counted. own: as in `rows_in_words`. Raises PolicyRefusal where even classes that all
    silos hold have too few holders."""
    if CLASS_PRESENCE in spec.method.opening:
        everywhere_C = np.full(spec.classes, len(spec.silos))
        sent_rows(spec, everywhere_C, own=own, rule=spec.rule(spec.row_members))


def ways_out(spec: JobSpec, *, most_holders: int) -> str:
    """What the operator may write into the job. most_holders: that enough classes have, as far as known."""
    public, members = _public(spec), spec.row_members
    ways = [f"strategy.options {public} puts public rows in place of missing ones"] if public else []
    rule = spec.rule(members)
    enough = spec.min_class_holders(rule) + rule.threshold - members  # where no silo drops out
    if rule.threshold < members and enough <= most_holders:
        ways.append(f"threshold: {members} needs {enough} holders, and every silo in every sum")
    return "; ".join([*ways, "allow_silent_statistics: true runs it as it is"])


def _public(spec: JobSpec) -> str:
    return next((part.public_rows for part in spec.method.recipe.parts.values() if part.public_rows), "")
