"""Which policy field refused: the coordinator learns it where nothing of data or own steps is compared."""

from __future__ import annotations

from chorale.transport import wire
from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError, Rule
from silo_agent.disclosure.policy.analysis_policy import AnalysisPolicy
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.privacy_policy import PrivacyPolicy


def fields() -> set[str]:
    parts = {"privacy": PrivacyPolicy, "analyses": AnalysisPolicy}
    own = set(Policy.model_fields) - set(parts)
    return own | {f"{part}.{name}" for part, model in parts.items() for name in model.model_fields}


# bounds of the job that no institution sets
BOUNDS = {"learning_rate", "state_bytes"}


def test_every_rule_is_a_field_of_the_policy_or_a_fixed_bound() -> None:
    assert {rule.value for rule in Rule} <= fields() | BOUNDS


def test_no_rule_is_compared_with_data_or_with_what_the_silo_computed() -> None:
    """Each of these, named, would tell something of records, of the silo's own steps, or of its purse.

    min_class_holders is none: it is compared with the sum of class presence, which the coordinator has.
    """
    about_data = {
        "max_step_ratio", "count_granularity", "constant_work_records",
        "privacy.epsilon", "privacy.delta", "privacy.partial_jobs",
        "max_repeats", "assumed_colluders", "max_roster_age_days",
    }  # fmt: skip
    about_people = {"approval", "required_approvals"}
    rules = {rule.value for rule in Rule}
    assert not about_data & rules
    # a new field stands in one of the three, so that nobody forgets to name it, or not to
    assert fields() | BOUNDS == rules | about_data | about_people


def test_a_sentence_of_the_silo_never_leaves_with_its_refusal() -> None:
    for error in (
        PolicyRefusal("policy: expected at most 3 rounds, got 17", rule=Rule.MAX_ROUNDS),
        PolicyRefusal("17 records in data set x", code=Refusal.DATA),
        RemoteProtocolError("17 words", code=Refusal.TERMS),
    ):
        sent = wire.refused_to_wire(
            wire.refused_of(error), wire.PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
        )
        assert b"17" not in sent.SerializeToString()
