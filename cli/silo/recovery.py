"""`chorale silo ledger --recover`: charge what a ledger that was put back from a snapshot may have lost."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click

from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Release
from chorale.runtime.audit import AuditLog
from chorale.runtime.files import read_limited
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.first_state import SEED_ALONE
from chorale.spec.kinds import AnySpec, any_spec
from chorale.spec.settings_file import MAX_BYTES
from chorale.spec.state import MAX_STATE_BYTES, GlobalState, state_digest, state_from_bytes
from client.errors import with_hint
from crypto.errors import ConfigError
from silo_agent.account_units import open_accounts
from silo_agent.disclosure.ledger.ledger import Ledger, RecoveredCharge
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.policy.policy import Policy, load_policy
from silo_agent.rounds.data_sets import name_for
from silo_agent.rounds.first_state import drawn_arrays
from silo_agent.settings import SiloSettings
from strategies.analysis.method import FIRST_STATE

MAY_HAVE_RUN = (Decision.APPROVED, Decision.SUSPENDED)


def recover(
    ledger: Ledger, settings: SiloSettings, *, restarts: int, ran: tuple[Path, ...], init: tuple[Path, ...]
) -> None:
    """Charge every job that may have run since the snapshot its whole plan, reject it, and serve again.

    restarts: of the agent between the snapshot and now; at each a job may have made the input of one phase
    again, which its plan does not count. ran: files of signed jobs that the ledger does not hold as approved.
    init: starting weights of jobs whose model is not built in, found by their digest. Before, the records are
    compared with the accounts as when the agent starts: the ledger may not know their newest names. Raises
    ConfigError where a plan is not known, or records cannot be read; nothing is charged then.
    """
    given = [read_limited(path, MAX_STATE_BYTES) for path in init]
    weights = {state_digest(data).hex(): data for data in given}
    jobs = {job.job_digest: job.spec_bytes for job in ledger.jobs() if job.decision in MAY_HAVE_RUN}
    for path in ran:
        signed = _signed(path)
        jobs[hashlib.sha256(signed).digest()] = signed
    policies = {each.name: load_policy(settings.policy_of(each)) for each in settings.data_sets}
    _compare(ledger, settings, policies)
    snapshot = ledger.last_reserved
    charges = []
    for digest, spec_bytes in jobs.items():
        spec = _spec(digest, spec_bytes)
        if snapshot is None or spec.not_after > snapshot:  # an earlier one had no session since
            data_set = spec.data or name_for(spec, tuple(policies))  # it may have had another name
            policy = policies.get(data_set) or load_policy(settings.policy)
            charges.append(
                RecoveredCharge(
                    job_digest=digest,
                    spec=spec,
                    policy=policy,
                    accounts=_accounts(ledger, settings, data_set),
                    releases=at_most_released(digest, spec, weights, restarts, policy.colluders(spec)),
                )
            )
    ledger.recover(charges)
    for charge in charges:
        what = "inputs without noise" if charge.releases is None else "its whole plan"
        to = f"account{'s' * (len(charge.accounts) > 1)} {', '.join(charge.accounts)}"
        click.echo(f"{charge.job_digest.hex()[:12]}: {what} charged to {to}; rejected")
    if not charges:
        click.echo("no job that is approved here may have run since: nothing is charged")


def _compare(ledger: Ledger, settings: SiloSettings, policies: Mapping[str, Policy]) -> None:
    """Records with accounts, as of now. Raises ConfigError where the records of a data set cannot be read."""
    with closing(AuditLog(settings.audit_path)) as audit:
        opened = open_accounts(settings, policies, ledger=ledger, audit=audit)
    for name, each in opened.items():
        if each.closed is not None:
            raise ConfigError(f"--recover: data set {name}: its records cannot be read: {each.closed}")


def _accounts(ledger: Ledger, settings: SiloSettings, data_set: str) -> tuple[str, ...]:
    """All accounts for a data set that the settings do not name: any of them may have been its own."""
    of_settings = {each.name: each.account for each in settings.data_sets}
    if data_set in of_settings:
        return (of_settings[data_set],)
    return tuple(each.id for each in ledger.accounts().all())


def _signed(path: Path) -> bytes:
    """A job's signed text. Raises ConfigError for any other file: its digest would be that of no job."""
    spec_bytes, got = read_limited(path, MAX_BYTES), "a job as it was written"
    try:
        spec = any_spec(spec_bytes, source=str(path))
        if spec.nonce is not None and spec.initial_state is not None:
            return spec_bytes
    except ConfigError as error:
        got = str(error)
    message = f"--ran {path}: expected the signed text of a job, got {got}"
    raise with_hint(ConfigError(message), "the operator saves that text by chorale job submit --save FILE")


def _spec(digest: bytes, spec_bytes: bytes | None) -> AnySpec:
    job_id = digest.hex()[:12]
    if spec_bytes is None:
        message = f"job {job_id}: a recovery recorded it without its text, so its plan is not known"
        raise with_hint(ConfigError(message), "name its file: --ran FILE")
    return any_spec(spec_bytes, source=f"job {job_id}")


def at_most_released(
    digest: bytes, spec: AnySpec, weights: Mapping[str, bytes], restarts: int, colluders: int
) -> tuple[Release, ...] | None:
    """At least what left since the snapshot; None for a job without noise."""
    if spec.privacy is None:
        return None
    try:
        state = _first_state(spec, weights)
        if spec.search is not None:  # where rounds are lost, all arms may be left to the end
            never = spec.search.model_copy(update={"rounds": spec.rounds})
            spec = spec.model_copy(update={"search": never})
        charged = JobReleases(spec, state, colluders=colluders).planned()
        one_round = spec  # its plan has every kind of phase
        if not isinstance(spec, AnalysisSpec):
            one_round = spec.model_copy(update={"rounds": 1})
        for release, count in JobReleases(one_round, state, colluders=colluders).planned().items():
            charged[release] += restarts * count
    except ConfigError as error:
        raise ConfigError(f"job {digest.hex()[:12]}: its plan is not known here: {error}") from None
    return tuple(charged.elements())


def _first_state(spec: AnySpec, weights: Mapping[str, bytes]) -> GlobalState:
    """For its shapes alone, so weights that a built-in model was given are not needed."""
    if isinstance(spec, AnalysisSpec):
        return dict(FIRST_STATE)
    found = weights.get(spec.initial_state or "")
    if found is not None:
        return state_from_bytes(found)
    if not spec.model.is_built_in:
        raise ConfigError(
            f"model {spec.model.name} is not built in; name its starting weights, --init FILE, of SHA-256 "
            f"{spec.initial_state}"
        )
    return dict(drawn_arrays(spec, SEED_ALONE, max_bytes=MAX_STATE_BYTES))
