"""`chorale silo ledger --recover`: charge what a ledger that was put back from a snapshot may have lost."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import click

from chorale.privacy.plan import planned_releases
from chorale.runtime.files import read_limited
from chorale.spec.first_state import SEED_ALONE
from chorale.spec.job_spec import JobSpec
from chorale.spec.settings_file import MAX_BYTES
from chorale.spec.state import MAX_STATE_BYTES, GlobalState, state_digest, state_from_bytes
from cli.errors import with_hint
from crypto.errors import ConfigError, PolicyRefusal
from silo_agent.ledger.ledger import Ledger, PlanCharge
from silo_agent.ledger.reveals import Decision
from silo_agent.policy.policy import load_policy
from silo_agent.rounds.data_sets import name_for
from silo_agent.rounds.first_state import drawn_arrays
from silo_agent.settings import SiloSettings

MAY_HAVE_RUN = (Decision.APPROVED, Decision.SUSPENDED)


def recover(ledger: Ledger, settings: SiloSettings, *, ran: tuple[Path, ...], init: tuple[Path, ...]) -> None:
    """Charge every job that may have run since the snapshot its whole plan, reject it, and serve again.

    ran: files of signed jobs that the ledger does not hold as approved. init: starting weights of jobs whose
    model is not built in, found by their digest. Raises ConfigError where a plan is not known; nothing is
    charged then.
    """
    given = [read_limited(path, MAX_STATE_BYTES) for path in init]
    weights = {state_digest(data).hex(): data for data in given}
    jobs = {job.job_digest: job.spec_bytes for job in ledger.jobs() if job.decision in MAY_HAVE_RUN}
    named = [read_limited(path, MAX_BYTES) for path in ran]
    jobs |= {hashlib.sha256(spec_bytes).digest(): spec_bytes for spec_bytes in named}
    charges = [_charge(digest, text, settings, weights) for digest, text in jobs.items()]
    policies = {each.name: load_policy(settings.policy_of(each)) for each in settings.data_sets}
    ledger.recover(charges, policies=policies)
    for charge in charges:
        what = "inputs without noise" if charge.releases is None else "its whole plan"
        click.echo(f"{charge.job_digest.hex()[:12]}: {what} charged to data set {charge.data_set}; rejected")
    if not charges:
        click.echo("no job was approved here, so nothing is charged")


def _charge(
    digest: bytes, spec_bytes: bytes | None, settings: SiloSettings, weights: Mapping[str, bytes]
) -> PlanCharge:
    job_id = digest.hex()[:12]
    if spec_bytes is None:
        message = f"job {job_id}: an earlier release recorded it without its text, so its plan is not known"
        raise with_hint(ConfigError(message), "name its file: --ran FILE")
    spec = JobSpec.from_yaml(spec_bytes, source=f"job {job_id}")
    try:
        data_set = settings.data_set(name_for(spec, [each.name for each in settings.data_sets]))
        releases = None
        if spec.privacy is not None:
            state = _first_state(spec, weights)
            releases = tuple(planned_releases(spec, state).elements())
    except (ConfigError, PolicyRefusal) as error:
        raise ConfigError(f"job {job_id}: its plan is not known here: {error}") from None
    return PlanCharge(
        job_digest=digest, spec_bytes=spec_bytes, data_set=data_set.name, spec=spec, releases=releases
    )


def _first_state(spec: JobSpec, weights: Mapping[str, bytes]) -> GlobalState:
    """For its shapes alone, so weights that a built-in model was given are not needed."""
    found = weights.get(spec.initial_state or "")
    if found is not None:
        return state_from_bytes(found)
    if not spec.model.is_built_in:
        raise ConfigError(
            f"model {spec.model.name} is not built in; name its starting weights, --init FILE, of SHA-256 "
            f"{spec.initial_state}"
        )
    return dict(drawn_arrays(spec, SEED_ALONE, max_bytes=MAX_STATE_BYTES))
