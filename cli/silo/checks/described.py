"""What an analysis would find at this silo: whether its policy accepts it, and what is in which part.

A silo reads leniently for an analysis: a cell that is in none of the parts is missing, and nobody refuses. So
a file in other units or spellings is seen here, or in nobody's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from chorale.job import SignedJob
from chorale.runtime.files import read_limited
from chorale.spec.analysis_spec import AnalysisSpec, DescribedColumn
from chorale.spec.settings_file import MAX_BYTES
from chorale.spec.state import state_to_bytes
from cli.silo.checks.findings import Findings, read_ledger
from client.analysis.parts import published_parts
from client.submission import solved
from crypto.errors import ConfigError, printable
from silo_agent.account_units import account_budgets
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.privacy_policy import refusals_of
from silo_agent.rounds.data_sets import check_read
from silo_agent.settings import SiloSettings
from silo_agent.training.analysis.table import DescribedTable, load_table
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings, rows_beyond_in_words
from silo_agent.training.data.table.derived import stored_names
from silo_agent.training.data.table.units import units_in_words
from simulation.engine import unsigned_job
from strategies.analysis.method import FIRST_STATE

FOREIGN = 0.9  # of a column's cells that hold something: so many in no part are no slips, but another column
SHOWN = 20  # lines of cells that are misread


def check_analysis(
    file: Path,
    spec: AnalysisSpec,
    settings: SiloSettings,
    data_set: DataSettings,
    policy: Policy | None,
    findings: Findings,
) -> None:
    """policy: None where it cannot be read."""
    if spec.privacy is not None:
        with findings.step("privacy", slow="solving for the noise"):
            spec, promised = solved(spec, state_to_bytes(FIRST_STATE))
            for line in promised:
                click.echo(line)
    with findings.step("acceptance"):
        _check_accepted(file, spec, settings, data_set, policy, findings)
    with findings.step("data", slow=f"reading data set {data_set.name}"):
        problems = Problems()
        most = None if policy is None else policy.most_records
        table = load_table(data_set, spec, most=most, take_problems=problems.take)
        _tell_records(table, spec, data_set, policy, findings)
        for line in units_in_words(data_set.units, spec):
            click.echo(f"units: {line}")
        for place in range(len(spec.columns)):
            _check_column(place, spec, table, data_set, problems, findings)
        lines = problems.lines
        for line in lines[:SHOWN]:
            findings.fine("missing", line)
        if more := max(len(lines) - SHOWN, 0) + problems.unlisted:
            click.echo(f"missing: and {more} more")


def _check_accepted(
    file: Path,
    spec: AnalysisSpec,
    settings: SiloSettings,
    data_set: DataSettings,
    policy: Policy | None,
    findings: Findings,
) -> None:
    """Every refusal, of any operator that the policy allows."""
    if policy is None:
        raise ConfigError("the policy cannot be read, so every job is refused")
    refusals = refusals_of(check_read, spec, policy, data_set=data_set.name, format=data_set.format)
    refusals += policy.refusals(spec, operator=policy.operators[0] if policy.operators else "")
    signed = SignedJob(spec_bytes=read_limited(file, MAX_BYTES), signature=b"", operator_certificate=b"")
    with read_ledger(settings) as ledger:
        if spec.privacy is None:
            reveals = ledger.reveals(policy=policy, data_set=data_set.account)
            refusals += refusals_of(reveals.check_analysis, signed.digest)
        else:
            budgets = account_budgets(settings, data_set.account)
            budget = ledger.budget(policy=policy, data_set=data_set.account, budgets=budgets)
            refusals += refusals_of(budget.check_plan, unsigned_job(spec, FIRST_STATE), dict(FIRST_STATE))
    for refusal in refusals:
        message, field = str(refusal), "" if refusal.rule is None else refusal.rule.value
        findings.problem("acceptance", message if field in message else f"{message} ({field})")
    if not refusals:
        findings.accepted(policy)


def _tell_records(
    table: DescribedTable,
    spec: AnalysisSpec,
    data_set: DataSettings,
    policy: Policy | None,
    findings: Findings,
) -> None:
    told, tables = f"{table.records} records", spec.tables
    if tables.is_complete:
        table = table.complete(tables)
        told += f", {table.records} of them complete, which are counted"
    if table.rows_beyond:
        click.echo(rows_beyond_in_words(data_set, table.rows_beyond))
    if policy is not None and spec.privacy is None and policy.rounded(table.records) == 0:
        least = f"fewer than {policy.count_granularity} (count_granularity), so the silo takes no part"
        findings.problem("data", f"{told}: {least}")
    else:
        findings.fine("data", told)


def _check_column(
    place: int,
    spec: AnalysisSpec,
    table: DescribedTable,
    data_set: DataSettings,
    problems: Problems,
    findings: Findings,
) -> None:
    """How many records fall into each part."""
    column = spec.columns[place]
    counts = np.bincount(table.parts_NC[:, place], minlength=column.partition.size).tolist()
    is_derived = column.name in data_set.derive
    value, hint = _expected(column, is_derived=is_derived)
    # a derived column is missing where a day that it is made of is none
    misread = max(problems.misread[each] for each in stored_names([column.name], data_set.derive))
    implausible = problems.implausible[column.name]
    none_of = misread + implausible
    holding = table.records - counts[-1] + none_of
    is_foreign = none_of > 0 and none_of >= FOREIGN * holding
    reasons = [(misread, value), (implausible, "outside of the edges")]
    why = ", ".join(f"{times} {reason}" for times, reason in reasons if times)
    parts = [f"{count} in {printable(part)}" for part, count in zip(_parts(column), counts, strict=False)]
    told = f"{printable(column.name)}: {', '.join(parts)}; {counts[-1]} missing" + (
        f" ({why})" if why else ""
    )
    if is_foreign:
        if implausible > misread and not is_derived:
            unit = "another unit" if column.unit is None else f"another unit than {printable(column.unit)}"
            hint = f"has the file {unit}? (data.units)"
        findings.problem("column", f"{told}: {none_of} of {holding} values are in none of its parts; {hint}")
    elif column.name in data_set.absent:
        findings.fine("column", f"{told}, by data.absent")
    else:
        findings.fine("column", told)


def _parts(column: DescribedColumn) -> Sequence[str]:
    """Names of the declared ones."""
    alone = published_parts(column, range(column.partition.size))
    return [part.label for part in alone[:-1]]


def _expected(column: DescribedColumn, *, is_derived: bool) -> tuple[str, str]:
    """What a misread cell of it is not, and where to look."""
    if is_derived:
        return "no day", "are its days written otherwise here? (data.dialect)"
    if column.edges is None:
        return "none of the categories", "are its categories spelled otherwise here? (data.values)"
    return "no number", "are its numbers written otherwise here? (data.dialect, data.values)"
