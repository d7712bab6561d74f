"""`chorale silo approve`: which jobs an institution takes part in, with open eyes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.silo.settings import CONFIG, opened_ledger
from crypto.errors import ChoraleError, ConfigError, PolicyRefusal
from silo_agent.policy.policy import Policy, load_policy
from silo_agent.settings import SiloSettings, load_silo_settings

if TYPE_CHECKING:
    from silo_agent.data.settings import DataSettings
    from silo_agent.ledger.ledger import LedgerJob


@click.command()
@CONFIG
@click.argument("job", required=False)
@click.option(
    "--more-data-refusals",
    "more_refusals",
    type=click.IntRange(1, 1_000_000),
    help="Allow JOB so many more refusals for its data, beyond the policy's max_data_refusals.",
)
@click.option(
    "--more-cohort-changes",
    "more_changes",
    type=click.IntRange(1, 1_000_000),
    help="Allow JOB so many more sums over overlapping cohorts, beyond the policy's max_cohort_changes.",
)
def approve(config: Path, job: str | None, more_changes: int | None, more_refusals: int | None) -> None:
    """Approve JOB; without it, list the jobs that wait."""
    from silo_agent.ledger.reveals import Decision

    for option, more in (("--more-cohort-changes", more_changes), ("--more-data-refusals", more_refusals)):
        if more is not None and job is None:
            raise ConfigError(f"{option}: expected JOB with it")
    settings = load_silo_settings(config)
    notes = {Decision.OFFERED: "", Decision.SUSPENDED: "  suspended: see the log for why"}
    with closing(opened_ledger(settings)) as ledger:
        if job is not None:
            approved = ledger.decide(job, Decision.APPROVED)
            click.echo(f"{approved.id}: {approved.name} by {approved.operator} is approved")
            if more_changes is not None:
                data_set = _data_set_of(approved, settings).name
                account = ledger.accounts().charged(data_set).account
                ledger.grant_cohort_changes(approved.job_digest, more_changes, data_set=account)
                click.echo(f"{approved.id}: {more_changes} more cohort changes on data set {data_set}")
            if more_refusals is not None:
                data_set = _data_set_of(approved, settings).name
                account = ledger.accounts().charged(data_set).account
                ledger.grant_data_refusals(approved.job_digest, more_refusals, data_set=account)
                click.echo(f"{approved.id}: {more_refusals} more data refusals on data set {data_set}")
            for warning in _warnings(approved, settings):
                click.echo(f"{approved.id}: {warning}")
            return
        waiting = [each for each in ledger.jobs() if each.decision in notes]
        if not waiting:
            click.echo("no job waits for approval")
        for each in waiting:
            click.echo(
                f"{each.id}  {each.name}  {each.rounds} rounds  by {each.operator}  "
                f"{each.offered:%Y-%m-%d %H:%M}{notes[each.decision]}"
            )
            for warning in _warnings(each, settings):
                click.echo(f"  {warning}")


def _data_set_of(job: LedgerJob, settings: SiloSettings) -> DataSettings:
    """What the job is about. Raises PolicyRefusal where this silo has no such data set."""
    from chorale.job import JobSpec
    from silo_agent.rounds.data_sets import name_for

    if job.spec_bytes is None:
        return settings.data_sets[0]
    spec = JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}")
    return settings.data_set(name_for(spec, [each.name for each in settings.data_sets]))


def _warnings(job: LedgerJob, settings: SiloSettings) -> list[str]:
    """What an institution should know before it approves the job."""
    from silo_agent.data.settings import unit_told

    try:
        data_set = _data_set_of(job, settings)
        policy = load_policy(settings.policy_of(data_set))
    except PolicyRefusal as error:
        return [str(error)]
    found = (_foreign_code(job), _given_weights(job, policy), _what_sums_tell(job))
    promises = _promises(job, policy)
    # whether a function's data have units, no setting says
    if promises and (data_set.unit is not None or (data_set.source is None and data_set.module is None)):
        promises.append(unit_told(data_set, has_units=data_set.unit is not None))
    return [*(warning for warning in found if warning), *promises]


def _given_weights(job: LedgerJob, policy: Policy) -> str:
    """What it means that a job's starting weights were given; nothing where this silo draws them itself."""
    from chorale.job import JobSpec, SignedJob
    from chorale.spec.state import state_digest, state_to_bytes
    from silo_agent.rounds.first_state import NOT_THAT_OF_THE_JOB, drawn_arrays

    if job.spec_bytes is None:
        return ""
    spec = JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}")
    if spec.distributions:  # to draw them runs code that nobody may have allowed
        return (
            "whether its starting weights are given is found out at its first phase: its own code makes them"
        )
    signed = SignedJob(spec_bytes=job.spec_bytes, signature=b"", operator_certificate=b"")
    try:
        max_bytes = policy.max_state_megabytes << 20
        arrays = drawn_arrays(spec, signed.base, max_bytes=max_bytes)
        if state_digest(state_to_bytes(arrays)).hex() == spec.initial_state:
            return ""
        why = NOT_THAT_OF_THE_JOB
    except ConfigError as error:
        why = str(error)
    except Exception as error:  # options of any operator, which no model has tried
        why = f"drawing them fails with {type(error).__name__}"
    warning = (
        f"its starting weights are given, SHA-256 {spec.initial_state} ({why}): an operator's own starting "
        "weights can be built to read single records out of sums"
    )
    try:
        policy.check_given_state(spec, why=why)
    except PolicyRefusal:
        return f"{warning}; this silo's policy refuses them (initial_state)"
    return warning


