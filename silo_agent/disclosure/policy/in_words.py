"""A policy for the people who write and read it: every field in force, and what the silo refuses by them."""

from __future__ import annotations

import json

from pydantic import BaseModel

from crypto.session.cohort import MAX_DRAW_RISK
from silo_agent.disclosure.policy.drawn_rounds import MAX_UNASKED_OPENINGS
from silo_agent.disclosure.policy.learning_rates import LEARNING_RATES, SERVER_LEARNING_RATES
from silo_agent.disclosure.policy.policy import MAX_STATE_BYTES, Approval, DrawnRounds, FirstState, Policy
from silo_agent.disclosure.policy.privacy_policy import CEILING, Permission
from silo_agent.disclosure.policy.readable import readable_told


def described(policy: Policy) -> str:
    """The effective policy field by field, then what it refuses."""
    fields = []
    for prefix, settings in (("", policy), ("privacy.", policy.privacy), ("analyses.", policy.analyses)):
        for name, info in type(settings).model_fields.items():
            value = getattr(settings, name)
            if isinstance(value, BaseModel):
                continue
            shown = "null" if value is None else str(value)
            if isinstance(value, bool):
                shown = shown.lower()
            if isinstance(value, tuple):
                shown = f"[{', '.join(value)}]"
            if isinstance(value, dict):
                shown = json.dumps(value)
            fields.append(f"{prefix}{name}: {shown}  # {info.description}")
    if policy.privacy.epsilon > CEILING:
        fields += ["", f"An epsilon above {CEILING:g} protects hardly anything."]
    return "\n".join([*fields, "", "This silo refuses:", *(f"  - {line}" for line in refused(policy))])


def refused(policy: Policy) -> list[str]:
    """What is refused, line by line."""
    lines = [
        f"jobs of other federations than {policy.federation}",
        f"jobs of more than {policy.max_rounds} rounds",
        f"jobs and sums of fewer than {policy.min_silos} silos",
        f"more than {policy.max_cohort_changes} overlapping cohorts of a data set, in all jobs together",
        f"jobs without noise, once more than {policy.max_data_refusals} inputs were refused for a data set, "
        "and private ones, once inputs of more of them failed",
        "jobs with fraction below 1 whose rounds name more colluders than a third with a chance above "
        f"{float(MAX_DRAW_RISK):g}",
        "a third opening enrollment of such a job, and over a data set more than "
        f"{MAX_UNASKED_OPENINGS} of jobs that no person approved",
        f"more than {policy.max_repeats} further sums over one model",
        f"every input, once a model moved {policy.max_step_ratio:g} times as far as this silo moves it",
        "learning rates below {:g} or above {:g}".format(*LEARNING_RATES),
        "server learning rates below {:g} or above {:g}".format(*SERVER_LEARNING_RATES),
        f"rosters signed more than {policy.max_roster_age_days:g} days ago",
        f"code of distributions other than Chorale{''.join(', ' + each for each in policy.distributions)}",
        f"global models above {MAX_STATE_BYTES >> 20} MB",
    ]
    if policy.approval is Approval.MANUAL:
        people = "" if policy.required_approvals == 1 else f" by {policy.required_approvals} people"
        lines.append(f"every job that is not approved here{people} (chorale silo approve)")
    if policy.require_purpose:
        lines.append("jobs without a purpose or a reference")
    if policy.class_statistics is Permission.REFUSE:
        lines.append("every statistic by class without noise")
    if policy.shared_sums is Permission.REFUSE:
        lines.append("every method whose statistics by class other silos see")
    if policy.drawn_rounds is DrawnRounds.REFUSE:
        lines.append("every job whose rounds each draw a new set of silos")
    if policy.drawn_rounds is DrawnRounds.ALLOW:
        lines.append("statistics by class without noise, where rounds each draw a new set of silos")
    if policy.local_state is Permission.REFUSE:
        lines.append("every method with local state whose sums have no noise")
    if policy.initial_state is not FirstState.GIVEN:
        listed = "" if policy.initial_state is FirstState.COMPUTED else " but those of initial_state"
        lines.append(f"starting weights that this silo does not draw itself{listed}")
    lines += policy.privacy.refused() + policy.analyses.refused() + readable_told("inputs", policy.inputs)
    lines += readable_told("labels", policy.labels)
    lists = {
        "operators": policy.operators,
        "quantities": policy.allowed_quantities,
    }
    lines += [f"{what} other than {', '.join(names)}" for what, names in lists.items() if names is not None]
    return lines
