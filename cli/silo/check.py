"""`chorale silo check`: what an agent would find wrong, found before it starts and before a job is sent.

Nothing is dialed, sent or spent, and nothing that is written stays: the ledger is opened to read. What is
printed is for the institution's own eyes, in private jobs too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chorale.credentials import CredentialFiles
from chorale.job import SignedJob
from chorale.privacy.job_releases import JobReleases
from chorale.runtime.files import check_folder, read_limited
from chorale.runtime.software import check_own_digest, own_software
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.first_state import SEED_ALONE
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.settings_file import MAX_BYTES
from chorale.spec.state import GlobalState, state_digest, state_from_bytes
from chorale.spec.training.class_rows import rows_in_words
from cli.errors import CommandFailed
from cli.output.facts import print_json
from cli.silo.checks.described import check_analysis
from cli.silo.checks.findings import Findings, read_ledger
from client.analysis.submission import read_job
from client.errors import require_extra, with_hint
from client.submission import initial_bytes, solved, start_notes, with_code
from crypto.errors import ConfigError
from crypto.identity.certificates import Role, fingerprint
from silo_agent.account_units import account_budgets
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.in_force import Held, HeldPolicy, not_in_force
from silo_agent.objective import load_objective
from silo_agent.rounds.data_sets import check_read, name_for
from silo_agent.rounds.first_state import NOT_THAT_OF_THE_JOB
from silo_agent.settings import SiloSettings, load_silo_settings
from silo_agent.training.data.formats.memory import check_records, check_room
from silo_agent.training.data.formats.proposals import proposed_dialect
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import TABLE_FORMATS, DataSettings, rows_beyond_in_words, unit_told
from silo_agent.training.data.table.units import units_in_words
from silo_agent.training.machine.entry_point import load_entry_point
from simulation.engine import unsigned_job
from simulation.trial import PhaseTrial, Trial
from strategies.phases.training import TRAIN

if TYPE_CHECKING:
    from silo_agent.training.data.base import SampleSet, SiloData

MEGABYTE = 1 << 20
FEW = 12  # problems of a file that may be written otherwise as a whole


def check_silo(config: Path, job_file: Path | None, init: Path | None, *, is_json: bool = False) -> None:
    """Raises ConfigError for settings that cannot be read, CommandFailed where anything is wrong."""
    findings = Findings()
    settings = load_silo_settings(config)
    # what is told beside the findings must not stand in the JSON
    with redirect_stdout(sys.stderr if is_json else sys.stdout):
        findings.fine("settings", f"{config}, silo {settings.name} of federation {settings.federation}")
        _machine(settings, findings)
        _credentials(settings, findings)
        policies = check_own_files(settings, findings)
        if job_file is not None:
            check_job(job_file, init, settings, policies, findings)
    if is_json:
        print_json({"problems": findings.problems, "findings": findings.rows})
    if findings.problems:
        what = "problem" if findings.problems == 1 else "problems"
        job = "" if job_file is None else f" --job {job_file}"
        raise with_hint(
            CommandFailed(f"{findings.problems} {what}: this silo is not ready"),
            f"chorale doctor --config {config}{job} says what repairs each",
        )
    if not is_json:
        click.echo(f"{'look at the warnings' if findings.warnings else 'all is well'}; nothing was sent")


def _machine(settings: SiloSettings, findings: Findings) -> None:
    """Its installed files, and the devices that training asks for."""
    if settings.software_digest is not None:
        with findings.step("software_digest"):
            check_own_digest(own_software(), expected=settings.software_digest)
            findings.fine("software_digest", settings.software_digest)
    if settings.objective is None and (settings.asks_gpu or settings.devices > 1):
        what = "devices" if settings.devices > 1 else "device"
        with findings.step(what, slow="loading torch"):
            require_extra("silo", "torch", what="training here")
            load_objective(settings)
            findings.fine(what, f"{settings.devices}, {settings.device}")


def _credentials(settings: SiloSettings, findings: Findings) -> None:
    with findings.step("certificate"):
        identity, authority = CredentialFiles(
            settings.identity,
            settings.authority,
            role=Role.SILO,
            federation=settings.federation,
            name=settings.name,
            clock=partial(datetime.now, UTC),
        ).read()
        until = identity.certificate.not_valid_after_utc
        findings.fine("certificate", f"{settings.identity.certificate}, valid until {until:%Y-%m-%d}")
        anchors = ", ".join(fingerprint(each).hex()[:12] for each in authority.certificates)
        findings.fine("authority", f"{settings.authority}, {anchors}")
    if settings.proxy is not None:
        with findings.step("proxy"):
            proxy = settings.route().proxy
            if proxy is None:
                detail = f"{settings.coordinator} is dialed past it (no_proxy)"
            else:
                detail = "without a login" if proxy.login is None else "with a login"
            findings.fine("proxy", f"{settings.proxy}, {detail}")


def check_own_files(settings: SiloSettings, findings: Findings) -> dict[str, Policy]:
    """Folder, and of each data set policy and path; what the settings name of this machine's own code.

    Returns the policies that can be read, by data set.
    """
    with findings.step("directory"):
        check_folder(settings.directory, field="directory")
        with read_ledger(settings):
            pass
        findings.fine("directory", str(settings.directory))
    policies: dict[str, Policy] = {}
    for data_set in settings.data_sets:
        with findings.step("policy"):
            policies[data_set.name] = _policy_of(settings, data_set)
            findings.fine("policy", f"{settings.policy_of(data_set)}, of data set {data_set.name}")
        with findings.step("data.path"):
            if data_set.path is not None and not data_set.path.exists():
                raise ConfigError(f"{data_set.path}: no such file or directory")
            findings.fine("data.path", str(data_set.path or "none is needed"))
            if proposed := proposed_dialect(data_set):  # a person decides: no job reads by it
                message = f"{data_set.path} may be written otherwise; by its first lines: {proposed}"
                findings.warn("dialect", message)
        if data_set.module is not None:
            _entry_point(data_set.module, "data.module", findings)
    if settings.objective is not None:
        _entry_point(settings.objective, "objective", findings)
    if not settings.directory.is_dir():
        return policies
    with findings.step("in force"):
        for each in not_in_force(settings):
            findings.problem("in force", each)
        running = Held.of_running(settings)
        for field in () if running is None else running.later:
            findings.problem("in force", f"{field}: the agent takes it when it starts again")
    return policies


def _policy_of(settings: SiloSettings, data_set: DataSettings) -> Policy:
    """Raises ConfigError for one that cannot be read or is of another federation."""
    return HeldPolicy.read(settings.policy_of(data_set), federation=settings.federation).policy


def _entry_point(name: str, field: str, findings: Findings) -> None:
    with findings.step(field):
        load_entry_point(name, field=field)
        findings.fine(field, name)


def check_job(
    file: Path,
    init: Path | None,
    settings: SiloSettings,
    policies: Mapping[str, Policy],
    findings: Findings,
) -> None:
    """Whether its policy accepts the job, every record against it, and one batch of each phase."""
    read: AnySpec | None = None
    data_set: DataSettings | None = None
    with findings.step("job"):
        read = read_job(file)
        if isinstance(read, AnalysisSpec) and init is not None:
            raise ConfigError("--init: not allowed with an analysis, which has no model")
        what = read.count if isinstance(read, AnalysisSpec) else f"{read.strategy.name}, {read.count}"
        if settings.name not in read.silos:
            raise ConfigError(f"{file}: silos: it does not list {settings.name}")
        if read.not_after <= datetime.now(UTC):
            raise ConfigError(f"{file}: not_after: {read.not_after.isoformat()} has passed")
        data_set = settings.data_set(name_for(read, [each.name for each in settings.data_sets]))
        findings.fine("job", f"{file}: {what}, silos {len(read.silos)}")
    if read is None or data_set is None:
        return
    policy = policies.get(data_set.name)
    if isinstance(read, AnalysisSpec):
        check_analysis(file, read, settings, data_set, policy, findings)
    else:
        _check_training(file, init, read, settings, data_set, policy, findings)


def _check_training(
    file: Path,
    init: Path | None,
    spec: JobSpec,
    settings: SiloSettings,
    data_set: DataSettings,
    policy: Policy | None,
    findings: Findings,
) -> None:
    for note in start_notes(spec, init):
        click.echo(note)
    if settings.objective is None:
        require_extra("silo", "torch", what="training here")
    if spec.distributions:
        complete: JobSpec | None = None
        with findings.step("code"):
            if policy is None:
                raise ConfigError("the policy cannot be read, so none of it is loaded")
            policy.check_distributions(spec)  # before anything of them runs
            complete = _with_code(spec, findings)
        if complete is None:  # without the code nobody knows what the job sums and trains
            return
        spec = complete
    with findings.step("acceptance"):
        _accept(spec, policy, data_set, findings)
    if policy is not None and (rows := rows_in_words(spec, own=policy.min_class_holders)):
        click.echo(f"class rows: {rows}")
    data: SiloData | None = None
    with findings.step("data", slow=f"reading data set {data_set.name}"):
        data = _data(data_set, spec, findings)
    state: GlobalState | None = None
    with findings.step("model", slow=f"making model {spec.model.name}"):
        drawn = _first_state(spec, file, init, policy)
        spec, promised = solved(spec, drawn)
        state = state_from_bytes(drawn)
        findings.fine("model", f"{spec.model.name}, {len(drawn) / MEGABYTE:.2f} MB")
        for line in promised:
            click.echo(line)
    if spec.privacy is not None and data is not None:
        click.echo(f"privacy: {unit_told(data_set, has_units=data.train.units_N is not None)}")
    if data is None or state is None or policy is None:
        return
    if spec.privacy is None:
        with findings.step("refusals"), read_ledger(settings) as ledger:
            counted = ledger.data_refusals(policy=policy, data_set=data_set.account).check()
            findings.fine(
                "refusals",
                f"{counted} inputs were refused for data set {data_set.name}; jobs without noise stop beyond "
                f"{policy.max_data_refusals} (max_data_refusals)",
            )
    else:
        with findings.step("memory"):
            check_records(data.records, policy.most_records, settings=data_set)
            check_room(spec, state, data_set, most=policy.most_records)
            findings.fine("memory", f"the job fits with {policy.most_records} records")
        with findings.step("budget"), read_ledger(settings) as ledger:
            budgets = account_budgets(settings, data_set.account)
            budget = ledger.budget(policy=policy, data_set=data_set.account, budgets=budgets)
            budget.check_plan(unsigned_job(spec, state), state)
            collude = JobReleases(spec, state, honest=1).promised_epsilon()
            policy.privacy.check_collusion(spec, collude)
            findings.fine("budget", f"data set {data_set.name} has room for the whole job")
    with findings.step("training", slow="running one batch of each phase"):
        objective = load_objective(settings)
        trial = Trial(spec, settings.name, data, state=state, policy=policy, objective=objective)
        _run(trial, spec, len(data.train), findings)


def _with_code(spec: JobSpec, findings: Findings) -> JobSpec:
    """The job with what the code of its distributions declares, tried on made-up samples.

    Raises ConfigError where this silo's copy is missing or another.
    """
    click.echo(f"loading {', '.join(spec.distributions)}", err=True)
    complete = with_code(spec)
    distributions = (f"{each.distribution}, SHA-256 {each.sha256}" for each in complete.code or ())
    findings.fine("code", "; ".join(distributions))
    return complete


def _accept(spec: JobSpec, policy: Policy | None, data_set: DataSettings, findings: Findings) -> None:
    """What the policy says of the job, of any operator that it allows. Raises PolicyRefusal."""
    if policy is None:
        raise ConfigError("the policy cannot be read, so every job is refused")
    check_read(spec, policy, data_set=data_set.name, format=data_set.format)
    policy.check_job(spec, operator=policy.operators[0] if policy.operators else "")
    findings.accepted(policy)


def _first_state(spec: JobSpec, file: Path, init: Path | None, policy: Policy | None) -> bytes:
    """What the job starts from, as its silos draw it or as it is given.

    Raises PolicyRefusal for a given one that the policy refuses, ConfigError if it is none of this job.
    """
    signed = SignedJob(spec_bytes=read_limited(file, MAX_BYTES), signature=b"", operator_certificate=b"")
    state = initial_bytes(spec, init, base=signed.base or SEED_ALONE)
    digest = state_digest(state).hex()
    if spec.initial_state not in (None, digest):
        if init is not None:
            raise ConfigError(f"--init: {init} is not the initial state of the signed job")
        if policy is not None:
            policy.check_given_state(spec, why=NOT_THAT_OF_THE_JOB)
        raise ConfigError("its starting weights are given: --init FILE names them here")
    if init is not None and policy is not None:
        policy.check_given_state(
            spec.filled(nonce=spec.nonce, initial_state=state_digest(state)), why=str(init)
        )
    return state


def _data(data_set: DataSettings, spec: JobSpec, findings: Findings) -> SiloData | None:
    """The silo's samples for the job, and a line for what does not fit: cells, files and labels."""
    problems = Problems()
    try:
        data = load_data(data_set, spec, problems=problems)
    finally:
        lines = problems.lines
        shown = lines[:FEW] if findings.warnings else lines
        for line in shown:
            findings.problem("data", line)
        if left := len(lines) - len(shown) + problems.unlisted:
            findings.problems += left
            click.echo(f"problem  data: and {left} more")
        for note in problems.notes:
            findings.fine("files", note)
    for text, times in sorted(problems.dropped.items()):
        findings.fine("drop", f"{times} records of {text!r} are left out, by data.drop")
    for what, times in problems.counted.items():
        findings.fine("counted", f"{times} {what}")
    for name, times in problems.implausible.items():
        if data.flow is not None and times > data.flow.readable / 2:
            of = f"{name}: {times} of {data.flow.readable} values are not plausible"
            findings.warn("column", f"{of}; has the file another unit? (data.units)")
    if data.rows_beyond:
        click.echo(rows_beyond_in_words(data_set, data.rows_beyond))
    for line in units_in_words(data_set.units, spec) if data_set.format in TABLE_FORMATS else ():
        click.echo(f"units: {line}")
    train, held = (_counted(each) for each in (data.train, data.holdout))
    counts = f"{train} to train on, {held} held out"
    if data.test is not None:
        counts += f" for the rounds, {_counted(data.test)} for the closing evaluation"
    if data.flow is not None:
        click.echo(f"data: {data.flow.in_words()}")
    if problems.count:
        click.echo(f"data: {counts} where a wrong cell counts as missing and a wrong record is left out")
    else:
        findings.fine("data", counts)
    return data