def _promises(job: LedgerJob, policy: Policy) -> list[str]:
    """What a private job's plan costs a record here, against few colluders and against all other silos."""
    from chorale.job import JobSpec, SignedJob
    from chorale.privacy.promise import promise_of
    from silo_agent.rounds.first_state import drawn_arrays

    if job.spec_bytes is None:
        return []
    spec = JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}")
    if spec.privacy is None:
        return []
    if spec.distributions or not spec.model.is_built_in:
        return ["what it costs is found out at its first phase: its model is not built in"]
    signed = SignedJob(spec_bytes=job.spec_bytes, signature=b"", operator_certificate=b"")
    try:
        shapes = drawn_arrays(spec, signed.base, max_bytes=policy.max_state_megabytes << 20)
        promise = promise_of(spec, shapes)
        policy.privacy.check_collusion(spec, promise.epsilon_if_all_others_collude)
    except PolicyRefusal as refusal:
        return [*promise.lines(), f"this silo's policy refuses it: {refusal}"]
    except ChoraleError as error:
        return [f"what it costs cannot be told: {error}"]
    except Exception as error:  # options of any operator, which no model has tried
        return [f"what it costs cannot be told: drawing its weights fails with {type(error).__name__}"]
    return promise.lines()


def _foreign_code(job: LedgerJob) -> str:
    """Whose code the job runs on this silo's data, and with which options; nothing of Chorale's own."""
    from chorale.job import JobSpec

    if job.spec_bytes is None:
        return ""
    plug_ins = JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}").plug_ins
    if not plug_ins:
        return ""
    named = [f"{field} {each.name} of {each.source} {each.options}" for field, each in plug_ins.items()]
    return f"it runs code that is not Chorale's on this silo's data: {', '.join(named)}"


def _what_sums_tell(job: LedgerJob) -> str:
    """What no mask hides in the sums of a job without noise; nothing where noise covers them."""
    from chorale.job import JobSpec

    if job.spec_bytes is None:
        return ""
    if JobSpec.from_yaml(job.spec_bytes, source=f"job {job.id}").privacy is not None:
        return ""
    return (
        "it has no noise, so its sums can hold single training records and tell who was in the data "
        "(privacy.required in the policy refuses such jobs)"
    )