def _counted(samples: SampleSet) -> str:
    rows = f"{len(samples)} samples"
    return rows if samples.units_N is None else f"{rows} of {len(samples.units)} units"


def _run(trial: Trial, spec: JobSpec, samples: int, findings: Findings) -> None:
    """One batch of each phase; by it how long a round takes with all samples, and what it sends.

    What a phase costs once counts in every batch here, so a round of many small batches is faster.
    """
    rounds: list[PhaseTrial] = []
    for each in trial.run():
        sent = f"{each.upload_bytes / MEGABYTE:.3f} MB to send"
        findings.fine(f"phase {each.phase}", f"{each.seconds:.2f} s for {trial.batch} samples, {sent}")
        if each.is_round:
            rounds.append(each)
    if rounds:
        epochs = spec.training.passes_over(samples)
        passes = sum(each.seconds * (epochs if each.phase == TRAIN else 1) for each in rounds)
        seconds = passes * samples / max(trial.batch, 1)
        rate = samples * epochs / max(seconds, 1e-9)
        size = sum(each.upload_bytes for each in rounds) / MEGABYTE
        arms = f", of each of at first {len(spec.arms)} arms" if spec.arms else ""
        message = f"at most about {seconds:.1f} s, {rate:.0f} samples/s, {size:.3f} MB to send{arms}"
        findings.fine("round", message)
